//! The names that methods start from.

use std::fmt;
use std::str::FromStr;

use crate::aggregation::Aggregation;
use crate::budget::Budget;
use crate::coupling::{Across, Coupling, Share};
use crate::error::PolicyError;
use crate::method::Stage;
use crate::policy::Policy;
use crate::protect::Protect;
use crate::ratio::Ratio;
use crate::refresh::Refresh;
use crate::scorer::Scorer;
use crate::smoothing::Smoothing;

/// The name a method starts from.
///
/// The paper's controlled variants (Appendix B, Table 8) are presets with a key:
///
/// | there | text |
/// | --- | --- |
/// | Full | `full` |
/// | Reserve | `inertia:reserve=standard` |
/// | No Mom. | `single-step:reserve=standard` |
/// | `InertiaKV` | `inertia` |
/// | High Res. | `inertia:reserve=high` |
/// | Auxiliary (Tables 6 and 7) | `inertia-aux`, which is `inertia:reserve=standard,rescue=true` |
///
/// Whether "No Mom." has a reserve is not said there. Its figures are near α = 0 of Table 5, which has none (`single-step`),
/// but not the same, so it is taken for the "Reserve" of the column before it without momentum.
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
    /// A trained scorer.
    Learned,
    /// The paper's auxiliary variant.
    InertiaAux,
    /// α from noise and drift at the start.
    InertiaAdaptive,
    /// A smaller α after a disagreement.
    InertiaReactive,
    /// The latest entries.
    Recency,
    /// Random entries.
    Random,
    /// Attention sinks and the latest entries.
    StreamingLlm,
    /// Attention of the last query.
    Tova,
    /// Attention of an observation window.
    SnapKv,
    /// Keys unlike the mean key.
    KeyDiff,
    /// Keys of small norm.
    KeyNorm,
    /// Attention expected of future queries.
    ExpectedAttention,
    /// Expected attention with budgets that heads compete for.
    AdaKvEa,
    /// Attention while the prompt is repeated.
    KvZip,
}

/// What is said of a preset.
struct Facts {
    name: &'static str,
    /// The stages it can work at; the first is meant where none is given.
    stages: &'static [Stage],
    summary: &'static str,
    ranks: &'static str,
    source: &'static str,
}

const DECODE: &[Stage] = &[Stage::Decode];
const PREFILL: &[Stage] = &[Stage::Prefill];
const DECODE_FIRST: &[Stage] = &[Stage::Decode, Stage::Prefill];
const PREFILL_FIRST: &[Stage] = &[Stage::Prefill, Stage::Decode];

impl Preset {
    /// All presets, in the order they are listed to people.
    pub const ALL: [Preset; 20] = [
        Preset::Full,
        Preset::Inertia,
        Preset::InertiaLazy,
        Preset::ScoreFree,
        Preset::SingleStep,
        Preset::H2o,
        Preset::Learned,
        Preset::InertiaAux,
        Preset::InertiaAdaptive,
        Preset::InertiaReactive,
        Preset::Recency,
        Preset::Random,
        Preset::StreamingLlm,
        Preset::Tova,
        Preset::SnapKv,
        Preset::KeyDiff,
        Preset::KeyNorm,
        Preset::ExpectedAttention,
        Preset::AdaKvEa,
        Preset::KvZip,
    ];

