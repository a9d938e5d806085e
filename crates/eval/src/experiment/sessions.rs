//! What does a method still know when the question changes?
//!
//! Several needles lie in one context. Other needles are asked for first, each question as a follow-up turn that the model
//! answers; the last question is scored. What was evicted because the first question did not need it is missing then.

use std::ops::ControlFlow;

use inertiakv::chat_template::Message;
use inertiakv::policy::Method;
use inertiakv::{Engine, Error, GenerateOptions, Session};
use serde::Deserialize;

use super::lab::{Lab, Named, Origin};
use super::table::{Cell, Source, Table, TableRow};
use super::{Findings, method};
use crate::metrics::Scorer;
use crate::run::Prompt;
use crate::statistics::{Bootstrap, Unit};
use crate::{EvalError, Example};

/// Questions one after another over one context.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sessions {
    /// Lengths of the contexts.
    pub lengths: Vec<usize>,
    /// Contexts per length.
    pub samples: usize,
    /// How many other questions come before the one that is scored, a column for each; at most 3.
    pub before: Vec<usize>,
    /// Label and method of each row.
    pub methods: Vec<(String, String)>,
}

/// One context with a question for each of its needles.
struct Conversation {
    questions: Vec<Example>,
}

impl Sessions {
    pub(super) fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let origin = Named {
            name: "sessions".to_owned(),
            from: Origin::Ruler {
                tasks: vec!["niah_multiquery".to_owned()],
                lengths: self.lengths.clone(),
            },
            samples: Some(self.samples),
        };
        lab.tasks.clear();
        let examples = origin.examples(lab)?.map_err(EvalError::Setting)?;
        let conversations: Vec<Conversation> = examples.iter().map(Conversation::of).collect::<Result<_, _>>()?;
        let mut notes = Vec::new();
        let mut methods = Vec::new();
        for (label, text) in &self.methods {
            let method = method(text)?;
            match lab.engine.check_method(&method) {
                Ok(()) => methods.push((label, method)),
                Err(error) => notes.push(format!("`{text}` was not run: {error}.")),
            }
        }
        // Per method and column, a score for every context.
        let mut scores = vec![vec![Vec::new(); self.before.len()]; methods.len()];
        for (index, conversation) in conversations.iter().enumerate() {
            let name = format!("session {}", index + 1);
            let mut flow = || (lab.progress)(&name, index, conversations.len());
            let prompt = Prompt::new(lab.engine, &conversation.questions[0], lab.engine.context())?;
            let mut base = lab.engine.session(&Method::full())?;
            base.remember_for(methods.iter().map(|(_, method)| method))?;
            base.prefill(&prompt.context, &mut |_, _| flow())?;
            for ((_, method), scores) in methods.iter().zip(&mut scores) {
                for (&before, scores) in self.before.iter().zip(scores) {
                    let session = base.fork_or_prefill(method, &prompt.context, &mut |_, _| flow())?;
                    scores.push(conversation.last_score(lab.engine, session, before, &mut flow)?);
                }
            }
        }
        let mut rows = Vec::new();
        for ((label, _), scores) in methods.iter().zip(&scores) {
            let cells = scores.iter().map(|scores| estimate(scores)).collect::<Result<_, _>>()?;
            rows.push(TableRow {
                model: lab.engine.name().to_owned(),
                source: Source::Run,
                label: (*label).clone(),
                cells,
            });
        }
        notes.push(format!(
            "{} contexts with four needles each; brackets are bootstrap 95 % intervals. The scored question is the same in \
             all columns.",
            conversations.len()
        ));
        let column = |before: &usize| match before {
            0 => "asked first".to_owned(),
            1 => "after 1 other question".to_owned(),
            more => format!("after {more} other questions"),
        };
        Ok(Findings {
            tables: vec![Table {
                title: title.to_owned(),
                corner: "Method".to_owned(),
                columns: self.before.iter().map(column).collect(),
                rows,
                notes,
            }],
            figures: Vec::new(),
        })
    }
}

