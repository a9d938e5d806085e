//! How steady is a ranking from step to step, and does it follow what attention says now?
//!
//! Pure measures over the scores of one layer and KV head at one or two decode steps, and [`rank_trace`], which takes them
//! from a model. A ranking lists the candidates, so
//! whoever calls decides whether protected entries are among them. Averages are taken over steps, then heads, then layers
//! ([`Summary`](crate::statistics::Summary) per level). Where the paper names a measure without defining it, the definition
//! is ours and its documentation says so.

mod pair;
mod steps;

pub use pair::{Pair, boundary_pair};
pub use steps::{RankTrace, Shadows, TraceLine, TraceMeasures, TraceStep, TraceSummary, rank_trace, raw, running};

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::statistics;

/// Which of two equal scores ranks higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// The lower position, as the statistics are defined.
    #[default]
    Earlier,
    /// The higher position, as the eviction policy decides.
    Later,
}

/// A set of positions.
pub type Positions = BTreeSet<u32>;

/// Candidates in the order of their scores, the highest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking(Vec<(u32, f32)>);

impl Ranking {
    /// Ranks candidates, each a position and its score. Minus infinity ranks last.
    ///
    /// # Errors
    ///
    /// A score is NaN.
    pub fn new(candidates: impl IntoIterator<Item = (u32, f32)>, ties: Ties) -> Result<Self, EvalError> {
        let mut ranked: Vec<_> = candidates.into_iter().collect();
        if let Some(index) = ranked.iter().position(|(_, score)| score.is_nan()) {
            return Err(EvalError::NotANumber { index });
        }
        ranked.sort_by(|(a, score_a), (b, score_b)| {
            let earlier = match ties {
                Ties::Earlier => a.cmp(b),
                Ties::Later => b.cmp(a),
            };
            score_b.partial_cmp(score_a).unwrap_or(Ordering::Equal).then(earlier)
        });
        Ok(Self(ranked))
    }

    /// The candidates' positions.
    #[must_use]
    pub fn positions(&self) -> Positions {
        self.top(self.0.len())
    }

    /// The first `budget` positions, or all of them.
    #[must_use]
    pub fn top(&self, budget: usize) -> Positions {
        self.0.iter().take(budget).map(|(position, _)| *position).collect()
    }

    /// All positions, the highest score first.
    #[must_use]
    pub fn order(&self) -> Vec<u32> {
        self.0.iter().map(|(position, _)| *position).collect()
    }

    /// The same ranking without the positions that are not among `kept`.
    #[must_use]
    pub fn restricted(&self, kept: &Positions) -> Self {
        Self(
            self.0
                .iter()
                .copied()
                .filter(|(position, _)| kept.contains(position))
                .collect(),
        )
    }

    /// Gap between the last score within the budget and the first outside, over the larger of their absolute values: 0 is a
    /// tie. Ours. `None` if nothing is outside, or the gap is infinite.
    #[must_use]
    pub fn boundary_margin(&self, budget: usize) -> Option<f64> {
        let inside = f64::from(self.0.get(budget.checked_sub(1)?)?.1);
        let outside = f64::from(self.0.get(budget)?.1);
        let scale = inside.abs().max(outside.abs());
        if inside == outside {
            return Some(0.0);
        }
        scale.is_finite().then(|| (inside - outside) / scale)
    }

    /// Entropy of the scores as a distribution, over the logarithm of their number: 1 if all are equal. `None` for fewer
    /// than two, a negative or infinite score, or a sum of zero.
    #[must_use]
    pub fn entropy(&self) -> Option<f64> {
        let scores = || self.0.iter().map(|(_, score)| f64::from(*score));
        let sum: f64 = scores().sum();
        if self.0.len() < 2 || scores().any(|score| score < 0.0) || !sum.is_finite() || sum == 0.0 {
            return None;
        }
        let terms = scores()
            .filter(|score| *score > 0.0)
            .map(|score| (score / sum) * (score / sum).ln());
        Some(-terms.sum::<f64>() / (self.0.len() as f64).ln())
    }

    /// Spearman correlation with another ranking of the same positions; `None` if one is constant or has fewer than two.
    ///
    /// # Errors
    ///
    /// The positions differ.
    pub fn spearman(&self, other: &Self) -> Result<Option<f64>, EvalError> {
        if self.positions() != other.positions() {
            return Err(EvalError::OtherPositions);
        }
        let by_position = |ranking: &Self| {
            let mut candidates = ranking.0.clone();
            candidates.sort_by_key(|(position, _)| *position);
            candidates
                .into_iter()
                .map(|(_, score)| f64::from(score))
                .collect::<Vec<_>>()
        };
        Ok(statistics::spearman(&by_position(self), &by_position(other)))
    }
}

