//! Rank traces on a tiny random model.

use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::testing::TinyModel;
use inertiakv::{Engine, EngineOptions, GenerateOptions, Method};
use inertiakv_eval::trace::{RankTrace, TraceLine, TraceSummary, boundary_pair, rank_trace};

pub(crate) fn engine(folder: &Path) -> Engine {
    let path = folder.join("tiny.gguf");
    TinyModel {
        context: 2048,
        tied: false,
        ..TinyModel::default()
    }
    .write(&path)
    .unwrap();
    Engine::open(&path, &EngineOptions::default()).unwrap()
}

fn prompt(engine: &Engine) -> (Vec<u32>, Vec<u32>) {
    let text = "the tower stands by the river and the ring lies under it. ".repeat(6);
    let tokens = |text: &str| engine.tokenizer().encode(text, false);
    (tokens(&text), tokens("where is the ring?"))
}

fn options() -> GenerateOptions {
    GenerateOptions {
        max_tokens: 10,
        ignore_end: true,
        ..GenerateOptions::default()
    }
}

fn trace(engine: &Engine, method: &str, with_question: bool) -> RankTrace {
    let (context, question) = prompt(engine);
    let question = if with_question { question } else { Vec::new() };
    let method: Method = method.parse().unwrap();
    rank_trace(engine, &context, &question, &method, &options(), &mut |_, _| {
        ControlFlow::Continue(())
    })
    .unwrap()
}

#[test]
fn a_traced_method_answers_as_it_would_alone() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let (context, question) = prompt(&engine);
    for text in [
        "inertia",
        "inertia-lazy:ratio=0.5",
        "inertia:coupling=per-head",
        "h2o:interval=4",
    ] {
        let mut session = engine.session(&text.parse().unwrap()).unwrap();
        session
            .prefill(&context, &mut |_, _| ControlFlow::Continue(()))
            .unwrap();
        session.step(&question).unwrap();
        let alone = session
            .generate(&options(), &mut |_| ControlFlow::Continue(()))
            .unwrap();
        let traced = trace(&engine, text, true);
        assert_eq!(traced.text, alone.text, "{text}");
        assert_eq!(traced.steps.len(), 11, "{text}: the question and ten tokens");
        assert_eq!(traced.steps[0].tokens, question.len());
    }
}

#[test]
fn measures_are_what_the_rule_makes_them() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    // Without memory the running estimate is the step's own score.
    for step in &trace(&engine, "single-step", true).steps {
        assert_eq!(step.measures.raw_ema_jaccard, Some(1.0));
        assert_eq!(step.measures.raw_churn, step.measures.ema_churn);
    }
    // A frozen ranking never changes.
    let frozen = trace(&engine, "score-free", true);
    for step in &frozen.steps[1..] {
        assert!(!step.refresh);
        assert_eq!(
            (step.measures.ema_churn, step.measures.rank_moved),
            (Some(0.0), Some(0.0))
        );
    }
    // Neither does a set that nothing leaves.
    let inertia = trace(&engine, "inertia:ratio=0.5", true);
    let first = &inertia.steps[0];
    assert_eq!(
        (first.measures.persistence, first.measures.raw_churn),
        (Some(1.0), None)
    );
    for step in &inertia.steps {
        assert_eq!(step.retained.len(), step.budget);
        assert_eq!(step.raw_top.len(), step.budget);
        let held = |position: &&u32| !step.retained.contains(position);
        let missed = step.raw_top.iter().filter(held).count() as f64 / step.budget as f64;
        assert_eq!(step.measures.raw_top_missed, Some(missed));
        assert!(step.measures.score_entropy.unwrap() > 0.0 && step.measures.score_entropy.unwrap() <= 1.0);
        let shared = step
            .retained
            .iter()
            .filter(|position| first.retained.contains(position))
            .count();
        assert_eq!(step.measures.persistence, Some(shared as f64 / first.budget as f64));
    }
    let candidates: Vec<usize> = inertia.steps.iter().map(|step| step.candidates).collect();
    assert!(
        candidates.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "nothing leaves the shadows"
    );
    assert!(
        trace(&engine, "inertia", false).steps.len() == 10,
        "without a question the answer begins"
    );
}

#[test]
fn summaries_are_means_over_steps() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let traces = [
        trace(&engine, "inertia", true),
        trace(&engine, "inertia:alpha=0.95", true),
    ];
    let summary = TraceSummary::of(&traces);
    let steps: Vec<f64> = traces
        .iter()
        .flat_map(|t| &t.steps)
        .filter_map(|s| s.measures.raw_churn)
        .collect();
    assert_eq!(summary.steps, 22);
    assert!((summary.measures.raw_churn.unwrap() - steps.iter().sum::<f64>() / steps.len() as f64).abs() < 1e-12);
    let last = |trace: &RankTrace| trace.steps.last().unwrap().measures.persistence.unwrap();
    assert!((summary.measures.persistence.unwrap() - f64::midpoint(last(&traces[0]), last(&traces[1]))).abs() < 1e-12);
}

#[test]
fn lines_of_a_file_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let step = trace(&engine, "inertia", true).steps.swap_remove(3);
    let line = TraceLine {
        name: "n".to_owned(),
        model: "m".to_owned(),
        method: "inertia".to_owned(),
        step,
    };
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, serde_json::to_string(&line).unwrap() + "\n").unwrap();
    assert_eq!(TraceLine::read(&path).unwrap(), [line]);
}

#[test]
fn two_tokens_lie_on_both_sides_of_the_border() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let (context, question) = prompt(&engine);
    let pair = |method: &str| boundary_pair(&engine, &context, &question, &method.parse().unwrap(), 8).unwrap();
    let found = pair("inertia:coupling=layer-mean").unwrap();
    assert_eq!((found.raw.len(), found.ema.len()), (8, 8));
    let last = found.ema.last().unwrap();
    assert!(last.0 >= last.1, "in the end the one inside is not below");
    let orders: Vec<bool> = found.raw.iter().map(|(inside, outside)| inside < outside).collect();
    assert_eq!(
        found.raw_flips,
        orders.windows(2).filter(|pair| pair[0] != pair[1]).count()
    );
    assert!(pair("inertia:tokens=100000").is_none());
}

#[test]
fn methods_without_a_ranking_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let (context, question) = prompt(&engine);
    for (text, words) in [
        ("full", "nothing to trace"),
        ("snapkv", "nothing to trace"),
        (
            "snapkv:ratio=0.5+inertia:alpha=0.5",
            "compresses the prompt first, and then its KV heads may hold different entries",
        ),
        ("kvzip+h2o", "trace what it does while decoding alone: `h2o`"),
    ] {
        let error = rank_trace(
            &engine,
            &context,
            &question,
            &text.parse().unwrap(),
            &options(),
            &mut |_, _| ControlFlow::Continue(()),
        )
        .unwrap_err();
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}
