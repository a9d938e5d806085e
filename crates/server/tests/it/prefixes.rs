//! A document that many ask about is prefilled once, and nobody can tell from the answers.

use serde_json::{Value, json};

use crate::support::{World, text};

fn ask(world: &World, document: &str, question: usize, method: &str) -> (u64, Value) {
    let answer = world.complete(&json!({
        "prompt": format!("{document}{}", text(6, question)),
        "max_tokens": 12, "temperature": 0, "ignore_eos": true, "logprobs": 3, "kv": {"method": method},
    }));
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    (cached, answer["choices"][0]["logprobs"].clone())
}

#[test]
fn reuse_changes_no_bit() {
    let (cold, warm) = (World::with_prefixes(0), World::with_prefixes(64 << 20));
    let document = text(120, 9);
    for (index, method) in ["inertia", "inertia", "full", "h2o:tokens=30", "inertia"]
        .into_iter()
        .enumerate()
    {
        // The last one asks the question before it again.
        let question = index.min(3);
        let (none, expected) = ask(&cold, &document, question, method);
        let (cached, answer) = ask(&warm, &document, question, method);
        assert_eq!(none, 0);
        assert_eq!(answer, expected, "question {question} under {method}");
        match index {
            0 => assert_eq!(cached, 0),
            4 => assert!(cached % 64 != 0 && cached > 256, "the same prompt is known whole"),
            _ => assert!(cached >= 256 && cached % 64 == 0, "{cached}"),
        }
    }
    let (other, _) = ask(&warm, &text(120, 10), 0, "inertia");
    assert_eq!(other, 0, "another document");
}

#[test]
fn kept_prompts_are_bounded() {
    // 512 bytes a row: 320 KiB are two of these prompts.
    let bound = 320 << 10;
    let world = World::with_prefixes(bound);
    for index in 0..6 {
        ask(&world, &text(60, index), 0, "inertia");
        assert!(world.engine.kv_pool().bytes_in_use() <= bound);
    }
    assert!(world.metric("inertiakv_kv_bytes_prefixes") > 0.0);
    assert!(ask(&world, &text(60, 5), 1, "inertia").0 > 0, "the latest is kept");
    assert_eq!(ask(&world, &text(60, 0), 1, "inertia").0, 0, "the oldest is not");
}
