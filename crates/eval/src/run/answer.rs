//! How do several methods answer one question in the same forward passes?

use std::ops::ControlFlow;

use inertiakv::{GenerateOptions, Generator, Method, RunReport, Session};

use super::prompt::Prompt;
use crate::{EvalError, Example};

/// A method that is answering.
pub(super) struct Answering {
    session: Session,
    generator: Generator,
    text: String,
    tokens: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Going,
    /// All text is there but what the generator holds back.
    Ended,
    /// Cut at a newline: nothing more belongs to the answer.
    Cut,
}

/// What a unit gave.
pub(super) struct Answered {
    pub(super) text: String,
    pub(super) tokens: usize,
    pub(super) report: RunReport,
    pub(super) question_tokens: usize,
    pub(super) together: usize,
    pub(super) score: f64,
}

impl Answering {
    /// A session that has read the context.
    pub(super) fn new(session: Session, example: &Example) -> Result<Self, EvalError> {
        let options = GenerateOptions {
            max_tokens: example.max_new_tokens,
            ..GenerateOptions::default()
        };
        Ok(Self {
            generator: Generator::new(session.engine(), &options)?,
            session,
            text: String::new(),
            tokens: 0,
            state: State::Going,
        })
    }

    /// Draws the next token; its step comes next, if it goes on.
    fn draw(&mut self, example: &Example) -> Result<(), EvalError> {
        if self.tokens >= example.max_new_tokens {
            self.state = State::Ended;
            return Ok(());
        }
        let Some(draw) = self.generator.draw(&mut self.session)? else {
            self.state = State::Ended;
            return Ok(());
        };
        self.tokens += 1;
        self.text.push_str(&draw.text);
        if example.stop_at_newline && self.tokens > 1 && draw.text.contains('\n') {
            self.state = State::Cut;
        } else if self.tokens >= example.max_new_tokens || self.session.position() >= self.session.context() {
            self.state = State::Ended;
        }
        Ok(())
    }

    /// The answer and its cost; it has no score yet.
    pub(super) fn finish(self, together: usize, question_tokens: usize) -> Result<Answered, String> {
        let mut text = self.text;
        if self.state != State::Cut {
            text.push_str(&self.generator.finish());
        }
        let report = self.session.report();
        check_evictions(self.session.method(), &report).map_err(|error| error.to_string())?;
        Ok(Answered {
            text,
            tokens: self.tokens,
            report,
            question_tokens,
            together,
            score: 0.0,
        })
    }
}

/// Asks all of them the question and lets them answer, each step in one forward pass of all that still go on. Each gives
/// the tokens that it gives alone.
///
/// `flow` is asked between chunks and steps; if it breaks, the error is [`inertiakv::Error::Cancelled`].
pub(super) fn together(
    answering: &mut [&mut Answering],
    prompt: &Prompt,
    example: &Example,
    flow: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), EvalError> {
    if let [alone] = answering {
        alone.session.step_watched(&prompt.question, &mut |_, _| flow())?;
    } else {
        let questions = vec![prompt.question.as_slice(); answering.len()];
        step(answering, &questions)?;
    }
    loop {
        let mut going: Vec<&mut Answering> = Vec::with_capacity(answering.len());
        for one in answering.iter_mut().filter(|one| one.state == State::Going) {
            one.draw(example)?;
            if one.state == State::Going {
                going.push(one);
            }
        }
        if flow().is_break() {
            return Err(inertiakv::Error::Cancelled.into());
        }
        if going.is_empty() {
            return Ok(());
        }
        // Each runs the token that it has drawn.
        let drawn = vec![&[][..]; going.len()];
        step(&mut going, &drawn)?;
    }
}

fn step(answering: &mut [&mut Answering], tokens: &[&[u32]]) -> Result<(), EvalError> {
    let mut sessions: Vec<&mut Session> = answering.iter_mut().map(|one| &mut one.session).collect();
    Session::step_together(&mut sessions, tokens)?;
    Ok(())
}

/// A method that had to evict and did not would be scored as `full`.
fn check_evictions(method: &Method, report: &RunReport) -> Result<(), EvalError> {
    let Some(budget) = report.budget else { return Ok(()) };
    let decode = &method.decode.policy;
    let most = if decode.evicts() {
        budget.saturating_add(decode.interval - 1)
    } else {
        budget
    };
    if report.prompt_tokens > most && report.evictions + report.masked == 0 {
        return Err(EvalError::NoEviction {
            method: method.to_string(),
            entries: report.prompt_tokens,
            budget,
        });
    }
    Ok(())
}
