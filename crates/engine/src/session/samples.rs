//! What do the layers show at some queries of a text?
//!
//! The text runs in chunks that end at these queries, so that the attention of a chunk's last query is that of one of
//! them, over exactly the entries it saw.

use std::ops::{ControlFlow, Range};

use inertiakv_kernels::attention::{GroupPooling, Mass, QueryStatistics};
use inertiakv_kernels::cache::KvCache;
use inertiakv_policy::{Method, PolicyError};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

use super::CHUNK;
use super::prompt::{PromptMemory, PromptNeeds, PromptWatch};
use crate::Error;
use crate::backend::CpuBackend;
use crate::decoder::{Capture, Observer, Profile, Seen};
use crate::engine::{Engine, Logits};

/// One layer at one query.
pub(crate) struct Look<'a> {
    pub(crate) layer: usize,
    /// Of the query; the cache holds the entries up to it.
    pub(crate) position: usize,
    pub(crate) cache: &'a KvCache,
    /// All heads, rotated.
    pub(crate) query: &'a [f32],
    /// The attention of the query, summed over the heads of each group.
    pub(crate) mass: &'a Mass,
    /// Of the queries up to this one, if asked for.
    pub(crate) statistics: &'a QueryStatistics,
}

impl Engine {
    /// Runs a text and shows every layer at each of `positions`, which ascend. `flow` is asked before every chunk whether
    /// to go on.
    pub(crate) fn look(
        &self,
        tokens: &[u32],
        positions: &[usize],
        statistics: bool,
        flow: &mut dyn FnMut() -> ControlFlow<()>,
        show: &mut dyn FnMut(&Look<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.policy_shape().evictable.contains(&true) {
            // Such layers are not shown.
            return Err(PolicyError::NoEvictableLayer.into());
        }
        let mut session = self.session(&Method::full())?;
        session.check(tokens)?;
        let needs = PromptNeeds {
            window: 1,
            statistics,
            tokens: false,
        };
        let mut memory = PromptMemory::new(needs, self);
        let mut first = 0;
        for &position in positions {
            let part = &tokens[first..=position];
            first = position + 1;
            // The short chunk comes first, so that every part ends with a chunk of its own.
            let (short, long) = part.split_at(part.len() % CHUNK);
            let chunks = [short].into_iter().chain(long.chunks(CHUNK));
            for chunk in chunks.filter(|chunk| !chunk.is_empty()) {
                if flow().is_break() {
                    return Err(Error::Cancelled);
                }
                let is_last = session.position + chunk.len() == first;
                let mut watch = Watch {
                    prompt: PromptWatch {
                        engine: self,
                        memory: &mut memory,
                    },
                    position: is_last.then_some(position),
                    show,
                };
                session.run(chunk, Logits::Nothing, &mut Profile::default(), Some(&mut watch))?;
                memory.advance(chunk);
            }
        }
        Ok(())
    }

    /// A part of a text as a text of its own: its first token becomes BOS if the model wants one.
    pub(crate) fn window(&self, tokens: &[u32]) -> Vec<u32> {
        let mut window = tokens.to_vec();
        if let (true, Some(bos), Some(first)) =
            (self.tokenizer().adds_bos(), self.tokenizer().bos(), window.first_mut())
        {
            *first = bos;
        }
        window
    }
}

/// Remembers queries and shows the layers when a chunk ends at a position that is asked for.
struct Watch<'a, 'b> {
    prompt: PromptWatch<'a>,
    position: Option<usize>,
    show: &'a mut (dyn FnMut(&Look<'_>) -> Result<(), Error> + 'b),
}

impl Observer<CpuBackend> for Watch<'_, '_> {
    fn wants(&self, layer: usize) -> Option<Capture> {
        let capture = self.prompt.wants(layer)?;
        Some(Capture {
            mass: self.position.map(|_| (GroupPooling::Sum, 1)),
            ..capture
        })
    }

    fn plain_queries(&mut self, layer: usize, queries: &Vec<f32>, range: Range<usize>) {
        self.prompt.plain_queries(layer, queries, range);
    }

    fn observe(&mut self, layer: usize, seen: &Seen<'_, CpuBackend>) -> Result<(), Error> {
        self.prompt.observe(layer, seen)?;
        let Some(position) = self.position else {
            return Ok(());
        };
        let memory = &*self.prompt.memory;
        (self.show)(&Look {
            layer,
            position,
            cache: seen.cache,
            query: memory.last_queries(layer, 1),
            mass: seen.mass,
            statistics: memory.statistics(layer),
        })
    }
}

/// A number below `end`, which is not 0.
pub(crate) fn below(random: &mut ChaCha8Rng, end: usize) -> usize {
    // The bias of this multiplication is less than end / 2^64.
    ((u128::from(random.next_u64()) * end as u128) >> 64) as usize
}

/// At most `count` different positions in the last three quarters of a text, ascending.
pub(crate) fn query_positions(random: &mut ChaCha8Rng, length: usize, count: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (length / 4..length).collect();
    let count = count.min(positions.len());
    for index in 0..count {
        let other = index + below(random, positions.len() - index);
        positions.swap(index, other);
    }
    positions.truncate(count);
    positions.sort_unstable();
    positions
}

#[cfg(test)]
mod tests {
    use super::query_positions;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn positions_are_different_and_late() {
        let draw = |seed, length, count| query_positions(&mut ChaCha8Rng::seed_from_u64(seed), length, count);
        for seed in 0..50 {
            let positions = draw(seed, 100, 12);
            assert_eq!(positions.len(), 12);
            assert!(positions.is_sorted_by(|a, b| a < b) && positions[0] >= 25 && positions[11] < 100);
        }
        assert_ne!(draw(0, 100, 12), draw(1, 100, 12));
        assert_eq!(draw(0, 4, 9), [1, 2, 3]);
        let seen: std::collections::BTreeSet<usize> = (0..500).flat_map(|seed| draw(seed, 20, 1)).collect();
        assert!(seen.into_iter().eq(5..20));
    }
}
