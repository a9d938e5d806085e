//! A stream is the same answer in pieces.

use serde_json::{Value, json};

use crate::support::{World, text};

/// The text of the pieces of a choice.
fn joined(events: &[Value], index: u64) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices
        .filter(|choice| choice["index"] == index)
        .map(|choice| {
            let text = if choice["delta"].is_object() {
                &choice["delta"]["content"]
            } else {
                &choice["text"]
            };
            text.as_str().unwrap_or_default()
        })
        .collect()
}

#[test]
fn pieces_together_are_the_whole() {
    let world = World::new();
    let mut body = json!({
        "messages": [{"role": "user", "content": text(50, 1)}], "prompt": text(50, 1),
        "max_tokens": 30, "seed": 11, "n": 2, "ignore_eos": true, "stop": ["zzzz"],
    });
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let whole = world.post(path, &body).ok();
        body["stream"] = true.into();
        let events = world.post(path, &body).events();
        body["stream"] = false.into();
        for index in 0..2 {
            let choice = &whole["choices"][index as usize];
            let text = if choice["message"].is_object() {
                &choice["message"]["content"]
            } else {
                &choice["text"]
            };
            assert_eq!(joined(&events, index), text.as_str().unwrap());
            let last = events
                .iter()
                .rfind(|event| event["choices"][0]["index"] == index)
                .unwrap();
            assert_eq!(last["choices"][0]["finish_reason"], "length");
            let (kv, expected) = (&last["choices"][0]["kv"], &choice["kv"]);
            for key in ["method", "prompt_tokens", "budget", "evictions", "retained", "kv_bytes"] {
                assert_eq!(kv[key], expected[key], "{key}");
            }
        }
        assert!(
            events.iter().all(|event| event.get("usage").is_none()),
            "nobody asked for the usage"
        );
    }
}

#[test]
fn the_usage_comes_last_when_asked_for() {
    let world = World::new();
    let body = json!({
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "ignore_eos": true,
        "stream": true, "stream_options": {"include_usage": true},
    });
    let mut events = world.post("/v1/chat/completions", &body).events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 5);
    let prompt = last["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(last["usage"]["total_tokens"], prompt + 5);
    assert!(
        events
            .iter()
            .all(|event| event["usage"].is_null() && event.get("usage").is_some())
    );
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[0]["object"], "chat.completion.chunk");
}

#[test]
fn log_probabilities_come_with_the_pieces() {
    let world = World::new();
    let body = json!({
        "prompt": "hello", "max_tokens": 4, "ignore_eos": true, "stream": true, "logprobs": 1, "temperature": 0,
    });
    let events = world.post("/v1/completions", &body).events();
    let logprobs = events
        .iter()
        .map(|event| &event["choices"][0]["logprobs"])
        .filter(|logprobs| logprobs.is_object());
    let offsets: Vec<u64> = logprobs
        .map(|logprobs| logprobs["text_offset"][0].as_u64().unwrap())
        .collect();
    assert_eq!(offsets.len(), 4);
    assert!(offsets.is_sorted() && offsets[3] > 0);
}
