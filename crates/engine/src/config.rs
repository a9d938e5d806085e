//! What shape is this model? Read from the metadata and tensor list of a model file.
//!
//! Everything the decoder needs to know is decided here, once, from what the file says: a [`ModelConfig`] that exists
//! has sane sizes, and every tensor it implies is there with the right shape. A feature of the model that the decoder
//! does not implement is an error, never ignored.

mod family;
mod keys;
mod rope;
mod tensors;

use crate::gguf::{GgmlType, Gguf, GgufError};

pub use family::Architecture;
pub(crate) use family::Family;
pub use inertiakv_kernels::ops::{Activation, RopeStyle};
use keys::Keys;
pub(crate) use rope::llama3_factors;
pub use rope::{Rope, RopeScaling, Yarn};
use tensors::require_tensor;

/// Most layers, heads and so on that are believed. Larger numbers mean a damaged file.
const MOST_LAYERS: usize = 1000;
const MOST_HEADS: usize = 1024;
const MOST_EXPERTS: usize = 4096;
const LARGEST_HEAD: usize = 512;
const LARGEST_WIDTH: usize = 1 << 20;
const LARGEST_VOCABULARY: usize = 1 << 22;
const LONGEST_CONTEXT: usize = 1 << 28;

/// Why a model cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages are the documentation, the fields their blanks")]
pub enum ConfigError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("models of architecture `{name}` are not supported; supported are: {supported}", supported = Architecture::list())]
    Architecture { name: String },
    #[error("metadata key `{key}` is {value}, but must be {expected}; the file is damaged or not a language model")]
    OutOfRange {
        key: String,
        value: String,
        expected: String,
    },
    #[error("{heads} query heads cannot share {kv_heads} KV heads evenly; the file is damaged")]
    HeadGroups { heads: usize, kv_heads: usize },
    #[error("this model uses {what}, which is not supported; choose a model without it")]
    Unsupported { what: String },
    #[error("tensor `{name}` is missing, although the model needs it; the file is incomplete")]
    MissingTensor { name: String },
    #[error("tensor `{name}` has type {kind}, which is not supported ({supported} are); choose another quantisation")]
    TensorType {
        name: String,
        kind: GgmlType,
        supported: String,
    },
    #[error("tensor `{name}` has the shape {found:?}, but the metadata asks for {expected:?}; the file is damaged")]
    Shape {
        name: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error(
        "tensor `{name}` is not known for architecture `{architecture}`: running without it would give wrong answers"
    )]
    UnknownTensor { name: String, architecture: Architecture },
    #[error("tensor `{name}` holds values that cannot be used (not positive finite numbers); the file is damaged")]
    BadValues { name: String },
    #[error("tensor `{present}` is there but `{absent}` is not; the file is incomplete")]
    PartialBias { present: String, absent: String },
}

