//! Named methods.

use std::fmt;
use std::str::FromStr;

use crate::aggregation::Aggregation;
use crate::budget::Budget;
use crate::error::PolicyError;
use crate::policy::Policy;
use crate::protect::Protect;
use crate::refresh::Refresh;
use crate::scorer::Scorer;
use crate::text;

/// The name a method starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// Nothing is evicted.
    Full,
    /// `InertiaKV`.
    Inertia,
    /// `InertiaKV-Lazy4`.
    InertiaLazy,
    /// Scored once, then frozen.
    ScoreFree,
    /// No memory of earlier steps or layers.
    SingleStep,
    /// Cumulative attention.
    H2o,
    /// The latest entries.
    Recency,
    /// Random entries.
    Random,
    /// Attention sinks and the latest entries.
    StreamingLlm,
    /// The paper's auxiliary variant.
    InertiaAux,
}

impl Preset {
    /// All presets, in the order they are listed to people.
    pub const ALL: [Preset; 10] = [
        Preset::Full,
        Preset::Inertia,
        Preset::InertiaLazy,
        Preset::ScoreFree,
        Preset::SingleStep,
        Preset::H2o,
        Preset::Recency,
        Preset::Random,
        Preset::StreamingLlm,
        Preset::InertiaAux,
    ];

    /// The name in the textual form.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Full => "full",
            Preset::Inertia => "inertia",
            Preset::InertiaLazy => "inertia-lazy",
            Preset::ScoreFree => "score-free",
            Preset::SingleStep => "single-step",
            Preset::H2o => "h2o",
            Preset::Recency => "recency",
            Preset::Random => "random",
            Preset::StreamingLlm => "streaming-llm",
            Preset::InertiaAux => "inertia-aux",
        }
    }

    /// One line for a list of methods.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Preset::Full => "keep every entry: the reference",
            Preset::Inertia => {
                "InertiaKV: exponential moving average of attention over layers and steps, refreshed every step"
            }
            Preset::InertiaLazy => "InertiaKV-Lazy: the same, refreshed every 4th step",
            Preset::ScoreFree => "score once at the first step, then evict by the frozen ranking",
            Preset::SingleStep => "rank by the last layer's attention at this step alone",
            Preset::H2o => "rank by attention summed over all steps, as H2O does",
            Preset::Recency => "keep the latest entries",
            Preset::Random => "keep random entries, the same for the same seed",
            Preset::StreamingLlm => "keep the first 4 entries and the latest ones",
            Preset::InertiaAux => {
                "InertiaKV with a static reserve and a first-eviction rescue (the paper's Appendix B)"
            }
        }
    }

    /// The policy the name stands for, before any key.
    #[must_use]
    pub fn policy(self) -> Policy {
        let inertia = Policy::default();
        match self {
            Preset::Full => Policy {
                budget: Budget::Full,
                ..inertia
            },
            Preset::Inertia => inertia,
            Preset::InertiaLazy => Policy {
                refresh: Refresh::Every(4),
                ..inertia
            },
            Preset::ScoreFree => Policy {
                refresh: Refresh::Once,
                ..inertia
            },
            Preset::SingleStep => Policy {
                aggregation: Aggregation::SingleStep,
                ..inertia
            },
            Preset::H2o => Policy {
                aggregation: Aggregation::Cumulative,
                ..inertia
            },
            // A position does not change from step to step, so there is nothing to average.
            Preset::Recency => Policy {
                scorer: Scorer::Recency,
                aggregation: Aggregation::SingleStep,
                ..inertia
            },
            Preset::Random => Policy {
                scorer: Scorer::Random(0),
                aggregation: Aggregation::SingleStep,
                ..inertia
            },
            Preset::StreamingLlm => {
                let protect = Protect {
                    sinks: 4,
                    ..Protect::NONE
                };
                Policy {
                    protect,
                    ..Preset::Recency.policy()
                }
            }
            Preset::InertiaAux => {
                let protect = Protect {
                    reserve: Protect::STANDARD_RESERVE,
                    rescue: true,
                    ..Protect::NONE
                };
                Policy { protect, ..inertia }
            }
        }
    }

    pub(crate) fn names() -> String {
        Preset::ALL.map(Preset::name).join(", ")
    }
}

/// Prefill-time and learned methods of the design that this version does not have.
const LATER: [&str; 8] = [
    "tova",
    "snapkv",
    "adakv-ea",
    "keydiff",
    "knorm",
    "kvzip",
    "expected-attention",
    "learned",
];

impl FromStr for Preset {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        match Preset::ALL.into_iter().find(|preset| preset.name() == name) {
            Some(preset) => Ok(preset),
            None if LATER.contains(&name) => Err(PolicyError::NotInThisVersion { name: name.to_owned() }),
            None => Err(PolicyError::UnknownMethod { name: name.to_owned() }),
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A preset with its settings, as people name and compare it: `inertia`, `inertia:ratio=0.95,refresh=4`.
///
/// Printing gives the preset and the keys that differ from it; parsing that gives the same method.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Method {
    /// The name it starts from.
    pub name: Preset,
    /// What it does.
    pub policy: Policy,
}

impl Method {
    /// The method that keeps every entry.
    #[must_use]
    pub fn full() -> Method {
        Preset::Full.into()
    }

    /// Whether entries can ever leave.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.policy.evicts()
    }

    /// The same method with another budget; `full` stays as it is.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Method {
        Method {
            policy: self.policy.with_budget(budget),
            ..self
        }
    }

    /// Names and one-line descriptions of all presets.
    pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
        Preset::ALL.into_iter().map(|preset| (preset.name(), preset.summary()))
    }

    /// Keys of the textual form, each with the values it takes and what it does.
    pub fn keys() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        text::KEYS.iter().map(|key| (key.name, key.expected, key.purpose))
    }
}

impl From<Preset> for Method {
    fn from(name: Preset) -> Method {
        Method {
            name,
            policy: name.policy(),
        }
    }
}
