//! Every command on a tiny random model: what is printed where, and the keys of the JSON.

use serde_json::Value;

use crate::support::{World, json, stderr, stdout, success};

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
    assert_eq!(
        (&runs[0]["method"], &runs[0]["evictions"]),
        (&Value::from("full"), &Value::from(0))
    );
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
    let perplexity = full["perplexity"].as_f64().expect("a number");
    assert!((50.0..5000.0).contains(&perplexity), "{perplexity}");
    let nll = full["nll"].as_f64().expect("a number");
    assert!((nll.exp() / perplexity - 1.0).abs() < 1e-9);
    // Nothing is evicted: the same predictions, one by one.
    let kept = json(&world.run(&[arguments.as_slice(), &["--method", "inertia:tokens=4000"]].concat()));
    assert_eq!(kept["tokens"], full["tokens"]);
    assert!((kept["nll"].as_f64().expect("a number") - nll).abs() < 1e-2);
}
