//! Who shares a ranking, and how budgets are divided.

use std::fmt;
use std::str::FromStr;

use crate::error::PolicyError;
use crate::ratio::Ratio;
use crate::text;

/// How the layers of a step meet in the utility.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coupling {
    /// One ranking for the whole model, updated layer after layer (the paper, Appendix E): layer ℓ of K weighs
    /// `(1 − α)α^(K−ℓ)` within a step and the previous step α^K.
    Sequential,
    /// One ranking, updated once per step with the mean of all layers' scores: α is purely temporal.
    LayerMean,
    /// A ranking and a retained set per layer.
    PerLayer,
    /// A ranking and a retained set per layer and KV head.
    PerHead,
}

impl Coupling {
    /// Whether all layers and heads keep the same positions.
    #[must_use]
    pub fn is_shared(self) -> bool {
        matches!(self, Coupling::Sequential | Coupling::LayerMean)
    }
}

impl fmt::Display for Coupling {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Coupling::Sequential => "sequential",
            Coupling::LayerMean => "layer-mean",
            Coupling::PerLayer => "per-layer",
            Coupling::PerHead => "per-head",
        })
    }
}

impl FromStr for Coupling {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        match text {
            "sequential" => Ok(Coupling::Sequential),
            "layer-mean" => Ok(Coupling::LayerMean),
            "per-layer" => Ok(Coupling::PerLayer),
            "per-head" => Ok(Coupling::PerHead),
            _ => Err(text::bad_value("coupling", text)),
        }
    }
}

/// How budgets are divided over KV heads; anything but `Uniform` needs [`Coupling::PerHead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// B entries for every head.
    Uniform,
    /// B × heads entries for the heads of a layer or of the model: each head keeps its best `floor(safeguard · B)`, and
    /// the best utilities of all these heads take the rest.
    Adaptive {
        /// The heads among which entries are divided.
        across: Across,
        /// The share of B that no head can lose to another.
        safeguard: Ratio,
    },
}

/// The heads that compete for entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Across {
    /// The KV heads of one layer (`AdaKV`, arXiv 2407.11550).
    Layer,
    /// All KV heads of the model (`KVzip`).
    Model,
}

impl Share {
    pub(crate) fn parse(text: &str) -> Result<Option<Across>, PolicyError> {
        match text {
            "uniform" => Ok(None),
            "layer" => Ok(Some(Across::Layer)),
            "model" => Ok(Some(Across::Model)),
            _ => Err(text::bad_value("share", text)),
        }
    }

    /// The heads that compete; `None` where every head has its own B.
    #[must_use]
    pub fn across(self) -> Option<Across> {
        match self {
            Share::Uniform => None,
            Share::Adaptive { across, .. } => Some(across),
        }
    }

    /// The part of B that no head can lose.
    #[must_use]
    pub fn safeguard(self) -> Option<Ratio> {
        match self {
            Share::Uniform => None,
            Share::Adaptive { safeguard, .. } => Some(safeguard),
        }
    }
}

/// As the value of `share`: `uniform`, `layer`, `model`.
impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.across() {
            None => "uniform",
            Some(Across::Layer) => "layer",
            Some(Across::Model) => "model",
        })
    }
}
