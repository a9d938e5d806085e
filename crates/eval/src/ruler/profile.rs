//! Whose rules make an example?

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::EvalError;

/// A set of generation rules. The official ones have defects that change scores, so they are kept apart by name:
///
/// | | `Own` | `Ruler2026` | `RulerLegacy`, `Kvpress` |
/// | --- | --- | --- | --- |
/// | order of needles, list items and documents | drawn per sample | one permutation for all samples of equal length (so the gold document of a question task stays at one place) | as 2026 |
/// | keys and values | distinct | may repeat | as 2026 |
/// | example of variable tracking | new in every sample | names and value new | one for all samples |
/// | length of coded words | within the limit | within the limit | up to 50 tokens over it |
/// | length counts the references too | no | no | yes |
/// | haystack that is too short | repeats | repeats | ends, and the prompt stays short |
/// | words of a list beyond the lists' own | compounds | compounds | none, and the prompt stays short |
/// | step by which a sample that is too long shrinks | as little as needed | 5 to 500 units | as 2026 |
///
/// `Kvpress` differs from `RulerLegacy` in where the prompt is split, and scores as kvpress does. No profile gives the
/// official samples: random numbers, words and essays are ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum RulerProfile {
    /// Without the defects.
    #[default]
    #[serde(rename = "own")]
    Own,
    /// The official rules of 2026.
    #[serde(rename = "ruler-2026")]
    Ruler2026,
    /// The official rules of 2024.
    #[serde(rename = "ruler-legacy")]
    RulerLegacy,
    /// The rules of 2024, split and scored as kvpress does.
    #[serde(rename = "kvpress")]
    Kvpress,
}

impl RulerProfile {
    /// All profiles.
    pub const ALL: [Self; 4] = [Self::Own, Self::Ruler2026, Self::RulerLegacy, Self::Kvpress];

    /// The name in results and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Ruler2026 => "ruler-2026",
            Self::RulerLegacy => "ruler-legacy",
            Self::Kvpress => "kvpress",
        }
    }

    /// One permutation for all samples of equal length.
    pub(super) fn has_fixed_order(self) -> bool {
        self != Self::Own
    }

    /// No key or value occurs twice.
    pub(super) fn has_distinct_needles(self) -> bool {
        self == Self::Own
    }

    /// Empty pieces of a context are joined like others, which leaves stray spaces.
    pub(super) fn keeps_stray_spaces(self) -> bool {
        self != Self::Own
    }

    /// Shrinks by fixed steps.
    pub(super) fn has_fixed_steps(self) -> bool {
        self != Self::Own
    }

    /// The rules of 2024.
    pub(super) fn is_legacy(self) -> bool {
        matches!(self, Self::RulerLegacy | Self::Kvpress)
    }
}

impl FromStr for RulerProfile {
    type Err = EvalError;

    fn from_str(name: &str) -> Result<Self, EvalError> {
        let unknown = || EvalError::UnknownProfile { name: name.to_owned() };
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(unknown)
    }
}

impl fmt::Display for RulerProfile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
