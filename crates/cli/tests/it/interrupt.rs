//! Ctrl-C while something runs, and while nothing does.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use inertiakv::testing::TinyModel;

use crate::support::{World, json_of, stderr, stdout};

/// A world with a model that can talk for a long time.
fn world() -> World {
    let world = World::new();
    let model = TinyModel {
        context: 65_536,
        ..TinyModel::default()
    };
    world.file("long.gguf", model.to_bytes());
    world
}

fn start(world: &World, arguments: &[&str]) -> Child {
    world
        .command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts")
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill starts").success());
}

const TALK: [&str; 9] = [
    "run",
    "-m",
    "long.gguf",
    "--raw",
    "-p",
    "hello",
    "-n",
    "65000",
    "--ignore-end",
];

#[test]
fn run_stops_and_reports_what_there_is() {
    let world = world();
    let mut child = start(&world, &TALK);
    let mut out = child.stdout.take().expect("a pipe");
    out.read_exact(&mut [0; 8]).expect("some text");
    interrupt(&child);
    out.read_to_end(&mut Vec::new()).expect("the rest of it");
    let output = child.wait_with_output().expect("the command ends");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("kept") && said.contains("interrupted"), "{said}");
    assert!(!said.contains("error"), "{said}");
}

#[test]
fn an_interrupted_trace_is_no_error() {
    let world = world();
    // Nothing shows when it begins, so the first try may come before it listens.
    for tenths in 2..50 {
        let child = start(&world, &[&["trace"], &TALK[1..]].concat());
        thread::sleep(Duration::from_millis(100 * tenths));
        interrupt(&child);
        let output = child.wait_with_output().expect("the command ends");
        let said = stderr(&output);
        assert!(!said.contains("error"), "{said}");
        if said.contains("interrupted") {
            assert_eq!(output.status.code(), Some(130), "{said}");
            return;
        }
    }
    panic!("it never was interrupted");
}

#[test]
fn json_says_that_the_answer_was_cancelled() {
    let world = world();
    // Nothing shows when the answer begins, so the first try may come too early.
    for tenths in 1..50 {
        let child = start(&world, &[&TALK[..], &["--json"]].concat());
        thread::sleep(Duration::from_millis(100 * tenths));
        interrupt(&child);
        let output = child.wait_with_output().expect("the command ends");
        if !output.stdout.is_empty() {
            assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
            let report = json_of(&stdout(&output));
            assert_eq!(report["finish_reason"], "cancelled");
            assert!(report["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()));
            return;
        }
    }
    panic!("there never was an answer");
}

#[test]
fn chat_stops_the_answer_and_goes_on_until_it_is_interrupted_at_the_prompt() {
    let world = world();
    let mut child = start(&world, &["chat", "-m", "long.gguf", "-n", "60000"]);
    let mut input = child.stdin.take().expect("a pipe");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    input.write_all(b"hello there\n").expect("the chat reads");
    out.read_exact(&mut [0; 8]).expect("some text");
    interrupt(&child);
    input.write_all(b"/stats\n").expect("the chat goes on");
    // The statistics are the first lines after the answer, and the answer is part of them.
    let turns = out
        .by_ref()
        .lines()
        .map(|line| line.expect("valid UTF-8"))
        .find(|line| line.starts_with("turns "))
        .expect("statistics");
    assert!(turns.starts_with("turns     1, "), "{turns}");
    let last = out.by_ref().lines().map_while(Result::ok);
    assert!(last.take(4).any(|line| line.starts_with("speed ")));

    interrupt(&child);
    let output = child.wait_with_output().expect("the command ends");
    assert_eq!(output.status.code(), Some(130));
    assert!(!stderr(&output).contains("error"), "{}", stderr(&output));
}

#[test]
fn training_keeps_what_was_learned_and_goes_on() {
    let world = world();
    world.file(
        "text.txt",
        "The hare ran over the hill and the fox ran after it. ".repeat(100),
    );
    let train = [
        "train-scorer",
        "-m",
        "long.gguf",
        "-f",
        "text.txt",
        "-o",
        "scorer",
        "--window",
        "64",
    ];
    let steps = ["--steps", "100000", "--schedule", "constant"];
    let mut child = start(&world, &[&train[..], &steps, &["--save-every", "1"]].concat());
    // Every step is saved, so the file changes when the training has begun.
    let scorer = world.path().join("scorer");
    let size = || std::fs::metadata(&scorer).map_or(0, |file| file.len());
    let first = loop {
        match size() {
            0 => thread::sleep(Duration::from_millis(20)),
            size => break size,
        }
    };
    while size() == first && child.try_wait().expect("a process").is_none() {
        thread::sleep(Duration::from_millis(20));
    }
    interrupt(&child);
    let output = child.wait_with_output().expect("the command ends");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.contains("--resume") && said.contains("interrupted") && !said.contains("error"),
        "{said}"
    );
    let done = said.split(" after ").nth(1).and_then(|rest| rest.split(' ').next());
    let done: usize = done
        .and_then(|number| number.replace(',', "").parse().ok())
        .expect("a number of steps");
    assert!(done > 0, "{said}");

    let more = (done + 1).to_string();
    let resume = ["--steps", &more, "--schedule", "constant", "--resume", "--json"];
    let output = world.run(&[&train[..], &resume].concat());
    assert_eq!(json_of(&stdout(&output))["steps"], done + 1, "{}", stderr(&output));
}
