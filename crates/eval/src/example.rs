//! What does one run need to know to answer and to be scored?

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Truncation;
use crate::metrics::Scoring;

/// One question over one context, whichever benchmark it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// Stable and unique within a data set: results are matched by it.
    pub id: String,
    /// Name of the task as the benchmark spells it.
    pub task: String,
    /// What comes first and may be compressed, instructions included.
    pub context: String,
    /// What comes after it.
    pub question: String,
    /// How the answer begins. Context, question and this, joined without a separator, are the benchmark's prompt.
    pub answer_prefix: String,
    /// What the answer is compared with.
    pub answers: Vec<String>,
    /// Most tokens to generate.
    pub max_new_tokens: usize,
    /// How it is compared.
    pub scoring: Scoring,
    /// What a chat template wraps.
    pub chat: Chat,
    /// What goes if the prompt is too long; without it, that is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Truncation>,
    /// Generation ends at a newline too, after at least one token.
    #[serde(default)]
    pub stop_at_newline: bool,
    /// What results are grouped by, such as `length`, `difficulty` or `depth`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What a chat template wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chat {
    /// Nothing: the prompt is continued as it is, whatever the model.
    Never,
    /// The whole prompt is one user turn.
    WholePrompt,
    /// Context and question are the user turn; the answer's beginning opens the model's.
    AnswerPrefixApart,
}

impl Example {
    /// The benchmark's prompt, without a chat template.
    #[must_use]
    pub fn prompt(&self) -> String {
        [self.context.as_str(), &self.question, &self.answer_prefix].concat()
    }
}
