//! How long will a run take, and how much memory?

use std::ops::ControlFlow;
use std::time::Instant;

use inertiakv::{Engine, Method, Session};
use serde::Serialize;

use super::{MOST_TOGETHER, Open, Plan, Prompt};
use crate::{EvalError, Example};

/// What is left of a run and what it will cost, from a short probe of the model. Times are for answers of full length and
/// take no account of attention over long contexts, which is slower than over the probe's.
#[derive(Debug, Clone, Serialize)]
pub struct Estimate {
    /// Examples with something left to run.
    pub examples: usize,
    /// Units left to run.
    pub units: usize,
    /// Examples that do not fit into the context and will fail; they are in no other figure but the two above.
    pub too_long: usize,
    /// Tokens of all contexts, about: from their bytes.
    pub prompt_tokens: usize,
    /// Tokens of the longest context with its question and answer.
    pub longest: usize,
    /// Seconds to prefill.
    pub prefill_seconds: f64,
    /// Seconds to answer, at most.
    pub answer_seconds: f64,
    /// Bytes of KV cache at the longest example, at most.
    pub kv_bytes: usize,
    /// Bytes that the process has held so far, weights included, where the system tells.
    pub resident_bytes: Option<usize>,
    /// What was measured.
    pub probe: Probe,
}

/// A short run over the beginning of the first example.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Probe {
    /// Tokens prefilled.
    pub prompt_tokens: usize,
    /// Tokens per second of the prefill.
    pub prefill_tokens_per_second: f64,
    /// Methods that step together.
    pub together: usize,
    /// Seconds of one step of all of them.
    pub step_seconds: f64,
}

/// Tokens of the probe: enough for the speed of a chunk, and done in seconds on a slow machine.
const PROBE_TOKENS: usize = 256;
/// Steps that are timed, after one that is not.
const PROBE_STEPS: usize = 4;

impl Estimate {
    /// Measures the model on the first open example and scales what is left; `None` where nothing is.
    ///
    /// # Errors
    ///
    /// The probe cannot run.
    pub fn of(engine: &Engine, plan: &Plan<'_>, apart: bool) -> Result<Option<Self>, EvalError> {
        let Some(first) = plan.open().first() else {
            return Ok(None);
        };
        let most = if apart { 1 } else { MOST_TOGETHER };
        let widest = plan.open().iter().map(|open| open.methods.len()).max().unwrap_or(1);
        let bytes_per_token = bytes_per_token(engine, plan);
        let (probe, kv_bytes_per_token) = Probe::run(engine, first, most.min(widest))?;
        let tokens_of = |bytes: usize| ((bytes as f64 / bytes_per_token) as usize).min(engine.context());
        let mut estimate = Self {
            examples: plan.open().len(),
            units: plan.units() - plan.done(),
            too_long: 0,
            prompt_tokens: 0,
            longest: 0,
            prefill_seconds: 0.0,
            answer_seconds: 0.0,
            kv_bytes: 0,
            resident_bytes: inertiakv::memory::peak_resident(),
            probe,
        };
        for open in plan.open() {
            let example = open.example;
            let tokens = tokens_of(example.context.len());
            let longest = tokens + tokens_of(example.question.len());
            let longest = longest.saturating_add(example.max_new_tokens);
            // Only what may be too long is worth its tokens.
            if longest > engine.context() && is_too_long(engine, example)? {
                estimate.too_long += 1;
                continue;
            }
            let longest = longest.min(engine.context());
            let own = open
                .methods
                .iter()
                .filter(|(method, _)| method.needs_own_prefill())
                .count();
            let prefills = own + usize::from(own < open.methods.len());
            estimate.prompt_tokens += tokens;
            estimate.prefill_seconds += (prefills * tokens) as f64 / probe.prefill_tokens_per_second;
            let question = tokens_of(example.question.len()) as f64 / probe.prefill_tokens_per_second;
            let groups = open.methods.len().div_ceil(most);
            estimate.answer_seconds +=
                question * open.methods.len() as f64 + (groups * example.max_new_tokens) as f64 * probe.step_seconds;
            estimate.longest = estimate.longest.max(longest);
            let held = open
                .methods
                .chunks(most)
                .map(|group| held(group, tokens, longest))
                .max();
            let kv_bytes = (held.unwrap_or(0) as f64 * kv_bytes_per_token) as usize;
            estimate.kv_bytes = estimate.kv_bytes.max(kv_bytes);
        }
        Ok(Some(estimate))
    }

    /// Seconds in all, at most.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.prefill_seconds + self.answer_seconds
    }
}

/// Whether an example cannot be run at all; what its benchmark cuts can.
fn is_too_long(engine: &Engine, example: &Example) -> Result<bool, EvalError> {
    match Prompt::new(engine, example, engine.context()) {
        Err(EvalError::TooLong { .. }) => Ok(true),
        prompt => prompt.map(|_| false),
    }
}

/// Entries that a group holds at most beside the shared prefill: what a method keeps once it evicts is its own.
fn held(group: &[(&Method, String)], tokens: usize, longest: usize) -> usize {
    let own = |method: &Method| {
        let kept = method.last_policy().budget.entries(tokens, longest);
        match kept {
            _ if method.needs_own_prefill() => longest,
            Some(kept) => kept.min(tokens) + longest - tokens,
            None => longest - tokens,
        }
    };
    tokens + group.iter().map(|(method, _)| own(method)).sum::<usize>()
}

/// Bytes of text per token, from a few examples.
fn bytes_per_token(engine: &Engine, plan: &Plan<'_>) -> f64 {
    const SAMPLED: usize = 4;
    let step = plan.open().len().div_ceil(SAMPLED).max(1);
    let (mut bytes, mut tokens) = (0, 0);
    for open in plan.open().iter().step_by(step) {
        bytes += open.example.context.len();
        tokens += engine.tokenizer().encode(&open.example.context, false).len();
    }
    (bytes as f64 / tokens.max(1) as f64).max(1.0)
}

impl Probe {
    /// The probe, and the bytes of cache that a token takes.
    fn run(engine: &Engine, open: &Open<'_>, together: usize) -> Result<(Self, f64), EvalError> {
        let mut tokens = engine.tokenizer().encode(&open.example.context, true);
        tokens.truncate(PROBE_TOKENS.min(engine.context() / 2));
        if tokens.is_empty() {
            tokens = engine.tokenizer().encode("a", true);
        }
        let full = Method::full();
        let mut base = engine.session(&full)?;
        let start = Instant::now();
        base.prefill(&tokens, &mut |_, _| ControlFlow::Continue(()))?;
        let prefill_tokens_per_second = tokens.len() as f64 / start.elapsed().as_secs_f64().max(1e-9);
        let kv_bytes_per_token = base.kv_bytes() as f64 / tokens.len() as f64;
        let mut forks = Vec::with_capacity(together);
        for _ in 0..together {
            forks.push(base.fork(&full)?);
        }
        let next = &tokens[..1];
        let mut step = || -> Result<(), EvalError> {
            let mut sessions: Vec<&mut Session> = forks.iter_mut().collect();
            Session::step_together(&mut sessions, &vec![next; together])?;
            Ok(())
        };
        step()?;
        let start = Instant::now();
        for _ in 0..PROBE_STEPS {
            step()?;
        }
        let probe = Self {
            prompt_tokens: tokens.len(),
            prefill_tokens_per_second,
            together,
            step_seconds: start.elapsed().as_secs_f64() / PROBE_STEPS as f64,
        };
        Ok((probe, kv_bytes_per_token))
    }
}
