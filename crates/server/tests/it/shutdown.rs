//! Stopping lets the running requests finish, within a stated time.

use std::error::Error;
use std::time::Duration;

use inertiakv::testing::TinyModel;
use inertiakv_server::{Origins, Server, ServerError, ServerOptions};
use serde_json::json;

use crate::client::send;
use crate::support::{World, engine};

#[test]
fn running_requests_finish() {
    let world = World::new();
    let body = json!({"prompt": "hello", "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut sent = world.send("/v1/completions", &body);
    while sent.line() != "" {}
    let address = world.address;
    world.stop().expect("a clean end");
    let mut last = String::new();
    loop {
        let line = sent.line();
        if line == "data: [DONE]" {
            break;
        }
        assert!(!line.contains("error"), "{line}");
        last = if line.is_empty() { last } else { line };
    }
    assert!(
        std::net::TcpStream::connect(address).is_err(),
        "nobody listens any more"
    );
}

/// It would be waited for in vain, and nothing runs.
#[test]
fn a_request_that_is_still_being_sent_is_not_waited_for() {
    let options = ServerOptions {
        grace: Duration::from_secs(1 << 20),
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let headers = ["Content-Length: 100", "Expect: 100-continue"];
    let mut half = send(world.address, "POST", "/v1/completions", &headers, "");
    assert_eq!(half.line(), "HTTP/1.1 100 Continue", "it waits for the body");
    world.stop().expect("a clean end");
}

#[tokio::test]
async fn a_server_starts_within_a_runtime_and_ends_where_it_is_dropped() {
    let server = Server::start(engine(&TinyModel::default(), None), ServerOptions::default()).expect("it starts");
    let address = server.address();
    assert!(std::net::TcpStream::connect(address).is_ok());
    drop(server);
    while std::net::TcpStream::connect(address).is_ok() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn what_takes_longer_is_cancelled() {
    let options = ServerOptions {
        grace: Duration::ZERO,
        ..ServerOptions::default()
    };
    let world = World::with(options, None);
    let body = json!({"prompt": "hello", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let mut sent = world.send("/v1/completions", &body);
    while !sent.line().starts_with("data: ") {}
    world.stop().expect("a clean end");
    let rest: Vec<String> = (0..8000)
        .map(|_| sent.line())
        .filter(|line| line.contains("error"))
        .collect();
    assert!(
        rest.iter().any(|line| line.contains("shutting down")),
        "the client is told"
    );
}

#[test]
fn a_taken_port_is_an_error_that_says_so() {
    let world = World::new();
    let options = ServerOptions {
        port: world.address.port(),
        ..ServerOptions::default()
    };
    let refused = Server::start(world.engine.clone(), options).err().expect("it is taken");
    assert!(matches!(refused, ServerError::Bind { .. }));
    let (message, cause) = (refused.to_string(), refused.source().expect("the system's").to_string());
    assert!(message.contains("another program"), "{message}");
    assert!(!message.contains(&cause), "{message} already has {cause}");
}

#[test]
fn an_address_of_another_machine_is_an_error_that_says_so() {
    let options = ServerOptions {
        // Kept for documentation, so nobody has it.
        host: [192, 0, 2, 1].into(),
        ..ServerOptions::default()
    };
    let refused = Server::start(World::new().engine.clone(), options).err();
    let message = refused.expect("nobody has it").to_string();
    assert!(
        message.contains("--host") && !message.contains("another program"),
        "{message}"
    );
}

#[test]
fn options_with_which_nobody_could_be_answered_are_errors() {
    let world = World::new();
    let none = ServerOptions {
        max_queue: 0,
        ..ServerOptions::default()
    };
    let refused = Server::start(world.engine.clone(), none).err();
    assert!(matches!(refused, Some(ServerError::Zero("max_queue"))));
    let none = ServerOptions {
        body_limit: 0,
        ..ServerOptions::default()
    };
    let refused = Server::start(world.engine.clone(), none).err();
    assert!(matches!(refused, Some(ServerError::Zero("body_limit"))));
    let needed = world.engine.kv_pool().bytes_for(2);
    let start = |memory| Server::start(engine(&TinyModel::default(), Some(memory)), ServerOptions::default());
    let refused = start(needed - 1).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|message| message.contains("--kv-memory")));
    let server = start(needed).expect("one token fits");
    server.stopper().stop();
    server.wait().expect("a clean end");
}

#[test]
fn options_that_would_let_nobody_in_are_errors() {
    let world = World::new();
    let refused = |options| Server::start(world.engine.clone(), options).err();
    for key in ["", " ", "a\nb", "é", " a"] {
        let options = ServerOptions {
            api_keys: vec!["right".to_owned(), key.to_owned()],
            ..ServerOptions::default()
        };
        assert!(matches!(refused(options), Some(ServerError::Key)), "{key:?}");
    }
    for wrong in [
        "",
        "example.org",
        "https://example.org/",
        "https://example.org/page",
        "https://Example.org",
        "x y",
    ] {
        let options = ServerOptions {
            origins: Origins::These(vec!["http://localhost:3000".to_owned(), wrong.to_owned()]),
            ..ServerOptions::default()
        };
        let error = refused(options).map(|error| error.to_string());
        assert!(
            error.is_some_and(|error| error.contains("is not an origin")),
            "{wrong:?}"
        );
    }
    let options = ServerOptions {
        method: "tova:interval=64".parse().expect("a method"),
        ..ServerOptions::default()
    };
    let error = refused(options).map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("interval")));
}
