//! Is what kvpress does on a tiny random model (`golden/make_kvpress.py`), and what it keeps on a trained one, what the
//! engine does? That it keeps the same on the tiny one is a unit test of the session, which replays the requests of `KVzip`.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::{Engine, EngineOptions, KvType, Method};
use serde::Deserialize;

use crate::models;
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

#[derive(Deserialize)]
struct RealGolden {
    tokens: Vec<u32>,
    prefill: BTreeMap<String, RealPrefill>,
}

#[derive(Deserialize)]
struct RealPrefill {
    retained: Vec<Vec<Vec<u32>>>,
}

/// kvpress ran the weights in f32; here activations are rounded to 8 bits, so what nearly ties may change places.
#[test]
fn real_model_retained_sets_are_nearly_those_of_kvpress() {
    let golden: RealGolden = golden("kvpress-smollm2.json");
    let engine = models::open_real("smollm2-135m");
    let methods = [
        ("tova", "tova", 0.95),
        ("snapkv_window_16", "snapkv:window=16,recent=16", 0.95),
        ("expected_attention", "expected-attention", 0.95),
        ("keydiff", "keydiff", 0.95),
        ("knorm", "knorm", 0.95),
        ("streaming_llm", "streaming-llm:at=prefill", 1.0),
        ("adakv_expected_attention", "adakv-ea", 0.95),
        (
            "adakv_snapkv_window_16",
            "snapkv:window=16,recent=16,safeguard=0.2",
            0.95,
        ),
        // Its requests end without the chat template there, so that the model is asked a little differently.
        ("kvzip_layerwise", "kvzip:share=layer", 0.7),
    ];
    for (name, text, least) in methods {
        let method: Method = text.parse().expect("a method");
        let mut session = engine.session(&method).expect("a session");
        session
            .prefill(&golden.tokens, &mut |_, _| ControlFlow::Continue(()))
            .expect("prefill");
        let policy = session.policy().expect("the prompt is compressed");
        let (mut same, mut held, mut equal, mut sets) = (0, 0, 0, 0);
        for (layer, heads) in golden.prefill[name].retained.iter().enumerate() {
            for (head, expected) in heads.iter().enumerate() {
                let found = policy.retained(layer, head);
                same += found.iter().filter(|&position| expected.contains(position)).count();
                held += found.len();
                equal += usize::from(&found == expected);
                sets += 1;
            }
        }
        let overlap = same as f64 / held as f64;
        println!("{text}: {overlap:.4} of the entries, {equal} of {sets} sets equal");
        assert!(overlap >= least, "{text}: {overlap}");
    }
}
