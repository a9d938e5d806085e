//! How does `LongBench`-v2's file become examples?

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::checked;
use crate::file::{json_rows, text};
use crate::metrics::{Metric, Scoring, ScoringProfile};
use crate::python;
use crate::{Chat, EvalError, Example, Truncation};

/// The multiple-choice benchmark, with our prompt or that of a checkout.
#[derive(Debug, Clone)]
pub struct LongBenchV2 {
    template: String,
    wording: &'static str,
    profile: ScoringProfile,
}

#[derive(Deserialize)]
struct Row {
    #[serde(rename = "_id")]
    id: String,
    domain: String,
    sub_domain: String,
    difficulty: String,
    length: String,
    question: String,
    #[serde(rename = "choice_A")]
    a: String,
    #[serde(rename = "choice_B")]
    b: String,
    #[serde(rename = "choice_C")]
    c: String,
    #[serde(rename = "choice_D")]
    d: String,
    answer: String,
    context: String,
}

impl LongBenchV2 {
    /// Our own prompt. It asks for the official form of an answer, by which answers are recognised.
    #[must_use]
    pub fn new(profile: ScoringProfile) -> Self {
        let template = "Read the document, then answer the question about it.\n\n$DOC$\n\nQuestion: $Q$\n(A) $C_A$\n(B) $C_B$\n\
                        (C) $C_C$\n(D) $C_D$\n\nAnswer in this form: \"The correct answer is (X)\", X being A, B, C or D.";
        Self {
            template: template.to_owned(),
            wording: "own",
            profile,
        }
    }

    /// The official prompt: `prompts/0shot.txt` of a checkout.
    ///
    /// # Errors
    ///
    /// The file is missing or lacks a marker.
    pub fn with_prompt(self, path: &Path) -> Result<Self, EvalError> {
        let template = text(path)?;
        match MARKERS.into_iter().find(|marker| !template.contains(marker)) {
            Some(marker) => {
                let what = format!("the prompt has no `{marker}`; give 0shot.txt");
                Err(EvalError::Format {
                    path: path.to_owned(),
                    line: 1,
                    what,
                })
            }
            None => Ok(Self {
                template,
                wording: "official",
                ..self
            }),
        }
    }

    /// Reads `data.json`, or its rows as JSON Lines.
    ///
    /// Officially the whole prompt is one user turn whose middle goes if it is too long, and an answer has 128 tokens;
    /// kvpress grants 16 and cuts the end of the document. The official runs sample at temperature 0.1; for paired
    /// comparisons decode greedily.
    ///
    /// # Errors
    ///
    /// A row is not of the published form, its answer is no letter from A to D, or it repeats an identifier.
    pub fn load(&self, path: &Path) -> Result<Vec<Example>, EvalError> {
        let kvpress = self.profile == ScoringProfile::Kvpress;
        let mut examples = Vec::new();
        for (line, row) in json_rows::<Row>(path)? {
            if !["A", "B", "C", "D"].contains(&row.answer.as_str()) {
                let what = format!("the answer `{}` is no letter from A to D", row.answer);
                return Err(EvalError::Format {
                    path: path.to_owned(),
                    line,
                    what,
                });
            }
            let (context, question) = self.parts(&row);
            let labels = [
                ("difficulty", row.difficulty),
                ("length", row.length),
                ("domain", row.domain),
                ("sub_domain", row.sub_domain),
                ("wording", self.wording.to_owned()),
            ];
            let example = Example {
                id: row.id,
                task: "longbench-v2".to_owned(),
                context,
                question,
                answer_prefix: String::new(),
                answers: vec![row.answer],
                max_new_tokens: if kvpress { 16 } else { 128 },
                scoring: Scoring {
                    profile: self.profile,
                    ..Scoring::new(Metric::Choice)
                },
                chat: Chat::WholePrompt,
                truncation: Some(if kvpress {
                    Truncation::End
                } else {
                    Truncation::MiddleExact
                }),
                stop_at_newline: false,
                labels: labels
                    .map(|(name, value)| (name.to_owned(), value))
                    .into_iter()
                    .collect::<BTreeMap<_, _>>(),
            };
            examples.push((line, example));
        }
        checked(path, examples)
    }

    /// The prompt, cut before the line of the question. Markers are replaced one after the other, as the original does, so a
    /// marker inside a document is replaced as well.
    fn parts(&self, row: &Row) -> (String, String) {
        let values = [&row.context, &row.question, &row.a, &row.b, &row.c, &row.d];
        let fill = |template: &str| {
            let replace = |text: String, (marker, value): (&str, &String)| text.replace(marker, python::strip(value));
            MARKERS.into_iter().zip(values).fold(template.to_owned(), replace)
        };
        let marker = self.template.find(MARKERS[1]).unwrap_or_default();
        let (context, question) = self
            .template
            .split_at(self.template[..marker].rfind('\n').map_or(0, |at| at + 1));
        (fill(context), fill(question))
    }
}

/// In the order in which they are replaced.
const MARKERS: [&str; 6] = ["$DOC$", "$Q$", "$C_A$", "$C_B$", "$C_C$", "$C_D$"];
