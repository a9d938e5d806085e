//! What `--help` says, word for word.

use crate::support::{World, success};

fn help(command: &[&str]) -> String {
    success(&World::new().run(&[command, &["--help"]].concat()))
}

#[test]
fn help_texts() {
    for command in [
        "",
        "demo",
        "run",
        "compare",
        "chat",
        "perplexity",
        "bench",
        "report",
        "trace",
        "paper",
        "paper run",
        "eval",
        "eval ruler",
        "eval longbench",
        "eval longbench-v2",
        "eval needle",
        "eval kvpress",
        "eval file",
        "eval grid",
        "eval show",
        "eval merge",
        "eval export",
        "correlate",
        "train-scorer",
        "serve",
        "methods",
        "models",
        "models info",
    ] {
        let arguments: Vec<&str> = command.split_whitespace().collect();
        let name = if command.is_empty() { "inertiakv" } else { command };
        insta::assert_snapshot!(name.replace(' ', "-"), help(&arguments));
    }
}
