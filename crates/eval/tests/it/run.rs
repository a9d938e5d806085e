//! Running methods over examples, on a tiny random model: one prefill, the same answers as alone, resumed without loss.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::testing::TinyModel;
use inertiakv::{Engine, EngineOptions, Method};
use inertiakv_eval::export;
use inertiakv_eval::grid::Shard;
use inertiakv_eval::metrics::{Metric, Scoring};
use inertiakv_eval::run::{Estimate, Outcomes, Plan, Results, RunOptions, anatomies, merge, run, summarise};
use inertiakv_eval::statistics::Bootstrap;
use inertiakv_eval::{Chat, EvalError, Example, Truncation};
use serde_json::Value;

fn engine(folder: &Path) -> Engine {
    let path = folder.join("tiny.gguf");
    let model = TinyModel {
        context: 512,
        tied: false,
        ..TinyModel::default()
    };
    model.write(&path).unwrap();
    Engine::open(&path, &EngineOptions::default()).unwrap()
}

fn example(index: usize) -> Example {
    Example {
        id: format!("e{index}"),
        task: "hello".to_owned(),
        context: format!("{index} hello there in the long text of nothing ").repeat(6),
        question: "What is it? ".to_owned(),
        answer_prefix: "It is".to_owned(),
        answers: vec!["e".to_owned(), "zzzz".to_owned()],
        max_new_tokens: 8,
        scoring: Scoring::new(Metric::StringMatchAll),
        chat: Chat::AnswerPrefixApart,
        truncation: None,
        stop_at_newline: false,
        labels: BTreeMap::from([("length".to_owned(), "100".to_owned())]),
    }
}

fn methods(texts: &[&str]) -> Vec<Method> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

const METHODS: [&str; 7] = [
    "full",
    "inertia",
    "snapkv:window=8,recent=8",
    "kvzip",
    "adakv-ea:ratio=0.5+h2o",
    "tova:interval=32",
    "streaming-llm",
];

fn run_all(engine: &Engine, examples: &[Example], texts: &[&str], folder: &Path) -> Result<Vec<String>, EvalError> {
    run_with(engine, examples, texts, folder, &RunOptions::default())
}

