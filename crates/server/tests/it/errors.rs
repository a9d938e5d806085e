//! What is wrong is refused, with the field that is wrong.

use inertiakv_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::send;
use crate::support::{World, text};

#[test]
fn a_wrong_field_is_named() {
    let world = World::new();
    let hello = json!([{"role": "user", "content": "hello"}]);
    let cases: Vec<(Value, &str)> = vec![
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hello"}), "messages"),
        (json!({"messages": [{"role": "user"}, {"content": "x"}]}), "messages[1]"),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": 5}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content",
        ),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": null}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "x"}]}]}),
            "messages[0].tool_calls",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]}),
            "messages[0].function_call",
        ),
    ];
    for (body, param) in cases {
        let (status, found, message) = world.post("/v1/chat/completions", &body).error();
        assert_eq!((status, found.as_deref()), (400, Some(param)), "{body}: {message}");
    }
    let fields: Vec<(&str, Value)> = vec![
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_k", json!(-4)),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("n", json!(0)),
        ("n", json!(1000)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1.5)),
        ("max_completion_tokens", json!(-1)),
        ("seed", json!("x")),
        ("stop", json!(7)),
        ("stop", json!([""])),
        ("stream", json!("yes")),
        ("logprobs", json!(3)),
        ("top_logprobs", json!(3)),
        ("kv.method", json!({"method": "inertial"})),
        ("kv.method", json!({"method": "inertia:window=99999"})),
        ("kv.method", json!({"method": "tova:interval=64"})),
        ("kv.budget", json!({"budget": "0.1"})),
        ("kv.budget", json!({"method": "full", "budget": 5})),
        ("kv.budgets", json!({"budgets": 5})),
        ("tools", json!([{"type": "function"}])),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function"})),
        ("function_call", json!({"name": "f"})),
        ("response_format", json!({"type": "json_object"})),
        ("frequency_penalty", json!(0.5)),
    ];
    for (param, value) in fields {
        let field = param.split('.').next().unwrap();
        for stream in [false, true] {
            let mut body = json!({"messages": hello, "stream": stream});
            body[field] = value.clone();
            let (status, found, message) = world.post("/v1/chat/completions", &body).error();
            assert_eq!(status, 400, "{field} = {value}: {message}");
            assert_eq!(found.as_deref(), Some(param), "{field} = {value}: {message}");
        }
    }
    for (prompt, param) in [(json!(""), "prompt"), (json!([]), "prompt"), (json!([70000]), "prompt")] {
        let (status, found, _) = world.post("/v1/completions", &json!({ "prompt": prompt })).error();
        assert_eq!((status, found.as_deref()), (400, Some(param)), "{prompt}");
    }
    let (status, found, _) = world.post("/detokenize", &json!({"tokens": [1, 70000]})).error();
    assert_eq!((status, found.as_deref()), (400, Some("tokens[1]")));
}

#[test]
fn unknown_fields_are_ignored_and_neutral_ones_accepted() {
    let world = World::new();
    let body = json!({
        "prompt": "hello", "max_tokens": 2, "user": "me", "metadata": {"a": 1}, "temperature": null,
        "presence_penalty": 0, "best_of": 1, "logit_bias": {}, "response_format": {"type": "text"},
        "tools": [], "tool_choice": "auto",
    });
    world.complete(&body);
    // What answers look like, sent back.
    let spoken =
        json!({"role": "assistant", "content": "hello", "refusal": null, "tool_calls": null, "function_call": null});
    let body = json!({"messages": [spoken], "max_tokens": 1, "tool_choice": "none"});
    world.post("/v1/chat/completions", &body).ok();
}

#[test]
fn what_is_not_json_is_refused() {
    let world = World::new();
    for body in ["{", "hello", "{} {}", "[]"] {
        let response = send(world.address, "POST", "/v1/chat/completions", &[], body).response();
        assert_eq!(response.error().0, 400, "{body}");
    }
    assert_eq!(world.get("/nowhere").error().0, 404);
    assert_eq!(world.get("/v1/chat/completions").error().0, 405);
    assert_eq!(world.get("/v1/models/other").error().0, 404);
    assert_eq!(world.get("/v1/models/%FF").error().0, 400);
    assert_eq!(world.get("/slots?fail_on_no_slot=perhaps").error().0, 400);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_before_the_stream() {
    let world = World::new();
    for (path, param) in [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")] {
        let long = text(3000, 0);
        let body = json!({
            "prompt": long, "messages": [{"role": "user", "content": long}], "stream": true,
        });
        let response = world.post(path, &body);
        let (status, found, message) = response.error();
        assert_eq!((status, found.as_deref()), (400, Some(param)));
        let error = &response.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["n_ctx"], 4096);
        let prompt = error["n_prompt_tokens"].as_u64().unwrap();
        assert!(prompt > 4096 && message.contains(&prompt.to_string()));
    }
}

#[test]
fn a_prompt_that_cannot_be_repeated_is_refused_before_the_stream() {
    let world = World::new();
    let long = text(930, 0);
    let kv = json!({"method": "kvzip"});
    for (path, param) in [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")] {
        let body = json!({
            "prompt": long, "messages": [{"role": "user", "content": long}], "stream": true, "max_tokens": 2, "kv": kv,
        });
        let (status, found, message) = world.post(path, &body).error();
        assert_eq!((status, found.as_deref()), (400, Some(param)), "{message}");
        assert!(message.contains("repeat"), "{message}");
    }
    assert_eq!(world.metric("inertiakv_refused_total{reason=\"context\"}"), 2.0);
}

