//! The rows of one retained set: which position each holds and how useful it is.

use std::ops::Range;

use crate::plan::RowPlan;
use crate::pooling;

/// One retained set with its utilities, in the row order of the cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranking {
    pub(crate) positions: Vec<u32>,
    pub(crate) utility: Vec<f32>,
    /// The best rank any score of this step gave each row; empty unless a rescue is being prepared.
    pub(crate) best_rank: Vec<u32>,
}

/// The rank of a row that no score put among its best.
pub(crate) const UNRANKED: u32 = u32::MAX;

/// Rows that fit before the first reallocation, which would double what a long prompt takes.
const SPARE_ROWS: usize = 64;

impl Ranking {
    /// One row per prompt token, all utilities 0.
    pub(crate) fn of_prompt(tokens: u32) -> Ranking {
        let capacity = tokens as usize + SPARE_ROWS;
        let mut ranking = Ranking {
            positions: Vec::with_capacity(capacity),
            utility: Vec::with_capacity(capacity),
            best_rank: Vec::new(),
        };
        ranking.append(0..tokens, 0.0);
        ranking
    }

    pub(crate) fn rows(&self) -> usize {
        self.positions.len()
    }

    pub(crate) fn append(&mut self, positions: Range<u32>, utility: f32) {
        self.positions.extend(positions);
        self.utility.resize(self.positions.len(), utility);
    }

    pub(crate) fn mean_utility(&self) -> f32 {
        (pooling::sum(&self.utility) / self.utility.len().max(1) as f64) as f32
    }

    /// Removes rows, given in ascending order, and says how.
    pub(crate) fn evict(&mut self, rows: &[u32]) -> RowPlan {
        let plan = RowPlan::removing(rows, self.rows());
        plan.apply(&mut self.positions);
        plan.apply(&mut self.utility);
        self.best_rank = Vec::new();
        // What the prompt needed is given back after the first eviction.
        if self.positions.capacity() > 2 * plan.rows + 2 * SPARE_ROWS {
            self.positions.shrink_to(plan.rows + SPARE_ROWS);
            self.utility.shrink_to(plan.rows + SPARE_ROWS);
        }
        plan
    }
}
