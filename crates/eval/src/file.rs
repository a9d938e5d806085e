//! How are JSON, JSON Lines and text read so that an error names its line?

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::EvalError;

/// The rows of a JSON Lines file with their line numbers, from 1; blank lines are passed over.
pub(crate) fn json_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<(usize, T)>, EvalError> {
    let file = File::open(path).map_err(|source| EvalError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let mut rows = Vec::new();
    for (line, text) in (1..).zip(BufReader::new(file).lines()) {
        let bad = |what: String| EvalError::Format {
            path: path.to_owned(),
            line,
            what,
        };
        let text = text.map_err(|error| bad(error.to_string()))?;
        let text = text.trim_start_matches('\u{feff}');
        if !text.trim().is_empty() {
            rows.push((line, serde_json::from_str(text).map_err(|error| bad(in_line(&error)))?));
        }
    }
    if rows.is_empty() {
        return Err(EvalError::Format {
            path: path.to_owned(),
            line: 1,
            what: "there are no rows".into(),
        });
    }
    Ok(rows)
}

/// The rows of a JSON array or of a JSON Lines file; rows of an array are numbered as if each had a line.
pub(crate) fn json_rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<(usize, T)>, EvalError> {
    if path.extension().is_some_and(|extension| extension == "json") {
        let rows: Vec<T> = json(path)?;
        return Ok((1..).zip(rows).collect());
    }
    json_lines(path)
}

/// A JSON file.
pub(crate) fn json<T: DeserializeOwned>(path: &Path) -> Result<T, EvalError> {
    serde_json::from_str(&text(path)?).map_err(|error| EvalError::Format {
        path: path.to_owned(),
        line: error.line().max(1),
        what: error.to_string(),
    })
}

/// A text file.
pub(crate) fn text(path: &Path) -> Result<String, EvalError> {
    fs::read_to_string(path).map_err(|source| EvalError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

/// What a JSON error says, without the line number that counts within one line.
fn in_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    }
}

/// Answers as a list, or a single one.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "answers must be a text or a list of texts")]
pub(crate) enum Answers {
    One(String),
    Many(Vec<String>),
}

impl Answers {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(answer) => vec![answer],
            Self::Many(answers) => answers,
        }
    }
}

/// A label's text, if a value is a text, a number or a truth value.
pub(crate) fn label(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