fn run_with(
    engine: &Engine,
    examples: &[Example],
    texts: &[&str],
    folder: &Path,
    options: &RunOptions<'_>,
) -> Result<Vec<String>, EvalError> {
    let mut results = Results::open(folder)?;
    let methods = methods(texts);
    let plan = Plan::new(engine, examples, &methods, results.outcomes())?;
    run(engine, &plan, options, &mut results, &mut |_| ControlFlow::Continue(()))?;
    Ok(plan.keys().to_vec())
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("results.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn one_prefill_gives_what_each_method_gives_alone() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples = [example(0), example(1)];
    let together = folder.path().join("together");
    run_all(&engine, &examples, &METHODS, &together).unwrap();
    let together = lines(&together);
    assert_eq!(together.len(), 14);
    for text in METHODS {
        let alone = folder.path().join(text.replace([':', '=', ',', '+'], "_"));
        run_all(&engine, &examples, &[text], &alone).unwrap();
        for record in lines(&alone) {
            let same = together.iter().find(|other| other["key"] == record["key"]).unwrap();
            assert_eq!(same["error"], Value::Null);
            for field in ["prediction", "score", "tokens", "method"] {
                assert_eq!(record[field], same[field], "{text}: {field}");
            }
            assert_eq!(record["report"]["retained"], same["report"]["retained"], "{text}");
        }
    }
}

#[test]
fn a_killed_run_goes_on_without_loss_or_repetition() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples: Vec<Example> = (0..3).map(example).collect();
    let whole = folder.path().join("whole");
    run_all(&engine, &examples, &METHODS, &whole).unwrap();

    let killed = folder.path().join("killed");
    let mut results = Results::open(&killed).unwrap();
    let methods = methods(&METHODS);
    let plan = Plan::new(&engine, &examples, &methods, results.outcomes()).unwrap();
    let apart = RunOptions {
        apart: true,
        ..RunOptions::default()
    };
    let stopped = run(&engine, &plan, &apart, &mut results, &mut |now| {
        assert!((0.0..=1.0).contains(&now.share));
        if now.done < 10 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    assert!(matches!(stopped, Err(EvalError::Engine(inertiakv::Error::Cancelled))));
    drop(results);
    assert_eq!(lines(&killed).len(), 10);
    // The process died while it wrote a line.
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(killed.join("results.jsonl"))
        .unwrap();
    file.write_all(b"{\"key\":\"cut sho").unwrap();
    drop(file);
    run_all(&engine, &examples, &METHODS, &killed).unwrap();

    let content = |folder: &Path| -> BTreeMap<String, (String, String)> {
        let record = |line: Value| {
            (
                line["key"].to_string(),
                (line["prediction"].to_string(), line["score"].to_string()),
            )
        };
        lines(folder).into_iter().map(record).collect()
    };
    assert_eq!(lines(&killed).len(), 21);
    assert_eq!(content(&killed), content(&whole));
    // Nothing is left to do.
    run_all(&engine, &examples, &METHODS, &killed).unwrap();
    assert_eq!(lines(&killed).len(), 21);
}

#[test]
fn failures_are_recorded_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let too_long = Example {
        context: "hello there ".repeat(400),
        ..example(0)
    };
    let unscorable = Example {
        scoring: Scoring::new(Metric::Classification),
        ..example(1)
    };
    let results = folder.path().join("results");
    run_all(
        &engine,
        &[too_long.clone(), unscorable, example(2)],
        &["full", "inertia"],
        &results,
    )
    .unwrap();
    let records = lines(&results);
    assert_eq!(records.len(), 6);
    assert!(
        records[0]["error"].as_str().unwrap().contains("context is 512"),
        "{}",
        records[0]
    );
    assert!(
        records[2]["error"].as_str().unwrap().contains("classes"),
        "{}",
        records[2]
    );
    assert_eq!(records[4]["error"], Value::Null);
    assert_eq!(
        records[4]["report"]["prompt_tokens"],
        records[5]["report"]["prompt_tokens"]
    );
    run_all(&engine, std::slice::from_ref(&too_long), &["full"], &results).unwrap();
    assert_eq!(lines(&results).len(), 7);

    let cut = Example {
        truncation: Some(Truncation::Middle),
        ..too_long
    };
    run_all(&engine, &[cut], &["inertia"], &results).unwrap();
    let cut = lines(&results).pop().unwrap();
    assert_eq!(cut["error"], Value::Null);
    let tokens = |name: &str| cut["report"][name].as_u64().unwrap();
    assert!(tokens("prompt_tokens") > 400 && tokens("prompt_tokens") < 512, "{cut}");
}

#[test]
fn a_damaged_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("results.jsonl"), "{\"key\":1}\n").unwrap();
    let error = Results::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("results.jsonl:1"), "{error}");
}

#[test]
fn summaries_compare_with_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples: Vec<Example> = (0..4).map(example).collect();
    let path = folder.path().join("results");
    run_all(&engine, &examples, &["full", "inertia"], &path).unwrap();
    let results = Results::open(&path).unwrap();
    let methods = ["full".to_owned(), "inertia".to_owned()];
    let summaries = summarise(results.outcomes().iter(), &methods, &Bootstrap::default()).unwrap();
    assert_eq!((summaries.len(), summaries[1].examples), (2, 4));
    let difference = summaries[1].difference.as_ref().unwrap();
    let change = summaries[1].mean.unwrap() - summaries[0].mean.unwrap();
    assert!((change - difference.mean).abs() < 1e-9);
}

#[test]
fn a_method_that_cannot_run_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    let refused = run_all(&engine, &[example(0)], &["full", "learned"], &path).unwrap_err();
    assert!(refused.to_string().contains("train-scorer"), "{refused}");
    assert!(lines(&path).is_empty());
}

#[test]
fn an_interval_that_was_not_reached_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    run_all(
        &engine,
        &[example(0)],
        &["tova:at=decode,tokens=64,interval=300"],
        &path,
    )
    .unwrap();
    assert_eq!(lines(&path)[0]["error"], Value::Null);
}

