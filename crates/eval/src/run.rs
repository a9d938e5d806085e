//! How are many methods run over one prefill per example?
//!
//! The unit is an example under a method. For each example the context is prefilled once; every method then goes on from
//! a fork of that cache, so that a decode-time method costs its own steps only, and all comparisons are paired. A method
//! that compresses the prompt while it runs needs a prefill of its own.

mod prompt;
mod results;
mod summary;

pub use results::{Outcome, Outcomes, Record, Results};
pub use summary::{MethodSummary, summarise};

use std::ops::ControlFlow;

use inertiakv::catalog::hexadecimal;
use inertiakv::{Engine, GenerateOptions, Generation, LearnedScorer, Method, RunReport, Session, policy};
use sha2::{Digest, Sha256};

use crate::metrics::Scorer;
use crate::{EvalError, Example};
use prompt::Prompt;

/// Where a run is.
#[derive(Debug, Clone, Copy)]
pub struct RunProgress<'a> {
    /// Units done, those of earlier runs included.
    pub done: usize,
    /// Units in all.
    pub total: usize,
    /// The example under way.
    pub example: &'a str,
}

/// Runs every example under every method and adds what is not there yet to the results; returns the keys of all these
/// units.
///
/// What goes wrong in a unit is recorded, and the next one begins. So is a method that should evict and evicted nothing
/// although the context exceeds its budget: its scores would be those of the full cache.
///
/// # Errors
///
/// The model cannot run a method, the results cannot be written, or `progress`, which is asked between chunks and tokens,
/// breaks ([`inertiakv::Error::Cancelled`]).
pub fn run(
    engine: &Engine,
    examples: &[Example],
    methods: &[Method],
    scorer: &Scorer<'_>,
    results: &mut Results,
    progress: &mut dyn FnMut(RunProgress<'_>) -> ControlFlow<()>,
) -> Result<Vec<String>, EvalError> {
    for method in methods {
        engine.check_method(method)?;
    }
    let mut run = Run {
        engine,
        scorer,
        progress,
        done: 0,
        total: examples.len() * methods.len(),
    };
    let mut keys = Vec::with_capacity(run.total);
    for example in examples {
        let mut open = Vec::new();
        for method in methods {
            let key = key(engine, method, example);
            keys.push(key.clone());
            if results.has(&key) {
                run.done += 1;
            } else {
                open.push((method, key));
            }
        }
        if run.flow(example).is_break() {
            return Err(inertiakv::Error::Cancelled.into());
        }
        if open.is_empty() {
            continue;
        }
        let prefilled = recorded(run.prefill(example, &open))?;
        for (method, key) in open {
            let scored = match &prefilled {
                Ok((base, prompt)) => recorded(run.answer(base, prompt, method, example))?,
                Err(reason) => Err(reason.clone()),
            };
            results.push(&record(key, engine, method, example, scored))?;
            run.done += 1;
        }
    }
    Ok(keys)
}

/// What identifies a unit: everything that its answer depends on. The number of threads is not among it.
fn key(engine: &Engine, method: &Method, example: &Example) -> String {
    let rules = method.prefill.iter().chain([&method.decode]);
    let is_learned = rules
        .into_iter()
        .any(|rule| rule.policy.scorer == policy::Scorer::Learned);
    let unit = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": engine.name(),
        "fingerprint": engine.info().fingerprint,
        "kv_type": engine.kv_pool().config().kv_type.to_string(),
        "context": engine.context(),
        "scorer": engine.scorer().filter(|_| is_learned).map(LearnedScorer::training),
        "method": method.to_string(),
        "example": example,
    });
    hexadecimal(&Sha256::digest(unit.to_string())[..16])
}

/// A failure is recorded, but a cancelled unit has not failed.
fn recorded<T>(result: Result<T, EvalError>) -> Result<Result<T, String>, EvalError> {
    match result {
        Err(EvalError::Engine(inertiakv::Error::Cancelled)) => Err(inertiakv::Error::Cancelled.into()),
        result => Ok(result.map_err(|error| error.to_string())),
    }
}

/// A run under way.
struct Run<'a> {
    engine: &'a Engine,
    scorer: &'a Scorer<'a>,
    progress: &'a mut dyn FnMut(RunProgress<'_>) -> ControlFlow<()>,
    done: usize,
    total: usize,
}

/// What a unit gave.
struct Answered {
    generation: Generation,
    report: RunReport,
    question_tokens: usize,
    score: f64,
}

impl Run<'_> {
    fn flow(&mut self, example: &Example) -> ControlFlow<()> {
        (self.progress)(RunProgress {
            done: self.done,
            total: self.total,
            example: &example.id,
        })
    }

    /// The session that methods are forked from; it has read nothing if each of them reads for itself.
    fn prefill(&mut self, example: &Example, open: &[(&Method, String)]) -> Result<(Session, Prompt), EvalError> {
        let prompt = Prompt::new(self.engine, example, self.engine.context())?;
        let mut base = self.engine.session(&Method::full())?;
        let methods = open.iter().map(|(method, _)| *method);
        base.remember_for(methods.clone())?;
        if !methods.clone().all(Method::needs_own_prefill) {
            base.prefill(&prompt.context, &mut |_, _| self.flow(example))?;
        }
        Ok((base, prompt))
    }

    fn answer(
        &mut self,
        base: &Session,
        prompt: &Prompt,
        method: &Method,
        example: &Example,
    ) -> Result<Answered, EvalError> {
        let mut session = base.fork_or_prefill(method, &prompt.context, &mut |_, _| self.flow(example))?;
        session.step_watched(&prompt.question, &mut |_, _| self.flow(example))?;
        let options = GenerateOptions {
            max_tokens: example.max_new_tokens,
            ..GenerateOptions::default()
        };
        let (mut tokens, mut is_cancelled) = (0, false);
        let generation = session.generate(&options, &mut |piece| {
            tokens += 1;
            is_cancelled = self.flow(example).is_break();
            if is_cancelled || example.stop_at_newline && tokens > 1 && piece.contains('\n') {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if is_cancelled {
            return Err(inertiakv::Error::Cancelled.into());
        }
        let report = session.report();
        check_evictions(method, &report)?;
        Ok(Answered {
            score: self
                .scorer
                .score(&example.scoring, &generation.text, &example.answers)?,
            generation,
            report,
            question_tokens: prompt.question.len(),
        })
    }
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
    let answers = example.answers.clone();
    match scored {
        Ok(answered) => Record {
            outcome: outcome(Some(answered.score), None),
            prediction: answered.generation.text,
            answers,
            question_tokens: answered.question_tokens,
            tokens: answered.generation.tokens.len(),
            report: Some(answered.report),
        },
        Err(error) => Record {
            outcome: outcome(None, Some(error)),
            prediction: String::new(),
            answers,
            question_tokens: 0,
            tokens: 0,
            report: None,
        },
    }
}
