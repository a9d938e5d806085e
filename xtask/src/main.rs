//! Checks and chores of the workspace: `cargo xtask help`.

#![forbid(unsafe_code)]

mod cargo;
mod instructions;
mod peers;
mod serving;
mod structure;
mod table;
mod usage;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use usage::Usage;

const HELP: &str = "\
cargo xtask <task>

  check                  formatting, lints, docs, structure, instruction counts, all tests (fetches the small test
                         models and, with pip and npm, the foreign clients once)
  check --offline        the same without the tests that need a real model or packages of other clients
  structure              only the structure: dependency direction, unsafe code, file sizes
  instructions           only the instruction counts of the hot kernels, against the committed ones (needs valgrind)
  instructions --bless   writes the counts of now into the committed file
  peers                  compares speed and memory with llama.cpp, building it if there is none (needs an idle machine)
    --quick              one round and nothing deeper than 4,096 tokens
    --json               data instead of a table
    --models NAMES       of smollm2-135m,qwen2.5-coder-0.5b
    --threads N          for both sides; all cores without it
    --rounds N           3 without it
    --llama-bench PATH   the llama-bench to compare with; LLAMA_BENCH in the environment does the same
    --inertiakv PATH     an `inertiakv` to compare instead of this checkout's
  load                   how many long conversations a KV memory holds, full and evicting, and how fast they flow
    --methods METHODS    separated by semicolons; `full;inertia:ratio=0.9` without it
    --kv-mib N           the KV memory; --prompt-tokens N, --tokens N, --requests N: the conversations
    --model NAME         smollm2-135m without it
    --prefill-chunk N, --threads N, --inertiakv PATH, --json
  gap                    how long running streams wait for a token while a long prompt is prefilled
    --requests N         the streams; and the options of `load`
  soak                   a server under every kind of client: every block must come back, the memory stay flat
    --requests N         and the options of `load`; the methods are those that the requests ask for in turns
  help                   this text";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["check"] => check(false),
        ["check", "--offline"] => check(true),
        ["structure"] => structure::check(),
        ["instructions"] => instructions::run(false),
        ["instructions", "--bless"] => instructions::run(true),
        ["peers", options @ ..] => peers::run(options),
        ["load", options @ ..] => serving::load(options),
        ["gap", options @ ..] => serving::gap(options),
        ["soak", options @ ..] => serving::soak(options),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(Usage(format!("unknown task `{}`", other.join(" "))).into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Usage>() => {
            eprintln!("error: {error}\n\n{HELP}");
            ExitCode::from(2)
        }
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
    println!("== instruction counts");
    instructions::run(false)?;
    let mut tests = vec!["test", "--workspace"];
    if offline {
        tests.extend(["--", "--skip", "real_model", "--skip", "real_client"]);
    } else if !npm_answers() {
        println!("== pages in a browser are not tested: npm, which brings the browser, does not answer");
        tests.extend(["--", "--skip", "real_client_chromium"]);
    }
    step("tests", &tests, &[])
}

/// Whether npm is installed and reaches the place of its packages.
fn npm_answers() -> bool {
    Command::new("npm")
        .args(["ping", "--fetch-retries=1", "--fetch-timeout=20000"])
        .output()
        .is_ok_and(|output| output.status.success())
}

fn step(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    println!("== {name}: cargo {}", arguments.join(" "));
    let status = cargo::cargo()
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("cannot start cargo for {name}"))?;
    if !status.success() {
        bail!("{name} failed; run `cargo {}` to see it alone", arguments.join(" "));
    }
    Ok(())
}
