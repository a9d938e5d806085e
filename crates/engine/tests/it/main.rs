//! Integration tests of the engine: one binary, one module per part.

mod bench;
mod catalog;
mod chat_template;
mod compress;
mod config;
mod families;
mod gguf;
mod hugging_face;
mod kvpress;
mod learned;
mod models;
mod parity;
mod session;
mod tokenizer;
