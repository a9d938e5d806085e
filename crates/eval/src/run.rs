//! How are many methods run over one prefill per example?
//!
//! The unit is an example under a method. For each example the context is prefilled once; every method then goes on from
//! a fork of that cache, so that a decode-time method costs its own steps only, and all comparisons are paired. The forks
//! step together, so that the weights are read once for all of them. A method that compresses the prompt while it runs
//! needs a prefill of its own.

mod answer;
mod estimate;
mod merge;
mod plan;
mod prompt;
mod results;
mod summary;

pub use estimate::{Estimate, Probe};
pub use merge::{Merged, merge};
pub use plan::{Open, Plan};
pub use prompt::Prompt;
pub(crate) use results::records;
pub use results::{Outcome, Outcomes, Record, Results};
pub use summary::{ByCategory, ByLength, MethodSummary, anatomies, summarise};

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use inertiakv::{Engine, Method, Session};

use crate::metrics::Scorer;
use crate::{EvalError, Example};
use answer::{Answered, Answering};

/// How units are run and scored. None of it changes a token.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// What scoring needs.
    pub scorer: Scorer<'a>,
    /// One method answers after the other, each by itself. That takes longer, but the decode figures of a record are then
    /// the method's own and not those of a step shared with others.
    pub apart: bool,
}

/// Most methods that step together: all of them hold a cache meanwhile.
pub const MOST_TOGETHER: usize = 16;

/// What a run has run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ran {
    /// Units, failed ones included.
    pub units: usize,
    /// Units that failed.
    pub failed: usize,
}

/// Where a run is.
#[derive(Debug, Clone, Copy)]
pub struct RunProgress<'a> {
    /// Units done, those of earlier runs included.
    pub done: usize,
    /// Units in all.
    pub total: usize,
    /// The share of this run's work that is done, by the length of the examples; from 0 to 1.
    pub share: f64,
    /// The example under way.
    pub example: &'a str,
}

/// Runs what a plan has open and adds it to the results.
///
/// What goes wrong in a unit is recorded, a panic too, and the next one begins. So is a method that should evict and
/// evicted nothing although the context exceeds its budget: its scores would be those of the full cache.
///
/// # Errors
///
/// The results cannot be written, or `progress`, which is asked between chunks and tokens, breaks
/// ([`inertiakv::Error::Cancelled`]).
pub fn run(
    engine: &Engine,
    plan: &Plan<'_>,
    options: &RunOptions<'_>,
    results: &mut Results,
    progress: &mut dyn FnMut(RunProgress<'_>) -> ControlFlow<()>,
) -> Result<Ran, EvalError> {
    let mut run = Run {
        engine,
        options,
        progress,
        done: plan.done(),
        total: plan.units(),
        ran: Ran::default(),
        work: 0.0,
        all_work: plan.work(),
    };
    for open in plan.open() {
        run.example(open, results)?;
    }
    Ok(run.ran)
}

/// A failure is recorded, but a cancelled unit has not failed.
fn recorded<T>(attempt: impl FnOnce() -> Result<T, EvalError>) -> Result<Result<T, String>, EvalError> {
    // Whatever the attempt had in hands is dropped with it.
    match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(Err(EvalError::Engine(inertiakv::Error::Cancelled))) => Err(inertiakv::Error::Cancelled.into()),
        Ok(result) => Ok(result.map_err(|error| error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Ok(Err(format!("panicked: {}", text.unwrap_or_default())))
        }
    }
}

/// A run under way.
struct Run<'a> {
    engine: &'a Engine,
    options: &'a RunOptions<'a>,
    progress: &'a mut dyn FnMut(RunProgress<'_>) -> ControlFlow<()>,
    done: usize,
    total: usize,
    ran: Ran,
    /// Work done and in all, as [`Open::work`] counts.
    work: f64,
    all_work: f64,
}

