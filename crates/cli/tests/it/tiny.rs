//! Every command on a tiny random model: what is printed where, and the keys of the JSON.

use inertiakv::testing::TinyModel;
use serde_json::{Value, json};

use crate::support::{World, json, json_of, stderr, stdout, success};

const REPORT_KEYS: &[&str] = &[
    "model",
    "method",
    "prompt_tokens",
    "compression_ratio",
    "budget",
    "refresh",
    "steps",
    "evictions",
    "retained",
    "peak_entries",
    "kv_bytes",
    "kv_bytes_peak",
    "kv_bytes_prefill",
    "prefill_seconds",
    "decode_seconds",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "scoring_share",
    "text",
    "tokens",
    "finish_reason",
];

fn has_report_keys(run: &Value) {
    for key in REPORT_KEYS {
        assert!(run.get(key).is_some(), "`{key}` is missing: {run}");
    }
}

fn document() -> String {
    "The hare ran over the hill and the fox ran after the hare. ".repeat(12)
}

#[test]
fn run_prints_text_on_stdout_and_a_summary_on_stderr() {
    let world = World::new();
    world.tiny_model();
    world.file("document.txt", document());
    let arguments = [
        "run",
        "-m",
        "tiny.gguf",
        "--raw",
        "-f",
        "document.txt",
        "--question",
        "Who ran?",
        "-n",
        "8",
    ];
    let output = world.run(&arguments);
    let text = success(&output);
    let summary = stderr(&output);
    assert!(summary.contains("kept") && summary.contains("KV"), "{summary}");
    assert!(
        !text.contains('\x1b') && !summary.contains('\x1b'),
        "piped output has no escape codes"
    );

    let report = json(&world.run(&[arguments.as_slice(), &["--json"]].concat()));
    has_report_keys(&report);
    assert_eq!(report["text"].as_str().map(str::trim), Some(text.trim()));
    assert_eq!(report["retained"], report["budget"]);
    assert_eq!(report["compression_ratio"], 0.9);
    assert_eq!((&report["model"], &report["refresh"]), (&json!("tiny"), &json!("1")));
    assert!(report["evictions"].as_u64() > Some(100));
}

#[test]
fn run_reads_standard_input_and_repeats_itself() {
    let world = World::new();
    world.tiny_model();
    let run = |extra: &[&str]| {
        let arguments = [&["run", "-m", "tiny.gguf", "--raw", "-n", "12"], extra].concat();
        success(&world.run_with_input(&arguments, &document()))
    };
    assert_eq!(run(&[]), run(&["--threads", "1"]));
    let hot = ["--temperature", "1.5", "--seed"];
    assert_eq!(run(&[&hot[..], &["3"]].concat()), run(&[&hot[..], &["3"]].concat()));
    assert_ne!(run(&[&hot[..], &["3"]].concat()), run(&[&hot[..], &["4"]].concat()));
}

#[test]
fn a_small_budget_is_warned_about_by_size() {
    let world = World::new();
    world.tiny_model();
    let output = world.run(&[
        "run",
        "-m",
        "tiny.gguf",
        "--raw",
        "-p",
        &document(),
        "--budget",
        "5",
        "-n",
        "4",
    ]);
    success(&output);
    assert!(stderr(&output).contains("is 5 of"), "{}", stderr(&output));

    // In a conversation too, but not where a short prompt loses nothing.
    let chat = ["chat", "-m", "tiny.gguf", "-n", "4", "--budget", "5"];
    let said = stderr(&world.run_with_input(&chat, "tell me about the hare\nand the fox\n"));
    assert_eq!(said.matches("is 5 of").count(), 1, "{said}");
    let said = stderr(&world.run(&["run", "-m", "tiny.gguf", "-p", "hi", "--budget", "100%", "-n", "4"]));
    assert!(!said.contains("suffer"), "{said}");
}

#[test]
fn why_nothing_was_evicted_is_true() {
    let world = World::new();
    world.tiny_model();
    let run = |more: &[&str]| {
        let arguments = [
            "run",
            "-m",
            "tiny.gguf",
            "--raw",
            "--ignore-end",
            "-p",
            "a short prompt",
        ];
        let output = world.run(&[&arguments[..], more].concat());
        success(&output);
        stderr(&output)
    };
    // The first token comes of the prefill: there was no step to evict after.
    assert!(run(&["-n", "1"]).contains("before the first decode step"));
    assert!(run(&["-n", "4", "--budget", "100"]).contains("never exceeded the budget of 100"));
    assert!(!run(&["-n", "4"]).contains("evicted nothing"));
}

