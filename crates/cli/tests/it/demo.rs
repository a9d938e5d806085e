//! The demo on a tiny random model, which finds nothing but must report everything.

use inertiakv::testing::TinyModel;

use crate::support::{World, json, stderr, success};

/// A tiny vocabulary needs many tokens for the document.
fn world() -> World {
    let world = World::new();
    let model = TinyModel {
        context: 16_384,
        ..TinyModel::default()
    };
    world.file("long.gguf", model.to_bytes());
    world
}

#[test]
fn every_method_is_asked_for_every_fact() {
    let output = json(&world().run(&["demo", "-m", "long.gguf", "--json"]));
    let runs = output["runs"].as_array().expect("runs");
    let methods: Vec<&str> = runs.iter().filter_map(|run| run["method"].as_str()).collect();
    let standard = [
        "full",
        "inertia",
        "inertia-lazy",
        "score-free",
        "streaming-llm",
        "random",
    ];
    assert_eq!(methods, standard);
    for run in runs {
        let facts = run["facts"].as_u64().expect("a number");
        assert_eq!(run["answers"].as_array().map(Vec::len), Some(facts as usize));
        assert!(run["found"].as_u64() <= Some(facts));
        assert!(run["kv_bytes"].as_u64() > Some(0));
    }
    // Every run starts from the same prefill; only full keeps everything.
    assert!(
        runs.iter()
            .all(|run| run["kv_bytes_prefill"] == runs[0]["kv_bytes_prefill"])
    );
    assert_eq!(runs[0]["evictions"], 0);
    assert!(runs[1..].iter().all(|run| run["retained"] == runs[1]["budget"]));
}

#[test]
fn the_table_names_methods_and_budgets_apply_to_those_that_evict() {
    let table = success(&world().run(&["demo", "-m", "long.gguf", "--budget", "200"]));
    for word in ["found", "full", "inertia-lazy:tokens=200", "retained", "decode"] {
        assert!(table.contains(word), "{table}");
    }
}

#[test]
fn a_context_too_short_for_the_document_is_an_error() {
    let world = World::new();
    world.tiny_model();
    let output = world.run(&["demo", "-m", "tiny.gguf"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("context"), "{}", stderr(&output));
}
