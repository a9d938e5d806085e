//! How much KV memory can a request need at most?
//!
//! A request is admitted only when the memory has room for the most it may ever need beside the most that all others may
//! need: nobody who has begun to answer is ever thrown out, and no step fails for want of a block. A request whose method
//! evicts needs its whole prompt only until its first step is over; then what it does not need is free for others.

use inertiakv::policy::{Coupling, Method, Policy};
use inertiakv::{Engine, Session};

/// The most rows per head that one answer of a request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Tokens of the prompt.
    prompt: usize,
    /// Rows beside the prompt while it is compressed; 0 if it is not.
    compressing: usize,
    /// Rows that decoding begins with: the prompt, or what is left of it.
    base: usize,
    /// Tokens of an answer, at most.
    answer: usize,
    /// Rows within a step once decoding has evicted; `None` if it never does.
    evicted: Option<usize>,
    /// Every settled step takes one row out of every head.
    gradual: bool,
    /// Heads hold different numbers of rows, of which only the sum is known.
    uneven: bool,
}

impl Footprint {
    /// `repeating` is what [`Engine::check_prompt`] says.
    pub(crate) fn new(method: &Method, prompt: usize, answer: usize, repeating: usize) -> Self {
        let prefill = method.prefill.as_ref().map(|rule| &rule.policy);
        let decode = &method.decode.policy;
        let base = prefill
            // What is hidden stays in memory.
            .filter(|prefill| !prefill.masked)
            .and_then(|prefill| prefill.budget.entries(prompt, prompt))
            .map_or(prompt, |entries| entries.min(prompt));
        let most = base + answer;
        // Budgets that grow are largest at the end.
        let evicted = decode.budget.entries(prompt, prompt + answer);
        let per_head = |policy: &Policy| policy.coupling == Coupling::PerHead;
        let uneven = prefill.into_iter().chain([decode]).any(per_head);
        Self {
            prompt,
            // What stays is copied while the prompt's own cache still lives.
            compressing: repeating.max(if base < prompt { base } else { 0 }),
            base,
            answer,
            evicted: evicted.map(|entries| entries.saturating_add(decode.interval).min(most)),
            gradual: decode.interval == 1 && !uneven,
            uneven,
        }
    }

    /// Whether the session is down to what it will hold from now on.
    pub(crate) fn has_settled(&self, session: &Session) -> bool {
        let has_windows = session.engine().config().sliding.is_some();
        // Layers with a window give up their old entries with the first step.
        let has_stepped = session.policy().is_some_and(|policy| policy.step() > 0);
        self.evicted
            .is_none_or(|rows| session.retained_entries() < rows && (has_stepped || !has_windows))
    }

    /// Bytes for `answers` answers from the first chunk of the prompt to the last token.
    pub(crate) fn bytes_in_all(&self, engine: &Engine, answers: usize) -> usize {
        let rows = |rows: usize| engine.kv_pool().bytes_for(rows);
        let compressing = match self.compressing {
            0 => rows(self.prompt),
            more => rows(self.prompt) + rows(more) + rows(1),
        };
        compressing.max(self.bytes(engine, answers, false))
    }

    /// Bytes for `answers` answers to the same prompt, which has gone, once they have `settled` or before.
    pub(crate) fn bytes(&self, engine: &Engine, answers: usize, settled: bool) -> usize {
        // A block more in every head for what is rounded up in one and not in another, or copied when it is written to.
        let slack = engine.kv_pool().bytes_for(1);
        let each = |rows: usize| self.bytes_of(engine, rows, settled);
        match (answers, self.evicted) {
            (0, _) => 0,
            (1, None) => each(self.base + self.answer),
            // All share what decoding began with.
            (_, None) => each(self.base) + answers * (engine.kv_pool().bytes_for(self.answer) + slack),
            (_, Some(evicted)) if settled => answers * each(evicted),
            (1, Some(evicted)) => each(evicted.max(self.base + 1)),
            (_, Some(evicted)) => each(self.base) + answers * (each(evicted) + slack),
        }
    }

    /// Bytes that the next step of `answers` answers may take before it gives any back: a block in every head for the new
    /// row, and a copy of every block that an eviction writes to and somebody else, a kept prompt perhaps, has too.
    pub(crate) fn bytes_to_step(&self, engine: &Engine, answers: usize, settled: bool) -> usize {
        let block = engine.kv_pool().bytes_for(1);
        let copies = match self.evicted {
            None => 0,
            // One row goes where another has left.
            Some(_) if settled && self.gradual => block,
            Some(evicted) => self.bytes_of(engine, evicted, settled),
        };
        answers * (block + copies)
    }

    /// Layers with a window hold the whole prompt until the first step.
    fn bytes_of(&self, engine: &Engine, rows: usize, settled: bool) -> usize {
        let pool = engine.kv_pool();
        let held = match engine.config().sliding {
            Some(_) if settled => engine.settled_kv_bytes(rows, self.prompt + self.answer),
            Some(_) => pool.bytes_for(rows.max(self.prompt)),
            None => pool.bytes_for(rows),
        };
        held + if self.uneven { pool.bytes_for(1) } else { 0 }
    }
}
