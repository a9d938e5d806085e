//! What shape is this model? Read from the metadata and tensor list of a GGUF file.
//!
//! Everything the decoder needs to know is decided here, once, from what the file says: a [`ModelConfig`] that exists
//! has sane sizes, and every tensor it implies is there with the right shape. A feature of the model that the decoder
//! does not implement is an error, never ignored.

use std::fmt;

use inertiakv_kernels::linear::WeightType;

use crate::gguf::{FromValue, GgmlType, Gguf, GgufError, TensorInfo};

/// Most layers, heads and so on that are believed. Larger numbers mean a damaged file.
const MOST_LAYERS: usize = 1000;
const MOST_HEADS: usize = 1024;
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

/// A supported model family, as `general.architecture` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3, Mistral, `SmolLM` and whatever else is stored under this name.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
}

impl Architecture {
    /// All supported families.
    pub const ALL: [Self; 2] = [Self::Llama, Self::Qwen2];

    /// The name in `general.architecture`, which is also the prefix of the family's metadata keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.name() == name)
    }

    fn list() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// How the converter left the rows of the query and key weights: Llama's are permuted for interleaved rotation.
    fn rope_style(self) -> RopeStyle {
        match self {
            Self::Llama => RopeStyle::Interleaved,
            Self::Qwen2 => RopeStyle::HalfSplit,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1`.
    Interleaved,
    /// Elements `i` and `i + dimensions / 2`.
    HalfSplit,
}

/// How positions are stretched for contexts longer than the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions are used as they are.
    None,
    /// Positions are divided by this factor, which is at least 1.
    Linear(f32),
}

/// Rotary position embedding: element pair `i` of a head turns by
/// `position / scaling * base^(-2i / dimensions) / frequency_factors[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub base: f32,
    /// How many elements of each head are rotated, from the first; even, at most the head's size.
    pub dimensions: usize,
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Stretching of positions.
    pub scaling: RopeScaling,
    /// Divisor of each pair's frequency, `dimensions / 2` positive numbers, from tensor `rope_freqs.weight` (Llama 3.1
    /// and later: without it long contexts fall apart).
    pub frequency_factors: Option<Vec<f32>>,
}

/// The shape of a decoder-only transformer with grouped-query attention and a gated feed-forward network.
#[derive(Clone, Debug, PartialEq)]
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
    /// Position embedding.
    pub rope: Rope,
    /// There is no `output.weight`: the logits are computed with `token_embd.weight`.
    pub tied_embeddings: bool,
    /// `attn_q.bias`, `attn_k.bias` and `attn_v.bias` are there in every layer.
    pub qkv_bias: bool,
    /// `attn_output.bias` is there in every layer.
    pub output_bias: bool,
}

impl ModelConfig {
    /// Reads and checks the configuration and the presence and shape of every tensor.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ConfigError> {
        let name: &str = file.require("general.architecture")?;
        let architecture =
            Architecture::from_name(name).ok_or_else(|| ConfigError::Architecture { name: name.to_owned() })?;
        refuse_unsupported(file, architecture)?;
        let keys = Keys { file, architecture };

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
            rope: keys.rope(head_dim)?,
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

    /// Every tensor of the model outside the blocks, with its dimensions as the file orders them (row length first).
    fn outer_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), vec![self.hidden, self.vocabulary]),
            ("output_norm.weight".to_owned(), vec![self.hidden]),
        ];
        if !self.tied_embeddings {
            tensors.push(("output.weight".to_owned(), vec![self.hidden, self.vocabulary]));
        }
        if self.rope.frequency_factors.is_some() {
            tensors.push(("rope_freqs.weight".to_owned(), vec![self.rope.dimensions / 2]));
        }
        tensors
    }

    /// The tensors of one block without the `blk.N.` prefix.
    fn block_tensors(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            ("attn_norm.weight", vec![self.hidden]),
            ("attn_q.weight", vec![self.hidden, query]),
            ("attn_k.weight", vec![self.hidden, key]),
            ("attn_v.weight", vec![self.hidden, key]),
            ("attn_output.weight", vec![query, self.hidden]),
            ("ffn_norm.weight", vec![self.hidden]),
            ("ffn_gate.weight", vec![self.hidden, self.feed_forward]),
            ("ffn_up.weight", vec![self.hidden, self.feed_forward]),
            ("ffn_down.weight", vec![self.feed_forward, self.hidden]),
        ];
        if self.qkv_bias {
            tensors.extend([
                ("attn_q.bias", vec![query]),
                ("attn_k.bias", vec![key]),
                ("attn_v.bias", vec![key]),
            ]);
        }
        if self.output_bias {
            tensors.push(("attn_output.bias", vec![self.hidden]));
        }
        tensors
    }

    fn check_tensors(&self, file: &Gguf) -> Result<(), ConfigError> {
        let mut known = 0;
        for (name, expected) in self.outer_tensors() {
            check_tensor(file, &name, &expected)?;
            known += 1;
        }
        let block = self.block_tensors();
        for layer in 0..self.layers {
            for (suffix, expected) in &block {
                let name = format!("blk.{layer}.{suffix}");
                if file.tensor(&name).is_none() && suffix.strip_suffix(".bias").is_some() {
                    let bias = if suffix.starts_with("attn_output") {
                        "attn_output"
                    } else {
                        "attn_q"
                    };
                    return Err(ConfigError::PartialBias {
                        present: format!("blk.0.{bias}.bias"),
                        absent: name,
                    });
                }
                check_tensor(file, &name, expected)?;
                known += 1;
            }
        }
        // Every tensor above was found under its own name, so the counts agree exactly when nothing is left over.
        if known == file.tensors().len() {
            return Ok(());
        }
        let outer = self.outer_tensors();
        for tensor in file.tensors() {
            let name = tensor.name();
            let in_block = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split_once('.'))
                .is_some_and(|(layer, suffix)| {
                    layer.parse::<usize>().is_ok_and(|layer| layer < self.layers)
                        && (is_leftover(suffix) || block.iter().any(|(known, _)| *known == suffix))
                });
            if !in_block && !is_leftover(name) && !outer.iter().any(|(known, _)| known == name) {
                let architecture = self.architecture;
                return Err(ConfigError::UnknownTensor {
                    name: name.to_owned(),
                    architecture,
                });
            }
        }
        Ok(())
    }
}

