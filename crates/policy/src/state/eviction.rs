//! From utilities to plans.

use std::sync::Arc;

use super::PolicyState;
use crate::coupling::{Coupling, Share};
use crate::plan::{EvictionPlan, RowPlan};
use crate::protect::Guard;
use crate::ranking::Ranking;
use crate::ratio::Ratio;
use crate::selection::{Candidates, Selector};
use crate::smoothing::{Smoothing, SmoothingScratch};

/// What holds for every ranking of one eviction.
#[derive(Clone, Copy)]
struct Rules {
    budget: usize,
    smoothing: Smoothing,
    guard: Guard,
    unguarded: bool,
}

impl PolicyState {
    /// Whether rows have reached `budget + interval`. All layers hold equally many, and so do all heads but under adaptive
    /// shares, where each layer's total takes the place of the rows.
    fn is_due(&self, budget: usize) -> bool {
        self.rankings
            .len()
            .saturating_mul(budget.saturating_add(self.policy.interval))
            <= self.total_rows()
    }

    fn total_rows(&self) -> usize {
        self.rankings.iter().map(Ranking::rows).sum()
    }

    /// Whether this step's eviction will remove more than half of the rows.
    pub(super) fn is_large_eviction_due(&self) -> bool {
        let Some(budget) = self.budget() else { return false };
        self.is_due(budget) && 2 * self.rankings.len() * budget < self.total_rows()
    }

    /// Removes the lowest-ranked rows where more than the budget and the interval allow are held.
    pub(super) fn evict(&mut self) -> EvictionPlan {
        let Some(budget) = self.budget() else {
            return EvictionPlan::Nothing;
        };
        if !self.is_due(budget) {
            return EvictionPlan::Nothing;
        }
        if self.rescue_pending && self.is_large_eviction_due() {
            self.rescue_pending = false;
        }
        let before = self.total_rows();
        let guard = self.protection.guard(budget, self.seen);
        let unguarded = guard.is_empty(self.seen);
        let rules = Rules {
            budget,
            smoothing: self.policy.smoothing,
            guard,
            unguarded,
        };
        let plan = match (self.policy.coupling, self.policy.share) {
            (Coupling::Sequential | Coupling::LayerMean, _) => self.evict_shared(rules),
            (Coupling::PerLayer, _) => {
                let mut plans = self.evict_each(rules).into_iter();
                let plan_of = |&evictable: &bool| if evictable { plans.next() } else { None };
                EvictionPlan::PerLayer(self.evictable.iter().map(plan_of).collect())
            }
            (Coupling::PerHead, share) => {
                let plans = match share {
                    Share::Uniform => self.evict_each(rules),
                    Share::Adaptive { safeguard } => self.evict_adaptive(rules, safeguard),
                };
                let mut plans = plans.into_iter();
                let heads = self.shape.kv_heads;
                let plans_of = |&evictable: &bool| plans.by_ref().take(if evictable { heads } else { 0 }).collect();
                EvictionPlan::PerHead(self.evictable.iter().map(plans_of).collect())
            }
        };
        self.evicted += (before - self.total_rows()) as u64;
        plan
    }

    fn evict_shared(&mut self, rules: Rules) -> EvictionPlan {
        let plan = self.evict_each(rules).pop().unwrap_or_default();
        EvictionPlan::Shared {
            plan,
            layers: Arc::clone(&self.evictable),
        }
    }

    /// Every ranking down to the budget.
    fn evict_each(&mut self, rules: Rules) -> Vec<RowPlan> {
        self.buffers
            .smoothing
            .resize_with(self.buffers.smoothing.len().max(1), SmoothingScratch::default);
        let scratch = &mut self.buffers.smoothing[0];
        let selector: &mut Selector = &mut self.buffers.selector;
        let evict = |ranking: &mut Ranking| {
            let count = ranking.rows().saturating_sub(rules.budget);
            let candidates = rules.candidates(ranking, scratch);
            let rows = selector.lowest(candidates, count);
            ranking.evict(rows)
        };
        self.rankings.iter_mut().map(evict).collect()
    }

    /// Every layer down to the budget times its heads.
    fn evict_adaptive(&mut self, rules: Rules, safeguard: Ratio) -> Vec<RowPlan> {
        let heads = self.shape.kv_heads;
        let safeguard = safeguard.share_of(rules.budget);
        self.buffers.smoothing.resize_with(heads, SmoothingScratch::default);
        let mut plans = Vec::with_capacity(self.rankings.len());
        for layer in self.rankings.chunks_mut(heads) {
            let total: usize = layer.iter().map(Ranking::rows).sum();
            let count = total.saturating_sub(rules.budget * heads);
            let scratches = self.buffers.smoothing.iter_mut();
            let candidates: Vec<Candidates<'_>> = layer
                .iter()
                .zip(scratches)
                .map(|(ranking, scratch)| rules.candidates(ranking, scratch))
                .collect();
            let rows = self.buffers.selector.lowest_of_heads(&candidates, safeguard, count);
            plans.extend(layer.iter_mut().zip(rows).map(|(ranking, rows)| ranking.evict(rows)));
        }
        plans
    }
}

impl Rules {
    fn candidates<'a>(&'a self, ranking: &'a Ranking, scratch: &'a mut SmoothingScratch) -> Candidates<'a> {
        let values = if self.smoothing == Smoothing::None {
            &ranking.utility
        } else {
            self.smoothing.apply(&ranking.positions, &ranking.utility, scratch);
            &scratch.values
        };
        let plain = self.unguarded && ranking.best_rank.is_empty();
        Candidates {
            ranking,
            values,
            guard: &self.guard,
            plain,
        }
    }
}