#[test]
fn results_can_be_read_while_a_run_adds_to_them_but_not_run_twice() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    run_all(&engine, &[example(0)], &["full"], &path).unwrap();
    let running = Results::open(&path).unwrap();
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(path.join("results.jsonl"))
        .unwrap();
    file.write_all(b"{\"key\":\"under w").unwrap();
    assert_eq!(Outcomes::read(&path).unwrap().iter().count(), 1);
    assert!(matches!(Results::open(&path), Err(EvalError::Busy { .. })));
    drop(running);
    assert_eq!(Results::open(&path).unwrap().outcomes().iter().count(), 1);
}

#[test]
fn what_changes_an_answer_changes_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let key =
        |engine: &Engine, path: &str| run_all(engine, &[example(0)], &["full"], &folder.path().join(path)).unwrap();
    let first = engine(folder.path());
    let same = key(&first, "a");
    assert_eq!(key(&first, "b"), same);
    let open = |options: &EngineOptions| Engine::open(&folder.path().join("tiny.gguf"), options).unwrap();
    let shorter = EngineOptions {
        context: Some(400),
        ..EngineOptions::default()
    };
    assert_ne!(key(&open(&shorter), "c"), same);
    let one_thread = EngineOptions {
        threads: Some(1),
        ..EngineOptions::default()
    };
    assert_eq!(key(&open(&one_thread), "d"), same);
    let other = TinyModel {
        context: 512,
        tied: false,
        seed: 77,
        ..TinyModel::default()
    };
    other.write(folder.path().join("tiny.gguf")).unwrap();
    assert_ne!(key(&open(&EngineOptions::default()), "e"), same);
}

/// What must not depend on how or where a unit was run.
fn answers(folder: &Path) -> BTreeMap<String, (String, String, String)> {
    let answer = |line: Value| {
        (
            line["key"].to_string(),
            (
                line["prediction"].to_string(),
                line["score"].to_string(),
                line["tokens"].to_string(),
            ),
        )
    };
    lines(folder).into_iter().map(answer).collect()
}

#[test]
fn stepping_together_changes_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let first = Example {
        stop_at_newline: true,
        max_new_tokens: 40,
        ..example(0)
    };
    // An answer that the end of the context cuts.
    let second = Example {
        max_new_tokens: 0,
        ..example(1)
    };
    let examples = [first, second];
    let [together, apart] = ["together", "apart"].map(|name| folder.path().join(name));
    run_all(&engine, &examples, &METHODS, &together).unwrap();
    let options = RunOptions {
        apart: true,
        ..RunOptions::default()
    };
    run_with(&engine, &examples, &METHODS, &apart, &options).unwrap();
    assert_eq!(answers(&together), answers(&apart));
    let shared = |folder: &Path| lines(folder)[1]["together"].as_u64();
    assert_eq!((shared(&together), shared(&apart)), (Some(7), Some(1)));
}

#[test]
fn a_panic_is_a_failure_of_its_unit() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples: Vec<Example> = (0..3).map(example).collect();
    let path = folder.path().join("results");
    let mut results = Results::open(&path).unwrap();
    let methods = methods(&["full", "inertia"]);
    let plan = Plan::new(&engine, &examples, &methods, results.outcomes()).unwrap();
    let mut calls_of_e1 = 0;
    run(&engine, &plan, &RunOptions::default(), &mut results, &mut |now| {
        calls_of_e1 += usize::from(now.example == "e1");
        // Its first call says that it begins, which is no part of it.
        assert!(now.example != "e1" || calls_of_e1 < 2, "something is wrong with e1");
        ControlFlow::Continue(())
    })
    .unwrap();
    drop(results);
    let records = lines(&path);
    assert_eq!(records.len(), 6);
    for record in &records {
        let is_failed = record["id"] == "e1";
        assert_eq!(record["error"].is_string(), is_failed, "{record}");
    }
    assert!(
        records[2]["error"]
            .as_str()
            .unwrap()
            .contains("something is wrong with e1"),
        "{}",
        records[2]
    );
    // It is tried again.
    run_all(&engine, &examples, &["full", "inertia"], &path).unwrap();
    assert!(
        Outcomes::read(&path)
            .unwrap()
            .iter()
            .all(|outcome| outcome.error.is_none())
    );
}

