//! The sizes of a model that a policy has to know.

use std::fmt;
use std::str::FromStr;

use crate::error::PolicyError;
use crate::text;

/// Layers, heads and which layers may lose entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Decoder layers with attention.
    pub layers: usize,
    /// KV heads of each layer.
    pub kv_heads: usize,
    /// Query heads that share one KV head.
    pub group: usize,
    /// One flag per layer; `false` for a sliding-window layer, which is never scored and never evicted.
    pub evictable: Vec<bool>,
}

impl Shape {
    /// A model whose layers all use full attention.
    #[must_use]
    pub fn uniform(layers: usize, kv_heads: usize, group: usize) -> Shape {
        Shape {
            layers,
            kv_heads,
            group,
            evictable: vec![true; layers],
        }
    }

    /// Whether `layer` exists and may lose entries.
    #[must_use]
    pub fn is_evictable(&self, layer: usize) -> bool {
        self.evictable.get(layer).copied().unwrap_or(false)
    }

    pub(crate) fn validate(&self) -> Result<(), PolicyError> {
        let reason = if self.layers == 0 {
            "it has no layers"
        } else if self.kv_heads == 0 {
            "it has no KV heads"
        } else if self.group == 0 {
            "it has no query heads"
        } else if self.evictable.len() != self.layers {
            "`evictable` does not have one flag per layer"
        } else {
            return Ok(());
        };
        Err(PolicyError::BadShape { reason })
    }
}

/// A range of layers, both ends included and numbered from 0. Text: `4-11`, or `4` for one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerRange {
    /// The first layer.
    pub first: usize,
    /// The last layer.
    pub last: usize,
}

impl LayerRange {
    /// Whether `layer` is in the range.
    #[must_use]
    pub fn contains(self, layer: usize) -> bool {
        (self.first..=self.last).contains(&layer)
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(formatter, "{}", self.first)
        } else {
            write!(formatter, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for LayerRange {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let refused = |_| text::bad_value("layers", text);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first = text::whole("layers", first).map_err(refused)?;
        let last = text::whole("layers", last).map_err(refused)?;
        Ok(LayerRange { first, last })
    }
}
