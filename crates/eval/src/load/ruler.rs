//! How do prepared files of RULER become examples?

use std::path::Path;

use serde::Deserialize;

use super::checked;
use crate::file::json_lines;
use crate::metrics::ScoringProfile;
use crate::ruler::{Family, RulerTask};
use crate::{Chat, EvalError, Example};

#[derive(Deserialize)]
struct Row {
    input: String,
    outputs: Vec<String>,
    #[serde(default)]
    answer_prefix: String,
    length: Option<usize>,
}

/// Reads a `validation.jsonl` of RULER; its folder's name is the task.
///
/// Since 2025 the prompt ends before `answer_prefix`; earlier files have it inside and are split as kvpress splits them. The
/// identifier is the line number: `index` is wrong for needle tasks (it is overwritten by a character offset). Context and
/// question part where the question's opening words stand last.
///
/// # Errors
///
/// The folder is not named after a task, a row is not of this form, or the question's opening words are missing, as in
/// files of another generator.
pub fn ruler_file(path: &Path) -> Result<Vec<Example>, EvalError> {
    let folder = path
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default()
        .to_string_lossy();
    let task: RulerTask = folder.parse()?;
    let mut examples = Vec::new();
    for (line, row) in json_lines::<Row>(path)? {
        let Some((context, question, answer_prefix)) = split(task.family(), &row) else {
            let words = openings(task.family()).join("` or `");
            let what =
                format!("the question should begin with `{words}`; only files of the official generator can be split");
            return Err(EvalError::Format {
                path: path.to_owned(),
                line,
                what,
            });
        };
        let tokens = row.length.map(|length| ("tokens".to_owned(), length.to_string()));
        let example = Example {
            id: format!("{task}/{line}"),
            task: task.to_string(),
            context,
            question,
            answer_prefix,
            answers: row.outputs,
            max_new_tokens: task.max_new_tokens(),
            scoring: task.scoring(ScoringProfile::Official),
            chat: Chat::AnswerPrefixApart,
            truncation: None,
            stop_at_newline: false,
            labels: tokens.into_iter().collect(),
        };
        examples.push((line, example));
    }
    checked(path, examples)
}

/// Context, question and the answer's beginning.
fn split(family: Family, row: &Row) -> Option<(String, String, String)> {
    let openings = openings(family).iter();
    let question = openings.filter_map(|opening| row.input.rfind(opening)).max()?;
    let (context, question) = row.input.split_at(question);
    if !row.answer_prefix.is_empty() {
        return Some((context.to_owned(), question.to_owned(), row.answer_prefix.clone()));
    }
    let prefix = if family == Family::Needles {
        "The special magic"
    } else {
        "Answer:"
    };
    let (question, prefix) = question.split_at(question.find(prefix)?);
    Some((context.to_owned(), question.to_owned(), prefix.to_owned()))
}

/// How the official questions begin; enough of it to find them.
fn openings(family: Family) -> &'static [&'static str] {
    match family {
        Family::Needles => &["What is the special magic", "What are all the special magic"],
        Family::Variables => &["Question: Find all variables"],
        Family::CommonWords => &["Question: What are the 10 most common words"],
        Family::CodedWords => &["Question: Do not provide any explanation."],
        Family::Questions => &["Answer the question based on the given documents."],
    }
}
