//! Whoever else is there, an answer has the tokens it would have alone.

use std::ops::ControlFlow;

use inertiakv::{GenerateOptions, Sampling};
use inertiakv_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{World, text};

/// Requests of all kinds: short and long prompts, greedy and drawn, several methods, several answers.
fn requests() -> Vec<Value> {
    let methods = [
        "full",
        "inertia",
        "inertia-lazy:ratio=0.7",
        "h2o:tokens=20",
        "inertia:coupling=per-head,ratio=0.8",
        "snapkv:ratio=0.5+inertia:ratio=0.9",
        "adakv-ea:ratio=0.6",
    ];
    (0..15)
        .map(|index| {
            json!({
                "prompt": text(5 + 40 * (index % 4), index),
                "max_tokens": 10 + 7 * (index % 5),
                "temperature": ([0.0, 0.7, 1.3][index % 3]),
                "top_k": ([0, 20][index % 2]),
                "seed": index,
                "n": 1 + index % 2,
                "ignore_eos": true,
                "logprobs": 2,
                "kv": {"method": methods[index % methods.len()]},
            })
        })
        .collect()
}

/// What must not depend on anybody else.
fn essence(answer: &Value) -> Vec<[Value; 5]> {
    let choices = answer["choices"].as_array().expect("choices");
    let of = |choice: &Value| {
        let kv = &choice["kv"];
        [
            choice["text"].clone(),
            choice["logprobs"].clone(),
            choice["finish_reason"].clone(),
            kv["retained"].clone(),
            kv["evictions"].clone(),
        ]
    };
    choices.iter().map(of).collect()
}

#[test]
fn together_as_alone() {
    let world = World::with_prefixes(0);
    let requests = requests();
    let alone: Vec<_> = requests.iter().map(|body| essence(&world.complete(body))).collect();
    for _ in 0..3 {
        let together: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = requests
                .iter()
                .map(|body| scope.spawn(|| essence(&world.complete(body))))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        for ((together, alone), body) in together.iter().zip(&alone).zip(&requests) {
            assert_eq!(together, alone, "{body}");
        }
    }
    assert_eq!(world.engine.kv_pool().bytes_in_use(), 0);
}

#[test]
fn the_server_answers_as_the_library_does() {
    // The chunk that the library uses.
    let options = ServerOptions {
        prefill_chunk: 512,
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let prompt = text(300, 5);
    let method = "inertia:ratio=0.8";
    let body = json!({
        "prompt": prompt, "max_tokens": 40, "temperature": 0.9, "seed": 77, "kv": {"method": method},
    });
    let served = world.complete(&body);

    let mut session = world.engine.session(&method.parse().unwrap()).unwrap();
    let tokens = world.engine.tokenizer().encode(&prompt, true);
    session.prefill(&tokens, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let options = GenerateOptions {
        max_tokens: 40,
        sampling: Sampling {
            temperature: 0.9,
            seed: 77,
            ..Sampling::default()
        },
        ..GenerateOptions::default()
    };
    let answer = session.generate(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(served["choices"][0]["text"], answer.text);
    assert_eq!(served["usage"]["completion_tokens"], answer.tokens.len());
    assert_eq!(served["choices"][0]["kv"]["retained"], session.report().retained);
}
