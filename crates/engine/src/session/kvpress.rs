//! Do compressed prompts and decode-time baselines agree with kvpress? Its numbers are in `tests/golden/kvpress.json`,
//! made by the script beside it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use inertiakv_kernels::cache::KvType;
use inertiakv_policy::{Method, PolicyState, Scorer};
use serde::Deserialize;

use super::Session;
use super::reconstruct::Requests;
use crate::engine::{Engine, EngineOptions};

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    next_token: u32,
    kvzip: BTreeMap<String, Replay>,
    prefill: BTreeMap<String, Prefill>,
    decode: Decode,
}

#[derive(Deserialize)]
struct Replay {
    prefix_length: usize,
    suffix: Vec<u32>,
    first_prompt: Vec<u32>,
    other_prompt: Vec<u32>,
}

#[derive(Deserialize)]
struct Prefill {
    scores: Scores,
    ratios: BTreeMap<String, Compressed>,
}

/// Numbers, the name of the entry that has the same, or nothing.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scores {
    Own(Vec<Vec<Vec<f32>>>),
    Of(String),
    None(()),
}

#[derive(Deserialize)]
struct Compressed {
    retained: Vec<Vec<Vec<u32>>>,
    next_logits: Vec<f32>,
}

#[derive(Deserialize)]
struct Decode {
    prompt: usize,
    steps: usize,
    runs: BTreeMap<String, Run>,
}

#[derive(Deserialize)]
struct Run {
    interval: usize,
    target: usize,
    compressions: Vec<Compression>,
    last_logits: Vec<f32>,
}

#[derive(Deserialize)]
struct Compression {
    step: usize,
    evicted: Vec<Vec<Vec<u32>>>,
}

fn golden() -> (Engine, Golden) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let options = EngineOptions {
        kv_type: KvType::F32,
        threads: Some(2),
        ..EngineOptions::default()
    };
    let engine = Engine::open(&folder.join("kvpress.gguf"), &options).unwrap();
    let golden = std::fs::read_to_string(folder.join("kvpress.json")).unwrap();
    (engine, serde_json::from_str(&golden).unwrap())
}

fn prefilled(engine: &Engine, method: &Method, tokens: &[u32]) -> Session {
    let mut session = engine.session(&Method::full()).unwrap();
    session.remember_for([method]).unwrap();
    session.prefill(tokens, &mut |_, _| ControlFlow::Continue(())).unwrap();
    session
}

/// What our method of the same name is called, by the entry of the golden file.
fn method_of(name: &str, ratio: &str) -> Method {
    let text = match name {
        "tova" => "tova",
        "snapkv" => "snapkv",
        "snapkv_window_16" => "snapkv:window=16,recent=16",
        "expected_attention" => "expected-attention",
        "keydiff" => "keydiff",
        "knorm" => "knorm",
        "streaming_llm" => "streaming-llm:at=prefill",
        "adakv_expected_attention" => "adakv-ea",
        "adakv_expected_attention_safeguard_0.95" => "adakv-ea:safeguard=0.95",
        "adakv_snapkv" => "snapkv:safeguard=0.2",
        "adakv_snapkv_window_16" => "snapkv:window=16,recent=16,safeguard=0.2",
        "kvzip" | "kvzip_chat" => "kvzip:chunk=128",
        "kvzip_layerwise" | "kvzip_chat_layerwise" => "kvzip:chunk=128,share=layer",
        _ => panic!("{name} is not known here"),
    };
    let separator = if text.contains(':') { ',' } else { ':' };
    format!("{text}{separator}ratio={ratio}").parse().unwrap()
}

fn requests(golden: &Golden, name: &str) -> Requests {
    let replay = &golden.kvzip[name.trim_end_matches("_layerwise")];
    Requests {
        before: golden.tokens[..replay.prefix_length].to_vec(),
        all: replay.first_prompt.clone(),
        part: replay.other_prompt.clone(),
        end: replay.suffix.clone(),
    }
}

/// The largest difference relative to the largest number.
fn distance(found: &[f32], expected: &[f32]) -> f32 {
    let scale = expected.iter().fold(1e-30_f32, |most, value| most.max(value.abs()));
    let difference = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs());
    difference.fold(0.0, f32::max) / scale
}

