//! Wrong use: one clear message, exit code 2 for usage and 1 for failure.

use std::process::Output;

use crate::support::{World, stderr, stdout};

/// Runs a command that must fail with `code` and a message that contains every one of `words`.
fn fails(world: &World, arguments: &[&str], code: i32, words: &[&str]) {
    has_failed(&world.run(arguments), &format!("{arguments:?}"), code, words);
}

/// Whether `what` has ended so.
fn has_failed(output: &Output, what: &str, code: i32, words: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {message}");
    for word in words {
        assert!(message.contains(word), "{what} should mention `{word}`: {message}");
    }
    assert!(stdout(output).is_empty(), "{what} printed a result");
    assert!(!message.contains("panicked"), "{message}");
}

#[test]
fn an_instruction_set_that_is_not_there_is_refused() {
    let world = World::new();
    let model = world.tiny_model();
    let mut command = world.command();
    command.args(["run", "-p", "x", "-m"]).arg(&model);
    let output = command.env("INERTIAKV_ISA", "sse").output().expect("the program runs");
    has_failed(&output, "INERTIAKV_ISA=sse", 2, &["`sse`", "scalar"]);
}

#[test]
fn usage_errors_exit_with_2() {
    let world = World::new();
    let model = world.tiny_model();
    let model = model.to_str().expect("a plain path");
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--method", "inertial"],
        2,
        &["inertial", "inertia", "score-free"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--method", "inertia:alfa=0.5"],
        2,
        &["alfa", "alpha"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "-n", "-1"],
        2,
        &["-1", "whole number"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--temperature", "inf"],
        2,
        &["temperature", "finite"],
    );
    fails(
        &world,
        &["compare", "-m", model, "-p", "x", "--methods", "full", "--budget", "64"],
        2,
        &["--budget", "no method evicts"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--method", "inertia:ratio=1.5"],
        2,
        &["ratio", "1.5"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--method", "snapkv:at=dawn"],
        2,
        &["at=dawn", "prefill"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--budget", "150%"],
        2,
        &["150%"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--budget", "0"],
        2,
        &["budget"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "-f", "y"],
        2,
        &["cannot be used with"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--kv-type", "q4_0"],
        2,
        &["q4_0", "q8_0"],
    );
    fails(
        &world,
        &["run", "-m", model, "-p", "x", "--threads", "0"],
        2,
        &["threads"],
    );
    fails(&world, &["run", "-m", "", "-p", "x"], 2, &["--model"]);
    fails(&world, &["frobnicate"], 2, &["frobnicate", "help"]);
}

#[test]
fn a_context_that_cannot_be_is_wrong_usage() {
    let world = World::new();
    world.tiny_model();
    world.file("text.txt", "word ".repeat(3000));
    for command in [
        &["run", "-p", "x"][..],
        &["chat"],
        &["perplexity", "-f", "text.txt"],
        &["perplexity", "-f", "text.txt", "--method", "inertia"],
    ] {
        let output = world.run(&[command, &["-m", "tiny.gguf", "--context", "4096"]].concat());
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {message}");
        assert!(message.contains("4096") && message.contains("2048"), "{message}");
        assert!(!message.contains("cannot load"), "{message}");
    }
    for window in ["0", "1", "3", "-4"] {
        let context = format!("--context={window}");
        fails(
            &world,
            &["perplexity", "-m", "tiny.gguf", "-f", "text.txt", &context],
            2,
            &["at least 4"],
        );
    }
}

#[test]
fn an_empty_variable_is_no_model() {
    let world = World::new();
    for (value, named) in [("", "smollm2-135m"), ("nothing-like-it", "nothing-like-it")] {
        let mut command = world.command();
        command.args(["run", "-p", "x"]);
        command
            .env("INERTIAKV_HOME", world.path().join("home"))
            .env("INERTIAKV_MODEL", value);
        let output = crate::support::feed(command, "");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(named), "{}", stderr(&output));
    }
}

#[test]
fn failures_exit_with_1_and_say_what_to_do() {
    let world = World::new();
    let model = world.tiny_model();
    let model = model.to_str().expect("a plain path");
    let whole = std::fs::read(model).expect("the model");
    world.file("truncated.gguf", &whole[..whole.len() / 2]);
    world.file("text.gguf", "once upon a time");
    world.file("latin1.txt", [b'a', 0xe9, b'b']);
    fails(&world, &["run", "-m", "truncated.gguf", "-p", "x"], 1, &["incomplete"]);
    fails(
        &world,
        &["models", "info", "truncated.gguf"],
        1,
        &["truncated.gguf", "incomplete"],
    );
    fails(&world, &["run", "-m", "text.gguf", "-p", "x"], 1, &["not a GGUF file"]);
    fails(&world, &["run", "-m", "missing.gguf", "-p", "x"], 1, &["missing.gguf"]);
    fails(&world, &["run", "-p", "x"], 1, &["inertiakv models pull smollm2-135m"]);
    fails(
        &world,
        &["run", "-m", model, "--raw", "-f", "absent.txt"],
        1,
        &["absent.txt"],
    );
    fails(&world, &["run", "-m", model, "--raw", "-f", "."], 1, &["folder"]);
    fails(
        &world,
        &["run", "-m", model, "--raw", "-f", "latin1.txt"],
        1,
        &["latin1.txt", "UTF-8"],
    );
    // Known before the work is done, not after.
    fails(
        &world,
        &["trace", "-m", model, "-p", "x", "-n", "2", "-o", "no/such/place"],
        1,
        &["no/such/place", "choose another"],
    );
    let wide: Vec<u8> = "\u{feff}hello".encode_utf16().flat_map(u16::to_le_bytes).collect();
    world.file("wide.txt", wide);
    fails(
        &world,
        &["run", "-m", model, "--raw", "-f", "wide.txt"],
        1,
        &["wide.txt", "UTF-16", "iconv"],
    );
    fails(&world, &["run", "-m", model, "--raw", "-p", ""], 2, &["empty"]);
    let long = "word ".repeat(3000);
    fails(
        &world,
        &["run", "-m", model, "--raw", "-p", &long],
        1,
        &["context", "2,048"],
    );
    fails(
        &world,
        &["perplexity", "-m", model, "-f", "text.gguf", "--context", "512"],
        1,
        &["512"],
    );
}

#[cfg(unix)]
#[test]
fn input_without_an_end_is_refused() {
    let world = World::new();
    let model = world.tiny_model();
    let model = model.to_str().expect("a plain path");
    fails(
        &world,
        &["run", "-m", model, "--raw", "-f", "/dev/zero"],
        1,
        &["/dev/zero", "64 MiB"],
    );
    for (command, source) in [(["run", "--raw"], "standard input"), (["chat", "--json"], "a line")] {
        let mut command_line = world.command();
        command_line
            .args(command)
            .args(["-m", model])
            .stdin(std::fs::File::open("/dev/zero").expect("zeros"));
        let output = command_line.output().expect("the command ends");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains(source) && message.contains("64 MiB"), "{message}");
    }
}