#[test]
fn shards_merge_into_what_one_run_gives() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples: Vec<Example> = (0..5).map(example).collect();
    let texts = ["full", "inertia"];
    let path = |name: &str| folder.path().join(name);
    run_all(&engine, &examples, &texts, &path("whole")).unwrap();
    for shard in ["1/2", "2/2"] {
        let part = shard.parse::<Shard>().unwrap().of(examples.clone());
        run_all(&engine, &part, &texts, &path(&shard.replace('/', "of"))).unwrap();
    }
    // One of them had another's example too.
    run_all(&engine, &examples[..1], &texts, &path("2of2")).unwrap();
    let merged = merge(&[path("1of2"), path("2of2")], &path("merged")).unwrap();
    assert_eq!((merged.added, merged.repeated), (10, 2));
    assert_eq!(answers(&path("merged")), answers(&path("whole")));
    let again = merge(&[path("1of2")], &path("merged")).unwrap();
    assert_eq!((again.added, again.repeated), (0, 6));
    assert_eq!(lines(&path("merged")).len(), 10);

    // A failure gives way to an answer, and answers that differ are refused before anything is written.
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut records = lines(&path("1of2"));
        change(&mut records[0]);
        let text: Vec<String> = records.iter().map(Value::to_string).collect();
        fs::create_dir_all(path(name)).unwrap();
        fs::write(path(name).join("results.jsonl"), text.join("\n") + "\n").unwrap();
    };
    edit("failed", &|record| {
        record["score"] = Value::Null;
        record["error"] = "it broke".into();
    });
    merge(&[path("failed"), path("1of2")], &path("healed")).unwrap();
    assert_eq!(answers(&path("healed")), answers(&path("1of2")));
    edit("other", &|record| record["prediction"] = "something else".into());
    let refused = merge(&[path("1of2"), path("other")], &path("refused")).unwrap_err();
    assert!(matches!(refused, EvalError::Conflict { .. }), "{refused}");
    assert!(refused.to_string().contains("1of2"), "{refused}");
    assert!(lines(&path("refused")).is_empty());
}

#[test]
fn an_estimate_counts_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples: Vec<Example> = (0..3).map(example).collect();
    let path = folder.path().join("results");
    run_all(&engine, &examples[..1], &["full"], &path).unwrap();
    let methods = methods(&["full", "inertia"]);
    let there = Outcomes::read(&path).unwrap();
    let plan = Plan::new(&engine, &examples, &methods, &there).unwrap();
    let estimate = Estimate::of(&engine, &plan, false).unwrap().unwrap();
    assert_eq!((estimate.examples, estimate.units, plan.done()), (3, 5, 1));
    assert_eq!(estimate.probe.together, 2);
    let tokens: usize = examples
        .iter()
        .map(|e| engine.tokenizer().encode(&e.context, false).len())
        .sum();
    assert!(estimate.prompt_tokens.abs_diff(tokens) <= 3, "{estimate:?}, {tokens}");
    assert!(estimate.seconds() > 0.0 && estimate.kv_bytes > 0);
    // What cannot run costs nothing.
    let mut with_endless = examples.clone();
    with_endless[1].max_new_tokens = usize::MAX;
    let plan = Plan::new(&engine, &with_endless, &methods, &there).unwrap();
    let fewer = Estimate::of(&engine, &plan, false).unwrap().unwrap();
    assert_eq!((estimate.too_long, fewer.too_long, fewer.examples), (0, 1, 3));
    assert!(fewer.prompt_tokens < estimate.prompt_tokens && fewer.longest == estimate.longest);
    run_all(&engine, &examples, &["full", "inertia"], &path).unwrap();
    let there = Outcomes::read(&path).unwrap();
    let plan = Plan::new(&engine, &examples, &methods, &there).unwrap();
    assert!(Estimate::of(&engine, &plan, false).unwrap().is_none());
}

