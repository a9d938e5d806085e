//! How are JSON, JSON Lines and text read so that an error names its line?

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::EvalError;

/// The rows of a JSON Lines file with their line numbers, from 1; blank lines are passed over.
pub(crate) fn json_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<(usize, T)>, EvalError> {
    let mut rows = Vec::new();
    for (line, text) in (1..).zip(text(path)?.lines()) {
        let text = text.trim_start_matches('\u{feff}');
        if !text.trim().is_empty() {
            let row = serde_json::from_str(text).map_err(|error| EvalError::Format {
                path: path.to_owned(),
                line,
                what: in_line(&error),
            })?;
            rows.push((line, row));
        }
    }
    if rows.is_empty() {
        return Err(EvalError::Format {
            path: path.to_owned(),
            line: 1,
            what: "there are no rows; give one JSON object per line".into(),
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
        what: if error.is_data() {
            error.to_string()
        } else {
            format!("this is no JSON: {error}")
        },
    })
}

/// A text file.
pub(crate) fn text(path: &Path) -> Result<String, EvalError> {
    let bytes = fs::read(path).map_err(|source| EvalError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        EvalError::Format {
            path: path.to_owned(),
            line: valid.split(|&byte| byte == b'\n').count(),
            what: "this line is not UTF-8; convert the file, for instance with `iconv -f latin1 -t utf-8`".into(),
        }
    })
}

/// What a JSON error says, without the line number that counts within one line.
fn in_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    };
    if error.is_data() {
        return text;
    }
    format!("this is no JSON: {text}; give one JSON object per line, with the keys that docs/EVALUATION.md lists")
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
