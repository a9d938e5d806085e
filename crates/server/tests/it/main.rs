//! Does the server keep what it promises? Real sockets, tiny random models.

mod batching;
mod browser;
mod cancellation;
mod client;
mod errors;
mod foreign;
mod memory;
mod page;
mod prefixes;
mod routes;
mod shutdown;
mod streaming;
mod support;
