//! Scorers are trained, resumed, used and compared, on a tiny random model.

use serde_json::Value;

use crate::support::{World, json, stderr, stdout, success};

fn world() -> World {
    let world = World::new();
    world.tiny_model();
    let text = (0..40).map(|i| format!("In year {i} the hare ran over {} hills and slept. ", i * i));
    world.file("text.txt", text.collect::<String>());
    world
}

const TRAIN: [&str; 13] = [
    "train-scorer",
    "-m",
    "tiny.gguf",
    "-f",
    "text.txt",
    "--window",
    "64",
    "--queries",
    "2",
    "--save-every",
    "2",
    "--steps",
    "5",
];

fn train(world: &World, more: &[&str]) -> std::process::Output {
    world.run(&[&TRAIN[..], more].concat())
}

#[test]
fn a_scorer_is_trained_and_used() {
    let world = world();
    let report = json(&train(&world, &["-o", "scorer.safetensors", "--json"]));
    assert_eq!((&report["model"], &report["steps"]), (&"tiny".into(), &5.into()));
    assert_eq!(report["parameters"], 64 * (128 + 64));
    assert_eq!(report["losses"].as_array().map(Vec::len), Some(5));
    for when in ["before", "after"] {
        for measure in ["spearman", "jaccard"] {
            let layers = report["held_out"][when][measure]["layers"].as_array().expect("layers");
            assert!(layers.len() == 2 && layers.iter().all(Value::is_f64), "{report}");
        }
    }
    assert_ne!(report["held_out"]["before"], report["held_out"]["after"]);

    let run = [
        "run",
        "-m",
        "tiny.gguf",
        "--raw",
        "-f",
        "text.txt",
        "-n",
        "3",
        "--method",
        "learned:tokens=50",
        "--json",
    ];
    let used = json(&world.run(&[&run[..], &["--scorer", "scorer.safetensors"]].concat()));
    assert_eq!(
        (&used["method"], &used["retained"]),
        (&"learned:tokens=50".into(), &50.into())
    );
    let output = world.run(&run);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("learned") && message.contains("train-scorer"),
        "{message}"
    );

    let correlate = [
        "correlate",
        "-m",
        "tiny.gguf",
        "-f",
        "text.txt",
        "--tokens",
        "200",
        "--queries",
        "4",
    ];
    let with = [&correlate[..], &["--scorer", "scorer.safetensors"]].concat();
    let text = success(&world.run(&with));
    for scorer in [
        "attention",
        "value-norm",
        "entropy",
        "expected-attention",
        "key-diff",
        "key-norm",
        "recency",
        "random",
    ] {
        assert!(text.lines().any(|line| line.starts_with(scorer)), "{scorer}: {text}");
    }
    assert!(text.contains("learned") && text.contains("layer 0"), "{text}");
    assert!(!success(&world.run(&correlate)).contains("learned"));
    let report = json(&world.run(&[&with[..], &["--json", "--budget", "20"]].concat()));
    assert_eq!(
        (&report["tokens"], &report["queries"], &report["budget"]),
        (&200.into(), &4.into(), &20.into())
    );
    assert_eq!(report["compression_ratio"], Value::Null);
    let scorers = report["scorers"].as_array().expect("scorers");
    assert_eq!(scorers.len(), 9);
    assert_eq!(
        (&scorers[0]["scorer"], &scorers[0]["jaccard"]["mean"]),
        (&"attention".into(), &1.0.into())
    );
    for key in ["mean", "min", "max", "middle"] {
        assert!(scorers[8]["spearman"][key].is_f64(), "{}", scorers[8]);
    }
}

#[test]
fn an_interrupted_training_goes_on_as_if_it_had_not_been() {
    let world = world();
    let whole = success(&train(&world, &["-o", "whole", "--schedule", "constant"]));
    assert!(whole.lines().any(|line| line.starts_with("mean")), "{whole}");
    // What a stop after the third step leaves behind; the steps of a constant rate do not know how many there will be.
    let shorter = TRAIN.map(|word| if word == "5" { "3" } else { word });
    success(&world.run(&[&shorter[..], &["-o", "parts", "--schedule", "constant"]].concat()));
    let resumed = success(&train(&world, &["-o", "parts", "--schedule", "constant", "--resume"]));
    assert_eq!(resumed, whole);
    let read = |name: &str| std::fs::read(world.path().join(name)).expect("a scorer");
    assert!(read("whole") == read("parts"));
}

#[test]
fn what_cannot_be_trained_or_used_is_refused() {
    let world = world();
    success(&train(&world, &["-o", "scorer", "--seed", "4"]));
    let scorer = std::fs::read(world.path().join("scorer")).expect("a scorer");
    world.file("damaged", &scorer[..scorer.len() / 2]);
    world.file("short.txt", "too short");
    let run = |more: &[&str]| world.run(&[&["run", "-m", "tiny.gguf", "--raw", "-p", "x"], more].concat());
    for (output, code, words) in [
        (train(&world, &["-o", "scorer"]), 2, ["scorer", "--resume"]),
        (train(&world, &["-o", "scorer", "--resume"]), 2, ["seed", "4"]),
        (train(&world, &["-o", "new", "--resume"]), 1, ["new", "cannot be read"]),
        (train(&world, &["-o", "no/such/place"]), 1, ["no/such/place", "written"]),
        (train(&world, &["-o", "."]), 2, ["`.`", "is no file"]),
        (
            train(&world, &["-o", "new", "--scorer", "scorer"]),
            2,
            ["--scorer", "--output"],
        ),
        (train(&world, &["-o", "new", "--lr", "0"]), 2, ["learning rate", "0"]),
        (
            train(&world, &["-o", "new", "--schedule", "linear"]),
            2,
            ["linear", "cosine"],
        ),
        (train(&world, &[]), 2, ["--output", "required"]),
        (
            world.run(&["train-scorer", "-m", "tiny.gguf", "-f", "short.txt", "-o", "new"]),
            1,
            ["too short", "576"],
        ),
        (run(&["--scorer", "damaged"]), 1, ["damaged", "train one"]),
        (run(&["--scorer", "missing"]), 1, ["missing", "cannot be read"]),
        (run(&["--scorer", "tiny.gguf"]), 1, ["tiny.gguf", "not a scorer"]),
    ] {
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {message}");
        assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
        assert!(
            stdout(&output).is_empty() && !message.contains("cannot load"),
            "{message}"
        );
    }
    assert_eq!(std::fs::read(world.path().join("scorer")).expect("a scorer"), scorer);
    assert!(!world.path().join("new").exists());
}

#[test]
fn a_scorer_of_a_model_of_another_name_is_warned_about() {
    let world = world();
    success(&train(&world, &["-o", "scorer"]));
    let model = std::fs::read(world.path().join("tiny.gguf")).expect("the model");
    world.file("other.gguf", model);
    let output = world.run(&[
        "run",
        "-m",
        "other.gguf",
        "--raw",
        "-p",
        "hello",
        "-n",
        "2",
        "--scorer",
        "scorer",
    ]);
    success(&output);
    let message = stderr(&output);
    assert!(message.contains("warning:") && message.contains("`tiny`"), "{message}");
}
