//! How are many methods run over one prefill per example?
//!
//! The unit is an example under a method. For each example the context is prefilled once; every method then goes on from
//! a fork of that cache, so that a decode-time method costs its own steps only, and all comparisons are paired. A method
//! that compresses the prompt while it runs needs a prefill of its own.

mod prompt;
mod results;
mod summary;

pub use results::{Outcome, Record, Results};
pub use summary::{MethodSummary, summarise};

use std::ops::ControlFlow;

use inertiakv::{Engine, GenerateOptions, Generation, Method, RunReport, Session};
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

/// Runs every example under every method and adds what is not there yet to the results.
///
/// What goes wrong in a unit is recorded, and the next one begins. So is a method that should evict and evicted nothing
/// although the context exceeds its budget: its scores would be those of the full cache.
///
/// # Errors
///
/// The results cannot be written, or `progress` breaks ([`inertiakv::Error::Cancelled`]).
pub fn run(
    engine: &Engine,
    examples: &[Example],
    methods: &[Method],
    scorer: &Scorer<'_>,
    results: &mut Results,
    progress: &mut dyn FnMut(RunProgress<'_>) -> ControlFlow<()>,
) -> Result<(), EvalError> {
    let total = examples.len() * methods.len();
    let mut done = 0;
    for example in examples {
        let mut step = |done: usize| {
            let now = RunProgress {
                done,
                total,
                example: &example.id,
            };
            match progress(now) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(EvalError::Engine(inertiakv::Error::Cancelled)),
            }
        };
        let keys: Vec<String> = methods.iter().map(|method| key(engine, method, example)).collect();
        let open: Vec<(&Method, String)> = methods.iter().zip(keys).filter(|(_, key)| !results.has(key)).collect();
        done += methods.len() - open.len();
        step(done)?;
        if open.is_empty() {
            continue;
        }
        let prefilled = prefill(engine, example, &open);
        for (method, key) in open {
            let unit = match &prefilled {
                Ok((base, prompt)) => answer(base, prompt, method, example),
                Err(error) => Err(error.to_string()),
            };
            let scored = unit.and_then(|unit| {
                let score = scorer.score(&example.scoring, &unit.generation.text, &example.answers);
                Ok((score.map_err(|error| error.to_string())?, unit))
            });
            results.push(&record(key, method, example, scored))?;
            done += 1;
            step(done)?;
        }
    }
    Ok(())
}

/// What identifies a unit: the model by name and size, the method, and everything in the example.
fn key(engine: &Engine, method: &Method, example: &Example) -> String {
    let info = engine.info();
    let model = (
        engine.name(),
        info.quantisation,
        info.weight_bytes,
        engine.kv_pool().config().kv_type.to_string(),
    );
    let unit = serde_json::to_vec(&(model, method.to_string(), example)).unwrap_or_default();
    crate::hex(&Sha256::digest(unit)[..16])
}

fn prefill(engine: &Engine, example: &Example, open: &[(&Method, String)]) -> Result<(Session, Prompt), EvalError> {
    let prompt = Prompt::new(engine, example, engine.context())?;
    let mut base = engine.session(&Method::full())?;
    let shared = open.iter().map(|(method, _)| *method);
    base.remember_for(shared.filter(|method| !method.needs_own_prefill()))?;
    base.prefill(&prompt.context, &mut |_, _| ControlFlow::Continue(()))?;
    Ok((base, prompt))
}

/// What a unit gave.
struct Answered {
    generation: Generation,
    report: RunReport,
    question_tokens: usize,
}

fn answer(base: &Session, prompt: &Prompt, method: &Method, example: &Example) -> Result<Answered, String> {
    let run = || -> Result<Answered, inertiakv::Error> {
        let mut session = if method.needs_own_prefill() {
            let mut own = base.engine().session(method)?;
            own.prefill(&prompt.context, &mut |_, _| ControlFlow::Continue(()))?;
            own
        } else {
            base.fork(method)?
        };
        session.step(&prompt.question)?;
        let options = GenerateOptions {
            max_tokens: example.max_new_tokens,
            ..GenerateOptions::default()
        };
        let mut tokens = 0;
        let generation = session.generate(&options, &mut |piece| {
            tokens += 1;
            if example.stop_at_newline && tokens > 1 && piece.contains('\n') {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        Ok(Answered {
            generation,
            report: session.report(),
            question_tokens: prompt.question.len(),
        })
    };
    let answered = run().map_err(|error| error.to_string())?;
    let report = &answered.report;
    let exceeds = report.budget.is_some_and(|budget| budget < report.prompt_tokens);
    if exceeds && report.evictions + report.masked == 0 {
        return Err(format!(
            "`{method}` evicted nothing of {} entries although its budget is {}; its score would be that of `full`",
            report.prompt_tokens,
            report.budget.unwrap_or(0)
        ));
    }
    Ok(answered)
}

fn record(key: String, method: &Method, example: &Example, scored: Result<(f64, Answered), String>) -> Record {
    let blank = Record {
        key,
        id: example.id.clone(),
        task: example.task.clone(),
        labels: example.labels.clone(),
        method: method.to_string(),
        score: None,
        error: None,
        prediction: String::new(),
        answers: example.answers.clone(),
        question_tokens: 0,
        tokens: 0,
        report: None,
    };
    match scored {
        Ok((score, answered)) => Record {
            score: Some(score),
            prediction: answered.generation.text,
            question_tokens: answered.question_tokens,
            tokens: answered.generation.tokens.len(),
            report: Some(answered.report),
            ..blank
        },
        Err(error) => Record {
            error: Some(error),
            ..blank
        },
    }
}
