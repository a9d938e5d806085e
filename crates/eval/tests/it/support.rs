//! What several of these tests need.

use std::fs;
use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// A path in the folder of golden files.
pub(crate) fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// A golden JSON file.
pub(crate) fn golden<T: DeserializeOwned>(name: &str) -> T {
    let text = fs::read_to_string(golden_path(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}
