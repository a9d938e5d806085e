//! The KV memory is a bound, and nobody is lost for it.

use inertiakv_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{World, text};

#[test]
fn a_full_queue_says_when_to_come_back() {
    let options = ServerOptions {
        max_queue: 1,
        prefix_memory: 0,
        ..ServerOptions::default()
    };
    let world = World::with(options, Some(2 << 20));
    let body = json!({
        "prompt": "hello", "max_tokens": 3500, "ignore_eos": true, "stream": true, "kv": {"method": "full"},
    });
    let mut running = world.send("/v1/completions", &body);
    while !running.line().starts_with("data: ") {}
    let waiting = world.send("/v1/completions", &body);
    world.wait_until(|world| world.metric("inertiakv_requests_waiting") == 1.0);
    let refused = world.post("/v1/completions", &body);
    assert_eq!(refused.error().0, 503);
    assert!(
        refused
            .header("retry-after")
            .is_some_and(|seconds| seconds.parse::<u32>().is_ok())
    );
    assert_eq!(world.metric("inertiakv_refused_total{reason=\"queue\"}"), 1.0);
    // Only the first has memory; the second gets its turn when it has gone.
    drop(running);
    let events = waiting.response().events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
}

/// More than fits at once, of all kinds, from a shared beginning: everybody is answered within the memory.
#[test]
fn everybody_is_answered_within_the_memory() {
    for (limit, prefix_memory) in [(1 << 20, 0), (1 << 20, 300 << 10), (3 << 20, 1 << 20)] {
        let options = ServerOptions {
            prefill_chunk: 32,
            prefix_memory,
            ..ServerOptions::default()
        };
        let world = World::with(options, Some(limit));
        let beginning = text(60, 0);
        let requests: Vec<Value> = (0..40)
            .map(|index| {
                let methods = [
                    "full",
                    "inertia",
                    "inertia:interval=8",
                    "inertia:coupling=per-head",
                    "snapkv",
                    "adakv-ea+inertia",
                    "kvzip:chunk=64",
                ];
                let method = methods[index % methods.len()];
                json!({
                    "prompt": format!("{beginning}{}", text(index % 7 * 10, index)),
                    "max_tokens": 5 + 30 * (index % 4),
                    "n": if index % 6 == 0 { 3 } else { 1 },
                    "ignore_eos": true,
                    "kv": {"method": method},
                })
            })
            .collect();
        std::thread::scope(|scope| {
            for body in &requests {
                scope.spawn(|| {
                    let answer = world.complete(body);
                    let tokens = body["max_tokens"].as_u64().unwrap() * body["n"].as_u64().unwrap();
                    assert_eq!(answer["usage"]["completion_tokens"], tokens);
                });
            }
        });
        let pool = world.engine.kv_pool();
        assert!(pool.bytes_peak() <= limit, "{} of {limit}", pool.bytes_peak());
        world.wait_until_idle();
        let left = world.metric("inertiakv_kv_bytes_used");
        assert!(
            left <= world.metric("inertiakv_kv_bytes_prefixes"),
            "{left} bytes are left"
        );
        assert_eq!(world.metric("inertiakv_kv_bytes_reserved"), 0.0);
    }
}

/// A method's name without its settings.
fn name(method: &str) -> &str {
    method.split(':').next().unwrap_or(method)
}

/// The claim in small: with nine tenths evicted, many more conversations are resident in the same memory.
#[test]
fn evicting_holds_many_times_as_many() {
    let limit = 4 << 20;
    let resident = |method: &str| {
        let options = ServerOptions {
            prefix_memory: 0,
            ..ServerOptions::default()
        };
        let world = World::with(options, Some(limit));
        let body = |index| {
            json!({
                "prompt": text(450, index), "max_tokens": 2000, "ignore_eos": true, "stream": true,
                "kv": {"method": method},
            })
        };
        let sent: Vec<_> = (0..40)
            .map(|index| world.send("/v1/completions", &body(index)))
            .collect();
        // More and more, until the first has its answer.
        let mut most = 0;
        world.wait_until(|world| {
            let slots = world.get("/slots").ok()["slots"].as_array().unwrap().clone();
            most = most.max(slots.iter().filter(|slot| slot["state"] == "decode").count());
            let ended = format!(
                "inertiakv_answers_total{{method=\"{}\",outcome=\"length\"}}",
                name(method)
            );
            world.metric(&ended) > 0.0
        });
        drop(sent);
        assert!(world.engine.kv_pool().bytes_peak() <= limit);
        most
    };
    let (full, evicting) = (resident("full"), resident("inertia:ratio=0.9"));
    assert!(evicting >= 6 * full, "{evicting} of inertia, {full} of full");
}
