//! `paper` on a tiny random model: items are listed, run at any scale, and refused by name.

use crate::support::{World, json, success};

#[test]
fn every_table_and_figure_is_listed() {
    let items = json(&World::new().run(&["paper", "list", "--json"]));
    let items = items.as_array().unwrap();
    let has = |name: String| items.iter().any(|item| item["name"] == name.as_str());
    assert!((1..=14).all(|number| has(format!("table{number}"))));
    assert!((1..=11).all(|number| has(format!("figure{number}"))));
    let text = success(&World::new().run(&["paper", "list"]));
    assert!(text.contains("Table 4") && text.contains("Needs:"), "{text}");
}

#[test]
fn an_item_without_a_model_needs_none() {
    let world = World::new();
    let folder = world.path().join("paper");
    let findings = json(&world.run(&["paper", "run", "table6", "-o", folder.to_str().unwrap(), "--json"]));
    assert_eq!(findings["tables"][0]["rows"].as_array().unwrap().len(), 10);
    let markdown = std::fs::read_to_string(folder.join("table6.md")).unwrap();
    assert!(
        markdown.contains("| inertiakv | Static reserve | ✓ | – |"),
        "{markdown}"
    );
}

#[test]
fn a_table_runs_scaled_down_beside_the_paper() {
    let world = World::new();
    let model = world.tiny_model();
    let folder = world.path().join("paper");
    let arguments = [
        "paper",
        "run",
        "table14",
        "-m",
        model.to_str().unwrap(),
        "--lengths",
        "1200",
        "--samples",
        "2",
        "--tasks",
        "niah_single_1",
        "-o",
        folder.to_str().unwrap(),
    ];
    let text = success(&world.run(&arguments));
    assert!(text.contains("Llama-3.1-8B (paper)") && text.contains("tiny"), "{text}");
    let csv = std::fs::read_to_string(folder.join("table14.csv")).unwrap();
    assert!(
        csv.starts_with("model,source,Benchmark,Δ,Δ low,Δ high,95% CI\n"),
        "{csv}"
    );
    assert!(
        csv.contains("tiny,run,RULER,") && csv.contains("tiny,run,LongBench,,,,\n"),
        "{csv}"
    );
    assert!(csv.contains("Qwen2.5-7B,paper,RULER,0.005,"), "{csv}");
    let results = std::fs::read_to_string(folder.join("results.jsonl")).unwrap();
    assert_eq!(results.lines().count(), 4, "two examples under two methods");
    success(&world.run(&arguments));
    assert_eq!(std::fs::read_to_string(folder.join("results.jsonl")).unwrap(), results);
}

#[test]
fn an_own_file_runs_too_and_mistakes_are_named() {
    let world = World::new();
    let model = world.tiny_model();
    let model = model.to_str().unwrap();
    let own = world.file(
        "own.toml",
        "title = \"T\"\nshows = \"s\"\nneeds = \"n\"\n[study]\nkind = \"pairs\"\nsteps = 4\nmethods = [\"inertia\"]\n\
         benchmark = { name = \"RULER\", from = { source = \"ruler\", lengths = [1200], tasks = [\"niah_single_1\"] }, samples = 1 }\n",
    );
    let folder = world.path().join("paper");
    let findings = json(&world.run(&[
        "paper",
        "run",
        own.to_str().unwrap(),
        "-m",
        model,
        "-o",
        folder.to_str().unwrap(),
        "--json",
    ]));
    assert_eq!(findings["tables"][0]["rows"].as_array().unwrap().len(), 1, "{findings}");
    assert!(folder.join("own.md").exists());
    world.refuses(&["paper", "run", "table99"], 2, "table14");
    world.refuses(&["paper", "run", "table4", "--data", "x=y"], 2, "longbench-v2");
    let wrong = world.file("wrong.toml", "titel = 1\n");
    world.refuses(&["paper", "run", wrong.to_str().unwrap()], 2, "titel");
}