/// Tensors that old converters wrote and that say nothing the metadata does not: precomputed rotary frequencies.
fn is_leftover(name: &str) -> bool {
    matches!(name, "attn_rot_embd.weight" | "attn_rot_embd")
}

/// The metadata of one family.
struct Keys<'a> {
    file: &'a Gguf,
    architecture: Architecture,
}

impl<'a> Keys<'a> {
    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn optional<T: FromValue<'a>>(&self, suffix: &str) -> Result<Option<T>, ConfigError> {
        Ok(self.file.optional(&self.name(suffix))?)
    }

    fn out_of_range(&self, suffix: &str, value: impl fmt::Display, expected: impl Into<String>) -> ConfigError {
        ConfigError::OutOfRange {
            key: self.name(suffix),
            value: value.to_string(),
            expected: expected.into(),
        }
    }

    fn within(&self, suffix: &str, least: usize, most: usize) -> Result<usize, ConfigError> {
        self.file.require::<usize>(&self.name(suffix))?;
        self.within_or(suffix, least, most, least)
    }

    fn within_or(&self, suffix: &str, least: usize, most: usize, default: usize) -> Result<usize, ConfigError> {
        let value = self.optional::<usize>(suffix)?.unwrap_or(default);
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(self.out_of_range(suffix, value, format!("from {least} to {most}")))
        }
    }

    fn positive(&self, suffix: &str, default: Option<f32>) -> Result<f32, ConfigError> {
        let value = match (self.optional::<f32>(suffix)?, default) {
            (Some(value), _) | (None, Some(value)) => value,
            (None, None) => self.file.require::<f32>(&self.name(suffix))?,
        };
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.out_of_range(suffix, value, "a positive finite number"))
        }
    }

    fn head_dim(&self, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
        let head_dim = match self.optional::<usize>("attention.key_length")? {
            Some(length) => length,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let expected = format!("a multiple of the {heads} heads (there is no attention.key_length)");
                return Err(self.out_of_range("embedding_length", hidden, expected));
            }
        };
        if head_dim == 0 || head_dim > LARGEST_HEAD || !head_dim.is_multiple_of(2) {
            let expected = format!("even and from 2 to {LARGEST_HEAD}");
            return Err(self.out_of_range("attention.key_length", head_dim, expected));
        }
        match self.optional::<usize>("attention.value_length")? {
            Some(length) if length != head_dim => Err(ConfigError::Unsupported {
                what: format!("value heads of {length} beside key heads of {head_dim}"),
            }),
            _ => Ok(head_dim),
        }
    }

    fn rope(&self, head_dim: usize) -> Result<Rope, ConfigError> {
        let dimensions = self.within_or("rope.dimension_count", 2, head_dim, head_dim)?;
        if !dimensions.is_multiple_of(2) {
            return Err(self.out_of_range("rope.dimension_count", dimensions, "even"));
        }
        Ok(Rope {
            base: self.positive("rope.freq_base", Some(10_000.0))?,
            dimensions,
            style: self.architecture.rope_style(),
            scaling: self.rope_scaling()?,
            frequency_factors: frequency_factors(self.file, dimensions)?,
        })
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ConfigError> {
        // Files made before there was a type have a bare factor, which meant linear scaling.
        match self.optional::<&str>("rope.scaling.type")?.unwrap_or("linear") {
            "none" => return Ok(RopeScaling::None),
            "linear" => {}
            kind => {
                return Err(ConfigError::Unsupported {
                    what: format!("rope scaling of type `{kind}`"),
                });
            }
        }
        for suffix in ["rope.scaling.factor", "rope.scale_linear"] {
            match self.optional::<f32>(suffix)? {
                None => {}
                Some(0.0 | 1.0) => return Ok(RopeScaling::None),
                Some(factor) if factor.is_finite() && factor > 1.0 => return Ok(RopeScaling::Linear(factor)),
                Some(factor) => return Err(self.out_of_range(suffix, factor, "at least 1")),
            }
        }
        Ok(RopeScaling::None)
    }
}