    /// The name in the textual form.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The stages it can work at; the first is meant where none is given.
    #[must_use]
    pub fn stages(self) -> &'static [Stage] {
        self.facts().stages
    }

    /// One line for a list of methods.
    #[must_use]
    pub fn summary(self) -> &'static str {
        self.facts().summary
    }

    /// What entries are ranked by.
    #[must_use]
    pub fn ranks(self) -> &'static str {
        self.facts().ranks
    }

    /// Where it was published.
    #[must_use]
    pub fn source(self) -> &'static str {
        self.facts().source
    }

    /// The policy the name stands for at a stage, before any key. A text never asks for a
    /// stage that is not among [`Preset::stages`].
    #[must_use]
    pub fn policy(self, stage: Stage) -> Policy {
        let policy = self.policy_of_decoding();
        match stage {
            Stage::Decode => policy,
            Stage::Prefill => Policy {
                interval: Policy::WHOLE_PROMPT,
                window: if self == Preset::SnapKv {
                    SNAPKV_WINDOW
                } else {
                    policy.window
                },
                aggregation: match policy.aggregation {
                    Aggregation::Mean(_) => Aggregation::SingleStep,
                    aggregation => aggregation,
                },
                ..policy
            },
        }
    }

    #[allow(clippy::too_many_lines, reason = "a table")]
    fn policy_of_decoding(self) -> Policy {
        let inertia = Policy::default();
        let single = Policy {
            aggregation: Aggregation::SingleStep,
            ..inertia.clone()
        };
        let protect = |sinks, recent| Protect {
            sinks,
            recent,
            ..Protect::NONE
        };
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
            Preset::SingleStep => single,
            Preset::H2o => Policy {
                aggregation: Aggregation::Cumulative,
                ..inertia
            },
            Preset::Learned => Policy {
                scorer: Scorer::Learned,
                ..inertia
            },
            Preset::InertiaAux => Policy {
                protect: Protect {
                    reserve: Protect::STANDARD_RESERVE,
                    rescue: true,
                    ..Protect::NONE
                },
                ..inertia
            },
            Preset::InertiaAdaptive => Policy {
                aggregation: Aggregation::Adaptive,
                ..inertia
            },
            Preset::InertiaReactive => Policy {
                reactive: true,
                ..inertia
            },
            // A position does not change from step to step, so there is nothing to average.
            Preset::Recency => Policy {
                scorer: Scorer::Recency,
                ..single
            },
            Preset::Random => Policy {
                scorer: Scorer::Random(0),
                ..single
            },
            Preset::StreamingLlm => Policy {
                scorer: Scorer::Recency,
                protect: protect(4, 0),
                ..single
            },
            Preset::Tova => Policy {
                coupling: Coupling::PerLayer,
                protect: protect(0, 1),
                ..single
            },
            Preset::SnapKv => Policy {
                coupling: Coupling::PerHead,
                aggregation: Aggregation::Mean(SNAPKV_WINDOW),
                smoothing: Smoothing::Padded(5),
                protect: protect(0, SNAPKV_WINDOW),
                ..single
            },
            Preset::KeyDiff => Policy {
                scorer: Scorer::KeyDiff,
                coupling: Coupling::PerHead,
                ..single
            },
            Preset::KeyNorm => Policy {
                scorer: Scorer::KeyNorm,
                coupling: Coupling::PerHead,
                ..single
            },
            Preset::ExpectedAttention => Policy {
                scorer: Scorer::ExpectedAttention(Scorer::FUTURE),
                coupling: Coupling::PerHead,
                protect: protect(4, 0),
                ..single
            },
            Preset::AdaKvEa => Policy {
                share: Share::Adaptive {
                    across: Across::Layer,
                    safeguard: Ratio::percent(20),
                },
                ..Preset::ExpectedAttention.policy_of_decoding()
            },
            Preset::KvZip => Policy {
                scorer: Scorer::Reconstruction(Scorer::REPEATED),
                coupling: Coupling::PerHead,
                share: Share::Adaptive {
                    across: Across::Model,
                    safeguard: Ratio::ZERO,
                },
                protect: protect(4, 0),
                ..single
            },
        }
    }

    pub(crate) fn names() -> String {
        Preset::ALL.map(Preset::name).join(", ")
    }

    #[allow(clippy::too_many_lines, reason = "a table")]
    fn facts(self) -> Facts {
        let facts = |name, stages, summary, ranks, source| Facts {
            name,
            stages,
            summary,
            ranks,
            source,
        };
        match self {
            Preset::Full => facts("full", DECODE, "keep every entry: the reference", "nothing", "none"),
            Preset::Inertia => facts(
                "inertia",
                DECODE,
                "InertiaKV: exponential moving average of attention over layers and steps, refreshed every step",
                "moving average of attention, one ranking for the model",
                "the paper, section 3",
            ),
            Preset::InertiaLazy => facts(
                "inertia-lazy",
                DECODE,
                "InertiaKV-Lazy: the same, refreshed every 4th step",
                "moving average of attention, one ranking for the model",
                "the paper, section 3.2",
            ),
            Preset::ScoreFree => facts(
                "score-free",
                DECODE,
                "score once at the first step, then evict by the frozen ranking",
                "attention of the first step, one ranking for the model",
                "the paper, section 5.2",
            ),
            Preset::SingleStep => facts(
                "single-step",
                DECODE,
                "rank by the last layer's attention at this step alone",
                "attention of this step, one ranking for the model",
                "the paper, Eq. 2",
            ),
            Preset::H2o => facts(
                "h2o",
                DECODE,
                "rank by attention summed over all steps, as H2O does",
                "sum of attention, one ranking for the model",
                "arXiv 2306.14048; the paper, Eq. 3",
            ),
            Preset::Learned => facts(
                "learned",
                DECODE,
                "rank by a scorer trained with `inertiakv train-scorer` instead of attention",
                "moving average of a trained bilinear form",
                "the paper, section 5.1",
            ),
            Preset::InertiaAux => facts(
                "inertia-aux",
                DECODE,
                "InertiaKV with a static reserve and a first-eviction rescue (the paper's Appendix B)",
                "moving average of attention, one ranking for the model",
                "the paper, Appendix B; reserve and rescue are made precise here",
            ),
            Preset::InertiaAdaptive => facts(
                "inertia-adaptive",
                DECODE,
                "InertiaKV with α chosen from noise and drift of the first 10 scorings (a negative result of the paper)",
                "moving average of attention, one ranking for the model",
                "the paper, Appendix H; noise, drift and risk are made precise here",
            ),
            Preset::InertiaReactive => facts(
                "inertia-reactive",
                DECODE,
                "InertiaKV with α lowered after a step that ranks otherwise (a negative result of the paper)",
                "moving average of attention, one ranking for the model",
                "the paper, Appendix H; threshold and lowered α are chosen here",
            ),
            Preset::Recency => facts(
                "recency",
                DECODE_FIRST,
                "keep the latest entries",
                "position",
                "the paper, section 5.1",
            ),
            Preset::Random => facts(
                "random",
                DECODE_FIRST,
                "keep random entries, the same for the same seed",
                "a hash of seed and position",
                "none",
            ),
            Preset::StreamingLlm => facts(
                "streaming-llm",
                DECODE_FIRST,
                "keep the first 4 entries and the latest ones",
                "position",
                "arXiv 2309.17453",
            ),
            Preset::Tova => facts(
                "tova",
                PREFILL_FIRST,
                "keep what the last query attends to, per layer",
                "attention of the last query, mean over heads, per layer",
                "arXiv 2401.06104",
            ),
            Preset::SnapKv => facts(
                "snapkv",
                PREFILL_FIRST,
                "keep what the last 64 queries attend to, per head, smoothed over 5 positions",
                "mean attention of a window of queries, per head",
                "arXiv 2404.14469",
            ),
            Preset::KeyDiff => facts(
                "keydiff",
                PREFILL_FIRST,
                "keep the keys that differ most from the mean key, per head",
                "minus the cosine with the mean normalised key, per head",
                "arXiv 2504.15364",
            ),
            Preset::KeyNorm => facts(
                "knorm",
                PREFILL_FIRST,
                "keep the keys of smallest norm, per head",
                "minus the norm of the key, per head",
                "arXiv 2406.11430",
            ),
            Preset::ExpectedAttention => facts(
                "expected-attention",
                PREFILL,
                "keep what the queries of the next 512 positions are expected to attend to, per head",
                "expected attention x value norm, per head",
                "arXiv 2510.00636",
            ),
            Preset::AdaKvEa => facts(
                "adakv-ea",
                PREFILL,
                "expected attention, with a layer's heads competing for its entries (AdaKV)",
                "expected attention x value norm, over the heads of a layer",
                "arXiv 2407.11550 over arXiv 2510.00636",
            ),
            Preset::KvZip => facts(
                "kvzip",
                PREFILL,
                "keep what the model attends to while it repeats the prompt, over all heads (a second prefill)",
                "greatest attention while the prompt is repeated, over all heads of the model",
                "arXiv 2505.23416",
            ),
        }
    }
}

/// Queries of `SnapKV`'s observation window, all of which stay.
const SNAPKV_WINDOW: usize = 64;

impl FromStr for Preset {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        let unknown = || PolicyError::UnknownMethod { name: name.to_owned() };
        Preset::ALL
            .into_iter()
            .find(|preset| preset.name() == name)
            .ok_or_else(unknown)
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