#[test]
fn compressed_prompts_hold_what_kvpress_holds() {
    let (engine, golden) = golden();
    for (name, prefill) in &golden.prefill {
        for (ratio, expected) in &prefill.ratios {
            let method = method_of(name, ratio);
            let rule = method.prefill.as_ref().unwrap();
            let base = prefilled(&engine, &method, &golden.tokens);
            let mut session = base.fork(&Method::full()).unwrap();
            session.method = method.clone();
            let mut state = PolicyState::of_prompt(&rule.policy, &engine.policy_shape(), golden.tokens.len()).unwrap();
            let replayed = match rule.policy.scorer {
                Scorer::Reconstruction(chunk) => session
                    .reconstruct_with(&requests(&golden, name), chunk as usize)
                    .unwrap(),
                _ => Vec::new(),
            };
            session
                .observe_prompt(&mut state, golden.tokens.len(), replayed)
                .unwrap();
            check_scores(&golden, name, &state);
            session.finish_compression(&mut state).unwrap();
            let mut more = 0;
            for (layer, heads) in expected.retained.iter().enumerate() {
                for (head, retained) in heads.iter().enumerate() {
                    let found = state.retained(layer, head);
                    assert_eq!(session.cache.rows(layer, head), found.len());
                    if name.starts_with("kvzip") {
                        assert!(
                            found.iter().all(|position| retained.contains(position)),
                            "{method}: {found:?}"
                        );
                        more += retained.len() - found.len();
                    } else {
                        assert_eq!(&found, retained, "{method}: layer {layer}, head {head}");
                    }
                }
            }
            // Its KVzip floors what leaves, over heads; a budget here floors what stays, of each head.
            let heads = expected.retained.iter().flatten().count();
            assert!(more < heads, "{method}: {more} entries more");
            session.begin_decoding(state).unwrap();
            session.step(&[golden.next_token]).unwrap();
            if more == 0 {
                let found = &session.logits().unwrap()[..expected.next_logits.len()];
                let difference = distance(found, &expected.next_logits);
                assert!(difference < 1e-4, "{method}: logits differ by {difference}");
            }
        }
    }
}

/// Compares what the policy ranks by, before smoothing and protection, which kvpress puts into its scores.
fn check_scores(golden: &Golden, name: &str, state: &PolicyState) {
    let (Scores::Own(scores), ..) = (match &golden.prefill[name].scores {
        Scores::Of(other) => &golden.prefill[other].scores,
        scores => scores,
    },) else {
        return;
    };
    if name.contains("snapkv") {
        return;
    }
    let policy = state.policy();
    let first = policy.protect.sinks.max(5);
    let end = golden.tokens.len() - policy.protect.recent;
    for (layer, heads) in scores.iter().enumerate() {
        for (head, scores) in heads.iter().enumerate() {
            let found = &state.utility(layer, head)[first..end];
            let difference = distance(found, &scores[first..end]);
            assert!(
                difference < 2e-5,
                "{name}: scores of layer {layer}, head {head} differ by {difference}"
            );
        }
    }
}

#[test]
fn decoding_holds_what_kvpress_holds() {
    let (engine, golden) = golden();
    let Decode { prompt, steps, runs } = &golden.decode;
    for (name, run) in runs {
        let (text, window) = match name.as_str() {
            "tova_1" | "tova_8" => ("tova:at=decode", ""),
            "keydiff_1" | "keydiff_8" => ("keydiff:at=decode", ""),
            "knorm_1" | "knorm_8" => ("knorm:at=decode", ""),
            "snapkv_true_positions_8" => ("snapkv:at=decode", ",window=4,recent=4,aggregation=mean4"),
            // Positions that kvpress gives the wrong queries, or rows in another order than positions.
            "snapkv_8" | "snapkv_in_order_8" => continue,
            _ => panic!("{name} is not known here"),
        };
        let method: Method = format!("{text},tokens={},interval={}{window}", run.target, run.interval)
            .parse()
            .unwrap();
        let mut session = engine.session(&method).unwrap();
        session
            .prefill(&golden.tokens[..*prompt], &mut |_, _| ControlFlow::Continue(()))
            .unwrap();
        let mut held: Vec<Vec<Vec<u32>>> = vec![vec![(0..*prompt as u32).collect(); 2]; 3];
        let mut next = *prompt;
        for (index, compression) in run.compressions.iter().enumerate() {
            // kvpress waits for its interval even where the prompt is over the target; one step of as many tokens
            // waits as long, and is scored by the same last queries.
            let end = prompt + compression.step;
            let parts: Vec<&[u32]> = if index == 0 {
                vec![&golden.tokens[next..end]]
            } else {
                golden.tokens[next..end].chunks(1).collect()
            };
            for part in parts {
                session.step(part).unwrap();
            }
            // Neighbours are positions here and rows there, which is the same until entries have left.
            if text.starts_with("snapkv") && index > 0 {
                break;
            }
            let state = session.policy().unwrap();
            for (layer, heads) in compression.evicted.iter().enumerate() {
                for (head, evicted) in heads.iter().enumerate() {
                    let held = &mut held[layer][head];
                    held.extend(next as u32..end as u32);
                    held.retain(|position| !evicted.contains(position));
                    assert_eq!(
                        &state.retained(layer, head),
                        held,
                        "{method}: step {}, layer {layer}, head {head}",
                        compression.step
                    );
                }
            }
            next = end;
        }
        if next == prompt + steps {
            let found = &session.logits().unwrap()[..run.last_logits.len()];
            let difference = distance(found, &run.last_logits);
            assert!(difference < 1e-4, "{method}: logits differ by {difference}");
        }
    }
}
