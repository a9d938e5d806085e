//! Compressing a prompt, and decoding from what is left of it.

use super::{Phase, PolicyState};
use crate::error::PolicyError;
use crate::method::Stage;
use crate::policy::Policy;
use crate::ranking::Ranking;
use crate::shape::Shape;

impl PolicyState {
    /// The state before a prompt of `prompt_tokens` that `policy` compresses: no rows yet. The prompt is one step
    /// ([`begin_step`](Self::begin_step) to [`finish_step`](Self::finish_step)), or several where its memory is bounded
    /// by [`Policy::interval`]; every step ends with at most the budget. Then [`PolicyState::decode`] goes on.
    pub fn of_prompt(policy: &Policy, shape: &Shape, prompt_tokens: usize) -> Result<Self, PolicyError> {
        Self::build(policy, Stage::Prefill, shape, prompt_tokens, 0)
    }

    /// The state in which decoding under `policy` begins, with what is left of the prompt. Where the rankings of `policy`
    /// are shared by heads that hold different entries, a ranking is over all positions that any of them holds, a score
    /// is the mean over the heads that hold an entry, and B is the mean over these heads.
    pub fn decode(self, policy: &Policy) -> Result<Self, PolicyError> {
        if self.phase != Phase::Between {
            return Err(PolicyError::OutOfOrder {
                call: "decode",
                when: "within a step",
            });
        }
        policy.validate_after_prompt()?;
        let mut next = Self::build(policy, Stage::Decode, &self.shape, self.prompt_tokens, 0)?;
        if !policy.evicts() {
            // Nothing leaves any more, so heads that hold different entries need not agree.
            next.layout = self.layout;
        }
        let layers = (0..self.shape.layers).filter(|&layer| self.shape.is_evictable(layer));
        let heads = layers.flat_map(|layer| (0..self.shape.kv_heads).map(move |head| (layer, head)));
        let held: Vec<&[u32]> = heads.map(|(layer, head)| self.positions(layer, head)).collect();
        let per_ranking = next.heads_per_ranking().max(1);
        next.rankings = held.chunks(per_ranking).map(Ranking::of_heads).collect();
        next.seen = self.seen;
        next.evicted = self.evicted;
        next.everything.clone_from(&self.everything);
        Ok(next)
    }
}