fn estimate(scores: &[f64]) -> Result<Cell, EvalError> {
    let units: Vec<Unit> = scores.iter().map(|score| Unit::from(100.0 * score)).collect();
    Ok(Bootstrap::default()
        .interval(&[units])?
        .map_or(Cell::Nothing, |interval| Cell::Estimate {
            value: interval.mean,
            bounds: interval.bounds,
            decimals: 1,
        }))
}

impl Conversation {
    /// The needles of an example that asks for several at once, one question each; the scored one comes first.
    fn of(example: &Example) -> Result<Self, EvalError> {
        let ask = |answer: &String| {
            let key = key_of(&example.context, answer).ok_or_else(|| {
                EvalError::Setting(format!("no needle with the answer `{answer}` is in {}", example.id))
            })?;
            Ok(Example {
                question: format!("\nWhich secret number does the text give for {key}?"),
                answer_prefix: format!(" The secret number that the text gives for {key} is"),
                answers: vec![answer.clone()],
                max_new_tokens: 24,
                ..example.clone()
            })
        };
        Ok(Self {
            questions: example.answers.iter().map(ask).collect::<Result<_, EvalError>>()?,
        })
    }

    /// Asks `before` other questions, then the first one, and scores its answer.
    fn last_score(
        &self,
        engine: &Engine,
        mut session: Session,
        before: usize,
        flow: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<f64, EvalError> {
        let scored = &self.questions[0];
        let others = self.questions[1..].iter().take(before);
        let mut messages: Vec<Message> = Vec::new();
        let mut score = 0.0;
        for question in others.chain([scored]) {
            if flow().is_break() {
                return Err(Error::Cancelled.into());
            }
            if messages.is_empty() {
                session.step(&Prompt::new(engine, question, engine.context())?.question)?;
            } else {
                session.follow_up(&follow_up(engine, &messages, question)?, &mut |_, _| flow())?;
            }
            let options = GenerateOptions {
                max_tokens: question.max_new_tokens,
                ..GenerateOptions::default()
            };
            let answer = session.generate(&options, &mut |_| flow())?;
            let asked = if messages.is_empty() {
                [question.context.as_str(), &question.question].concat()
            } else {
                question.question.clone()
            };
            messages.push(Message::user(asked));
            messages.push(Message::assistant(
                [question.answer_prefix.as_str(), &answer.text].concat(),
            ));
            score = Scorer::default().score(&question.scoring, &answer.text, &question.answers)?;
        }
        Ok(score)
    }
}

/// The tokens of another turn and of the beginning of its answer.
fn follow_up(engine: &Engine, messages: &[Message], question: &Example) -> Result<Vec<u32>, EvalError> {
    let tokenizer = engine.tokenizer();
    let Some(template) = engine.chat_template() else {
        let text = format!("\n{}{}", question.question, question.answer_prefix);
        return Ok(tokenizer.encode(&text, false));
    };
    let next = [Message::user(question.question.clone())];
    let mut tokens = template
        .encode_follow_up(tokenizer, messages, &next)
        .map_err(Error::from)?;
    tokens.extend(tokenizer.encode(&question.answer_prefix, false));
    Ok(tokens)
}

/// The key of the needle that holds an answer: the word before " is" in the sentence before it.
fn key_of<'a>(context: &'a str, answer: &str) -> Option<&'a str> {
    let before = &context[..context.find(answer)?];
    let before = before.trim_end().trim_end_matches(':');
    let before = before.strip_suffix(" is").or_else(|| before.strip_suffix(" are"))?;
    before.rsplit(' ').next()
}

#[cfg(test)]
mod tests {
    use super::key_of;

    #[test]
    fn a_needle_tells_its_key() {
        let context = "Rain fell. One of the secret numbers of quiet-boat is: 1234567. Rain fell.";
        assert_eq!(key_of(context, "1234567"), Some("quiet-boat"));
        assert_eq!(key_of(context, "7654321"), None);
    }
}