fn refuse_unsupported(file: &Gguf, architecture: Architecture) -> Result<(), ConfigError> {
    let count = |key: &str| file.optional::<usize>(key).map(Option::unwrap_or_default);
    if count(&format!("{architecture}.expert_count"))? > 0 {
        return Err(ConfigError::Unsupported {
            what: "a mixture of experts".to_owned(),
        });
    }
    // The converters leave the window out where it is not used; a window as long as the context changes nothing.
    let window = count(&format!("{architecture}.attention.sliding_window"))?;
    if window > 0 && window < count(&format!("{architecture}.context_length"))? {
        return Err(ConfigError::Unsupported {
            what: format!("a sliding window of {window} tokens"),
        });
    }
    if count("split.count")? > 1 {
        return Err(ConfigError::Unsupported {
            what: "several GGUF files (merge them into one first)".to_owned(),
        });
    }
    Ok(())
}

fn frequency_factors(file: &Gguf, dimensions: usize) -> Result<Option<Vec<f32>>, ConfigError> {
    const NAME: &str = "rope_freqs.weight";
    let Some(tensor) = file.tensor(NAME) else {
        return Ok(None);
    };
    if tensor.dimensions() != [dimensions / 2] {
        let found = tensor.dimensions().to_vec();
        return Err(ConfigError::Shape {
            name: NAME.to_owned(),
            found,
            expected: vec![dimensions / 2],
        });
    }
    let factors = file.tensor_f32(NAME)?;
    if factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
        Ok(Some(factors))
    } else {
        Err(ConfigError::BadValues { name: NAME.to_owned() })
    }
}

fn require_tensor<'a>(file: &'a Gguf, name: &str) -> Result<&'a TensorInfo, ConfigError> {
    file.tensor(name)
        .ok_or_else(|| ConfigError::MissingTensor { name: name.to_owned() })
}

/// Checks that a tensor is there, has the shape it should have and a type that can be computed with.
fn check_tensor(file: &Gguf, name: &str, expected: &[usize]) -> Result<(), ConfigError> {
    let tensor = require_tensor(file, name)?;
    let found = tensor.dimensions();
    if significant(found) != significant(expected) {
        return Err(ConfigError::Shape {
            name: name.to_owned(),
            found: found.to_vec(),
            expected: expected.to_vec(),
        });
    }
    let kind = tensor.kind();
    let (usable, supported) = if expected.len() == 1 {
        (
            matches!(kind, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16),
            "F32, F16, BF16".to_owned(),
        )
    } else {
        (
            WeightType::from_ggml_id(kind.id()).is_ok(),
            WeightType::ALL.map(|kind| kind.to_string()).join(", "),
        )
    };
    if usable {
        Ok(())
    } else {
        Err(ConfigError::TensorType {
            name: name.to_owned(),
            kind,
            supported,
        })
    }
}

/// The dimensions without trailing ones, which mean nothing.
fn significant(dimensions: &[usize]) -> &[usize] {
    let length = dimensions
        .iter()
        .rposition(|&size| size != 1)
        .map_or(1, |last| last + 1);
    &dimensions[..length]
}
