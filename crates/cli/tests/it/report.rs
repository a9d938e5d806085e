//! `report` and `trace` on a tiny random model: one page from results, also in a real browser.

use std::fmt::Write;
use std::path::PathBuf;

use crate::browser;
use crate::support::{World, json, success};

/// Results of a small run as a folder: two tasks, and a trace.
fn results(world: &World) -> PathBuf {
    let mut rows = String::new();
    for index in 0..4 {
        let task = if index % 2 == 0 { "ring" } else { "tower" };
        let context = format!("the {task} number {index} lies in the middle of it all. ").repeat(6);
        writeln!(
            rows,
            "{{\"context\": \"{context}\", \"question\": \" Which? \", \"answers\": [\"e\", \"zz\"], \"task\": \"{task}\"}}"
        )
        .unwrap();
    }
    let model = world.tiny_model();
    let folder = world.path().join("results");
    let (rows, model) = (world.file("rows.jsonl", rows), model.to_str().unwrap());
    success(&world.run(&[
        "eval",
        "file",
        rows.to_str().unwrap(),
        "-m",
        model,
        "--methods",
        "inertia;inertia:ratio=0.5;streaming-llm;streaming-llm:ratio=0.5",
        "-o",
        folder.to_str().unwrap(),
    ]));
    let trace = folder.join("trace.jsonl");
    let text = world.file("text.txt", "the ring lies in the middle of the tower. ".repeat(10));
    success(&world.run(&[
        "trace",
        "--raw",
        "-f",
        text.to_str().unwrap(),
        "-m",
        model,
        "-n",
        "12",
        "--ignore-end",
        "-o",
        trace.to_str().unwrap(),
    ]));
    folder
}

#[test]
fn a_page_holds_everything_it_shows() {
    let world = World::new();
    let folder = results(&world);
    let (page, figures) = (world.path().join("report.html"), world.path().join("figures"));
    let said = success(&world.run(&[
        "report",
        folder.to_str().unwrap(),
        "-o",
        page.to_str().unwrap(),
        "--figures",
        figures.to_str().unwrap(),
    ]));
    assert!(said.contains("20 results of 1 model"), "{said}");
    let html = std::fs::read_to_string(page).unwrap();
    for shown in [
        "inertia:<wbr>ratio=0.5",
        "win/tie/loss",
        "<svg",
        "tower",
        "what is held",
    ] {
        assert!(html.contains(shown), "{shown} is missing");
    }
    // Nothing to fetch: the only address is the name of the SVG format.
    let addresses = html.matches("http").count();
    assert_eq!(addresses, html.matches("http://www.w3.org/2000/svg").count());
    assert!(!html.contains("src=") && !html.contains("<link") && !html.contains("url("));
    let mut kinds: Vec<String> = std::fs::read_dir(figures)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    kinds.sort();
    // No plot of time: the methods answered in common steps.
    assert_eq!(
        kinds,
        [
            "tiny-quality-budget.png",
            "tiny-quality-budget.svg",
            "tiny-quality-memory.png",
            "tiny-quality-memory.svg",
            "tiny-retention-text.txt.png",
            "tiny-retention-text.txt.svg",
            "tiny-tasks.png",
            "tiny-tasks.svg"
        ]
    );
}

#[test]
fn real_client_chromium_shows_the_page_wide_and_narrow_without_colour() {
    let world = World::new();
    let folder = results(&world);
    let page = world.path().join("report.html");
    success(&world.run(&["report", folder.to_str().unwrap(), "-o", page.to_str().unwrap()]));
    let screenshots = browser::folder();
    browser::run(
        "report_page.mjs",
        include_str!("report_page.mjs"),
        &[page.as_os_str(), screenshots.as_os_str()],
    );
    for name in ["wide.png", "narrow.png"] {
        let size = std::fs::metadata(screenshots.join(name)).unwrap().len();
        assert!(size > 20_000, "{name} is empty");
    }
}

#[test]
fn a_trace_counts_what_the_run_did() {
    let world = World::new();
    let model = world.tiny_model();
    let figures = world.path().join("figures");
    let text = "the ring lies in the middle of the tower. ".repeat(10);
    let trace = json(&world.run(&[
        "trace",
        "--raw",
        "-p",
        &text,
        "--question",
        "What lies there?",
        "-m",
        model.to_str().unwrap(),
        "-n",
        "6",
        "--ignore-end",
        "--method",
        "inertia:tokens=40",
        "--figures",
        figures.to_str().unwrap(),
        "--json",
    ]));
    let steps = trace["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 7, "the question and six tokens");
    for step in steps {
        assert_eq!(step["budget"], 40);
        assert_eq!(step["retained"].as_array().unwrap().len(), 40);
    }
    assert!(steps[0]["raw_churn"].is_null() && steps[1]["raw_churn"].is_number());
    assert_eq!(steps[0]["persistence"], 1.0);
    assert_eq!(trace["summary"]["steps"], 7);
    let drawn = std::fs::read_dir(figures).unwrap().count();
    assert_eq!(drawn, 8, "churn, agreement, two tokens, retention");
}

#[test]
fn what_cannot_be_shown_or_traced_is_refused() {
    let world = World::new();
    let model = world.tiny_model();
    let model = model.to_str().unwrap();
    world.refuses(&["report", "nowhere"], 1, "nowhere");
    let empty = world.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("results.jsonl"), "").unwrap();
    world.refuses(&["report", empty.to_str().unwrap()], 2, "no results yet");
    world.refuses(
        &["trace", "-p", "x", "-m", model, "--method", "snapkv"],
        2,
        "nothing to trace",
    );
    world.refuses(&["trace", "--example", "vt/2048", "-m", model], 2, "vt/2048/0");
    world.refuses(&["trace", "--example", "x/2048/0", "-m", model], 2, "niah_single_1");
}