impl Run<'_> {
    fn flow(&mut self, example: &Example) -> ControlFlow<()> {
        (self.progress)(RunProgress {
            done: self.done,
            total: self.total,
            share: self.work / self.all_work.max(1.0),
            example: &example.id,
        })
    }

    /// What is open of one example.
    fn example(&mut self, open: &Open<'_>, results: &mut Results) -> Result<(), EvalError> {
        let example = open.example;
        if self.flow(example).is_break() {
            return Err(inertiakv::Error::Cancelled.into());
        }
        let prefilled = recorded(|| self.prefill(open))?;
        let together = if self.options.apart { 1 } else { MOST_TOGETHER };
        for group in open.methods.chunks(together) {
            let scored = match &prefilled {
                Ok((base, prompt)) => self.answers(base, prompt, group, example)?,
                Err(reason) => group.iter().map(|_| Err(reason.clone())).collect(),
            };
            for ((method, key), scored) in group.iter().zip(scored) {
                self.ran.units += 1;
                self.ran.failed += usize::from(scored.is_err());
                results.push(&record(key.clone(), self.engine, method, example, scored))?;
            }
            self.done += group.len();
            self.work += open.work() * group.len() as f64 / open.methods.len() as f64;
        }
        Ok(())
    }

    /// The session that methods are forked from; it has read nothing if each of them reads for itself.
    fn prefill(&mut self, open: &Open<'_>) -> Result<(Session, Prompt), EvalError> {
        let prompt = Prompt::new(self.engine, open.example, self.engine.context())?;
        let mut base = self.engine.session(&Method::full())?;
        let methods = open.methods.iter().map(|(method, _)| *method);
        base.remember_for(methods.clone())?;
        if !methods.clone().all(Method::needs_own_prefill) {
            base.prefill(&prompt.context, &mut |_, _| self.flow(open.example))?;
        }
        Ok((base, prompt))
    }

    /// What each method of a group answers, or why it failed. Where a step of all fails, each is tried alone, so that the
    /// others have their answer.
    fn answers(
        &mut self,
        base: &Session,
        prompt: &Prompt,
        group: &[(&Method, String)],
        example: &Example,
    ) -> Result<Vec<Result<Answered, String>>, EvalError> {
        let mut forked = Vec::with_capacity(group.len());
        for (method, _) in group {
            forked.push(recorded(|| {
                let session = base.fork_or_prefill(method, &prompt.context, &mut |_, _| self.flow(example))?;
                Answering::new(session, example)
            })?);
        }
        let mut answering: Vec<&mut Answering> = forked.iter_mut().filter_map(|fork| fork.as_mut().ok()).collect();
        let stepped = match answering.len() {
            0 => Ok(()),
            _ => recorded(|| answer::together(&mut answering, prompt, example, &mut || self.flow(example)))?,
        };
        if stepped.is_err() && group.len() > 1 {
            drop(forked);
            let mut alone = Vec::with_capacity(group.len());
            for one in group.chunks(1) {
                alone.extend(self.answers(base, prompt, one, example)?);
            }
            return Ok(alone);
        }
        let together = answering.len();
        let scored = forked.into_iter().map(|fork| {
            stepped.clone()?;
            let answered = fork?.finish(together, prompt.question.len())?;
            Ok(answered)
        });
        let scored: Vec<Result<_, String>> = scored.collect();
        let score = |answered: Result<Answered, String>| -> Result<Answered, String> {
            let mut answered = answered?;
            answered.score = self
                .options
                .scorer
                .score(&example.scoring, &answered.text, &example.answers)
                .map_err(|error| error.to_string())?;
            Ok(answered)
        };
        Ok(scored.into_iter().map(score).collect())
    }
}

fn record(
    key: String,
    engine: &Engine,
    method: &Method,
    example: &Example,
    scored: Result<Answered, String>,
) -> Record {
    let outcome = |score, error| Outcome {
        key,
        model: engine.name().to_owned(),
        id: example.id.clone(),
        task: example.task.clone(),
        labels: example.labels.clone(),
        method: method.to_string(),
        score,
        error,
    };
    let (answered, error) = match scored {
        Ok(answered) => (Some(answered), None),
        Err(error) => (None, Some(error)),
    };
    let count = |of: fn(&Answered) -> usize| answered.as_ref().map_or(0, of);
    Record {
        outcome: outcome(answered.as_ref().map(|answered| answered.score), error),
        answers: example.answers.clone(),
        question: example.question.clone(),
        answer_prefix: example.answer_prefix.clone(),
        max_new_tokens: example.max_new_tokens,
        question_tokens: count(|answered| answered.question_tokens),
        tokens: count(|answered| answered.tokens),
        together: count(|answered| answered.together),
        prediction: answered
            .as_ref()
            .map(|answered| answered.text.clone())
            .unwrap_or_default(),
        report: answered.map(|answered| answered.report),
    }
}
