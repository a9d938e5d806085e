//! What has been run, and what is on disk of it?
//!
//! A folder of results holds one JSON object per line in `results.jsonl`. A line is written as a whole when its unit is
//! done, so a run that was killed loses at most the unit under way; a line cut short is dropped when the folder is opened
//! again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use inertiakv::RunReport;
use serde::{Deserialize, Serialize};

use crate::EvalError;

/// One example under one method.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// The content of the unit: model, method, example. The same unit has the same key wherever it runs.
    pub key: String,
    /// [`Example::id`](crate::Example::id).
    pub id: String,
    /// The benchmark's task.
    pub task: String,
    /// What results are grouped by.
    pub labels: BTreeMap<String, String>,
    /// What was asked for; the method is also in `report`, which a failed unit may not have.
    pub method: String,
    /// Score from 0 to 1; `None` where the unit failed.
    pub score: Option<f64>,
    /// Why it failed.
    pub error: Option<String>,
    /// The answer.
    pub prediction: String,
    /// What it is compared with.
    pub answers: Vec<String>,
    /// Tokens of the question, which is the first step.
    pub question_tokens: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// What the run cost.
    pub report: Option<RunReport>,
}

/// What summaries need of a record.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Outcome {
    /// [`Record::key`].
    pub key: String,
    /// [`Record::id`].
    pub id: String,
    /// [`Record::task`].
    pub task: String,
    /// [`Record::labels`].
    pub labels: BTreeMap<String, String>,
    /// [`Record::method`].
    pub method: String,
    /// [`Record::score`].
    pub score: Option<f64>,
    /// [`Record::error`].
    pub error: Option<String>,
}

/// A folder of results.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    outcomes: BTreeMap<String, Outcome>,
}

impl Results {
    /// The results in a folder, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or read, or a line in the middle of its file is no record.
    pub fn open(folder: &Path) -> Result<Self, EvalError> {
        let path = folder.join("results.jsonl");
        let failed = |source| EvalError::Results {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed)?;
        // What follows the last line break was cut short.
        let end = text
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |place| place + 1);
        file.set_len(end as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let mut outcomes = BTreeMap::new();
        for (index, line) in text[..end].split(|&byte| byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let outcome: Outcome = serde_json::from_slice(line).map_err(|source| EvalError::NotARecord {
                path: path.clone(),
                line: index + 1,
                reason: source.to_string(),
            })?;
            // A unit that failed before may have succeeded since.
            outcomes.insert(outcome.key.clone(), outcome);
        }
        Ok(Self { path, file, outcomes })
    }

    /// Whether a unit has been run without failing.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.outcomes.get(key).is_some_and(|outcome| outcome.error.is_none())
    }

    /// The latest outcome of every unit.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.values()
    }

    /// Adds a record, on disk when this returns.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn push(&mut self, record: &Record) -> Result<(), EvalError> {
        let failed = |source| EvalError::Results {
            path: self.path.clone(),
            source,
        };
        let mut line = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .and_then(|()| self.file.flush())
            .map_err(failed)?;
        let outcome = Outcome {
            key: record.key.clone(),
            id: record.id.clone(),
            task: record.task.clone(),
            labels: record.labels.clone(),
            method: record.method.clone(),
            score: record.score,
            error: record.error.clone(),
        };
        self.outcomes.insert(outcome.key.clone(), outcome);
        Ok(())
    }
}
