//! The axes of a policy, as plain data.

use crate::adaptive::Adaptation;
use crate::aggregation::Aggregation;
use crate::budget::Budget;
use crate::coupling::{Coupling, Share};
use crate::error::PolicyError;
use crate::method::Stage;
use crate::pooling::HeadPooling;
use crate::protect::Protect;
use crate::ratio::Ratio;
use crate::refresh::Refresh;
use crate::scorer::Scorer;
use crate::shape::LayerRange;
use crate::smoothing::Smoothing;
use crate::text;

/// Which entries stay: one value on every axis, for decoding or for the prompt.
///
/// [`Policy::default`] is the paper's method, `inertia`. Any combination can be written down; [`Policy::validate`] says
/// whether it means something.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// What one layer says about an entry at one step.
    pub scorer: Scorer,
    /// How a layer's heads become one score.
    pub head_pooling: HeadPooling,
    /// What neighbouring positions lend each other just before ranking.
    pub smoothing: Smoothing,
    /// The score is the mean over this many last queries of a step, as far as the step has them.
    pub window: usize,
    /// How scores become the utility.
    pub aggregation: Aggregation,
    /// Who shares a ranking.
    pub coupling: Coupling,
    /// When scores are computed.
    pub refresh: Refresh,
    /// How many entries stay.
    pub budget: Budget,
    /// How the budget is divided over heads.
    pub share: Share,
    /// Entries above the budget at which an eviction back down to it is due; the paper has 1. Where the prompt is
    /// compressed, [`Policy::WHOLE_PROMPT`] waits for its end.
    pub interval: usize,
    /// What stays whatever its utility.
    pub protect: Protect,
    /// The layers that are scored, where not all; the ranking they make still holds for all layers.
    pub layers: Option<LayerRange>,
    /// Whether α drops to 0.3 for the next scoring when, at a step, the top-B sets by the utility and by the step's own
    /// score (its mean over layers) disagree: 1 − Jaccard > 0.5. A negative result of the paper (Appendix H); threshold and
    /// α are ours. While one entry comes and one leaves, two sets of B differ in one entry at most, so the trigger is
    /// pulled where many leave at once: at the first eviction, after a long step, or with an interval.
    pub reactive: bool,
    /// What leaves is only hidden from attention and stays in memory, as released implementations of `AdaKV` and `KVzip`
    /// do. For the prompt only.
    pub masked: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            scorer: Scorer::Attention,
            head_pooling: HeadPooling::Mean,
            smoothing: Smoothing::None,
            window: 1,
            aggregation: Aggregation::Ema(Policy::ALPHA),
            coupling: Coupling::Sequential,
            refresh: Refresh::Every(1),
            budget: Budget::Ratio(Policy::RATIO),
            share: Share::Uniform,
            interval: 1,
            protect: Protect::NONE,
            layers: None,
            reactive: false,
            masked: false,
        }
    }
}

impl Policy {
    /// The paper's smoothing coefficient, 0.8.
    pub const ALPHA: Ratio = Ratio::percent(80);
    /// The paper's compression ratio, 0.9.
    pub const RATIO: Ratio = Ratio::percent(90);

    /// Most queries of a scoring window.
    pub const MOST_QUERIES: usize = 1024;
    /// Most scores of a mean.
    pub const MOST_SCORES: usize = 256;
    /// The interval of a policy that compresses a prompt once, when it is complete.
    pub const WHOLE_PROMPT: usize = usize::MAX;

