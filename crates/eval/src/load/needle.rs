//! Where in how long a text does the needle of the original needle test lie?

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::file::json_rows;
use crate::metrics::{Metric, Scoring, ScoringProfile};
use crate::ruler::Prose;
use crate::{Chat, EvalError, Example, Truncation};

/// Text to tokens and back, both without special tokens.
pub trait TokenText {
    /// Tokens of a text.
    fn encode(&self, text: &str) -> Vec<u32>;
    /// Text of tokens.
    fn decode(&self, tokens: &[u32]) -> String;
}

/// Whose rule puts the needle into the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeedleProfile {
    /// Between any two tokens, also within a word; 150 tokens are kept free.
    #[default]
    Kvpress,
    /// After a full stop, going back to one; 200 tokens are kept free.
    Kamradt,
}

/// The text, the needle and what is asked. JSON with these fields is a row of kvpress's essays.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NeedleSource {
    /// A long text.
    pub context: String,
    /// The sentence to find, with the space around it that it needs.
    pub needle: String,
    /// What is asked after the text.
    pub question: String,
    /// How the answer begins.
    #[serde(default)]
    pub answer_prefix: String,
    /// Most tokens of the answer.
    pub max_new_tokens: usize,
    /// What stands around the text, with `{context}` in its place.
    #[serde(default = "own_frame")]
    pub frame: String,
}

/// Lengths times depths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeedleGrid {
    /// Prompt lengths in tokens.
    pub lengths: Vec<usize>,
    /// Depths in percent.
    pub depths: Vec<f64>,
    /// Whose rule.
    pub profile: NeedleProfile,
}

impl NeedleGrid {
    /// The paper's grid: 12 lengths from 10k to 120k, and 9 depths, of which it does not say which; from start to end here.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            lengths: (1..=12).map(|step| step * 10_000).collect(),
            depths: (0..9).map(|step| f64::from(step) * 12.5).collect(),
            profile: NeedleProfile::Kvpress,
        }
    }

    /// One example per cell, lengths outside.
    ///
    /// # Errors
    ///
    /// A depth lies outside 0 to 100, a length leaves no room for the needle, or the text is shorter than a length under
    /// kvpress's rule, which never repeats it.
    pub fn examples(&self, source: &NeedleSource, tokenizer: &dyn TokenText) -> Result<Vec<Example>, EvalError> {
        if let Some(depth) = self.depths.iter().find(|depth| !(0.0..=100.0).contains(*depth)) {
            return Err(EvalError::Grid(format!(
                "the depth {depth} is not within 0 to 100 percent"
            )));
        }
        let text = tokenizer.encode(&source.context);
        let needle = tokenizer.encode(&source.needle);
        let mut examples = Vec::new();
        for &length in &self.lengths {
            let room = self.room(length, &text, &needle)?;
            let haystack: Vec<u32> = text.iter().copied().cycle().take(room).collect();
            for &depth in &self.depths {
                let at = self.place(&haystack, depth, tokenizer);
                let whole = tokenizer.decode(&[&haystack[..at], &needle, &haystack[at..]].concat());
                examples.push(Example {
                    id: format!("niah/{length}/{depth}"),
                    task: "niah".to_owned(),
                    context: source.frame.replace("{context}", &whole),
                    question: source.question.clone(),
                    answer_prefix: source.answer_prefix.clone(),
                    answers: vec![source.needle.clone()],
                    max_new_tokens: source.max_new_tokens,
                    scoring: Scoring {
                        profile: ScoringProfile::Kvpress,
                        ..Scoring::new(Metric::NeedleRougeL)
                    },
                    chat: Chat::AnswerPrefixApart,
                    truncation: Some(Truncation::End),
                    stop_at_newline: false,
                    labels: BTreeMap::from([
                        ("length".to_owned(), length.to_string()),
                        ("depth".to_owned(), depth.to_string()),
                    ]),
                });
            }
        }
        Ok(examples)
    }

    /// Tokens of text in a prompt of `length`.
    fn room(&self, length: usize, text: &[u32], needle: &[u32]) -> Result<usize, EvalError> {
        let kept_free = match self.profile {
            NeedleProfile::Kvpress => 150,
            NeedleProfile::Kamradt => 200,
        };
        let room = length
            .checked_sub(needle.len() + kept_free)
            .filter(|room| *room > 0)
            .ok_or_else(|| {
                let taken = needle.len() + kept_free;
                EvalError::Grid(format!(
                    "a length of {length} tokens leaves no room beside the {taken} for needle and question"
                ))
            })?;
        let repeats = self.profile == NeedleProfile::Kamradt && !text.is_empty();
        if text.len() < room && !repeats {
            return Err(EvalError::Grid(format!(
                "the text has {} tokens, but {length} tokens of prompt take {room} of it; give a longer text or shorter lengths",
                text.len()
            )));
        }
        Ok(room)
    }

    fn place(&self, haystack: &[u32], depth: f64, tokenizer: &dyn TokenText) -> usize {
        let at = (haystack.len() as f64 * depth / 100.0) as usize;
        if self.profile == NeedleProfile::Kvpress || depth == 100.0 {
            return at;
        }
        let stops = tokenizer.encode(".");
        (0..=at)
            .rev()
            .find(|at| *at == 0 || stops.contains(&haystack[at - 1]))
            .unwrap_or(0)
    }
}

impl NeedleSource {
    /// Our own prose and needle.
    #[must_use]
    pub fn built_in() -> Self {
        Self {
            context: Prose::generated().text(),
            needle: "\nThe best way to spend an hour in Lindenau is to sit under the chestnut tree behind the observatory with a \
                     pot of mint tea.\n"
                .to_owned(),
            question: "What is the best way to spend an hour in Lindenau? Answer from the text alone.\n".to_owned(),
            answer_prefix: "The best way to spend an hour in Lindenau is".to_owned(),
            max_new_tokens: 32,
            frame: own_frame(),
        }
    }

    /// The first row of kvpress's essays, exported to JSON Lines, or to a JSON array in a `.json` file.
    ///
    /// # Errors
    ///
    /// The row is not of that form.
    pub fn from_file(path: &Path) -> Result<Self, EvalError> {
        let no_row = || EvalError::Format {
            path: path.to_owned(),
            line: 1,
            what: "there is no row".into(),
        };
        json_rows(path)?
            .into_iter()
            .next()
            .map(|(_, source)| source)
            .ok_or_else(no_row)
    }
}

fn own_frame() -> String {
    "Read this text: <text> {context} </text>\n".to_owned()
}