/// The shape of a decoder-only transformer with grouped-query attention and a gated feed-forward network.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "what is there and what is not")]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// What the file calls the model; empty if it says nothing.
    pub name: String,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Size of a head; `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub feed_forward: usize,
    /// Rows of the embedding: how many logits there are. The tokenizer may know fewer tokens.
    pub vocabulary: usize,
    /// Longest context the model was made for, in tokens.
    pub context_length: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_epsilon: f32,
    /// Position embedding of the layers that see everything.
    pub rope: Rope,
    /// Layers that see only the newest entries; `None` if all see everything.
    pub sliding: Option<Sliding>,
    /// What multiplies the dot products of queries and keys.
    pub attention_scale: f32,
    /// What the embeddings of tokens are multiplied by.
    pub embedding_scale: f32,
    /// What the gate of a feed-forward network goes through.
    pub activation: Activation,
    /// Heads of queries and keys are normalised before their rotation.
    pub qk_norm: bool,
    /// What attention and the feed-forward network add is normalised once more.
    pub post_norms: bool,
    /// Layers whose feed-forward network is a mixture of experts; `None` if none is.
    pub experts: Option<Experts>,
    /// There is no `output.weight`: the logits are computed with `token_embd.weight`.
    pub tied_embeddings: bool,
    /// `attn_q.bias`, `attn_k.bias` and `attn_v.bias` are there in every layer.
    pub qkv_bias: bool,
    /// `attn_output.bias` is there in every layer.
    pub output_bias: bool,
}

/// Sliding-window attention. Such layers hold what their window needs and are never evicted from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sliding {
    /// Entries that a token sees, its own included.
    pub window: usize,
    /// Whether each layer has the window.
    pub layers: Vec<bool>,
    /// Position embedding of these layers.
    pub rope: Rope,
}

/// A mixture of experts: a router gives each token to the few it rates highest.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Feed-forward networks to choose from.
    pub count: usize,
    /// How many a token goes through.
    pub used: usize,
    /// Width of each.
    pub feed_forward: usize,
    /// The weights of the chosen ones are made to sum to one.
    pub normalised: bool,
    /// Whether each layer has them.
    pub layers: Vec<bool>,
}

impl ModelConfig {
    /// Reads and checks the configuration and the presence and shape of every tensor.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ConfigError> {
        let name: &str = file.require("general.architecture")?;
        let architecture =
            Architecture::from_name(name).ok_or_else(|| ConfigError::Architecture { name: name.to_owned() })?;
        let keys = Keys { file, architecture };
        keys.refuse_unsupported()?;

        let layers = keys.within("block_count", 1, MOST_LAYERS)?;
        let hidden = keys.within("embedding_length", 1, LARGEST_WIDTH)?;
        let feed_forward = keys.within("feed_forward_length", 1, LARGEST_WIDTH)?;
        let context_length = keys.within("context_length", 1, LONGEST_CONTEXT)?;
        let heads = keys.within("attention.head_count", 1, MOST_HEADS)?;
        let kv_heads = keys.within_or("attention.head_count_kv", 1, MOST_HEADS, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::HeadGroups { heads, kv_heads });
        }
        let head_dim = keys.head_dim(hidden, heads)?;
        let embedding = require_tensor(file, "token_embd.weight")?.dimensions();
        let vocabulary = embedding.get(1).copied().unwrap_or(0);
        if vocabulary == 0 || vocabulary > LARGEST_VOCABULARY {
            let expected = vec![hidden, 0];
            return Err(ConfigError::Shape {
                name: "token_embd.weight".to_owned(),
                found: embedding.to_vec(),
                expected,
            });
        }
        let family = architecture.family();
        let rope = keys.rope(head_dim, context_length)?;
        let config = Self {
            architecture,
            name: file.optional::<&str>("general.name")?.unwrap_or_default().to_owned(),
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            feed_forward,
            vocabulary,
            context_length,
            rms_epsilon: keys.positive("attention.layer_norm_rms_epsilon", None)?,
            sliding: keys.sliding(layers, context_length, &rope)?,
            attention_scale: keys.attention_scale(layers, hidden, heads, head_dim)? * rope.product_factor(),
            rope,
            embedding_scale: if family.scaled_embedding {
                (hidden as f32).sqrt()
            } else {
                1.0
            },
            activation: family.activation,
            qk_norm: family.qk_norm,
            post_norms: family.post_norms,
            experts: keys.experts(layers)?,
            tied_embeddings: file.tensor("output.weight").is_none(),
            qkv_bias: file.tensor("blk.0.attn_q.bias").is_some(),
            output_bias: file.tensor("blk.0.attn_output.bias").is_some(),
        };
        config.check_tensors(file)?;
        Ok(config)
    }

    /// Query heads per KV head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The window of a layer; `None` if it sees everything.
    #[must_use]
    pub fn window(&self, layer: usize) -> Option<usize> {
        let sliding = self.sliding.as_ref()?;
        sliding.layers[layer].then_some(sliding.window)
    }

    /// Whether a layer's feed-forward network is a mixture of experts.
    pub(crate) fn has_experts(&self, layer: usize) -> bool {
        self.experts.as_ref().is_some_and(|experts| experts.layers[layer])
    }
}
