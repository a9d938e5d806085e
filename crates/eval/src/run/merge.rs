//! How do the results of several machines become one folder?

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::results::{Outcome, Results, records};
use crate::EvalError;

/// What a merge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Merged {
    /// Units in the folder now that were not there.
    pub added: usize,
    /// Units that were there already, or in several folders.
    pub repeated: usize,
}

/// Adds the units of other folders to one. The same unit is taken once; where it failed in one folder and not in another, the
/// answer is taken. Nothing is written if two folders disagree.
///
/// # Errors
///
/// A folder cannot be read or written, or a unit has different answers or scores in two folders.
pub fn merge(folders: &[PathBuf], into: &Path) -> Result<Merged, EvalError> {
    let mut results = Results::open(into)?;
    let mut merged: Vec<(Outcome, Value, &Path)> = Vec::new();
    let mut place: HashMap<String, usize> = HashMap::new();
    let mut repeated = 0;
    for folder in [into].into_iter().chain(folders.iter().map(PathBuf::as_path)) {
        for (outcome, record) in records::<Value>(folder)? {
            let Some(&at) = place.get(&outcome.key) else {
                place.insert(outcome.key.clone(), merged.len());
                merged.push((outcome, record, folder));
                continue;
            };
            repeated += 1;
            let (known, known_record, known_folder) = &merged[at];
            match (known.error.is_some(), outcome.error.is_some()) {
                (true, false) => merged[at] = (outcome, record, folder),
                (false, false)
                    if known.score != outcome.score || known_record["prediction"] != record["prediction"] =>
                {
                    return Err(EvalError::Conflict {
                        id: outcome.id,
                        method: outcome.method,
                        first: known_folder.to_path_buf(),
                        second: folder.to_owned(),
                    });
                }
                _ => {}
            }
        }
    }
    let mut added = 0;
    for (outcome, record, _) in merged {
        if results.outcomes().get(&outcome.key) != Some(&outcome) {
            results.push_value(&outcome, &record)?;
            added += 1;
        }
    }
    Ok(Merged { added, repeated })
}
