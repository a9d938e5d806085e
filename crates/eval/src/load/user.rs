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

/// Reads JSON Lines (or a JSON array in a `.json` file) of `context`, `question` and `answers`, a list or one text.
///
/// A row may also have `id` (otherwise its line number), `task` (otherwise the file's name), `answer_prefix`,
/// `max_new_tokens`, `metric`, `first_line` and `classes`; texts and numbers of any other name become labels to group by.
///
/// # Errors
///
/// A row is not of this form, has no answer, or repeats an identifier.
pub fn user_file(path: &Path, defaults: UserDefaults) -> Result<Vec<Example>, EvalError> {
    let file_name = path
        .file_stem()
        .map_or_else(|| "file".into(), |stem| stem.to_string_lossy().into_owned());
    let mut examples = Vec::new();
    for (line, row) in json_rows::<Row>(path)? {
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
                labels: row
                    .others
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), label(value)?)))
                    .collect(),
            },
        ));
    }
    checked(path, examples)
}
