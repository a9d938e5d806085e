//! Every route answers what it should.

use inertiakv_server::{Origins, ServerOptions};
use serde_json::json;

use crate::client::send;
use crate::support::{World, text};

#[test]
fn a_chat_is_answered_with_what_the_cache_did() {
    let world = World::new();
    let answer = world
        .post(
            "/v1/chat/completions",
            &json!({
                "model": "whatever",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": text(60, 1)}]},
                ],
                "max_completion_tokens": 12,
                "temperature": 0,
                "ignore_eos": true,
                "kv": {"method": "inertia:ratio=0.5", "budget": 40},
            }),
        )
        .ok();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "tiny");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(
        choice["message"]["content"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert_eq!(choice["finish_reason"], "length");
    let kv = &choice["kv"];
    assert_eq!(kv["method"], "inertia:tokens=40");
    assert_eq!(kv["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    assert_eq!(kv["budget"], 40);
    assert_eq!(kv["retained"], 40);
    // The last token is not run: nobody needs what follows it.
    assert_eq!(kv["steps"], 11);
    assert_eq!(kv["evictions"], kv["prompt_tokens"].as_u64().unwrap() + 11 - 40);
    assert!(kv["kv_bytes"].as_u64().unwrap() < kv["kv_bytes_prefill"].as_u64().unwrap());
    assert_eq!(answer["usage"]["completion_tokens"], 12);
}

#[test]
fn a_budget_is_written_as_on_the_command_line() {
    let world = World::new();
    for (budget, method) in [
        (json!("25%"), "inertia:ratio=0.75"),
        (json!("tokens=9"), "inertia:tokens=9"),
    ] {
        let kv = json!({"method": "inertia:alpha=0.8", "budget": budget});
        let answer = world.complete(&json!({"prompt": text(30, 1), "max_tokens": 2, "kv": kv}));
        assert_eq!(answer["choices"][0]["kv"]["method"], method);
    }
}

#[test]
fn completions_take_texts_and_tokens_and_several_of_both() {
    let world = World::new();
    let ask = |prompt: serde_json::Value, n: usize| {
        let body = json!({"prompt": prompt, "n": n, "max_tokens": 5, "seed": 3, "temperature": 5, "ignore_eos": true});
        world.complete(&body)["choices"].clone()
    };
    let one = ask(json!("hello there"), 1);
    let tokens = world.engine.tokenizer().encode("hello there", true);
    assert_eq!(one[0]["text"], ask(json!(tokens), 1)[0]["text"]);
    let both = ask(json!(["hello there", "the other"]), 2);
    assert_eq!(both.as_array().unwrap().len(), 4);
    assert_eq!(both[0]["text"], one[0]["text"]);
    assert_ne!(both[0]["text"], both[1]["text"], "another choice has another seed");
    let indices: Vec<u64> = both
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(
        both[2]["text"],
        ask(json!([world.engine.tokenizer().encode("the other", true)]), 1)[0]["text"]
    );
}

#[test]
fn log_probabilities_come_in_both_shapes() {
    let world = World::new();
    let body = json!({
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3, "temperature": 0, "ignore_eos": true, "logprobs": true, "top_logprobs": 2,
    });
    let chat = world.post("/v1/chat/completions", &body).ok();
    let content = chat["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 3);
    for token in &content {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(
            token["logprob"], token["top_logprobs"][0]["logprob"],
            "greedy takes the most likely"
        );
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
    let body = json!({"prompt": "hello", "max_tokens": 3, "temperature": 0, "ignore_eos": true, "logprobs": 2});
    let logprobs = &world.complete(&body)["choices"][0]["logprobs"];
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[field].as_array().unwrap().len(), 3, "{field}");
    }
    assert_eq!(logprobs["text_offset"][0], 0);
}

/// The tiny model is as likely to draw a part of a character as anything else.
#[test]
fn parts_of_characters_keep_their_probabilities_and_their_places() {
    let world = World::new();
    let body = json!({
        "prompt": "hello", "max_tokens": 300, "temperature": 20, "seed": 3, "ignore_eos": true, "logprobs": 20,
    });
    let choice = &world.complete(&body)["choices"][0];
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let logprobs = &choice["logprobs"];
    let (tokens, offsets) = (&logprobs["tokens"], &logprobs["text_offset"]);
    let (mut parts, mut whole) = (0, 0);
    for (token, offset) in tokens.as_array().unwrap().iter().zip(offsets.as_array().unwrap()) {
        let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
        if token.starts_with("bytes:\\x") {
            parts += 1;
        } else if !token.starts_with("<|") {
            whole += 1;
            let found: String = text[offset..].iter().take(token.chars().count()).collect();
            assert_eq!(found, token, "at {offset}");
        }
    }
    assert!(parts > 20 && whole > 20, "{parts} parts, {whole} whole");
    for top in logprobs["top_logprobs"].as_array().unwrap() {
        assert_eq!(top.as_object().unwrap().len(), 20, "{top}");
    }
}

#[test]
fn a_stop_text_ends_the_answer_before_it() {
    let world = World::new();
    let body = json!({"prompt": "hello", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let whole = world.complete(&body)["choices"][0]["text"].as_str().unwrap().to_owned();
    let middle: String = whole.chars().skip(5).take(2).collect();
    let mut stopped = body.clone();
    stopped["stop"] = json!([middle, "never comes up"]);
    let choice = world.complete(&stopped)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["text"], whole[..whole.find(&middle).unwrap()]);
}

#[test]
fn the_retained_part_of_the_prompt_can_be_seen() {
    let world = World::new();
    let body = json!({
        "prompt": text(40, 2), "max_tokens": 4, "ignore_eos": true,
        "kv": {"method": "streaming-llm:tokens=20", "retained_share": true},
    });
    let answer = world.complete(&body);
    let share = answer["choices"][0]["kv"]["retained_share"].as_array().unwrap().clone();
    assert_eq!(share.len() as u64, answer["usage"]["prompt_tokens"].as_u64().unwrap());
    let held = share.iter().filter(|share| share.as_f64() == Some(1.0)).count();
    assert_eq!(held, 20 - 3, "three of the twenty are of the answer");
    assert!(share[..4].iter().all(|share| share.as_f64() == Some(1.0)), "the sinks");
}

#[test]
fn tokens_can_be_looked_at() {
    let world = World::new();
    let tokens = world.post("/tokenize", &json!({"content": "hello the é"})).ok()["tokens"].clone();
    assert_eq!(
        world.post("/detokenize", &json!({ "tokens": tokens })).ok()["content"],
        "hello the é"
    );
    let pieces = world
        .post("/tokenize", &json!({"content": "é", "with_pieces": true}))
        .ok();
    assert_eq!(
        pieces["tokens"][0]["piece"],
        json!([0xc3]),
        "half a character comes as its bytes"
    );
    let prompt = world
        .post(
            "/apply-template",
            &json!({"messages": [{"role": "user", "content": "hi"}]}),
        )
        .ok();
    assert_eq!(
        prompt["prompt"],
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn the_server_tells_about_itself() {
    let world = World::with(ServerOptions::default(), Some(8 << 20));
    assert_eq!(world.get("/health").ok()["status"], "ok");
    let models = world.get("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(world.get("/v1/models/tiny").ok(), models["data"][0]);
    let props = world.get("/props").ok();
    assert_eq!(props["method"], "inertia:tokens=1024");
    assert_eq!(props["n_ctx"], 4096);
    assert_eq!(props["kv_bytes_limit"], 8 << 20);
    let page = world.get("/");
    assert_eq!(page.status, 200);
    assert!(
        page.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/html"))
    );
    let kv = json!({"method": "inertia:ratio=0.9"});
    world.complete(&json!({"prompt": text(60, 3), "max_tokens": 3, "ignore_eos": true, "kv": kv}));
    assert!(world.metric("inertiakv_generated_tokens_total{method=\"inertia\"}") >= 3.0);
    assert!(world.metric("inertiakv_evictions_total{method=\"inertia\"}") > 0.0);
    assert!(world.metric("inertiakv_answers_total{method=\"inertia\",outcome=\"length\"}") >= 1.0);
    assert!(world.metric("inertiakv_kv_blocks_total") > 0.0);
}

#[test]
fn the_description_names_every_route() {
    let world = World::new();
    let document = world.get("/openapi.json").ok();
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys() {
            let path = path.replace("{model}", "tiny");
            let response = send(world.address, &method.to_uppercase(), &path, &[], "").response();
            assert!(
                ![404, 405].contains(&response.status),
                "{method} {path}: {}",
                response.body
            );
        }
    }
    let routes = include_str!("../../src/api.rs").matches(".route(\"").count();
    assert_eq!(paths.len(), routes, "a route is missing in the description");
}

#[test]
fn the_description_names_every_field_of_a_report() {
    let world = World::new();
    let document = world.get("/openapi.json").ok();
    let described = document["components"]["schemas"]["KvReport"]["properties"].clone();
    let kv = json!({"method": "inertia:aggregation=adaptive", "retained_share": true});
    let body = json!({"prompt": text(30, 1), "max_tokens": 14, "ignore_eos": true, "kv": kv});
    let report = world.complete(&body)["choices"][0]["kv"].clone();
    let names = |value: &serde_json::Value| {
        value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&described), names(&report));
    for (name, value) in report.as_object().expect("an object") {
        let kinds = &described[name]["type"];
        let kind = match value {
            serde_json::Value::String(_) => "string",
            serde_json::Value::Array(_) => "array",
            serde_json::Value::Null => "null",
            number if number.is_u64() && kinds.to_string().contains("integer") => "integer",
            _ => "number",
        };
        assert!(
            kinds.to_string().contains(kind),
            "{name} is {value}, but described as {kinds}"
        );
    }
}

#[test]
fn health_is_told_while_the_engine_computes() {
    let options = ServerOptions {
        prefill_chunk: 4000,
        ..ServerOptions::default()
    };
    let model = inertiakv::testing::TinyModel {
        layers: 12,
        ..Default::default()
    };
    let world = World::over(&model, options, None);
    // The whole prompt is one chunk, and nothing but its end counts a first token. A machine may be too busy to ask in time,
    // but not always.
    let told = (0..20).any(|index| {
        let count = |name: &str| world.metric(&format!("inertiakv_{name}{{method=\"inertia\"}}"));
        let (prompts, answers) = ("queue_seconds_count", "time_to_first_token_seconds_count");
        let body = json!({"prompt": text(500, index), "max_tokens": 2, "ignore_eos": true});
        let sent = world.send("/v1/completions", &body);
        world.wait_until(|_| count(prompts) > index as f64);
        assert_eq!(world.get("/health").ok()["status"], "ok");
        let told = count(answers) < count(prompts);
        assert_eq!(sent.response().status, 200);
        told
    });
    assert!(told, "health waits for the engine");
}

#[test]
fn keys_are_needed_where_there_are_keys() {
    let options = ServerOptions {
        api_keys: vec!["first".to_owned(), "second".to_owned()],
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let models = |headers: &[&str]| send(world.address, "GET", "/v1/models", headers, "").response();
    for wrong in [
        &[][..],
        &["Authorization: Bearer third"],
        &["Authorization: first"],
        &["Authorization: Bearerfirst"],
    ] {
        let response = models(wrong);
        assert_eq!(response.error().0, 401, "{wrong:?}");
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(
        models(&["Authorization: bearer first"]).status,
        200,
        "a scheme has no case"
    );
    assert_eq!(models(&["Authorization: Bearer first"]).status, 200);
    assert_eq!(models(&["Authorization: Bearer second"]).status, 200);
    assert_eq!(world.get("/health").status, 200, "health needs no key");
    assert_eq!(world.get("/metrics").status, 401);
}

#[test]
fn browsers_of_other_origins_are_let_in_when_asked_to() {
    let ask = |world: &World| {
        let headers = ["Origin: https://example.org", "Access-Control-Request-Method: POST"];
        let response = send(world.address, "OPTIONS", "/v1/chat/completions", &headers, "").response();
        response.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(ask(&World::new()), None);
    let of = |origins| {
        let options = ServerOptions {
            origins,
            ..ServerOptions::default()
        };
        ask(&World::with(options, None))
    };
    assert_eq!(of(Origins::Any).as_deref(), Some("*"));
    let these = |origin: &str| Origins::These(vec![origin.to_owned()]);
    assert_eq!(of(these("https://example.org")).as_deref(), Some("https://example.org"));
    assert_eq!(of(these("https://example.com")), None);
}

/// `OpenAI`'s client for JavaScript says in headers of its own where it runs.
#[test]
fn browsers_may_send_whatever_headers_their_clients_have() {
    let options = ServerOptions {
        origins: Origins::Any,
        api_keys: vec!["key".to_owned()],
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let asked = "authorization,content-type,x-stainless-os,x-stainless-retry-count";
    let headers = [
        "Origin: https://example.org",
        "Access-Control-Request-Method: POST",
        &format!("Access-Control-Request-Headers: {asked}"),
    ];
    let response = send(world.address, "OPTIONS", "/v1/chat/completions", &headers, "").response();
    assert_eq!(response.header("access-control-allow-headers"), Some(asked));
    let headers = [
        "Origin: https://example.org",
        "Authorization: Bearer key",
        "X-Stainless-OS: Linux",
    ];
    let response = send(world.address, "GET", "/v1/models", &headers, "").response();
    assert_eq!(response.status, 200);
    assert_eq!(response.header("access-control-allow-origin"), Some("*"));
}

#[test]
fn requests_keep_their_names() {
    let world = World::new();
    let named = send(world.address, "GET", "/health", &["X-Request-Id: mine-7"], "").response();
    assert_eq!(named.header("x-request-id"), Some("mine-7"));
    let own = world.get("/health");
    assert!(own.header("x-request-id").is_some_and(|id| id.starts_with("req-")));
}
