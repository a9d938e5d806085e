//! How do other programs get at results?
//!
//! One row per unit, of a unit that was run again the latest.

mod kvpress;
mod parquet;

pub use kvpress::kvpress;
pub use parquet::parquet;

use std::fs;
use std::path::Path;

use crate::EvalError;

fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), EvalError> {
    fs::write(path, content).map_err(|source| EvalError::Unwritable {
        path: path.to_owned(),
        source,
    })
}