/// Size of the intersection over that of the union; 1 for two empty sets.
#[must_use]
pub fn jaccard(a: &Positions, b: &Positions) -> f64 {
    let common = a.intersection(b).count();
    let union = a.len() + b.len() - common;
    if union == 0 { 1.0 } else { common as f64 / union as f64 }
}

/// Jaccard overlap of the two top sets, for instance of raw and EMA scores at one step. `None` if the budget takes
/// everything, since then the sets are equal whatever the scores.
#[must_use]
pub fn agreement(a: &Ranking, b: &Ranking, budget: usize) -> Option<f64> {
    (budget < a.0.len().max(b.0.len())).then(|| jaccard(&a.top(budget), &b.top(budget)))
}

/// Share of the first set that is not in the second; `None` for an empty first set.
#[must_use]
pub fn churn(before: &Positions, after: &Positions) -> Option<f64> {
    share_of(before, before.difference(after).count())
}

/// Churn of the top set from one step to the next over candidates present at both, so that a new token does not count.
/// `None` if the budget takes all of them. With newcomers, take [`churn`] of the two [`Ranking::top`] sets.
#[must_use]
pub fn step_churn(before: &Ranking, after: &Ranking, budget: usize) -> Option<f64> {
    let common: Positions = before.positions().intersection(&after.positions()).copied().collect();
    if common.len() <= budget {
        return None;
    }
    churn(
        &before.restricted(&common).top(budget),
        &after.restricted(&common).top(budget),
    )
}

/// Event rate: share of the evicted positions that were in the raw top set when they were evicted. `None` if nothing was.
#[must_use]
pub fn raw_top_evicted(victims: &Positions, raw_top: &Positions) -> Option<f64> {
    share_of(victims, victims.intersection(raw_top).count())
}

/// Oracle miss rate: share of the top set of a full cache, run on the same tokens, that is no longer kept.
#[must_use]
pub fn oracle_missed(oracle_top: &Positions, kept: &Positions) -> Option<f64> {
    churn(oracle_top, kept)
}

/// Share of the set retained at step 1 that is still retained. Ours: the paper reports whether it is the same set.
#[must_use]
pub fn persistence(first: &Positions, now: &Positions) -> Option<f64> {
    share_of(first, first.intersection(now).count())
}

/// How ranks change among positions that are in the top set at both steps. Ours.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RankChange {
    /// Share of them whose rank among them changes.
    pub moved: f64,
    /// Mean absolute change of rank.
    pub mean_shift: f64,
}

/// Change of rank within the top set; `None` if the two sets share nothing.
#[must_use]
pub fn rank_change(before: &Ranking, after: &Ranking, budget: usize) -> Option<RankChange> {
    let common: Positions = before.top(budget).intersection(&after.top(budget)).copied().collect();
    let ranks = |ranking: &Ranking| {
        let mut ranks: Vec<_> = ranking
            .restricted(&common)
            .0
            .into_iter()
            .map(|(position, _)| position)
            .zip(0i64..)
            .collect();
        ranks.sort_unstable();
        ranks
    };
    let shifts = ranks(before)
        .into_iter()
        .zip(ranks(after))
        .map(|((_, b), (_, a))| (a - b).abs());
    let (moved, total) = shifts.fold((0, 0), |(moved, total), shift| {
        (moved + usize::from(shift != 0), total + shift)
    });
    let count = common.len() as f64;
    (count > 0.0).then(|| RankChange {
        moved: moved as f64 / count,
        mean_shift: total as f64 / count,
    })
}

