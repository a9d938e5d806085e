//! How does a user's own file become examples?

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::checked;
use crate::file::{Answers, json_rows, label};
use crate::metrics::{Metric, Scoring};
use crate::{Chat, EvalError, Example};

/// What holds for rows that do not say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserDefaults {
    /// How answers are scored.
    pub metric: Metric,
    /// Most tokens of an answer.
    pub max_new_tokens: usize,
}

impl Default for UserDefaults {
    /// An answer is right if it contains a reference, and has 64 tokens at most.
    fn default() -> Self {
        Self {
            metric: Metric::StringMatchPart,
            max_new_tokens: 64,
        }
    }
}

#[derive(Deserialize)]
struct Row {
    context: String,
    question: String,
    #[serde(alias = "answer")]
    answers: Answers,
    id: Option<String>,
    task: Option<String>,
    #[serde(default)]
    answer_prefix: String,
    max_new_tokens: Option<usize>,
    metric: Option<Metric>,
    #[serde(default)]
    first_line: bool,
    #[serde(default)]
    classes: Vec<String>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// The keys of a row that are no labels.
const KEYS: [&str; 11] = [
    "context",
    "question",
    "answers",
    "answer",
    "id",
    "task",
    "answer_prefix",
    "max_new_tokens",
    "metric",
    "first_line",
    "classes",
];

/// Reads JSON Lines (or a JSON array in a `.json` file) of `context`, `question` and `answers`, a list or one text.
///
/// A row may also have `id` (otherwise its line number), `task` (otherwise the file's name), `answer_prefix`,
/// `max_new_tokens`, `metric`, `first_line` and `classes`. Texts, numbers and truth values of any other name become labels
/// to group by, and `null` is none.
///
/// # Errors
///
/// A row is not of this form, has no answer, repeats an identifier, or has a key that is no label: one that is almost one of
/// the above, or whose value is a list or an object.
pub fn user_file(path: &Path, defaults: UserDefaults) -> Result<Vec<Example>, EvalError> {
    let file_name = path
        .file_stem()
        .map_or_else(|| "file".into(), |stem| stem.to_string_lossy().into_owned());
    let mut examples = Vec::new();
    for (line, row) in json_rows::<Row>(path)? {
        let labels = labels(&row.others).map_err(|what| EvalError::Format {
            path: path.to_owned(),
            line,
            what,
        })?;
        examples.push((
            line,
            Example {
                id: row.id.unwrap_or_else(|| line.to_string()),
                task: row.task.unwrap_or_else(|| file_name.clone()),
                context: row.context,
                question: row.question,
                answer_prefix: row.answer_prefix,
                answers: row.answers.into_vec(),
                max_new_tokens: row.max_new_tokens.unwrap_or(defaults.max_new_tokens),
                scoring: Scoring {
                    first_line: row.first_line,
                    classes: row.classes,
                    ..Scoring::new(row.metric.unwrap_or(defaults.metric))
                },
                chat: Chat::AnswerPrefixApart,
                truncation: None,
                stop_at_newline: false,
                labels,
            },
        ));
    }
    checked(path, examples)
}

/// The labels among the keys that are not known.
fn labels(others: &BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for (name, value) in others {
        if let Some(key) = KEYS.iter().find(|key| is_misspelt(name, key)) {
            return Err(format!(
                "unknown key `{name}`, is `{key}` meant? The keys are {}; any other becomes a label, so give a label another \
                 name",
                KEYS.join(", ")
            ));
        }
        match label(value) {
            Some(text) => {
                labels.insert(name.clone(), text);
            }
            None if value.is_null() => {}
            None => {
                return Err(format!(
                    "unknown key `{name}`, which as a label must be a text, a number or a truth value; the other keys are {}",
                    KEYS.join(", ")
                ));
            }
        }
    }
    Ok(labels)
}

/// Whether a name is a key but for its case and up to a third of its letters.
fn is_misspelt(name: &str, key: &str) -> bool {
    strsim::levenshtein(&name.to_lowercase(), key) <= key.len() / 3
}

#[cfg(test)]
mod tests {
    use super::is_misspelt;

    #[test]
    fn a_name_is_misspelt_up_to_a_third_of_its_letters() {
        for (name, key) in [
            ("max_tokens", "max_new_tokens"),
            ("maxNewTokens", "max_new_tokens"),
            ("answer_prefx", "answer_prefix"),
            ("Context", "context"),
            ("tasks", "task"),
            ("ID", "id"),
        ] {
            assert!(is_misspelt(name, key), "{name}");
        }
        for label in [
            "length",
            "bin",
            "depth",
            "category",
            "difficulty",
            "source",
            "year",
            "language",
        ] {
            assert!(super::KEYS.iter().all(|key| !is_misspelt(label, key)), "{label}");
        }
    }
}
