//! Does every family compute what its reference implementation does? The models and the reference's logits are in
//! `tests/golden/families`, made by the script beside it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use inertiakv_kernels::cache::KvType;
use inertiakv_kernels::linear::WeightType;
use inertiakv_policy::Method;
use safetensors::SafeTensors;

use crate::engine::{Engine, EngineOptions};

struct Golden {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    next: Vec<u32>,
}

fn golden(folder: &Path) -> Golden {
    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<u32> {
        let data = tensors.tensor(name).unwrap();
        let (words, _) = data.data().as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };
    let width = tensors.tensor("logits").unwrap().shape()[1];
    let logits: Vec<f32> = words("logits").into_iter().map(f32::from_bits).collect();
    Golden {
        tokens: words("tokens"),
        logits: logits.chunks(width).map(<[f32]>::to_vec).collect(),
        next: words("next"),
    }
}

fn open(path: &Path, quantise: Option<WeightType>) -> Engine {
    let options = EngineOptions {
        kv_type: KvType::F32,
        threads: Some(2),
        quantise,
        ..EngineOptions::default()
    };
    Engine::open(path, &options).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every case with every form it is there in.
fn cases() -> Vec<(PathBuf, PathBuf)> {
    let families = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/families");
    let mut cases = Vec::new();
    for folder in std::fs::read_dir(families).unwrap() {
        let folder = folder.unwrap().path();
        cases.push((folder.clone(), folder.clone()));
        let converted = folder.join("model.gguf");
        if converted.exists() {
            cases.push((folder, converted));
        }
    }
    assert_eq!(cases.len(), 16);
    cases.sort();
    cases
}

/// The largest difference of logits, at every position of a prefill in chunks of `chunk` tokens.
fn difference(engine: &Engine, golden: &Golden, chunk: usize) -> f32 {
    let mut session = engine.session(&Method::full()).unwrap();
    let mut largest = 0.0_f32;
    for (index, tokens) in golden.tokens.chunks(chunk).enumerate() {
        let mut take = |row: usize, logits: &[f32]| {
            for (ours, theirs) in logits.iter().zip(&golden.logits[index * chunk + row]) {
                largest = largest.max((ours - theirs).abs());
            }
        };
        session.prefill_with_logits(tokens, 0, &mut take).unwrap();
    }
    largest
}

#[test]
fn logits_at_every_position_are_those_of_transformers() {
    for (folder, path) in cases() {
        let golden = golden(&folder);
        let engine = open(&path, None);
        // All at once, in parts that end within windows, and token by token as when decoding.
        for chunk in [300, 77, 1] {
            let difference = difference(&engine, &golden, chunk);
            println!("{}, chunks of {chunk}: {difference:.1e}", path.display());
            assert!(difference < 1e-3, "{}, chunks of {chunk}: {difference}", path.display());
        }
    }
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    for (folder, path) in cases() {
        let golden = golden(&folder);
        let mut session = open(&path, None).session(&Method::full()).unwrap();
        let mut progress = |_, _| ControlFlow::Continue(());
        session.prefill(&golden.tokens, &mut progress).unwrap();
        for (step, &expected) in golden.next.iter().enumerate() {
            let logits = session.logits().unwrap();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            assert_eq!(best, Some(expected as usize), "{}, step {step}", path.display());
            session.step(&[expected]).unwrap();
        }
    }
}

/// Weights of 8 bits move logits a little; what they take is about half of 16 bits.
#[test]
fn weights_are_quantised_at_load() {
    for (folder, path) in cases() {
        let golden = golden(&folder);
        let (kept, quantised) = (open(&path, None), open(&path, Some(WeightType::Q8_0)));
        let (before, after) = (kept.info(), quantised.info());
        assert!(after.quantisation.contains("Q8_0"), "{}", after.quantisation);
        assert!(after.weight_bytes < before.weight_bytes * 2 / 3, "{}", path.display());
        let difference = difference(&quantised, &golden, 300);
        let largest = golden
            .logits
            .iter()
            .flatten()
            .fold(0.0_f32, |top, logit| top.max(logit.abs()));
        // Random weights are harder than trained ones: nothing in them is redundant.
        let place = format!("{}: {difference} of {largest}", path.display());
        assert!(difference > 1e-3 && difference < 0.5 * largest, "{place}");
    }
}
