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
                    "snapkv+inertia",
                    "snapkv:ratio=0.3+inertia:ratio=0.8",
                    "adakv-ea:ratio=0.4+inertia:interval=8",
                ];
                let method = methods[index % methods.len()];
                json!({
                    "prompt": format!("{beginning}{}", text(index % 7 * 10, index)),
                    "max_tokens": 5 + 30 * (index % 4),
                    "n": if index % 3 == 0 { 3 } else { 1 },
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
        assert_eq!(
            left,
            world.metric("inertiakv_kv_bytes_prefixes"),
            "what was kept is left"
        );
        assert!(prefix_memory > 0 || left == 0.0, "{left} bytes are left");
        assert_eq!(world.metric("inertiakv_kv_bytes_reserved"), 0.0);
    }
}

/// What a request is said to need is enough: alone in a memory of that size it is answered whole.
#[test]
fn what_is_reserved_is_enough_and_not_much_more() {
    let methods = [
        "full",
        "inertia",
        "inertia:interval=8,refresh=4",
        "inertia:seen_ratio=0.5",
        "inertia:coupling=per-head,ratio=0.6",
        "inertia:tokens=1000000",
        "snapkv:ratio=0.3",
        "snapkv:ratio=0.2,masked=true",
        "adakv-ea:ratio=0.4",
        "kvzip:chunk=64",
        "kvzip:chunk=64,ratio=0.1",
        "snapkv+inertia",
        "snapkv:ratio=0.1+inertia:ratio=0.9",
        "snapkv:ratio=0.9+inertia:ratio=0.2",
        "snapkv:tokens=1000000+inertia",
        "adakv-ea:ratio=0.4+inertia:interval=8",
    ];
    let least = World::new().engine.kv_pool().bytes_for(1);
    for method in methods {
        for (words, tokens, n) in [(60, 70, 1), (60, 70, 3), (9, 40, 3)] {
            let body = json!({
                "prompt": text(words, 1), "max_tokens": tokens, "n": n, "ignore_eos": true, "kv": {"method": method},
            });
            let world = |memory| {
                let options = ServerOptions {
                    prefill_chunk: 32,
                    ..ServerOptions::default()
                };
                World::with(options, Some(memory))
            };
            let (_, _, message) = world(least).post("/v1/completions", &body).error();
            let needed = message.split("need ").nth(1).and_then(|rest| rest.split(' ').next());
            let needed: usize = needed.expect("it says how much").parse().expect("a number");
            let world = world(needed);
            let answer = world.complete(&body);
            assert_eq!(
                answer["usage"]["completion_tokens"],
                tokens * n,
                "{method}, {n} answers"
            );
            let peak = world.engine.kv_pool().bytes_peak();
            assert!(peak <= needed, "{method}");
            if n == 1 && !method.starts_with("kvzip") {
                let block = world.engine.kv_pool().bytes_for(1);
                assert!(needed <= peak + peak / 2 + 4 * block, "{method}: {needed} for {peak}");
            }
        }
    }
}

/// A request with more prompts than may wait can never be taken, so it is not told to come back.
#[test]
fn more_prompts_than_may_wait_are_refused_for_good() {
    let options = ServerOptions {
        max_queue: 2,
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let ask = |prompts: usize, n: usize| {
        let prompts: Vec<String> = (0..prompts).map(|index| text(2, index)).collect();
        world.post("/v1/completions", &json!({"prompt": prompts, "max_tokens": 2, "n": n}))
    };
    let (status, param, message) = ask(3, 1).error();
    assert_eq!((status, param.as_deref()), (400, Some("prompt")), "{message}");
    assert_eq!(ask(2, 32).status, 200);
    let (status, param, message) = world
        .post("/v1/completions", &json!({"prompt": vec!["x"; 5], "n": 32}))
        .error();
    assert_eq!((status, param.as_deref()), (400, Some("n")), "{message}");
}

/// Whoever has not begun waits, and a crowd is not told to come back.
#[test]
fn a_crowd_may_wait() {
    let options = ServerOptions {
        prefix_memory: 0,
        ..ServerOptions::default()
    };
    // Room for one of these.
    let world = World::with(options, Some(2 << 20));
    let body = |prompts: usize| {
        json!({
            "prompt": vec!["hello"; prompts], "max_tokens": 3500, "ignore_eos": true, "stream": true,
            "kv": {"method": "full"},
        })
    };
    let mut running = world.send("/v1/completions", &body(1));
    while !running.line().starts_with("data: ") {}
    let crowd: Vec<_> = (0..16)
        .map(|_| {
            let mut sent = world.send("/v1/completions", &body(32));
            assert_eq!(sent.line(), "HTTP/1.1 200 OK");
            sent
        })
        .collect();
    assert_eq!(world.metric("inertiakv_requests_waiting"), 512.0);
    assert_eq!(world.post("/v1/completions", &body(1)).error().0, 503);
    drop((crowd, running));
    world.wait_until_idle();
}

/// More answers than may run at once wait for each other.
#[test]
fn more_answers_than_run_at_once_are_all_answered() {
    let world = World::with_prefixes(0);
    std::thread::scope(|scope| {
        let ask = |index| {
            let body = json!({"prompt": text(2, index), "max_tokens": 20, "n": 32, "ignore_eos": true});
            world.complete(&body)["usage"]["completion_tokens"].clone()
        };
        let threads: Vec<_> = (0..12).map(|index| scope.spawn(move || ask(index))).collect();
        world.wait_until(|world| {
            let running = world.metric("inertiakv_answers_running");
            assert!(running <= 256.0 + 1.0, "{running} and a prompt under way");
            threads.iter().all(std::thread::ScopedJoinHandle::is_finished)
        });
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), 20 * 32);
        }
    });
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
