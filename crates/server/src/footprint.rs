//! How much KV memory can a request need at most?
//!
//! A request is admitted only when the memory has room for the most it may ever need beside the most that all others may
//! need: nobody who has begun to answer is ever thrown out, and no step fails for want of a block. A request whose method
//! evicts needs its whole prompt only until its first step is over; then what it does not need is free for others.

use inertiakv::policy::{Coupling, Method, Policy, Scorer};
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
    /// Rows beside the prompt while it is compressed.
    compressing: usize,
}

/// More than it takes to ask a model to repeat a part of its prompt.
const REQUEST_TO_REPEAT: usize = 512;

impl Footprint {
    pub(crate) fn new(method: &Method, prompt: usize, answer: usize) -> Self {
        let whole = prompt + answer;
        let prefill = method.prefill.as_ref().map(|rule| &rule.policy);
        let decode = &method.decode.policy;
        // Budgets that grow are largest at the end.
        let evicted = match (prefill, decode.budget.entries(prompt, whole)) {
            // What is hidden stays in memory.
            (Some(prefill), _) if prefill.masked => None,
            (_, Some(entries)) => Some(entries.saturating_add(decode.interval)),
            (Some(prefill), None) => prefill.budget.entries(prompt, prompt).map(|entries| entries + answer),
            (None, None) => None,
        };
        let per_head = |policy: &Policy| policy.coupling == Coupling::PerHead;
        Self {
            prompt,
            answer,
            evicted: evicted.map(|rows| rows.min(whole)),
            uneven: prefill.into_iter().chain([decode]).any(per_head),
            compressing: match prefill.map(|prefill| prefill.scorer) {
                Some(Scorer::Reconstruction(chunk)) => prompt.min(chunk as usize) + REQUEST_TO_REPEAT,
                // Copies of what the prompt's own cache, which still lives then, holds too.
                Some(_) => evicted.unwrap_or(0),
                None => 0,
            },
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
            (1, None) => rows(self.prompt + self.answer.max(self.compressing)),
            // All share the prompt.
            (_, None) => prompt + answers * (rows(self.answer.max(self.compressing)) + slack),
            (_, Some(evicted)) if settled => answers * evicted,
            (1, Some(evicted)) if self.compressing == 0 => rows(self.prompt + 1).max(evicted),
            (_, Some(evicted)) => prompt + rows(self.compressing) + answers * (evicted + slack),
        }
    }
}
