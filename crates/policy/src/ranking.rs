//! The rows of one retained set: which position each holds and how useful it is.

use std::collections::VecDeque;
use std::ops::Range;

use crate::aggregation::Aggregation;
use crate::plan::RowPlan;
use crate::pooling;
use crate::ragged::Ragged;

/// One retained set with its utilities, in the row order of the cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranking {
    pub(crate) positions: Vec<u32>,
    pub(crate) utility: Vec<f32>,
    /// The best rank any score of this step gave each row; empty unless a rescue is being prepared.
    pub(crate) best_rank: Vec<u32>,
    /// Who holds the rows, where not every head of the ranking holds all of them.
    pub(crate) ragged: Option<Ragged>,
    /// The latest scores, the newest last, where the utility is a mean of them.
    pub(crate) history: VecDeque<Vec<f32>>,
    /// Their sum.
    pub(crate) sum: Vec<f64>,
}

/// How the rows of a ranking leave the heads that share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RankingPlan {
    /// For a head that holds all rows.
    pub(crate) all: RowPlan,
    /// One for each head, where they hold different rows.
    pub(crate) each: Option<Vec<RowPlan>>,
}

/// The rank of a row that no score put among its best.
pub(crate) const UNRANKED: u32 = u32::MAX;

/// Rows that fit before the first reallocation, which would double what a long prompt takes.
pub(crate) const SPARE_ROWS: usize = 64;

impl Ranking {
    /// One row per prompt token, all utilities 0.
    pub(crate) fn of_prompt(tokens: u32) -> Ranking {
        let capacity = tokens as usize + SPARE_ROWS;
        let mut ranking = Ranking {
            positions: Vec::with_capacity(capacity),
            utility: Vec::with_capacity(capacity),
            ..Ranking::default()
        };
        ranking.append(0..tokens, 0.0);
        ranking
    }

    /// The rows that heads hold after a prefill compression, in their order where all hold the same.
    pub(crate) fn of_heads(held: &[&[u32]]) -> Ranking {
        let same = held.iter().all(|positions| *positions == held[0]);
        let (positions, ragged) = if same {
            (held.first().map_or(Vec::new(), |first| first.to_vec()), None)
        } else {
            let (positions, ragged) = Ragged::new(held);
            (positions, Some(ragged))
        };
        Ranking {
            utility: vec![0.0; positions.len()],
            positions,
            ragged,
            ..Ranking::default()
        }
    }

    /// Entries held by all of its `heads` together.
    pub(crate) fn entries(&self, heads: usize) -> usize {
        match &self.ragged {
            Some(ragged) => ragged.entries(),
            None => heads * self.rows(),
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.positions.len()
    }

    pub(crate) fn append(&mut self, positions: Range<u32>, utility: f32) {
        if let Some(ragged) = &mut self.ragged {
            ragged.append(self.positions.len(), &positions);
        }
        self.positions.extend(positions);
        self.utility.resize(self.positions.len(), utility);
        for scores in &mut self.history {
            scores.resize(self.positions.len(), 0.0);
        }
        if !self.history.is_empty() {
            self.sum.resize(self.positions.len(), 0.0);
        }
    }

    /// Folds a score into the utility as `times` layers do that all score alike.
    pub(crate) fn fold(&mut self, aggregation: Aggregation, score: &[f32], times: usize) {
        let Aggregation::Mean(most) = aggregation else {
            return aggregation.update_repeatedly(&mut self.utility, score, times);
        };
        let mut newest = if self.history.len() < most {
            Vec::new()
        } else {
            self.history.pop_front().unwrap_or_default()
        };
        self.sum.resize(self.positions.len(), 0.0);
        for (sum, &oldest) in self.sum.iter_mut().zip(&newest) {
            *sum -= f64::from(oldest);
        }
        newest.clear();
        newest.extend_from_slice(score);
        self.history.push_back(newest);
        let scale = 1.0 / self.history.len() as f64;
        for ((value, sum), &score) in self.utility.iter_mut().zip(&mut self.sum).zip(score) {
            *sum += f64::from(score);
            *value = (scale * *sum) as f32;
        }
    }

    pub(crate) fn mean_utility(&self) -> f32 {
        (pooling::sum(&self.utility) / self.utility.len().max(1) as f64) as f32
    }

    /// Removes rows, given in ascending order, and says how.
    pub(crate) fn evict(&mut self, rows: &[u32]) -> RankingPlan {
        let plan = RowPlan::removing(rows, self.rows());
        plan.apply(&mut self.positions);
        plan.apply(&mut self.utility);
        for scores in &mut self.history {
            plan.apply(scores);
        }
        if !self.history.is_empty() {
            plan.apply(&mut self.sum);
        }
        self.best_rank = Vec::new();
        // What the prompt needed is given back after the first eviction.
        if self.positions.capacity() > 2 * plan.rows + 2 * SPARE_ROWS {
            self.positions.shrink_to(plan.rows + SPARE_ROWS);
            self.utility.shrink_to(plan.rows + SPARE_ROWS);
            self.sum.shrink_to(plan.rows + SPARE_ROWS);
            for scores in &mut self.history {
                scores.shrink_to(plan.rows + SPARE_ROWS);
            }
        }
        RankingPlan {
            each: self.ragged.as_mut().map(|ragged| ragged.evict(rows, &plan)),
            all: plan,
        }
    }
}
