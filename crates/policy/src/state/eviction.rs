//! From utilities to plans.

use std::sync::Arc;

use super::{Buffers, Layout, PolicyState};
use crate::coupling::Across;
use crate::method::Stage;
use crate::plan::EvictionPlan;
use crate::protect::Guard;
use crate::ranking::{Ranking, RankingPlan};
use crate::selection::Candidates;
use crate::smoothing::{Smoothing, SmoothingScratch};

/// What holds for every ranking of one eviction.
#[derive(Clone, Copy)]
struct Rules {
    smoothing: Smoothing,
    guard: Guard,
    unguarded: bool,
}

/// How many entries heads may hold, in the mean over those that share a budget.
#[derive(Clone, Copy)]
struct Limits {
    /// Heads of a ranking.
    heads: usize,
    /// What an eviction leaves.
    budget: usize,
    /// What does not yet cause one.
    most: usize,
}

impl PolicyState {
    /// Rankings whose heads have one budget together.
    fn rankings_per_budget(&self) -> usize {
        match self.policy.share.across() {
            None => 1,
            Some(Across::Layer) => self.shape.kv_heads,
            Some(Across::Model) => self.rankings.len(),
        }
    }

    fn limits(&self, budget: usize) -> Limits {
        // A step of a prompt is as long as its interval, and nothing else of it waits.
        let slack = match self.stage {
            Stage::Prefill => 0,
            Stage::Decode => self.policy.interval.saturating_sub(1),
        };
        Limits {
            heads: self.heads_per_ranking(),
            budget,
            most: budget.saturating_add(slack),
        }
    }

    /// Whether anything leaves at the end of this step.
    pub(super) fn is_due(&self, budget: usize) -> bool {
        let limits = self.limits(budget);
        let mut groups = self.rankings.chunks(self.rankings_per_budget());
        groups.any(|rankings| limits.excess(rankings) > 0)
    }

    /// Whether this step's eviction will remove more than half of the rows.
    pub(super) fn is_large_eviction_due(&self) -> bool {
        let Some(budget) = self.budget() else { return false };
        let kept = self.heads().saturating_mul(budget);
        self.is_due(budget) && kept.saturating_mul(2) < self.entries()
    }

    fn entries(&self) -> usize {
        let heads = self.heads_per_ranking();
        self.rankings.iter().map(|ranking| ranking.entries(heads)).sum()
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
        let limits = self.limits(budget);
        let guard = self.protection.guard(budget, self.seen);
        let rules = Rules {
            smoothing: self.policy.smoothing,
            guard,
            unguarded: guard.is_empty(self.seen),
        };
        let safeguard = self.policy.share.safeguard().map_or(0, |share| share.share_of(budget));
        let together = self.rankings_per_budget();
        let Buffers {
            smoothing, selector, ..
        } = &mut self.buffers;
        smoothing.resize_with(smoothing.len().max(together), SmoothingScratch::default);
        let mut plans = Vec::with_capacity(self.rankings.len());
        for rankings in self.rankings.chunks_mut(together) {
            let excess = limits.excess(rankings);
            if let [ranking] = rankings {
                let candidates = rules.candidates(ranking, &mut smoothing[0]);
                let rows = match &ranking.ragged {
                    None => selector.lowest(candidates, excess / limits.heads),
                    Some(ragged) => selector.lowest_holding(candidates, &ragged.holders, excess),
                };
                plans.push(ranking.evict(rows));
            } else {
                let scratches = smoothing.iter_mut();
                let candidates: Vec<Candidates<'_>> = rankings
                    .iter()
                    .zip(scratches)
                    .map(|(ranking, scratch)| rules.candidates(ranking, scratch))
                    .collect();
                let rows = selector.lowest_of_heads(&candidates, safeguard, excess);
                plans.extend(rankings.iter_mut().zip(rows).map(|(ranking, rows)| ranking.evict(rows)));
            }
        }
        self.evicted += (before - self.entries()) as u64;
        self.plan_of(plans)
    }

    /// One plan per ranking, as the cache takes it.
    fn plan_of(&self, mut plans: Vec<RankingPlan>) -> EvictionPlan {
        if plans.iter().any(|plan| plan.each.is_some()) {
            return self.plan_of_each_head(plans);
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

    fn plan_of_each_head(&self, mut plans: Vec<RankingPlan>) -> EvictionPlan {
        let mut plan_of = |(layer, head): (usize, usize)| {
            let (ranking, place) = self.place(layer, head)?;
            let RankingPlan { all, each } = &mut plans[ranking];
            Some(match each {
                Some(each) => std::mem::take(&mut each[place]),
                None => all.clone(),
            })
        };
        let heads = self.shape.kv_heads;
        let mut plans_of = |layer| (0..heads).filter_map(|head| plan_of((layer, head))).collect();
        EvictionPlan::PerHead((0..self.shape.layers).map(&mut plans_of).collect())
    }
}

impl Limits {
    /// Entries that leave rankings of one budget now.
    fn excess(self, rankings: &[Ranking]) -> usize {
        let entries: usize = rankings.iter().map(|ranking| ranking.entries(self.heads)).sum();
        let heads = self.heads * rankings.len();
        if entries > heads.saturating_mul(self.most) {
            entries - heads * self.budget
        } else {
            0
        }
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
