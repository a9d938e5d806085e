//! `eval` on a tiny random model: a file of one's own, a generated task, results that are shown again.

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
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = world.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    };
    refused(&["eval", "ruler", "-m", model, "--tasks", "niah"], 2, "niah_single_1");
    refused(&["eval", "ruler", "-m", model, "--profile", "x"], 2, "ruler-2026");
    refused(&["eval", "ruler", "-m", model, "--lengths", "999999"], 2, "context");
    refused(&["eval", "file", "nowhere.jsonl", "-m", model], 1, "nowhere.jsonl");
    refused(&["eval", "ruler", "-m", model, "--tasks", "qa_1"], 2, "facts_1");
    refused(
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
    refused(&["eval", "show", "nowhere"], 1, "nowhere");
}
