//! A client that goes away gives its blocks back.

use inertiakv_server::ServerOptions;
use serde_json::json;

use crate::support::{World, text};

const CANCELLED: &str = "inertiakv_answers_total{method=\"full\",outcome=\"cancelled\"}";

fn world() -> World {
    let options = ServerOptions {
        prefill_chunk: 4,
        prefix_memory: 0,
        ..ServerOptions::default()
    };
    World::with(options, None)
}

#[test]
fn while_it_streams() {
    let world = world();
    let body = json!({
        "prompt": "hello", "max_tokens": 4000, "ignore_eos": true, "stream": true, "kv": {"method": "full"}, "n": 2,
    });
    let mut sent = world.send("/v1/completions", &body);
    while !sent.line().starts_with("data: ") {}
    assert!(world.engine.kv_pool().bytes_in_use() > 0);
    drop(sent);
    world.wait_until_idle();
    assert_eq!(world.engine.kv_pool().bytes_in_use(), 0);
    assert_eq!(world.metric(CANCELLED), 2.0, "both answers");
}

#[test]
fn while_it_waits_for_the_whole_answer() {
    let world = world();
    let body = json!({"prompt": "hello", "max_tokens": 4000, "ignore_eos": true, "kv": {"method": "full"}});
    let sent = world.send("/v1/completions", &body);
    world.wait_until(|world| world.metric("inertiakv_generated_tokens_total{method=\"full\"}") > 2.0);
    drop(sent);
    world.wait_until_idle();
    assert_eq!(world.engine.kv_pool().bytes_in_use(), 0);
    assert_eq!(world.metric(CANCELLED), 1.0);
}

#[test]
fn in_prefill() {
    let world = world();
    let body = json!({"prompt": text(900, 1), "max_tokens": 5, "stream": true, "kv": {"method": "full"}});
    let sent = world.send("/v1/completions", &body);
    world.wait_until(|world| world.get("/slots").ok()["slots"][0]["state"] == "prefill");
    drop(sent);
    world.wait_until_idle();
    assert_eq!(world.engine.kv_pool().bytes_in_use(), 0);
    assert_eq!(world.metric(CANCELLED), 1.0);
    let first_tokens = world.metric("inertiakv_time_to_first_token_seconds_count{method=\"full\"}");
    assert_eq!(first_tokens, 0.0, "it never came to an answer");
}

#[test]
fn in_the_queue() {
    let options = ServerOptions {
        prefix_memory: 0,
        ..ServerOptions::default()
    };
    // Room for one of these.
    let world = World::with(options, Some(2 << 20));
    let body = json!({
        "prompt": "hello", "max_tokens": 3500, "ignore_eos": true, "stream": true, "kv": {"method": "full"},
    });
    let mut first = world.send("/v1/completions", &body);
    while !first.line().starts_with("data: ") {}
    let second = world.send("/v1/completions", &body);
    world.wait_until(|world| world.metric("inertiakv_requests_waiting") == 1.0);
    drop(second);
    world.wait_until(|world| world.metric("inertiakv_requests_waiting") == 0.0);
    assert_eq!(world.metric(CANCELLED), 1.0);
    drop(first);
    world.wait_until_idle();
}
