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
        "correlate",
        "train-scorer",
        "serve",
        "methods",
        "models",
    ] {
        let name = if command.is_empty() { "inertiakv" } else { command };
        let arguments: Vec<&str> = Some(command)
            .filter(|command| !command.is_empty())
            .into_iter()
            .collect();
        insta::assert_snapshot!(name, help(&arguments));
    }
}
