//! Checks and chores of the workspace: `cargo xtask help`.

#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

mod structure;

const HELP: &str = "\
cargo xtask <task>

  check             formatting, lints, docs, structure, all tests (fetches the small test models once)
  check --offline   the same without the tests that need a real model
  structure         only the structure: dependency direction, unsafe code, file sizes
  help              this text";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["check"] => check(false),
        ["check", "--offline"] => check(true),
        ["structure"] => structure::check(),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        other => {
            eprintln!("error: unknown task `{}`\n\n{HELP}", other.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that must hold before a change lands, cheapest first.
fn check(offline: bool) -> Result<()> {
    step("formatting", &["fmt", "--all", "--check"], &[])?;
    println!("== structure");
    structure::check()?;
    step(
        "lints",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )?;
    step(
        "docs",
        &["doc", "--workspace", "--no-deps", "--document-private-items"],
        &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")],
    )?;
    let mut tests = vec!["test", "--workspace"];
    if offline {
        tests.extend(["--", "--skip", "real_model"]);
    }
    step("tests", &tests, &[])
}

fn step(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    println!("== {name}: cargo {}", arguments.join(" "));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("cannot start cargo for {name}"))?;
    if !status.success() {
        bail!("{name} failed; run `cargo {}` to see it alone", arguments.join(" "));
    }
    Ok(())
}