#[test]
fn what_can_never_fit_into_the_memory_is_refused_at_once() {
    // 512 KiB hold 1,024 rows of the tiny model.
    let world = World::with(ServerOptions::default(), Some(512 << 10));
    let ask = |method: &str| {
        let body = json!({
            "prompt": text(100, 0), "max_tokens": 2000, "ignore_eos": true, "kv": {"method": method},
        });
        world.post("/v1/completions", &body)
    };
    let (status, param, message) = ask("full").error();
    assert_eq!((status, param.as_deref()), (400, Some("max_tokens")));
    assert!(message.contains("--kv-memory"), "{message}");
    let body = json!({"prompt": text(100, 0), "max_completion_tokens": 2000, "kv": {"method": "full"}});
    let (_, param, _) = world.post("/v1/completions", &body).error();
    assert_eq!(
        param.as_deref(),
        Some("max_completion_tokens"),
        "the field that was given"
    );
    assert_eq!(
        ask("inertia").ok()["usage"]["completion_tokens"],
        2000,
        "evicting, it fits"
    );
    assert!(world.engine.kv_pool().bytes_peak() <= 512 << 10);
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let options = ServerOptions {
        body_limit: 1000,
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let response = world.post("/v1/completions", &json!({"prompt": text(1000, 0)}));
    assert_eq!(response.error().0, 413);
}

/// Who asks first whether to send it need not send it.
#[test]
fn a_body_that_is_said_to_be_too_large_is_refused_before_it_comes() {
    let options = ServerOptions {
        body_limit: 1000,
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let headers = ["Content-Length: 1001", "Expect: 100-continue"];
    let response = send(world.address, "POST", "/v1/completions", &headers, "").response();
    let (status, _, message) = response.error();
    assert_eq!(status, 413);
    assert!(message.contains("1000 bytes"), "{message}");
}

/// Deeper than anything that is built may be.
#[test]
fn what_is_refused_whatever_it_has_is_read_past() {
    let world = World::new();
    let deep = "[".repeat(500) + &"]".repeat(500);
    for field in ["tools", "functions", "logit_bias"] {
        let body = format!("{{\"prompt\": \"hello\", \"{field}\": {deep}}}");
        let response = send(world.address, "POST", "/v1/completions", &[], &body).response();
        let (status, param, message) = response.error();
        assert_eq!((status, param.as_deref()), (400, Some(field)), "{message}");
    }
}

/// What could have several forms is not copied to find out which: a list too long ends the reading.
#[test]
fn a_list_is_read_as_far_as_it_may_be_long() {
    let world = World::new();
    for (field, list) in [("prompt", vec!["x"; 33]), ("stop", vec!["x"; 17])] {
        let mut body = json!({"prompt": "hello", "max_tokens": 1});
        body[field] = list.into();
        let (status, param, message) = world.post("/v1/completions", &body).error();
        assert_eq!((status, param.as_deref()), (400, Some(field)), "{message}");
        assert!(message.contains("more than"), "{message}");
    }
    let mixed = json!({"prompt": ["hello", 5]});
    let (status, param, message) = world.post("/v1/completions", &mixed).error();
    assert_eq!((status, param.as_deref()), (400, Some("prompt[1]")), "{message}");
}

#[test]
fn every_refusal_is_counted_under_its_reason() {
    let options = ServerOptions {
        body_limit: 100,
        api_keys: vec!["key".to_owned()],
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let key = "Authorization: Bearer key";
    let metrics = || send(world.address, "GET", "/metrics", &[key], "").response().body;
    let count = |reason: &str| format!("inertiakv_refused_total{{reason=\"{reason}\"}} ");
    let reasons = [
        "body",
        "context",
        "key",
        "kv_memory",
        "method",
        "queue",
        "request",
        "route",
        "stopped",
    ];
    let at_first = metrics();
    for reason in reasons {
        assert!(at_first.contains(&(count(reason) + "0\n")), "{at_first}");
    }
    assert!(
        at_first.contains("inertiakv_answers_total{method=\"inertia\",outcome=\"stop\"} 0\n"),
        "{at_first}"
    );
    let long = "x".repeat(200);
    for (reason, path, headers, body) in [
        ("body", "/v1/completions", &[key][..], long.as_str()),
        ("key", "/v1/completions", &[], "{}"),
        (
            "method",
            "/v1/completions",
            &[key],
            r#"{"prompt": "x", "kv": {"method": "nothing"}}"#,
        ),
        (
            "method",
            "/v1/completions",
            &[key],
            r#"{"prompt": "x", "kv": {"budget": "nothing"}}"#,
        ),
        ("request", "/v1/completions", &[key], "{"),
        ("request", "/v1/completions", &[key], r#"{"prompt": "x", "tools": [1]}"#),
        ("route", "/nowhere", &[key], "{}"),
    ] {
        let before = metrics();
        send(world.address, "POST", path, headers, body).response();
        let after = metrics();
        let differs: Vec<_> = after
            .lines()
            .filter(|line| line.contains("refused_total") && !before.contains(&format!("{line}\n")))
            .collect();
        assert!(
            matches!(differs[..], [line] if line.starts_with(&count(reason))),
            "{reason}: {differs:?}"
        );
    }
}
