//! Servers to test, over tiny models.

use std::net::SocketAddr;

use inertiakv::testing::TinyModel;
use inertiakv::{Engine, EngineOptions};
use inertiakv_server::{Server, ServerOptions, Stop};
use serde_json::Value;

use crate::client::{Response, Sent, send};

/// A running server and the engine behind it.
pub(crate) struct World {
    server: Option<Server>,
    stop: Stop,
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(ServerOptions::default(), None)
    }

    /// Prompts in chunks of 64 tokens, and this many bytes of prompts kept for reuse.
    pub(crate) fn with_prefixes(prefix_memory: usize) -> Self {
        let options = ServerOptions {
            prefill_chunk: 64,
            prefix_memory,
            ..ServerOptions::default()
        };
        Self::with(options, None)
    }

    /// A server over the tiny model with so much KV memory.
    pub(crate) fn with(options: ServerOptions, kv_memory: Option<usize>) -> Self {
        Self::over(&TinyModel::default(), options, kv_memory)
    }

    /// The same over another tiny model.
    pub(crate) fn over(model: &TinyModel, options: ServerOptions, kv_memory: Option<usize>) -> Self {
        let engine = engine(model, kv_memory);
        let server = Server::start(engine.clone(), options).expect("it starts");
        Self {
            stop: server.stopper(),
            address: server.address(),
            server: Some(server),
            engine,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, &[], "").response()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send(path, body).response()
    }

    pub(crate) fn send(&self, path: &str, body: &Value) -> Sent {
        send(self.address, "POST", path, &[], &body.to_string())
    }

    /// A completion that must succeed.
    pub(crate) fn complete(&self, body: &Value) -> Value {
        self.post("/v1/completions", body).ok()
    }

    /// A number of the metrics; 0 where there is none.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Waits until something is so. It must become so: there is no clock here to decide otherwise.
    pub(crate) fn wait_until(&self, mut so: impl FnMut(&Self) -> bool) {
        while !so(self) {
            std::thread::yield_now();
        }
    }

    /// Waits until nobody waits or runs.
    pub(crate) fn wait_until_idle(&self) {
        self.wait_until(|world| world.get("/slots").ok()["slots"].as_array().is_some_and(Vec::is_empty));
    }

    /// Stops the server and says how that went.
    pub(crate) fn stop(mut self) -> Result<(), inertiakv_server::ServerError> {
        self.stop.stop();
        self.server.take().map_or(Ok(()), Server::wait)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

pub(crate) fn engine(model: &TinyModel, kv_memory: Option<usize>) -> Engine {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    model.write(&path).expect("the folder can be written");
    let options = EngineOptions {
        kv_memory,
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::open(&path, &options).expect("the tiny model opens")
}

/// A text of about so many tokens that no other number gives.
pub(crate) fn text(words: usize, variant: usize) -> String {
    (0..words)
        .flat_map(|word| [((word * 7919 + variant * 104_729) % 1000).to_string(), " ".to_owned()])
        .collect()
}
