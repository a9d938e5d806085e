//! `eval` on a tiny random model: every benchmark from its files, grids, shards, a run that was killed, exports.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{World, json, stderr, success};

const ROWS: &str = r#"{"context": "hello there in the ring of hello. hello there in the ring of hello.", "question": " Who? ", "answers": ["hello"]}
{"context": "the other one in the ring of the other. the other one in the ring.", "question": " What? ", "answers": ["ring"]}
"#;

#[test]
fn a_file_of_questions_is_run_once_and_shown_again() {
    let world = World::new();
    let model = world.tiny_model();
    let rows = world.file("rows.jsonl", ROWS);
    let folder = world.path().join("results");
    let arguments = [
        "eval",
        "file",
        rows.to_str().unwrap(),
        "-m",
        model.to_str().unwrap(),
        "--methods",
        "inertia;snapkv:window=4,recent=4",
        "--budget",
        "50%",
        "-o",
        folder.to_str().unwrap(),
        "--json",
    ];
    let first = json(&world.run(&arguments));
    let methods = first[0]["methods"].as_array().unwrap();
    assert_eq!(methods.len(), 3);
    assert_eq!(methods[0]["method"], "full");
    assert_eq!(methods[0]["examples"], 2);
    assert_eq!(methods[1]["failed"], 0);
    let lines = std::fs::read_to_string(folder.join("results.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 6);

    assert_eq!(json(&world.run(&arguments)), first);
    let again = std::fs::read_to_string(folder.join("results.jsonl")).unwrap();
    assert_eq!(again, lines, "nothing was run again");
    let table = success(&world.run(&["eval", "show", folder.to_str().unwrap()]));
    assert!(
        table.contains("inertia:ratio=0.5") && table.contains("win/tie/loss"),
        "{table}"
    );
}

#[test]
fn averages_over_lengths_and_categories_are_shown() {
    let world = World::new();
    world.tiny_model();
    world.file("rows.jsonl", ROWS);
    success(&world.eval(&["file", "rows.jsonl", "--methods", "full"], "results"));
    let path = world.path().join("results/results.jsonl");
    let answers = fs::read_to_string(&path).unwrap();
    let labelled = answers.lines().zip(["512", "1024"]).map(|(line, length)| {
        let mut answer: Value = serde_json::from_str(line).unwrap();
        answer["labels"] = serde_json::json!({"length": length, "category": "code"});
        answer["score"] = 0.9.into();
        answer.to_string() + "\n"
    });
    let labelled: String = labelled.collect();
    fs::write(&path, labelled).unwrap();
    let table = success(&world.run(&["eval", "show", "results"]));
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(
        words.contains(&vec!["full", "90.0", "90.0", "90.0", "90.0", "90.0", "1,024"]),
        "{table}"
    );
    assert!(
        table.contains("effective length") && table.contains("mean of categories"),
        "{table}"
    );
    assert!(words.contains(&vec!["full", "90.0", "90.0"]), "{table}");
}

#[test]
fn a_task_is_generated_for_the_model() {
    let world = World::new();
    let model = world.tiny_model();
    let folder = world.path().join("results");
    let output = world.run(&[
        "eval",
        "ruler",
        "-m",
        model.to_str().unwrap(),
        "--lengths",
        "1500",
        "--tasks",
        "niah_single_1",
        "--samples",
        "1",
        "--methods",
        "inertia",
        "-o",
        folder.to_str().unwrap(),
        "--json",
    ]);
    let summary = json(&output);
    assert_eq!(summary[0]["methods"][1]["failed"], 0, "{summary}");
    assert!(
        summary[0]["methods"][1]["tasks"]["niah_single_1 1500"].is_number(),
        "{summary}"
    );
}

#[test]
fn what_is_wrong_is_named() {
    let world = World::new();
    let model = world.tiny_model();
    let model = model.to_str().unwrap();
    world.refuses(&["eval", "ruler", "-m", model, "--tasks", "niah"], 2, "niah_single_1");
    world.refuses(&["eval", "ruler", "-m", model, "--profile", "x"], 2, "ruler-2026");
    world.refuses(&["eval", "ruler", "-m", model, "--lengths", "999999"], 2, "context");
    world.refuses(&["eval", "file", "nowhere.jsonl", "-m", model], 1, "nowhere.jsonl");
    world.refuses(&["eval", "ruler", "-m", model, "--tasks", "qa_1"], 2, "facts_1");
    world.refuses(
        &[
            "eval",
            "ruler",
            "-m",
            model,
            "--lengths",
            "1500",
            "--tasks",
            "niah_single_1",
            "--methods",
            "learned",
        ],
        2,
        "train-scorer",
    );
    world.refuses(
        &["eval", "show", "nowhere"],
        1,
        "nowhere/results.jsonl cannot be read; give a folder of results",
    );
    let rows = world.file("rows.jsonl", ROWS);
    world.refuses(
        &["eval", "file", rows.to_str().unwrap(), "-m", model, "-o", "rows.jsonl"],
        1,
        "results cannot be written to rows.jsonl; give a folder",
    );
    fs::create_dir(world.path().join("new")).unwrap();
    fs::write(world.path().join("new/results.jsonl"), "").unwrap();
    world.refuses(&["eval", "show", "new"], 2, "new has no results yet");
}

#[test]
fn examples_that_some_methods_lack_are_told() {
    let world = World::new();
    world.tiny_model();
    world.file("rows.jsonl", ROWS);
    let run = |methods: &str, limit: &str| {
        let output = world.eval(
            &["file", "rows.jsonl", "--methods", methods, "--limit", limit],
            "results",
        );
        success(&output);
        assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
    };
    run("inertia", "2");
    let show = |flags: &[&str]| world.run(&[&["eval", "show", "results"], flags].concat());
    assert!(!stderr(&show(&[])).contains("warning"), "{}", stderr(&show(&[])));
    run("random", "1");
    for flags in [&[][..], &["--json"]] {
        let output = show(flags);
        success(&output);
        let words = "figures are over the 1 example that all methods have run; there are 2 of `full`, 2 of `inertia`, 1 of \
                     `random`";
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    let summary = json(&show(&["--json"]));
    assert_eq!(
        (&summary[0]["methods"][1]["examples"], &summary[0]["methods"][1]["ran"]),
        (&1.into(), &2.into())
    );

    // Another context is another run.
    success(&world.eval(
        &["file", "rows.jsonl", "--methods", "full", "--context", "1000"],
        "results",
    ));
    assert!(
        stderr(&show(&[])).contains("tiny: 2 results of the same example and method as a later one"),
        "{}",
        stderr(&show(&[]))
    );

    // Without a line of `random` that others share.
    let path = world.path().join("results/results.jsonl");
    let lines = fs::read_to_string(&path).unwrap();
    let is_apart = |line: &&str| line.contains("\"method\":\"random\"") || line.contains("\"id\":\"2\"");
    let apart: Vec<&str> = lines.lines().filter(is_apart).collect();
    fs::write(&path, apart.join("\n") + "\n").unwrap();
    let output = show(&[]);
    success(&output);
    assert!(
        stderr(&output).contains("the methods have no example in common"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_run_of_failures_only_has_failed() {
    let world = World::new();
    world.tiny_model();
    let endless = ROWS.replace("\"answers\"", "\"max_new_tokens\": 99999999, \"answers\"");
    world.file("endless.jsonl", &endless);
    let file = ["file", "endless.jsonl", "--methods", "inertia"];
    let dry = world.eval(&[&file[..], &["--dry-run"]].concat(), "results");
    success(&dry);
    assert!(stderr(&dry).contains("will fail: 2 of 2"), "{}", stderr(&dry));
    for _ in 0..2 {
        let output = world.eval(&file, "results");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let words = "error: all 4 units of this run failed";
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    // One line of the two can run.
    let half = [ROWS.lines().next().unwrap(), endless.lines().nth(1).unwrap()].join("\n");
    world.file("endless.jsonl", half);
    let output = world.eval(&file, "results");
    success(&output);
    assert!(
        stderr(&output).contains("2 of 4 units of this run failed"),
        "{}",
        stderr(&output)
    );
}

impl World {
    /// `eval` with these arguments on the tiny model, results in `folder`.
    fn eval(&self, arguments: &[&str], folder: &str) -> std::process::Output {
        let mut all = vec!["eval"];
        all.extend(arguments);
        all.extend(["-m", "tiny.gguf", "-o", folder]);
        self.run(&all)
    }

    /// What `eval` with one method says in JSON.
    fn summary(&self, arguments: &[&str], folder: &str) -> Value {
        let arguments = [arguments, &["--methods", "inertia", "--json"]].concat();
        json(&self.eval(&arguments, folder))
    }

    /// What is in a folder, by key: prediction and score.
    fn answers(&self, folder: &str) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.path().join(folder).join("results.jsonl")).unwrap();
        let answer = |line: &str| {
            let record: Value = serde_json::from_str(line).unwrap();
            (
                record["key"].to_string(),
                format!("{} {}", record["prediction"], record["score"]),
            )
        };
        let answers: Vec<_> = text.lines().map(answer).collect();
        let count = answers.len();
        let answers: BTreeMap<_, _> = answers.into_iter().collect();
        assert_eq!(answers.len(), count, "a unit is there twice");
        answers
    }

    fn folder(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

fn examples_of(summary: &Value) -> u64 {
    assert_eq!(summary[0]["methods"][0]["failed"], 0, "{summary}");
    summary[0]["methods"][0]["examples"].as_u64().unwrap()
}

const QASPER: &str = r#"{"input": "Who?", "context": "hello there in the ring", "answers": ["hello"], "length": 5, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "1"}
{"input": "What?", "context": "the other one in the ring", "answers": ["ring"], "length": 6, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "2"}
"#;

#[test]
fn longbench_runs_from_its_files() {
    let world = World::new();
    world.tiny_model();
    let run = |arguments: &[&str], folder: &str| world.summary(arguments, folder);
    let bench = world.folder("LongBench");
    fs::write(bench.join("qasper.jsonl"), QASPER).unwrap();
    fs::write(bench.join("hotpotqa_e.jsonl"), QASPER).unwrap();
    let config = world.folder("config");
    let prompts =
        r#"{"qasper": "Read.\n{context}\nQuestion: {input}\nAnswer:", "hotpotqa": "{context}\n{input}\nAnswer:"}"#;
    fs::write(config.join("dataset2prompt.json"), prompts).unwrap();
    fs::write(config.join("dataset2maxlen.json"), r#"{"qasper": 6, "hotpotqa": 6}"#).unwrap();
    let both = run(&["longbench", "LongBench", "--config", "config"], "a");
    assert_eq!(examples_of(&both), 4);
    let tasks = &both[0]["methods"][0]["tasks"];
    assert!(
        tasks["qasper"].is_number() && tasks["hotpotqa_e 0-4k"].is_number(),
        "{tasks}"
    );
    let one = run(
        &[
            "longbench",
            "LongBench",
            "--config",
            "config",
            "--tasks",
            "qasper",
            "--samples",
            "1",
        ],
        "a",
    );
    assert_eq!(examples_of(&one), 1);
    let one = run(
        &[
            "longbench",
            "LongBench/qasper.jsonl",
            "--config",
            "config",
            "--limit",
            "1",
        ],
        "a",
    );
    assert_eq!(examples_of(&one), 1);

    world.file(
        "data.json",
        r#"[{"_id": "5", "domain": "D", "sub_domain": "S", "difficulty": "easy", "length": "short", "question": "Why?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "C", "context": "hello there in the ring"}]"#,
    );
    assert_eq!(examples_of(&run(&["longbench-v2", "data.json"], "b")), 1);

    world.file("dureader.jsonl", QASPER.replace("Who?", "谁？"));
    let jieba = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eval/tests/golden/jieba");
    let chinese = run(
        &["longbench", "dureader.jsonl", "--chinese", jieba.to_str().unwrap()],
        "b",
    );
    assert_eq!(examples_of(&chinese), 2);
}

#[test]
fn the_other_benchmarks_run_from_their_files() {
    let world = World::new();
    world.tiny_model();
    let run = |arguments: &[&str], folder: &str| world.summary(arguments, folder);
    let needle = run(&["needle", "--lengths", "600,700", "--depths", "0,50,100"], "c");
    assert_eq!(examples_of(&needle), 6);
    world.file("essay.txt", "hello there in the ring of the other one. ".repeat(300));
    let essays = ["needle", "--lengths", "600", "--depths", "50", "--essays", "essay.txt"];
    assert_eq!(examples_of(&run(&essays, "c")), 1);

    world.file(
        "rows.jsonl",
        r#"{"context": "hello there. ", "question": "Who? ", "answer_prefix": "It is", "answer": ["hello"], "task": "vt", "max_new_tokens": 4}"#,
    );
    assert_eq!(examples_of(&run(&["kvpress", "rows.jsonl", "--data", "ruler"], "d")), 1);

    let prepared = world.folder("prepared/512/data/niah_single_1");
    fs::write(
        prepared.join("validation.jsonl"),
        r#"{"index": 0, "input": "hello there.\nWhat is the special magic number for a?", "outputs": ["1"], "length": 20, "answer_prefix": " The special magic number for a is"}"#,
    )
    .unwrap();
    let files = run(&["ruler", "--files", "prepared"], "e");
    assert!(
        files[0]["methods"][0]["tasks"]["niah_single_1 512"].is_number(),
        "{files}"
    );
    assert_eq!(
        examples_of(&run(&["ruler", "--files", "prepared", "--lengths", "512"], "e")),
        1
    );

    world.file(
        "squad.json",
        r#"{"data": [{"title": "T", "paragraphs": [{"context": "hello there in the ring", "qas": [{"question": "Who?", "id": "1", "answers": [{"text": "hello", "answer_start": 0}], "is_impossible": false}]}, {"context": "the other one", "qas": []}]}]}"#,
    );
    let squad = [
        "ruler",
        "--squad",
        "squad.json",
        "--tasks",
        "qa_1",
        "--lengths",
        "1500",
        "--samples",
        "1",
    ];
    assert!(run(&squad, "f")[0]["methods"][0]["tasks"]["qa_1 1500"].is_number());
    let haystack = [
        "ruler",
        "--essays",
        "essay.txt",
        "--tasks",
        "niah_single_2",
        "--lengths",
        "1500",
        "--samples",
        "1",
    ];
    assert_eq!(examples_of(&run(&haystack, "f")), 1);
}

#[test]
fn what_a_benchmark_lacks_is_said_before_it_runs() {
    let world = World::new();
    world.tiny_model();
    world.folder("empty");
    let chinese = QASPER.replace("qasper", "dureader");
    world.file("dureader.jsonl", chinese);
    world.file("grid.toml", "sample = 2\n[[examples]]\nbenchmark = \"ruler\"\n");
    let rows = "[[examples]]\nbenchmark = \"file\"\npath = \"rows.jsonl\"\n";
    world.file("twice.toml", rows.repeat(2));
    world.file("none.toml", "[[examples]]\nbenchmark = \"ruler\"\nlengths = []\n");
    world.file("essay.txt", "Some text.");
    world.file("rows.jsonl", ROWS);
    for (arguments, code, words) in [
        (&["longbench", "empty"][..], 2, "qasper.jsonl"),
        (
            &["longbench", "nowhere"],
            1,
            "nowhere cannot be read; check the path: No such file",
        ),
        (&["longbench", "rows.jsonl"], 2, "there is no task `rows`"),
        (&["longbench", "dureader.jsonl"], 2, "pip install jieba"),
        (&["ruler", "--files", "empty"], 2, "niah_single_1"),
        (
            &["ruler", "--files", "empty", "--lengths", "512"],
            2,
            "no folder named 512",
        ),
        (&["ruler", "--files", "empty", "--squad", "x"], 2, "cannot be used with"),
        (&["needle", "--lengths", "99999"], 2, "context"),
        (&["kvpress", "rows.jsonl", "--data", "x"], 2, "longbench-e"),
        (&["file", "rows.jsonl", "--tasks", "other"], 2, "known tasks: rows"),
        (&["file", "rows.jsonl", "--shard", "3/2"], 2, "2/4"),
        (&["grid", "grid.toml"], 2, "unknown field `sample`"),
        (&["grid", "twice.toml"], 2, "occurs twice"),
        (&["grid", "nowhere.toml"], 1, "nowhere.toml"),
        (&["grid", "none.toml"], 2, "none.toml: `lengths` is an empty list"),
        (
            &["file", "essay.txt"],
            1,
            "essay.txt:1: this is no JSON: expected value (column 1); give one JSON object",
        ),
        (
            &["file", "empty"],
            1,
            "empty cannot be read; check the path: Is a directory",
        ),
        (
            &["ruler", "--lengths", "300", "--tasks", "vt"],
            2,
            "ask for a length of that or a little more",
        ),
    ] {
        let output = world.eval(arguments, "results");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
    assert!(!world.path().join("results").exists(), "nothing ran");
}

#[test]
fn a_grid_runs_what_its_file_and_the_flags_say() {
    let world = World::new();
    world.tiny_model();
    world.folder("grids");
    fs::write(world.path().join("grids/rows.jsonl"), ROWS).unwrap();
    let grid = "methods = [\"inertia\", \"random\"]\nbudgets = [\"50%\", 20]\nthreads = 1\n\
                [[examples]]\nbenchmark = \"file\"\npath = \"rows.jsonl\"\n\
                [[examples]]\nbenchmark = \"ruler\"\nlengths = [1500]\ntasks = [\"niah_single_1\"]\n";
    fs::write(world.path().join("grids/grid.toml"), grid).unwrap();
    let run = |flags: &[&str]| {
        let arguments = [&["grid", "grids/grid.toml", "--samples", "1", "--json"], flags].concat();
        json(&world.eval(&arguments, "results"))
    };
    let summary = run(&[]);
    assert_eq!(summary[0]["methods"].as_array().unwrap().len(), 5);
    assert_eq!(examples_of(&summary), 2);
    let before = world.answers("results").len();
    let fewer = run(&["--methods", "random", "--budgets", "20", "--limit", "1"]);
    assert_eq!(fewer[0]["methods"][1]["method"], "random:tokens=20");
    assert_eq!(world.answers("results").len(), before, "all of it was there");

    let dry = run(&["--dry-run"]);
    assert_eq!((&dry[0]["units"], &dry[0]["done"]), (&10.into(), &10.into()));
    assert_eq!(dry[0]["estimate"], Value::Null);
    let fresh = world.eval(&["grid", "grids/grid.toml", "--dry-run"], "fresh");
    assert!(success(&fresh).contains("KV cache"));
    assert!(stderr(&fresh).contains("from a probe of"), "{}", stderr(&fresh));
    assert!(!world.path().join("fresh").exists());
}

#[test]
fn shards_merge_and_leave_the_folder_in_other_formats() {
    let world = World::new();
    world.tiny_model();
    world.file("rows.jsonl", ROWS);
    let file = ["file", "rows.jsonl", "--methods", "inertia:alpha=0;inertia"];
    success(&world.eval(&file, "whole"));
    for (shard, folder) in [("1/2", "one"), ("2/2", "two")] {
        success(&world.eval(&[&file[..], &["--shard", shard, "--apart"]].concat(), folder));
    }
    let merged = success(&world.run(&["eval", "merge", "one", "two", "-o", "merged"]));
    assert!(merged.contains("6 units added"), "{merged}");
    assert_eq!(world.answers("merged"), world.answers("whole"));

    let show = [
        "eval",
        "show",
        "merged",
        "--rules",
        "inertia:alpha=0;inertia",
        "--against",
        "inertia",
    ];
    let table = success(&world.run(&[&show[..], &["--tasks"]].concat()));
    assert!(
        table.contains("of 2 examples are invariant across the 2 rules"),
        "{table}"
    );
    let shown = json(&world.run(&[&show[..], &["--json"]].concat()));
    assert_eq!(shown[0]["rules"]["all"]["examples"], 2);
    assert_eq!(shown[0]["methods"][0]["method"], "inertia");
    assert!(shown[0]["methods"][1]["t_test"]["p"].is_number(), "{shown}");
    assert!(
        shown[0]["methods"][1]["task_differences"]["rows"].is_object(),
        "{shown}"
    );
    let unknown = world.run(&["eval", "show", "merged", "--against", "snapkv"]);
    assert_eq!(unknown.status.code(), Some(2));

    let export = [
        "eval",
        "export",
        "merged",
        "--parquet",
        "results.parquet",
        "--kvpress",
        "kvpress",
    ];
    let output = world.run(&export);
    assert!(success(&output).contains("results.parquet: 6 rows"));
    assert!(stderr(&output).contains("6 units left out"), "{}", stderr(&output));
    let parquet = fs::read(world.path().join("results.parquet")).unwrap();
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    assert_eq!(world.run(&["eval", "export", "merged"]).status.code(), Some(2));
}

#[cfg(unix)]
#[test]
fn a_run_that_was_killed_goes_on_without_loss_or_repetition() {
    let world = World::new();
    world.tiny_model();
    let row = |index: usize| {
        let context = "hello there in the ring of hello. ".repeat(10);
        format!("{{\"context\": \"{index} {context}\", \"question\": \" Who? \", \"answers\": [\"hello\"]}}\n")
    };
    let rows: String = (0..40).map(row).collect();
    world.file("rows.jsonl", rows);
    let file = ["file", "rows.jsonl", "--methods", "inertia;snapkv:window=4,recent=4"];
    success(&world.eval(&file, "whole"));
    let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    let path = world.path().join("killed/results.jsonl");
    let mut kills = 0;
    for _ in 0..2 {
        let before = lines(&path);
        let mut command = world.command();
        command
            .args(["eval"])
            .args(file)
            .args(["-m", "tiny.gguf", "-o", "killed"]);
        command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        while lines(&path) < before + 5 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        // SIGKILL: nothing can be tidied up.
        kills += usize::from(child.kill().is_ok() && child.wait().unwrap().code().is_none());
    }
    assert!(kills > 0, "it was done before it could be killed");
    success(&world.eval(&file, "killed"));
    assert_eq!(world.answers("killed"), world.answers("whole"));
    assert_eq!(lines(&path), 120);
}