#[test]
fn records_of_earlier_versions_are_still_read() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    run_all(&engine, &[example(0)], &["full", "inertia"], &path).unwrap();
    let older = |mut record: Value| {
        for field in ["together", "question", "answer_prefix", "max_new_tokens"] {
            record.as_object_mut().unwrap().remove(field).unwrap();
        }
        format!("{record}\n")
    };
    let text: String = lines(&path).into_iter().map(older).collect();
    fs::write(path.join("results.jsonl"), &text).unwrap();
    run_all(&engine, &[example(0)], &["full", "inertia"], &path).unwrap();
    assert_eq!(
        fs::read_to_string(path.join("results.jsonl")).unwrap(),
        text,
        "nothing ran again"
    );
    assert_eq!(export::parquet(&path, &folder.path().join("x.parquet")).unwrap(), 2);
    assert_eq!(export::kvpress(&path, &folder.path().join("kvpress")).unwrap().1, 2);
}

#[test]
fn kvpress_finds_its_layout() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    let of_task = |task: &str, labels: &[(&str, &str)], index| Example {
        task: task.to_owned(),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        ..example(index)
    };
    let examples = [
        of_task("vt", &[("length", "4096")], 0),
        of_task("vt", &[("length", "4096")], 1),
        of_task("qasper", &[("words", "100")], 2),
        of_task("qasper_e", &[("words", "100"), ("bin", "0-4k")], 3),
        of_task("longbench-v2", &[("length", "short"), ("difficulty", "hard")], 4),
        of_task("niah", &[("length", "1000"), ("depth", "50")], 5),
        of_task("own", &[], 6),
    ];
    run_all(&engine, &examples, &["full", "inertia:ratio=0.75"], &path).unwrap();
    let out = folder.path().join("out");
    let (made, left_out) = export::kvpress(&path, &out).unwrap();
    assert_eq!((made.len(), left_out), (10, 2));
    let read = |name: &str, file: &str| fs::read_to_string(out.join(name).join(file)).unwrap();
    let metrics = |name: &str| -> Value { serde_json::from_str(&read(name, "metrics.json")).unwrap() };
    let vt = "ruler__4096__tiny__inertia__0.75";
    assert!(metrics(vt)["vt"]["string_match"].is_number());
    let rows = read(vt, "predictions.csv");
    assert!(
        rows.starts_with("question,answer_prefix,answer,task,max_new_tokens,predicted_answer,compression_ratio,_id\n"),
        "{rows}"
    );
    assert!(
        rows.contains("What is it? ,It is,\"[\"\"e\"\",\"\"zzzz\"\"]\",vt,8,"),
        "{rows}"
    );
    assert!(read(vt, "config.yaml").contains("press_init_command: \"inertia:ratio=0.75\"\n"));
    assert!(metrics("longbench__qasper__tiny__no_press__0.00").is_number());
    let bins = metrics("longbench-e__qasper_e__tiny__no_press__0.00");
    assert!(bins["0-4k"].is_number() && bins["8k+"].is_null(), "{bins}");
    assert!(metrics("longbench-v2__0shot__tiny__no_press__0.00")["hard"].is_number());
    let needle = metrics("needle_in_haystack__tiny__no_press__0.00__max_context1000__needle_depth50");
    assert!(needle.is_array(), "{needle}");
    // What is there stays.
    assert!(
        export::kvpress(&path, &out)
            .unwrap()
            .0
            .iter()
            .all(|folder| folder.ends_with("1"))
    );
}

#[test]
fn rules_are_compared_by_task_and_over_all() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    let examples: Vec<Example> = (0..3).map(example).collect();
    let rules = ["inertia:alpha=0", "inertia"].map(str::to_owned);
    run_all(&engine, &examples, &["inertia:alpha=0", "inertia"], &path).unwrap();
    let outcomes = Outcomes::read(&path).unwrap();
    let found = anatomies(outcomes.iter(), &rules).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["all", "hello 100"]);
    assert_eq!((found["all"], found["all"].examples), (found["hello 100"], 3));
}
