//! How do many people converse with one model, in a small KV memory, over the API they already use?
//!
//! [`Server`] listens for HTTP in `OpenAI`'s dialect. One thread, the scheduler, owns the engine: it admits requests as far
//! as the KV memory holds what they may need at most, prefills their prompts in chunks between the steps of those that
//! already answer, and steps all of these together. Requests join and leave at any step, and each gets the tokens it
//! would get alone.
//!
//! ```no_run
//! use inertiakv::{Engine, EngineOptions};
//! use inertiakv_server::{Server, ServerOptions};
//!
//! let options = EngineOptions { kv_memory: Some(1 << 30), ..EngineOptions::default() };
//! let engine = Engine::open("model.gguf".as_ref(), &options)?;
//! let server = Server::start(engine, ServerOptions::default())?;
//! println!("http://{}", server.address());
//! server.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod api;
mod connections;
mod footprint;
mod metrics;
mod prefixes;
mod scheduler;
mod server;

pub use server::{Origins, Server, ServerError, ServerOptions, Stop};
