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

/// How a layer's budget is divided over its KV heads; anything but `Uniform` needs [`Coupling::PerHead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// B entries for every head.
    Uniform,
    /// B × heads entries for the layer (`AdaKV`): each head keeps its best `floor(safeguard · B)`, and the best utilities
    /// of the whole layer take the rest.
    Adaptive {
        /// The share of B that no head can lose to another.
        safeguard: Ratio,
    },
}