fn share_of(set: &Positions, part: usize) -> Option<f64> {
    (!set.is_empty()).then(|| part as f64 / set.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::{
        Positions, Ranking, Ties, agreement, churn, jaccard, oracle_missed, persistence, rank_change, raw_top_evicted,
        step_churn,
    };

    fn ranking(scores: &[f32]) -> Ranking {
        Ranking::new((0..).zip(scores.iter().copied()), Ties::Earlier).unwrap()
    }

    fn set(positions: &[u32]) -> Positions {
        positions.iter().copied().collect()
    }

    #[test]
    fn ties_go_to_the_side_that_is_asked_for() {
        let candidates = [(3, 0.5), (1, 0.5), (2, f32::NEG_INFINITY), (0, -0.0), (4, 0.0)];
        let top = |ties, budget| Ranking::new(candidates, ties).unwrap().top(budget);
        assert_eq!(top(Ties::Earlier, 1), set(&[1]));
        assert_eq!(top(Ties::Later, 1), set(&[3]));
        assert_eq!(top(Ties::Earlier, 3), set(&[0, 1, 3]));
        assert_eq!(top(Ties::Later, 3), set(&[1, 3, 4]));
        assert_eq!(top(Ties::Earlier, 9).len(), 5);
        assert!(Ranking::new([(0, f32::NAN)], Ties::Earlier).is_err());
    }

    #[test]
    fn overlap_of_equal_sizes_is_a_function_of_churn() {
        let (before, after) = (set(&[1, 2, 3, 4]), set(&[2, 3, 4, 9]));
        let c = churn(&before, &after).unwrap();
        assert_eq!(c, 0.25);
        assert_eq!(jaccard(&before, &after), (1.0 - c) / (1.0 + c));
        assert_eq!(jaccard(&set(&[]), &set(&[])), 1.0);
        assert_eq!(jaccard(&set(&[]), &set(&[1])), 0.0);
        assert_eq!(churn(&set(&[]), &set(&[1])), None);
    }

    #[test]
    fn a_new_token_is_no_churn_and_a_full_budget_no_agreement() {
        let (before, after) = (ranking(&[0.5, 0.3, 0.2]), ranking(&[0.1, 0.2, 0.15, 0.55]));
        assert_eq!(step_churn(&before, &after, 1), Some(1.0)); // 0 gives way to 1, whatever 3 does
        assert_eq!(step_churn(&before, &after, 2), Some(0.5));
        assert_eq!(step_churn(&before, &after, 3), None);
        assert_eq!(agreement(&before, &before, 2), Some(1.0));
        assert_eq!(agreement(&before, &before, 3), None);
    }

    #[test]
    fn the_margin_is_free_of_scale() {
        assert_eq!(ranking(&[8.0, 4.0, 1.0]).boundary_margin(1), Some(0.5));
        assert_eq!(ranking(&[0.8, 0.4, 0.1]).boundary_margin(1), Some(0.5));
        assert_eq!(ranking(&[0.0, 0.0]).boundary_margin(1), Some(0.0));
        assert_eq!(ranking(&[-1.0, -2.0]).boundary_margin(1), Some(0.5));
        assert_eq!(ranking(&[1.0, f32::NEG_INFINITY]).boundary_margin(1), None);
        assert_eq!(
            (ranking(&[1.0]).boundary_margin(1), ranking(&[1.0]).boundary_margin(0)),
            (None, None)
        );
    }

    #[test]
    fn entropy_runs_from_one_entry_to_all_alike() {
        assert_eq!(ranking(&[0.0, 3.0, 0.0]).entropy(), Some(0.0));
        assert!((ranking(&[0.2; 5]).entropy().unwrap() - 1.0).abs() < 1e-12);
        for undefined in [&[1.0][..], &[0.0, 0.0], &[1.0, -1.0], &[1.0, f32::INFINITY]] {
            assert_eq!(ranking(undefined).entropy(), None);
        }
    }

    #[test]
    fn rates_name_what_they_are_shares_of() {
        assert_eq!(raw_top_evicted(&set(&[1, 2, 3, 4]), &set(&[4, 5])), Some(0.25));
        assert_eq!(raw_top_evicted(&set(&[]), &set(&[4])), None);
        assert_eq!(oracle_missed(&set(&[4, 5]), &set(&[1, 4])), Some(0.5));
        assert_eq!(persistence(&set(&[1, 2, 3, 4]), &set(&[1, 2, 3, 9])), Some(0.75));
    }

    #[test]
    fn ranks_change_within_a_set_that_stays() {
        let change = rank_change(&ranking(&[4.0, 3.0, 2.0, 1.0]), &ranking(&[2.0, 3.0, 4.0, 0.0]), 3).unwrap();
        assert_eq!((change.moved, change.mean_shift), (2.0 / 3.0, 4.0 / 3.0));
        // Positions that leave do not move those that stay.
        let change = rank_change(&ranking(&[4.0, 3.0, 2.0]), &ranking(&[0.0, 3.0, 2.0]), 2).unwrap();
        assert_eq!(change.moved, 0.0);
        assert_eq!(rank_change(&ranking(&[1.0, 0.0]), &ranking(&[0.0, 1.0]), 1), None);
    }

    #[test]
    fn correlation_needs_the_same_positions() {
        assert_eq!(
            ranking(&[1.0, 2.0, 3.0]).spearman(&ranking(&[3.0, 5.0, 4.0])).unwrap(),
            Some(0.5)
        );
        assert!(ranking(&[1.0]).spearman(&ranking(&[1.0, 2.0])).is_err());
    }
}
