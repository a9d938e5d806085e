//! What must be remembered of a prompt so that it can be compressed when it is complete?
//!
//! Scores of a prompt come from its queries, which no cache holds: the last of them, for methods that look at an
//! observation window, or statistics over all.

use std::ops::Range;

use inertiakv_kernels::attention::QueryStatistics;
use inertiakv_policy::{Method, Scorer};

use crate::Error;
use crate::backend::CpuBackend;
use crate::decoder::{Capture, Observer, Seen};
use crate::engine::Engine;

/// First positions whose queries are left out of the statistics, as they are unlike all others (Expected Attention).
const OUTLIERS: usize = 4;

/// What methods want to know of a prompt's queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PromptNeeds {
    /// The last queries, rotated.
    pub(super) window: usize,
    /// Mean and covariance of all queries before their rotation.
    pub(super) statistics: bool,
    /// The tokens, to run them again.
    pub(super) tokens: bool,
}

impl PromptNeeds {
    pub(super) fn of(method: &Method) -> Self {
        let Some(rule) = &method.prefill else {
            return Self::default();
        };
        let policy = &rule.policy;
        Self {
            window: match policy.scorer {
                Scorer::Learned => 1,
                scorer if scorer.features().mass => policy.window,
                _ => 0,
            },
            statistics: matches!(policy.scorer, Scorer::ExpectedAttention(_)),
            tokens: matches!(policy.scorer, Scorer::Reconstruction(_)),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            window: self.window.max(other.window),
            statistics: self.statistics || other.statistics,
            tokens: self.tokens || other.tokens,
        }
    }

    /// Whether what is remembered for `self` is enough for `other`.
    pub(super) fn cover(self, other: Self) -> bool {
        self.and(other) == self
    }
}

/// What is remembered of the prompt so far.
#[derive(Clone)]
pub(super) struct PromptMemory {
    needs: PromptNeeds,
    pub(super) tokens: Vec<u32>,
    layers: Vec<LayerMemory>,
    /// Rows run.
    seen: usize,
    /// Numbers of a query row.
    width: usize,
}

#[derive(Clone)]
struct LayerMemory {
    /// The last rows of rotated queries, at most `needs.window`.
    tail: Vec<f32>,
    statistics: QueryStatistics,
}

impl PromptMemory {
    pub(super) fn new(needs: PromptNeeds, engine: &Engine) -> Self {
        let config = engine.config();
        let layer = LayerMemory {
            tail: Vec::new(),
            statistics: QueryStatistics::new(if needs.statistics { config.heads } else { 0 }, config.head_dim),
        };
        Self {
            needs,
            tokens: Vec::new(),
            layers: if needs == PromptNeeds::default() {
                Vec::new()
            } else {
                vec![layer; config.layers]
            },
            seen: 0,
            width: config.heads * config.head_dim,
        }
    }

    pub(super) fn needs(&self) -> PromptNeeds {
        self.needs
    }

    /// Notes that `tokens` have run under [`PromptWatch`].
    pub(super) fn advance(&mut self, tokens: &[u32]) {
        self.seen += tokens.len();
        if self.needs.tokens {
            self.tokens.extend_from_slice(tokens);
        }
    }

    /// The last `rows` rotated query rows of a layer, fewer where fewer are remembered.
    pub(super) fn last_queries(&self, layer: usize, rows: usize) -> &[f32] {
        let tail = &self.layers[layer].tail;
        &tail[tail.len() - tail.len().min(rows * self.width)..]
    }

    pub(super) fn statistics(&self, layer: usize) -> &QueryStatistics {
        &self.layers[layer].statistics
    }

    /// Forgets the last queries, whose own entries may have left.
    pub(super) fn forget_last_queries(&mut self) {
        for layer in &mut self.layers {
            layer.tail.clear();
        }
    }
}

/// Fills a [`PromptMemory`] while a chunk of the prompt runs.
pub(super) struct PromptWatch<'a> {
    pub(super) engine: &'a Engine,
    pub(super) memory: &'a mut PromptMemory,
}

impl Observer<CpuBackend> for PromptWatch<'_> {
    fn wants(&self, _layer: usize) -> Option<Capture> {
        let needs = self.memory.needs;
        (needs.window > 0 || needs.statistics).then_some(Capture {
            plain_queries: needs.statistics,
            ..Capture::default()
        })
    }

    fn plain_queries(&mut self, layer: usize, queries: &Vec<f32>, range: Range<usize>) {
        let memory = &mut *self.memory;
        let skipped = OUTLIERS.saturating_sub(memory.seen) * memory.width;
        let rows = &queries[range];
        let rows = &rows[skipped.min(rows.len())..];
        self.engine
            .add_to_statistics(&mut memory.layers[layer].statistics, rows);
    }

    fn observe(&mut self, layer: usize, seen: &Seen<'_, CpuBackend>) -> Result<(), Error> {
        let memory = &mut *self.memory;
        let most = memory.needs.window * memory.width;
        let rows = &seen.queries[seen.range.clone()];
        let tail = &mut memory.layers[layer].tail;
        tail.extend_from_slice(&rows[rows.len().saturating_sub(most)..]);
        tail.drain(..tail.len().saturating_sub(most));
        Ok(())
    }
}
