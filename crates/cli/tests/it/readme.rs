//! Every command of the README runs on the real model.

use std::path::Path;
use std::process::Command;

use crate::support::{Serving, World, feed, json, stderr};

/// Commands of the README's console blocks, without the prompt.
fn commands() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(path).expect("the README");
    text.lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .map(str::to_owned)
        .collect()
}

/// Words of a command line; double quotes keep spaces.
fn words(command: &str) -> Vec<String> {
    let quoted = command.split('"').enumerate();
    quoted
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

impl Serving {
    /// Runs a command of the README against this server.
    fn answers(&self, command: &str) {
        let command = command.replace("127.0.0.1:8080", &self.address);
        let output = Command::new("sh")
            .args(["-c", &format!("{command} --silent --show-error --fail-with-body")])
            .output();
        let output = output.expect("there is a shell");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command}: {text}{}", stderr(&output));
        assert!(text.contains("kv"), "{command}: {text}");
    }
}

#[test]
fn words_keep_quotes_together() {
    assert_eq!(words(r#"a "b c" d"#), ["a", "b c", "d"]);
}

#[test]
fn real_model_runs_every_command_of_the_readme() {
    let world = World::new();
    let pull = ["models", "pull", "smollm2-135m"];
    let mut command = world.command();
    command.args(pull);
    let output = feed(command, "");
    assert!(output.status.success(), "{}", stderr(&output));
    let report = "The report on the harbour was written by Martha Lindqvist. ".to_owned();
    world.file(
        "report.txt",
        report + &"The harbour was quiet and the boats lay still. ".repeat(40),
    );
    world.file(
        "text.txt",
        "Many boats came and went, and nobody counted them twice. ".repeat(500),
    );
    let mut seen = 0;
    let mut server = None;
    for line in commands() {
        let mut words = words(&line);
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["cargo", "run", "--release", "--", ..] => drop(words.drain(..4)),
            // Its clients come next.
            ["inertiakv", "serve", ..] => {
                server = Some(Serving::start(&world, &words[1..]));
                seen += 1;
                continue;
            }
            ["inertiakv", ..] => drop(words.remove(0)),
            ["curl", ..] => {
                let server = server.as_ref().expect("a server comes before its clients");
                server.answers(&line);
                seen += 1;
                continue;
            }
            // What is running right now.
            ["cargo", "xtask", ..] => continue,
            other => panic!("the README has a command that no test runs: {other:?}"),
        }
        let mut command = world.command();
        command.args(&words);
        let output = feed(command, "What is a harbour?\n");
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(!output.stdout.is_empty(), "{line} printed nothing");
        seen += 1;
    }
    assert!(seen >= 12, "only {seen} commands were found in the README");
}

#[test]
fn real_model_finds_the_facts_of_the_demo() {
    let world = World::new();
    let mut command = world.command();
    command.args(["demo", "--json"]);
    let demo = json(&feed(command, ""));
    let found = |method: &str| {
        let runs = demo["runs"].as_array().expect("runs");
        let run = runs
            .iter()
            .find(|run| run["method"].as_str() == Some(method))
            .expect("the method ran");
        (
            run["found"].as_u64().expect("a number"),
            run["facts"].as_u64().expect("a number"),
        )
    };
    let (full, facts) = found("full");
    assert_eq!(
        full, facts,
        "the full cache answers everything, so what is lost is lost by the method"
    );
    assert!(found("inertia").0 > found("streaming-llm").0);
    assert!(found("inertia").0 > found("random").0);
}
