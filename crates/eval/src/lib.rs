//! What does eviction cost in quality?
//!
//! Benchmarks (generated or read from files), their metrics to the last digit, and paired statistics. Pure code: models
//! and caches are run elsewhere.

#![forbid(unsafe_code)]

mod dice;
mod error;
mod example;
mod file;
pub mod load;
pub mod metrics;
mod python;
pub mod ruler;
pub mod statistics;
pub mod trace;
mod truncation;

pub use error::EvalError;
pub use example::{Chat, Example};
pub use truncation::Truncation;

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}
