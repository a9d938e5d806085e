//! Output that other programs read.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::Value;

use crate::support::{World, json, success};

const RAW: [&str; 4] = ["-m", "tiny.gguf", "--raw", "-p"];

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = World::new();
    world.tiny_model();
    let mut child = world
        .command()
        .args([&["run"], &RAW[..], &["hello", "-n", "1500", "--ignore-end"]].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    // As `head -c 1` does: read a little and leave.
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0]).expect("some text");
    drop(stdout);
    let output = child.wait_with_output().expect("the command ends");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(!message.contains("error"), "{message}");
}

#[test]
fn text_is_streamed() {
    let world = World::new();
    world.tiny_model();
    let mut child = world
        .command()
        .args(["chat", "-m", "tiny.gguf", "-n", "4", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // The answer to a line arrives before the next line is written.
    for turn in 1..=3 {
        std::io::Write::write_all(&mut stdin, b"hello there\n").expect("the chat reads");
        let line = lines.next().expect("an answer").expect("valid UTF-8");
        let answer: Value = serde_json::from_str(&line).expect("a line of JSON");
        assert!(answer["steps"].as_u64() >= Some(turn), "{answer}");
        assert_eq!(answer["method"], "inertia:tokens=1024");
    }
    drop(stdin);
    assert!(child.wait().expect("the command ends").success());
}

#[test]
fn compared_runs_say_where_they_differ() {
    let world = World::new();
    world.tiny_model();
    let prompt = "one two three four five six seven ".repeat(20);
    let methods = [
        "--methods",
        "inertia:tokens=100000;random:tokens=8",
        "-n",
        "16",
        "--ignore-end",
        "--json",
    ];
    let output = json(&world.run(&[&["compare"], &RAW[..], &[&prompt], &methods].concat()));
    let runs = output["runs"].as_array().expect("runs");
    for unchanged in &runs[..2] {
        assert_eq!(unchanged["first_difference"], Value::Null);
        assert_eq!(unchanged["agreement"], 1.0);
    }
    assert_eq!(
        runs[1]["tokens"], runs[0]["tokens"],
        "a budget that is never reached changes nothing"
    );
    let agreement = runs[2]["agreement"].as_f64().expect("a number");
    assert!((0.0..=1.0).contains(&agreement));
}

#[test]
fn a_stop_text_ends_the_answer() {
    let world = World::new();
    world.tiny_model();
    let run = |extra: &[&str]| success(&world.run(&[&["run"], &RAW[..], &["hello", "-n", "40"], extra].concat()));
    let whole = run(&[]);
    let stop: String = whole.trim().chars().skip(3).take(2).collect();
    let cut = run(&["--stop", &stop]);
    assert!(cut.len() < whole.len());
    assert!(!cut.contains(&stop), "{cut:?} still has {stop:?}");
}