    /// The same policy with another budget. A policy without a bound (`full`) stays without one, so that a budget given
    /// for a comparison applies to the methods that have one.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Policy {
        if self.evicts() {
            self.budget = budget;
        }
        self
    }

    /// Whether entries can ever leave.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.budget != Budget::Full
    }

    /// Whether every value is in its range, none contradicts another, and all mean something at this stage.
    pub fn validate(&self, stage: Stage) -> Result<(), PolicyError> {
        // A window's queries are kept in memory, and so are a mean's scores.
        if !(1..=Policy::MOST_QUERIES).contains(&self.window) {
            return Err(text::bad_value("window", &self.window.to_string()));
        }
        if self.interval == 0 {
            return Err(text::bad_value("interval", "0"));
        }
        if let Aggregation::Mean(scores) = self.aggregation
            && !(1..=Policy::MOST_SCORES).contains(&scores)
        {
            return Err(text::bad_value("aggregation", &self.aggregation.to_string()));
        }
        if self.aggregation.alpha().is_some_and(Ratio::is_one) {
            return Err(text::bad_value("alpha", "1"));
        }
        self.scorer.validate()?;
        self.head_pooling.validate()?;
        self.smoothing.validate()?;
        self.refresh.validate()?;
        self.budget.validate()?;
        if let Some(range) = self.layers.filter(|range| range.first > range.last) {
            return Err(text::bad_value("layers", &range.to_string()));
        }
        self.validate_combination()?;
        self.validate_adaptation()?;
        match stage {
            Stage::Prefill => self.validate_prefill(),
            Stage::Decode => self.validate_decode(),
        }
    }

    fn validate_prefill(&self) -> Result<(), PolicyError> {
        let conflict = |key, reason| Err(PolicyError::Conflict { key, reason });
        if self.aggregation != Aggregation::SingleStep {
            return conflict(
                "aggregation",
                "a prompt is scored once, so there is nothing to aggregate; drop it",
            );
        }
        if self.refresh != Refresh::Every(1) {
            return conflict("refresh", "a prompt is scored whenever it is compressed; drop refresh");
        }
        if self.protect.rescue || self.protect.reserve != Ratio::ZERO {
            let key = if self.protect.rescue { "rescue" } else { "reserve" };
            return conflict(
                key,
                "it belongs to decode-time eviction; use sinks and recent for a prompt",
            );
        }
        if self.interval == Policy::WHOLE_PROMPT {
            return Ok(());
        }
        if matches!(self.scorer, Scorer::Reconstruction(_)) {
            return conflict(
                "interval",
                "reconstruction needs the whole prompt in the cache; drop interval or use another scorer",
            );
        }
        if self.masked {
            return conflict(
                "interval",
                "it bounds memory, which masked entries keep; drop one of the two",
            );
        }
        Ok(())
    }

    fn validate_decode(&self) -> Result<(), PolicyError> {
        let conflict = |key, reason| Err(PolicyError::Conflict { key, reason });
        if self.scorer.is_of_prompt() {
            return conflict("scorer", "it needs the queries of the prompt; use it at=prefill");
        }
        if self.masked {
            return conflict(
                "masked",
                "only a compressed prompt can stay in memory; use it at=prefill",
            );
        }
        if self.interval == Policy::WHOLE_PROMPT {
            return conflict("interval", "decoding has no end to wait for; give a number of entries");
        }
        Ok(())
    }

    /// Whether decoding can begin where the prompt was compressed.
    pub(crate) fn validate_after_prompt(&self) -> Result<(), PolicyError> {
        let key = match self.aggregation {
            _ if self.protect.rescue => "rescue",
            Aggregation::Adaptive => "aggregation",
            _ if self.reactive => "reactive",
            _ => return Ok(()),
        };
        Err(PolicyError::Conflict {
            key,
            reason: "it looks at a prompt that nothing has left yet; drop the prefill method",
        })
    }

    /// Whether what moves α has a meaning here.
    fn validate_adaptation(&self) -> Result<(), PolicyError> {
        let conflict = |key, reason| Err(PolicyError::Conflict { key, reason });
        let key = match self.aggregation {
            Aggregation::Adaptive => "aggregation",
            _ if self.reactive => "reactive",
            _ => return Ok(()),
        };
        match self.aggregation {
            Aggregation::Adaptive if self.scorer.is_signed() => {
                let reason = "its drift is of shares of the utility, which needs scores that are never negative";
                return conflict(key, reason);
            }
            Aggregation::Ema(alpha) if alpha.as_f64() <= Adaptation::REACTION.as_f64() => {
                return conflict("alpha", "reactive lowers it to 0.3; give a larger one or drop reactive");
            }
            Aggregation::Adaptive | Aggregation::Ema(_) => {}
            _ => {
                return conflict(
                    key,
                    "only a moving average has an α; add aggregation=ema or drop reactive",
                );
            }
        }
        if !self.coupling.is_shared() {
            let reason = "one α is for one ranking; use coupling=sequential or coupling=layer-mean";
            return conflict(key, reason);
        }
        if self.scorer.is_positional() {
            return conflict(
                key,
                "scorers recency and random always say the same; use another scorer",
            );
        }
        if self.refresh == Refresh::Once {
            return conflict("refresh", "after one scoring no α matters; give a number of steps");
        }
        Ok(())
    }

    fn validate_combination(&self) -> Result<(), PolicyError> {
        let conflict = |key, reason| Err(PolicyError::Conflict { key, reason });
        if matches!(self.aggregation, Aggregation::Mean(_)) && self.coupling == Coupling::Sequential {
            let reason = "a mean is over steps, and layers that update one ranking are not; use another coupling";
            return conflict("aggregation", reason);
        }
        if self.layers.is_some() && !self.coupling.is_shared() {
            let reason = "every layer must score its own ranking; use coupling=sequential or coupling=layer-mean";
            return conflict("layers", reason);
        }
        if self.scorer == Scorer::Learned && self.coupling == Coupling::PerHead {
            return conflict(
                "scorer",
                "the learned form is over all heads of a layer; use another coupling",
            );
        }
        if self.layers.is_some() && self.scorer.is_positional() {
            return conflict("layers", "scorers recency and random score no layer; drop layers");
        }
        if self.share != Share::Uniform && self.coupling != Coupling::PerHead {
            return conflict(
                "share",
                "only heads with rankings of their own share a budget; add coupling=per-head",
            );
        }
        let by_mass = self.scorer.features().mass;
        if self.head_pooling != HeadPooling::Mean && !by_mass {
            return conflict(
                "pool",
                "only attention is pooled over heads; use scorer attention, value-norm or entropy",
            );
        }
        if matches!(self.head_pooling, HeadPooling::Power(_)) && self.coupling == Coupling::PerHead {
            return conflict(
                "pool",
                "a power mean is over KV heads, which coupling=per-head keeps apart; use mean or max",
            );
        }
        if self.window > 1 && !by_mass {
            return conflict(
                "window",
                "only attention has queries; use scorer attention, value-norm or entropy",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coupling::Across;

    #[test]
    fn the_default_is_the_paper() {
        let policy = Policy::default();
        assert!(policy.validate(Stage::Decode).is_ok());
        assert_eq!(policy.aggregation, Aggregation::Ema("0.8".parse().unwrap()));
        assert_eq!(policy.budget, Budget::Ratio("0.9".parse().unwrap()));
        assert_eq!(
            (policy.refresh, policy.interval, policy.window),
            (Refresh::Every(1), 1, 1)
        );
        assert_eq!(policy.protect, Protect::NONE);
    }

    #[test]
    fn values_set_by_hand_are_checked_too() {
        for policy in [
            Policy {
                interval: 0,
                ..Policy::default()
            },
            Policy {
                window: 0,
                ..Policy::default()
            },
            Policy {
                refresh: Refresh::Every(0),
                ..Policy::default()
            },
            Policy {
                budget: Budget::Tokens(0),
                ..Policy::default()
            },
            Policy {
                aggregation: Aggregation::Ema(Ratio::percent(100)),
                ..Policy::default()
            },
            Policy {
                smoothing: Smoothing::Max(4),
                ..Policy::default()
            },
            Policy {
                head_pooling: HeadPooling::Power(1),
                ..Policy::default()
            },
            Policy {
                layers: Some(LayerRange { first: 3, last: 2 }),
                ..Policy::default()
            },
            Policy {
                share: Share::Adaptive {
                    across: Across::Layer,
                    safeguard: Ratio::percent(20),
                },
                ..Policy::default()
            },
        ] {
            assert!(policy.validate(Stage::Decode).is_err(), "{policy:?} was accepted");
        }
    }

    #[test]
    fn a_budget_leaves_full_alone() {
        let full = Policy {
            budget: Budget::Full,
            ..Policy::default()
        };
        assert_eq!(full.clone().with_budget(Budget::Tokens(5)), full);
        assert_eq!(
            Policy::default().with_budget(Budget::Tokens(5)).budget,
            Budget::Tokens(5)
        );
    }
}
