//! How much KV memory can a request need at most?
//!
//! A request is admitted only when the memory has room for the most it may ever need beside the most that all others may
//! need: nobody who has begun to answer is ever thrown out, and no step fails for want of a block. A request whose method
//! evicts needs its whole prompt only until its first step is over; then what it does not need is free for others.

use inertiakv::policy::{Coupling, Method};
use inertiakv::{Engine, Session};

/// The most rows per head that one answer of a request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Tokens of the prompt.
    prompt: usize,
    /// Tokens of an answer, at most.
    answer: usize,
    /// Rows within a step once the method has evicted; `None` if nothing ever leaves.
    evicted: Option<usize>,
    /// Heads hold different numbers of rows, of which only the sum is known.
    uneven: bool,
}

impl Footprint {
    pub(crate) fn new(method: &Method, prompt: usize, answer: usize) -> Self {
        let policy = &method.policy;
        // Budgets that grow are largest at the end.
        let evicted = policy
            .budget
            .entries(prompt, prompt + answer)
            .map(|entries| entries.saturating_add(policy.interval).min(prompt + answer));
        Self {
            prompt,
            answer,
            evicted,
            uneven: policy.coupling == Coupling::PerHead,
        }
    }

    /// Whether the session is down to what it will hold from now on.
    pub(crate) fn has_settled(&self, session: &Session) -> bool {
        self.evicted.is_none_or(|rows| session.retained_entries() <= rows)
    }

    /// Bytes for `answers` answers to the same prompt, once they have `settled` or before.
    pub(crate) fn bytes(&self, engine: &Engine, answers: usize, settled: bool) -> usize {
        let rows = |rows: usize| engine.kv_pool().bytes_for(rows);
        // A block more in every head for what is rounded up in one and not in another, or copied when it is written to.
        let slack = rows(1);
        let prompt = rows(self.prompt);
        let evicted = self
            .evicted
            .map(|kept| rows(kept) + if self.uneven { slack } else { 0 });
        match (answers, evicted) {
            (0, _) => 0,
            (1, None) => rows(self.prompt + self.answer),
            // All share the prompt.
            (_, None) => prompt + answers * (rows(self.answer) + slack),
            (_, Some(evicted)) if settled => answers * evicted,
            (1, Some(evicted)) => rows(self.prompt + 1).max(evicted),
            (_, Some(evicted)) => prompt + answers * (evicted + slack),
        }
    }
}
