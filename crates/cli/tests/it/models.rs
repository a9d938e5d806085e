//! `models` without a network.

use inertiakv::WeightType;
use inertiakv::testing::TinyModel;

use crate::support::{World, json, stderr, success};

#[test]
fn the_list_and_the_details_need_no_download() {
    let world = World::new();
    let list = success(&world.run(&["models", "list"]));
    for name in ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"] {
        assert!(list.contains(name), "{list}");
    }
    json(&world.run(&["models", "list", "--json"]));
    let info = success(&world.run(&["models", "info", "smollm2-135m"]));
    assert!(info.contains("Apache-2.0") && info.contains("b179c952"), "{info}");
}

#[test]
fn details_of_a_file_are_those_of_the_model_in_it() {
    let world = World::new();
    world.tiny_model();
    let info = success(&world.run(&["models", "info", "tiny.gguf"]));
    assert!(info.contains("llama"), "{info}");
    assert!(
        info.contains("per 1,000 tokens") && info.contains("conversations that fit"),
        "{info}"
    );
    let info = json(&world.run(&["models", "info", "tiny.gguf", "--json"]));
    for key in [
        "name", "family", "layers", "kv_heads", "context", "bytes", "memory", "path",
    ] {
        assert!(info.get(key).is_some(), "`{key}` is missing: {info}");
    }
}

#[test]
fn weights_are_packed_at_load_to_a_type_that_exists() {
    let world = World::new();
    world.tiny_model();
    let run = |kind: &str| world.run(&["run", "-m", "tiny.gguf", "--quantise", kind, "-n", "2", "-p", "hello"]);
    success(&run("q4_0"));
    let output = run("f16");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("q8_0"), "{}", stderr(&output));

    let packed = TinyModel {
        embedding: WeightType::Q8_0,
        ..TinyModel::default()
    };
    world.file("packed.gguf", packed.to_bytes());
    let run = ["run", "-m", "packed.gguf", "--quantise", "q4_0", "-p", "hello"];
    world.refuses(&run, 2, "no weights of this model are floats");
}

#[test]
fn rm_says_what_it_removed() {
    let world = World::new();
    let store = world.path().join("home/models");
    std::fs::create_dir_all(store.join(".pull-smollm2-135m")).expect("a folder");
    let remove = ["models", "rm", "smollm2-135m"];
    let said = success(&world.run(&remove));
    assert!(
        said.contains(".pull-") && said.contains("interrupted download"),
        "{said}"
    );
    assert!(!said.contains(".gguf"), "there was no model: {said}");

    std::fs::write(store.join("smollm2-135m.gguf"), "a model").expect("a file");
    let removed = json(&world.run(&[&remove[..], &["--json"]].concat()));
    assert_eq!(removed["removed"].as_array().map(Vec::len), Some(1), "{removed}");

    let output = world.run(&remove);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nothing to remove"), "{}", stderr(&output));
}

#[test]
fn what_is_not_there_is_named() {
    let world = World::new();
    for arguments in [
        ["models", "path", "smollm2-135m"],
        ["models", "rm", "smollm2-135m"],
        ["models", "info", "smolm2"],
    ] {
        let output = world.run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("smollm2-135m"), "{}", stderr(&output));
    }
}

#[test]
fn an_offline_machine_is_told_what_to_do() {
    let world = World::new();
    let mut command = world.command();
    command.args(["models", "pull", "smollm2-135m"]);
    command
        .env("INERTIAKV_HOME", world.path().join("home"))
        .env("PYTHON", "/nowhere/python3");
    let output = crate::support::feed(command, "");
    assert_eq!(output.status.code(), Some(1));
    for words in ["copy the GGUF file", "/nowhere/python3", "PYTHON"] {
        assert!(
            stderr(&output).contains(words),
            "should say `{words}`: {}",
            stderr(&output)
        );
    }
}