#[test]
fn compare_measures_every_method_against_full() {
    let world = World::new();
    world.tiny_model();
    let arguments = [
        "compare",
        "-m",
        "tiny.gguf",
        "--raw",
        "-p",
        &document(),
        "--methods",
        "inertia;random:seed=2",
        "-n",
        "6",
    ];
    let table = success(&world.run(&arguments));
    for name in ["full", "inertia", "random:seed=2"] {
        assert!(table.contains(name), "{table}");
    }
    let output = json(&world.run(&[arguments.as_slice(), &["--json"]].concat()));
    let runs = output["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3);
    runs.iter().for_each(has_report_keys);
    assert_eq!((&runs[0]["method"], &runs[0]["evictions"]), (&json!("full"), &json!(0)));
    // The full cache never computes scores.
    assert_eq!((&runs[0]["refresh"], &runs[1]["refresh"]), (&Value::Null, &json!("1")));
    assert!(runs.iter().all(|run| run["model"] == output["model"]));
    assert_eq!(output["model"], "tiny");
}

#[test]
fn chat_stays_bounded_over_many_turns() {
    let world = World::new();
    world.tiny_model();
    let turns = "tell me about the hare and the fox\n".repeat(9);
    let input = format!("{turns}/stats\n/nonsense\n/reset\nhello\n/quit\n");
    let output = world.run_with_input(
        &["chat", "-m", "tiny.gguf", "--method", "inertia:tokens=64", "-n", "12"],
        &input,
    );
    success(&output);
    let said = stdout(&output) + &stderr(&output);
    assert!(said.contains("64 entries"), "the statistics name what is kept: {said}");
    assert!(said.contains("/nonsense") && said.contains("anew"), "{said}");
}

#[test]
fn a_message_that_does_not_fit_is_refused_in_json_too() {
    let world = World::new();
    world.tiny_model();
    let long = "word ".repeat(2000);
    let input = format!("{long}\nhello\n{long}\n/reset\nhello\n");
    let arguments = ["chat", "-m", "tiny.gguf", "-n", "4"];
    let output = world.run_with_input(&[&arguments[..], &["--json"]].concat(), &input);
    let turns: Vec<Value> = success(&output).lines().map(json_of).collect();
    let numbers: Vec<u64> = turns.iter().filter_map(|turn| turn["turn"].as_u64()).collect();
    assert_eq!(numbers, [1, 1, 2, 1]);
    for (turn, advice) in [(0, "shorten it"), (2, "/reset")] {
        let error = turns[turn]["error"].as_str().expect("a refusal");
        assert!(error.contains("2,048") && error.contains(advice), "{error}");
    }
    for turn in [1, 3] {
        has_report_keys(&turns[turn]);
        assert_eq!(turns[turn]["model"], "tiny");
    }
    let output = world.run_with_input(&arguments, &input);
    success(&output);
    assert!(stderr(&output).contains("/reset starts a new conversation"));
    let output = world.run_with_input(&arguments, &long);
    assert_eq!(output.status.code(), Some(1), "nothing was answered");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_prompt() {
    let world = World::new();
    world.tiny_model();
    let run = |text: &str| {
        let arguments = ["run", "-m", "tiny.gguf", "--raw", "-n", "4", "--json"];
        json(&world.run_with_input(&arguments, text))
    };
    let (plain, marked) = (run(&document()), run(&format!("\u{feff}{}", document())));
    assert_eq!(plain["prompt_tokens"], marked["prompt_tokens"]);
    assert_eq!(plain["tokens"], marked["tokens"]);
}

#[test]
fn warnings_of_the_engine_look_like_those_of_the_command() {
    let world = World::new();
    let mut model = TinyModel::default().writer();
    world.file("bare.gguf", model.remove("tokenizer.chat_template").to_bytes());
    let arguments = ["run", "-m", "bare.gguf", "-p", "hello", "-n", "2"];
    let output = world.run(&arguments);
    success(&output);
    let said = stderr(&output);
    assert!(
        said.lines()
            .any(|line| line.starts_with("warning: the file has no chat template")),
        "{said}"
    );
    assert!(!said.contains("WARN"), "{said}");
    // Whoever asks for the log gets all of it.
    let said = stderr(&world.run(&[&arguments[..], &["-v"]].concat()));
    assert!(said.contains("WARN inertiakv::chat_template"), "{said}");
}

#[test]
fn perplexity_of_a_random_model_is_near_its_vocabulary() {
    let world = World::new();
    world.tiny_model();
    world.file("text.txt", document());
    let arguments = [
        "perplexity",
        "-m",
        "tiny.gguf",
        "-f",
        "text.txt",
        "--context",
        "128",
        "--json",
    ];
    let full = json(&world.run(&arguments));
    assert_eq!(full["model"], "tiny");
    let perplexity = full["perplexity"].as_f64().expect("a number");
    assert!((50.0..5000.0).contains(&perplexity), "{perplexity}");
    let nll = full["nll"].as_f64().expect("a number");
    assert!((nll.exp() / perplexity - 1.0).abs() < 1e-9);
    // Nothing is evicted: the same predictions, one by one.
    let kept = json(&world.run(&[arguments.as_slice(), &["--method", "inertia:tokens=4000"]].concat()));
    assert_eq!(kept["tokens"], full["tokens"]);
    assert!((kept["nll"].as_f64().expect("a number") - nll).abs() < 1e-2);
}

#[test]
fn bench_measures_methods_and_draws_figures() {
    let world = World::new();
    world.tiny_model();
    let arguments = [
        "bench",
        "-m",
        "tiny.gguf",
        "--contexts",
        "40,20",
        "--methods",
        "inertia;score-free",
        "--tokens",
        "2",
        "--rounds",
        "1",
        "--limits",
        "--figures",
        "drawn",
        "--json",
    ];
    let result = json(&world.run(&arguments));
    assert_eq!(result["model"], "tiny");
    assert!(result["limits"]["decode_tokens_per_second"].as_f64() > Some(0.0));
    for part in ["prefill", "decode", "matmul", "attention"] {
        assert!(result["rows"][0]["achieved"][part].as_f64() > Some(0.0), "{part}");
    }
    let rows = result["rows"].as_array().expect("rows");
    let named: Vec<(u64, &str)> = rows
        .iter()
        .map(|row| {
            (
                row["context"].as_u64().unwrap_or(0),
                row["method"].as_str().unwrap_or(""),
            )
        })
        .collect();
    let expected = ["full", "inertia", "score-free"];
    assert_eq!(named[..3], expected.map(|method| (40, method)));
    assert_eq!(named[3..], expected.map(|method| (20, method)));
    for key in ["matmul", "attention", "scoring", "eviction", "other"] {
        assert!(rows[0]["share"][key].is_number(), "`{key}` is missing: {}", rows[0]);
    }
    for key in [
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "retained",
        "kv_bytes",
        "peak_rss_bytes",
    ] {
        assert!(rows[0].get(key).is_some(), "`{key}` is missing: {}", rows[0]);
    }
    for figure in [
        "figure-3-decode-composition",
        "figure-10-lazy-speedup",
        "figure-11-decode-throughput",
    ] {
        for kind in ["svg", "png"] {
            let path = world.path().join(format!("drawn/{figure}.{kind}"));
            assert!(path.is_file(), "{} is missing", path.display());
        }
    }
    let table = success(&world.run(&[
        "bench",
        "-m",
        "tiny.gguf",
        "--contexts",
        "20",
        "--tokens",
        "1",
        "--rounds",
        "1",
    ]));
    assert!(
        table.contains("inertia-lazy") && table.contains("first step"),
        "{table}"
    );
}

#[test]
fn bench_refuses_what_it_cannot_measure() {
    let world = World::new();
    world.tiny_model();
    for (arguments, code) in [
        (["--contexts", "0"], 2),
        (["--tokens", "0"], 2),
        (["--sequences", "0"], 2),
        (["--contexts", "1000000"], 1),
        (["--tokens", "18446744073709551615"], 1),
        (["--sequences", "18446744073709551615"], 1),
        (["--methods=full", "--budget=64"], 2),
    ] {
        let output = world.run(&[["bench", "-m", "tiny.gguf"].as_slice(), &arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("error:"), "{}", stderr(&output));
    }
}
