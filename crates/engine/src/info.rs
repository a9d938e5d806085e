//! What is this model, in numbers for people?

use serde::Serialize;

use crate::config::ModelConfig;

/// What the header of a model file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelShape {
    /// What the file calls the model; empty if it says nothing.
    pub name: String,
    /// Family, as `general.architecture` spells it.
    pub family: String,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Longest context the model was made for.
    pub context: usize,
    /// Vocabulary entries.
    pub vocabulary: usize,
    /// Layers that see only the newest entries, and are never evicted from.
    pub windowed_layers: usize,
    /// How many entries they see; `None` if there are no such layers.
    pub window: Option<usize>,
    /// Experts of a layer; 0 if no layer has them.
    pub experts: usize,
    /// How many of them a token goes through.
    pub experts_used: usize,
}

impl From<&ModelConfig> for ModelShape {
    fn from(config: &ModelConfig) -> Self {
        Self {
            name: config.name.clone(),
            family: config.architecture.to_string(),
            layers: config.layers,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            context: config.context_length,
            vocabulary: config.vocabulary,
            windowed_layers: (0..config.layers)
                .filter(|&layer| config.window(layer).is_some())
                .count(),
            window: config.sliding.as_ref().map(|sliding| sliding.window),
            experts: config.experts.as_ref().map_or(0, |experts| experts.count),
            experts_used: config.experts.as_ref().map_or(0, |experts| experts.used),
        }
    }
}

/// A loaded model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelInfo {
    /// What its file says.
    #[serde(flatten)]
    pub shape: ModelShape,
    /// Weight types and how many tensors have each, most first.
    pub quantisation: String,
    /// What tells models of one name and shape apart: the SHA-256 of the first bytes of every tensor.
    pub fingerprint: String,
    /// Bytes of weights in memory.
    pub weight_bytes: usize,
    /// Bytes of KV cache per token, all layers, with the session's element type.
    pub kv_bytes_per_token: usize,
}
