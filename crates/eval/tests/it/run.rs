//! Running methods over examples, on a tiny random model: one prefill, the same answers as alone, resumed without loss.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::testing::TinyModel;
use inertiakv::{Engine, EngineOptions, Method};
use inertiakv_eval::metrics::{Metric, Scorer, Scoring};
use inertiakv_eval::run::{Outcomes, Results, run, summarise};
use inertiakv_eval::statistics::Bootstrap;
use inertiakv_eval::{Chat, EvalError, Example, Truncation};
use serde_json::Value;

fn engine(folder: &Path) -> Engine {
    let path = folder.join("tiny.gguf");
    let model = TinyModel {
        context: 512,
        tied: false,
        ..TinyModel::default()
    };
    model.write(&path).unwrap();
    Engine::open(&path, &EngineOptions::default()).unwrap()
}

fn example(index: usize) -> Example {
    Example {
        id: format!("e{index}"),
        task: "hello".to_owned(),
        context: format!("{index} hello there in the long text of nothing ").repeat(6),
        question: "What is it? ".to_owned(),
        answer_prefix: "It is".to_owned(),
        answers: vec!["e".to_owned(), "zzzz".to_owned()],
        max_new_tokens: 8,
        scoring: Scoring::new(Metric::StringMatchAll),
        chat: Chat::AnswerPrefixApart,
        truncation: None,
        stop_at_newline: false,
        labels: BTreeMap::from([("length".to_owned(), "100".to_owned())]),
    }
}

fn methods(texts: &[&str]) -> Vec<Method> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

const METHODS: [&str; 7] = [
    "full",
    "inertia",
    "snapkv:window=8,recent=8",
    "kvzip",
    "adakv-ea:ratio=0.5+h2o",
    "tova:interval=32",
    "streaming-llm",
];

fn run_all(engine: &Engine, examples: &[Example], texts: &[&str], folder: &Path) -> Result<Vec<String>, EvalError> {
    let mut results = Results::open(folder)?;
    run(
        engine,
        examples,
        &methods(texts),
        &Scorer::default(),
        &mut results,
        &mut |_| ControlFlow::Continue(()),
    )
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("results.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn one_prefill_gives_what_each_method_gives_alone() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples = [example(0), example(1)];
    let together = folder.path().join("together");
    run_all(&engine, &examples, &METHODS, &together).unwrap();
    let together = lines(&together);
    assert_eq!(together.len(), 14);
    for text in METHODS {
        let alone = folder.path().join(text.replace([':', '=', ',', '+'], "_"));
        run_all(&engine, &examples, &[text], &alone).unwrap();
        for record in lines(&alone) {
            let same = together.iter().find(|other| other["key"] == record["key"]).unwrap();
            assert_eq!(same["error"], Value::Null);
            for field in ["prediction", "score", "tokens", "method"] {
                assert_eq!(record[field], same[field], "{text}: {field}");
            }
            assert_eq!(record["report"]["retained"], same["report"]["retained"], "{text}");
        }
    }
}

#[test]
fn a_killed_run_goes_on_without_loss_or_repetition() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples: Vec<Example> = (0..3).map(example).collect();
    let whole = folder.path().join("whole");
    run_all(&engine, &examples, &METHODS, &whole).unwrap();

    let killed = folder.path().join("killed");
    let mut results = Results::open(&killed).unwrap();
    let stopped = run(
        &engine,
        &examples,
        &methods(&METHODS),
        &Scorer::default(),
        &mut results,
        &mut |now| {
            if now.done < 10 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        },
    );
    assert!(matches!(stopped, Err(EvalError::Engine(inertiakv::Error::Cancelled))));
    drop(results);
    assert_eq!(lines(&killed).len(), 10);
    // The process died while it wrote a line.
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(killed.join("results.jsonl"))
        .unwrap();
    file.write_all(b"{\"key\":\"cut sho").unwrap();
    drop(file);
    run_all(&engine, &examples, &METHODS, &killed).unwrap();

    let content = |folder: &Path| -> BTreeMap<String, (String, String)> {
        let record = |line: Value| {
            (
                line["key"].to_string(),
                (line["prediction"].to_string(), line["score"].to_string()),
            )
        };
        lines(folder).into_iter().map(record).collect()
    };
    assert_eq!(lines(&killed).len(), 21);
    assert_eq!(content(&killed), content(&whole));
    // Nothing is left to do.
    run_all(&engine, &examples, &METHODS, &killed).unwrap();
    assert_eq!(lines(&killed).len(), 21);
}

