//! From utilities to plans.

use std::sync::Arc;

use super::{Layout, PolicyState};
use crate::coupling::{Across, Share};
use crate::plan::EvictionPlan;
use crate::protect::Guard;
use crate::ranking::{Ranking, RankingPlan};
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
    /// Whether the entries of a head, in the mean where they differ, have reached `budget + interval`.
    fn is_due(&self, budget: usize) -> bool {
        self.heads().saturating_mul(budget.saturating_add(self.interval)) <= self.entries()
    }

    fn entries(&self) -> usize {
        let heads = self.heads_per_ranking();
        self.rankings.iter().map(|ranking| ranking.entries(heads)).sum()
    }

    /// Whether this step's eviction will remove more than half of the rows.
    pub(super) fn is_large_eviction_due(&self) -> bool {
        let Some(budget) = self.budget() else { return false };
        self.is_due(budget) && 2 * self.heads() * budget < self.entries()
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
        let before = self.entries();
        let guard = self.protection.guard(budget, self.seen);
        let unguarded = guard.is_empty(self.seen);
        let rules = Rules {
            budget,
            smoothing: self.policy.smoothing,
            guard,
            unguarded,
        };
        let plans = match self.policy.share {
            Share::Uniform => self.evict_each(rules),
            Share::Adaptive { across, safeguard } => self.evict_adaptive(rules, across, safeguard),
        };
        self.evicted += (before - self.entries()) as u64;
        self.plan_of(plans)
    }

    /// One plan per ranking, as the cache takes it.
    fn plan_of(&self, mut plans: Vec<RankingPlan>) -> EvictionPlan {
        if plans.iter().any(|plan| plan.each.is_some()) {
            return self.plan_of_each_head(&plans);
        }
        let mut plan_of_ranking = plans.drain(..).map(|plan| plan.all);
        match self.layout {
            Layout::Model => EvictionPlan::Shared {
                plan: plan_of_ranking.next().unwrap_or_default(),
                layers: Arc::clone(&self.evictable),
            },
            Layout::Layer => {
                let plan_of = |&evictable: &bool| if evictable { plan_of_ranking.next() } else { None };
                EvictionPlan::PerLayer(self.evictable.iter().map(plan_of).collect())
            }
            Layout::Head => {
                let heads = self.shape.kv_heads;
                let plans_of = |&evictable: &bool| {
                    let heads = if evictable { heads } else { 0 };
                    plan_of_ranking.by_ref().take(heads).collect()
                };
                EvictionPlan::PerHead(self.evictable.iter().map(plans_of).collect())
            }
        }
    }

    fn plan_of_each_head(&self, plans: &[RankingPlan]) -> EvictionPlan {
        let plan_of = |(layer, head): (usize, usize)| {
            let (ranking, place) = self.place(layer, head)?;
            let plan = &plans[ranking];
            Some(plan.each.as_ref().map_or(&plan.all, |each| &each[place]).clone())
        };
        let heads = self.shape.kv_heads;
        let plans_of = |layer| (0..heads).filter_map(|head| plan_of((layer, head))).collect();
        EvictionPlan::PerHead((0..self.shape.layers).map(plans_of).collect())
    }

    /// Every ranking down to the budget of the heads that share it.
    fn evict_each(&mut self, rules: Rules) -> Vec<RankingPlan> {
        let heads = self.heads_per_ranking();
        self.buffers
            .smoothing
            .resize_with(self.buffers.smoothing.len().max(1), SmoothingScratch::default);
        let scratch = &mut self.buffers.smoothing[0];
        let selector: &mut Selector = &mut self.buffers.selector;
        let evict = |ranking: &mut Ranking| {
            let candidates = rules.candidates(ranking, scratch);
            let rows = match &ranking.ragged {
                None => selector.lowest(candidates, ranking.rows().saturating_sub(rules.budget)),
                Some(ragged) => {
                    let excess = ragged.entries().saturating_sub(heads * rules.budget);
                    selector.lowest_holding(candidates, &ragged.holders, excess)
                }
            };
            ranking.evict(rows)
        };
        self.rankings.iter_mut().map(evict).collect()
    }

    /// The heads of every layer, or of all layers, down to the budget times their number.
    fn evict_adaptive(&mut self, rules: Rules, across: Across, safeguard: Ratio) -> Vec<RankingPlan> {
        let heads = match across {
            Across::Layer => self.shape.kv_heads,
            Across::Model => self.rankings.len(),
        };
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
            let recent_from = self.guard.recent_from();
            self.smoothing
                .apply(&ranking.positions, &ranking.utility, recent_from, scratch);
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
