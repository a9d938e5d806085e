//! What does eviction cost in quality?
//!
//! Benchmarks (generated or read from files), their metrics to the last digit, and paired statistics. Pure code: models
//! and caches are run elsewhere.

#![forbid(unsafe_code)]

mod dice;
mod error;
pub mod metrics;
mod python;
pub mod statistics;
pub mod trace;
mod truncation;

pub use error::EvalError;
pub use truncation::Truncation;