#[test]
fn failures_are_recorded_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let too_long = Example {
        context: "hello there ".repeat(400),
        ..example(0)
    };
    let unscorable = Example {
        scoring: Scoring::new(Metric::Classification),
        ..example(1)
    };
    let results = folder.path().join("results");
    run_all(
        &engine,
        &[too_long.clone(), unscorable, example(2)],
        &["full", "inertia"],
        &results,
    )
    .unwrap();
    let records = lines(&results);
    assert_eq!(records.len(), 6);
    assert!(
        records[0]["error"].as_str().unwrap().contains("context is 512"),
        "{}",
        records[0]
    );
    assert!(
        records[2]["error"].as_str().unwrap().contains("classes"),
        "{}",
        records[2]
    );
    assert_eq!(records[4]["error"], Value::Null);
    assert_eq!(
        records[4]["report"]["prompt_tokens"],
        records[5]["report"]["prompt_tokens"]
    );
    run_all(&engine, std::slice::from_ref(&too_long), &["full"], &results).unwrap();
    assert_eq!(lines(&results).len(), 7);

    let cut = Example {
        truncation: Some(Truncation::Middle),
        ..too_long
    };
    run_all(&engine, &[cut], &["inertia"], &results).unwrap();
    let cut = lines(&results).pop().unwrap();
    assert_eq!(cut["error"], Value::Null);
    let tokens = |name: &str| cut["report"][name].as_u64().unwrap();
    assert!(tokens("prompt_tokens") > 400 && tokens("prompt_tokens") < 512, "{cut}");
}

#[test]
fn a_damaged_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("results.jsonl"), "{\"key\":1}\n").unwrap();
    let error = Results::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("results.jsonl:1"), "{error}");
}

#[test]
fn summaries_compare_with_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let examples: Vec<Example> = (0..4).map(example).collect();
    let path = folder.path().join("results");
    run_all(&engine, &examples, &["full", "inertia"], &path).unwrap();
    let results = Results::open(&path).unwrap();
    let methods = ["full".to_owned(), "inertia".to_owned()];
    let summaries = summarise(results.outcomes().iter(), &methods, &Bootstrap::default()).unwrap();
    assert_eq!((summaries.len(), summaries[1].examples), (2, 4));
    let difference = summaries[1].difference.as_ref().unwrap();
    let change = summaries[1].mean.unwrap() - summaries[0].mean.unwrap();
    assert!((change - difference.mean).abs() < 1e-9);
}

#[test]
fn a_method_that_cannot_run_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    let refused = run_all(&engine, &[example(0)], &["full", "learned"], &path).unwrap_err();
    assert!(refused.to_string().contains("train-scorer"), "{refused}");
    assert!(lines(&path).is_empty());
}

#[test]
fn an_interval_that_was_not_reached_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    run_all(
        &engine,
        &[example(0)],
        &["tova:at=decode,tokens=64,interval=300"],
        &path,
    )
    .unwrap();
    assert_eq!(lines(&path)[0]["error"], Value::Null);
}

#[test]
fn results_can_be_read_while_a_run_adds_to_them_but_not_run_twice() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let path = folder.path().join("results");
    run_all(&engine, &[example(0)], &["full"], &path).unwrap();
    let running = Results::open(&path).unwrap();
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(path.join("results.jsonl"))
        .unwrap();
    file.write_all(b"{\"key\":\"under w").unwrap();
    assert_eq!(Outcomes::read(&path).unwrap().iter().count(), 1);
    assert!(matches!(Results::open(&path), Err(EvalError::Busy { .. })));
    drop(running);
    assert_eq!(Results::open(&path).unwrap().outcomes().iter().count(), 1);
}

#[test]
fn what_changes_an_answer_changes_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let key =
        |engine: &Engine, path: &str| run_all(engine, &[example(0)], &["full"], &folder.path().join(path)).unwrap();
    let first = engine(folder.path());
    let same = key(&first, "a");
    assert_eq!(key(&first, "b"), same);
    let open = |options: &EngineOptions| Engine::open(&folder.path().join("tiny.gguf"), options).unwrap();
    let shorter = EngineOptions {
        context: Some(400),
        ..EngineOptions::default()
    };
    assert_ne!(key(&open(&shorter), "c"), same);
    let one_thread = EngineOptions {
        threads: Some(1),
        ..EngineOptions::default()
    };
    assert_eq!(key(&open(&one_thread), "d"), same);
    let other = TinyModel {
        context: 512,
        tied: false,
        seed: 77,
        ..TinyModel::default()
    };
    other.write(folder.path().join("tiny.gguf")).unwrap();
    assert_ne!(key(&open(&EngineOptions::default()), "e"), same);
}
