//! What does eviction cost in quality?
//!
//! Benchmarks (generated or read from files; [`grid`] says which), their metrics to the last digit, and paired statistics; [`run`] runs many
//! methods over one prefill per example and keeps what comes out.

#![forbid(unsafe_code)]

mod dice;
mod error;
mod example;
pub mod experiment;
pub mod export;
pub mod figure;
mod file;
pub mod grid;
pub mod load;
pub mod metrics;
mod python;
pub mod report;
pub mod ruler;
pub mod run;
pub mod statistics;
pub mod trace;
mod truncation;

pub use error::EvalError;
pub use example::{Chat, Example};
pub use truncation::Truncation;
