//! What has been run, and what is on disk of it?
//!
//! A folder of results holds one JSON object per line in `results.jsonl`. A line is written as a whole when its unit is
//! done, so a run that was killed loses at most the unit under way; a line cut short is dropped when the folder is opened
//! again.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use inertiakv::RunReport;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::EvalError;

/// One example under one method.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// What summaries need of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The answer.
    pub prediction: String,
    /// What it is compared with.
    pub answers: Vec<String>,
    /// What was asked, without the context.
    pub question: String,
    /// How the answer was begun.
    pub answer_prefix: String,
    /// Most tokens of the answer.
    pub max_new_tokens: usize,
    /// Tokens of the question, which is the first step.
    pub question_tokens: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// Methods that answered in the same steps. Where there are several, the decode figures of the report are those of the
    /// shared steps, which is what all of them cost.
    pub together: usize,
    /// What the run cost; `None` where the unit failed.
    pub report: Option<RunReport>,
}

/// How one example fared under one method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The content of the unit: model, method, example. The same unit has the same key wherever it runs.
    pub key: String,
    /// Name of the model.
    pub model: String,
    /// [`Example::id`](crate::Example::id).
    pub id: String,
    /// The benchmark's task.
    pub task: String,
    /// What results are grouped by.
    pub labels: BTreeMap<String, String>,
    /// The method in its textual form.
    pub method: String,
    /// Score from 0 to 1; `None` where the unit failed.
    pub score: Option<f64>,
    /// Why it failed.
    pub error: Option<String>,
}

/// A folder of results that a run adds to. Another run cannot open it meanwhile.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    outcomes: Outcomes,
}

/// What is in a folder of results, in the order of the file; of a unit that was run again, the latest.
#[derive(Debug, Default)]
pub struct Outcomes {
    all: Vec<Outcome>,
    place: HashMap<String, usize>,
}

impl Outcomes {
    /// Reads a folder, which a run may be adding to.
    ///
    /// # Errors
    ///
    /// There are no results, they cannot be read, or a line is no record.
    pub fn read(folder: &Path) -> Result<Self, EvalError> {
        let path = file_in(folder);
        Self::of(&path, &read_lines(&path)?)
    }

    fn of(path: &Path, text: &[u8]) -> Result<Self, EvalError> {
        let mut outcomes = Self::default();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            outcomes.insert(serde_json::from_slice(line).map_err(|source| EvalError::NotARecord {
                path: path.to_owned(),
                line: index + 1,
                reason: source.to_string(),
            })?);
        }
        Ok(outcomes)
    }

    fn insert(&mut self, outcome: Outcome) {
        if let Some(&place) = self.place.get(&outcome.key) {
            self.all[place] = outcome;
        } else {
            self.place.insert(outcome.key.clone(), self.all.len());
            self.all.push(outcome);
        }
    }

    /// The outcome of a unit.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Outcome> {
        self.place.get(key).map(|&place| &self.all[place])
    }

    /// Whether a unit has been run without failing.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|outcome| outcome.error.is_none())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Outcome> {
        self.all.iter()
    }
}

impl Results {
    /// The results in a folder, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or read, another run writes there, or a line in the middle of its file is no record.
    pub fn open(folder: &Path) -> Result<Self, EvalError> {
        let path = file_in(folder);
        let failed = |source| EvalError::ResultsUnwritable {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(folder).map_err(|source| EvalError::ResultsUnwritable {
            path: folder.to_owned(),
            source,
        })?;
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(EvalError::Busy { path }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed)?;
        let lines = whole_lines(&text);
        file.set_len(lines.len() as u64).map_err(failed)?;
        let outcomes = Outcomes::of(&path, lines)?;
        Ok(Self { path, file, outcomes })
    }

    /// What is there.
    #[must_use]
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// Adds a record as one line, handed to the system when this returns.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn push(&mut self, record: &Record) -> Result<(), EvalError> {
        self.push_value(&record.outcome, record)
    }

    /// Adds what holds this outcome.
    pub(super) fn push_value(&mut self, outcome: &Outcome, record: &impl Serialize) -> Result<(), EvalError> {
        let failed = |source| EvalError::ResultsUnwritable {
            path: self.path.clone(),
            source,
        };
        let mut line = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(failed)?;
        self.outcomes.insert(outcome.clone());
        Ok(())
    }
}

/// The latest record of every unit in a folder as it stands there, in the order of the file.
pub(crate) fn records<T: DeserializeOwned>(folder: &Path) -> Result<Vec<(Outcome, T)>, EvalError> {
    let path = file_in(folder);
    let text = read_lines(&path)?;
    let outcomes = Outcomes::of(&path, &text)?;
    let mut latest: Vec<Option<T>> = outcomes.all.iter().map(|_| None).collect();
    for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        if text.is_empty() {
            continue;
        }
        let bad = |source: serde_json::Error| EvalError::NotARecord {
            path: path.clone(),
            line,
            reason: source.to_string(),
        };
        let outcome: Outcome = serde_json::from_slice(text).map_err(bad)?;
        latest[outcomes.place[&outcome.key]] = Some(serde_json::from_slice(text).map_err(bad)?);
    }
    Ok(outcomes
        .all
        .into_iter()
        .zip(latest)
        .filter_map(|(outcome, record)| Some((outcome, record?)))
        .collect())
}

fn read_lines(path: &Path) -> Result<Vec<u8>, EvalError> {
    let mut text = fs::read(path).map_err(|source| EvalError::Results {
        path: path.to_owned(),
        source,
    })?;
    text.truncate(whole_lines(&text).len());
    Ok(text)
}

fn file_in(folder: &Path) -> PathBuf {
    folder.join("results.jsonl")
}

/// What follows the last line break was cut short.
fn whole_lines(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |place| place + 1);
    &text[..end]
}
