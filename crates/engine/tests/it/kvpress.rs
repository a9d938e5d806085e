//! Is what kvpress does on a tiny random model (`golden/make_kvpress.py`) what the engine does?

use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::{Engine, EngineOptions, KvType, Method};
use serde::Deserialize;

use crate::parity::golden;

/// Largest difference of a logit from that of transformers; the largest logits are about 20.
const LOGITS: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    next_token: u32,
    logits: Vec<f32>,
    next_logits: Vec<f32>,
}

/// The model whose numbers are golden, with nothing rounded.
fn open() -> Engine {
    let options = EngineOptions {
        threads: Some(2),
        kv_type: KvType::F32,
        ..EngineOptions::default()
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/kvpress.gguf");
    Engine::open(&file, &options).expect("the golden model opens")
}

fn assert_logits(what: &str, found: &[f32], expected: &[f32]) {
    let difference = expected
        .iter()
        .zip(found)
        .map(|(expected, found)| (expected - found).abs())
        .fold(0.0, f32::max);
    println!("{what}: logits differ by at most {difference:e}");
    assert!(difference < LOGITS, "{what}: a logit differs by {difference}");
}

#[test]
fn logits_without_eviction_are_those_of_transformers() {
    let expected: Golden = golden("kvpress.json");
    let mut session = open().session(&Method::full()).expect("a session");
    session
        .prefill(&expected.tokens, &mut |_, _| ControlFlow::Continue(()))
        .expect("prefill");
    let logits = session.logits().expect("logits");
    assert_eq!(logits.len(), expected.logits.len());
    assert_logits("prompt", logits, &expected.logits);
    session.step(&[expected.next_token]).expect("step");
    assert_logits("next token", session.logits().expect("logits"), &expected.next_logits);
}
