//! How do rows of kvpress's data sets become examples?

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{LongBenchTask, checked};
use crate::file::{Answers, json_rows, label};
use crate::metrics::{Metric, Scoring, ScoringProfile};
use crate::ruler::RulerTask;
use crate::{Chat, EvalError, Example, Truncation};

/// Which benchmark the rows are of: the columns are nearly the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvpressData {
    /// 13 tasks; rows are identified by task and line.
    Ruler,
    /// 16 tasks, scored by kvpress's rules.
    LongBench,
    /// 13 tasks in three bins of length, scored by the official rules, as kvpress does.
    #[serde(rename = "longbench-e")]
    LongBenchE,
    /// Multiple choice.
    #[serde(rename = "longbench-v2")]
    LongBenchV2,
}

#[derive(Deserialize)]
struct Row {
    context: String,
    question: String,
    #[serde(default)]
    answer_prefix: String,
    #[serde(alias = "answers")]
    answer: Answers,
    task: Option<String>,
    max_new_tokens: usize,
    #[serde(rename = "_id")]
    id: Option<String>,
    all_classes: Option<Vec<String>>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Reads rows of a data set for kvpress (`context, question, answer_prefix, answer, task, max_new_tokens`), exported to JSON
/// Lines, or to a JSON array in a `.json` file.
///
/// # Errors
///
/// A row is not of this form, its task is unknown, it has no answer, or it repeats an identifier.
pub fn kvpress_rows(path: &Path, data: KvpressData) -> Result<Vec<Example>, EvalError> {
    let mut examples = Vec::new();
    for (line, row) in json_rows::<Row>(path)? {
        let bad = |what: String| EvalError::Format {
            path: path.to_owned(),
            line,
            what,
        };
        let answers = row.answer.into_vec();
        let task = row.task.unwrap_or_else(|| "longbench-v2".into());
        let scoring = data
            .scoring(&task, row.all_classes.unwrap_or_default())
            .map_err(|error| bad(error.to_string()))?;
        // LongBench's column counts words; results are grouped by the label `length`.
        let column = |name: &str| {
            let value = row.others.get(name)?;
            let name = if value.is_number() { "words" } else { name };
            Some((name.to_owned(), label(value)?))
        };
        examples.push((
            line,
            Example {
                id: row.id.unwrap_or_else(|| format!("{task}/{line}")),
                context: row.context,
                question: row.question,
                answer_prefix: row.answer_prefix,
                answers,
                max_new_tokens: row.max_new_tokens,
                scoring,
                chat: Chat::AnswerPrefixApart,
                truncation: Some(Truncation::End),
                stop_at_newline: false,
                labels: ["length", "difficulty", "domain", "sub_domain"]
                    .into_iter()
                    .filter_map(column)
                    .collect(),
                task,
            },
        ));
    }
    checked(path, examples)
}

impl KvpressData {
    fn scoring(self, task: &str, classes: Vec<String>) -> Result<Scoring, EvalError> {
        Ok(match self {
            Self::Ruler => task.parse::<RulerTask>()?.scoring(ScoringProfile::Kvpress),
            Self::LongBench => LongBenchTask::named(task)?.scoring(ScoringProfile::Kvpress, classes),
            Self::LongBenchE => {
                let task = task.trim_end_matches("-e").trim_end_matches("_e");
                LongBenchTask::named(task)?.scoring(ScoringProfile::Official, classes)
            }
            Self::LongBenchV2 => Scoring {
                profile: ScoringProfile::Kvpress,
                ..Scoring::new(Metric::Choice)
            },
        })
    }
}
