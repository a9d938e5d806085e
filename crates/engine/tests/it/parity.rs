//! Does the engine agree with llama.cpp on the same file? Golden numbers come from `tests/golden/make_parity.py`.

use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::{Engine, Method, PerplexityOptions};
use serde::Deserialize;

use crate::models;

/// Largest difference of a log-probability among the ten most likely tokens. llama.cpp rounds activations to 8 bits with
/// other scales than we do; its own results move about as much with its settings.
const TOLERANCE: f64 = 0.15;

/// Tokens of a continuation that must be the same.
const SAME_TOKENS: usize = 16;

#[derive(Deserialize)]
struct Golden {
    model_sha256: String,
    prompts: Vec<Prompt>,
    perplexity: Vec<GoldenPerplexity>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    file: String,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    top: Vec<(u32, f64)>,
    gap: f64,
}

#[derive(Deserialize)]
struct GoldenPerplexity {
    context: usize,
    scored_tokens: usize,
    perplexity: f64,
}

fn golden_file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read_to_string(path).expect("the golden file is part of the repository")
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - most - sum.ln()).collect()
}

fn argmax(values: &[f64]) -> u32 {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).expect("not empty") as u32
}

fn agrees_with_llama_cpp(model: &str, golden: &str) {
    let golden: Golden = serde_json::from_str(&golden_file(golden)).expect("valid golden file");
    assert_eq!(golden.model_sha256, inertiakv::catalog::entry(model).expect("in the catalog").sha256);
    let engine = models::open_real(model);
    for prompt in &golden.prompts {
        follows_the_continuation(&engine, prompt);
    }
    let text = golden_file("perplexity.txt");
    let tokens = engine.tokenizer().encode(&text, false);
    for expected in &golden.perplexity {
        let options = PerplexityOptions { context: expected.context, chunks: None, method: None };
        let found = engine.perplexity(&tokens, &options, &mut |_| ControlFlow::Continue(())).expect("perplexity");
        println!("{model} perplexity {} windows: {:.4} against {:.4}", expected.context, found.perplexity, expected.perplexity);
        assert_eq!(found.tokens, expected.scored_tokens);
        let difference = (found.perplexity / expected.perplexity - 1.0).abs();
        assert!(difference < 0.005, "{model}: perplexity {} against {}", found.perplexity, expected.perplexity);
    }
}

fn follows_the_continuation(engine: &Engine, prompt: &Prompt) {
    let text = golden_file(&prompt.file);
    let tokens = engine.tokenizer().with_bos(engine.tokenizer().encode(&text, true));
    assert_eq!(tokens, prompt.tokens, "{}: tokens of the prompt", prompt.name);
    let mut session = engine.session(&Method::full()).expect("a session");
    session.prefill(&tokens, &mut |_, _| ControlFlow::Continue(())).expect("prefill");
    let mut largest = 0.0_f64;
    for (index, step) in prompt.steps.iter().enumerate() {
        let found = log_probabilities(session.logits().expect("logits"));
        for &(token, expected) in &step.top {
            largest = largest.max((found[token as usize] - expected).abs());
        }
        if index < SAME_TOKENS && step.gap > TOLERANCE {
            assert_eq!(argmax(&found), prompt.greedy[index], "{}: token {index}", prompt.name);
        }
        session.step(&[prompt.greedy[index]]).expect("step");
    }
    println!("{}: largest difference of a log-probability {largest:.4}", prompt.name);
    assert!(largest <= TOLERANCE, "{}: log-probabilities differ by {largest}", prompt.name);
}

#[test]
fn real_model_smollm2_agrees_with_llama_cpp() {
    agrees_with_llama_cpp("smollm2-135m", "parity-smollm2.json");
}

#[test]
fn real_model_qwen_agrees_with_llama_cpp() {
    agrees_with_llama_cpp("qwen2.5-coder-0.5b", "parity-qwen.json");
}
