//! What does `config.json` say, in the words of GGUF metadata?

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{FolderError, read_json};
use crate::config::{Activation, Architecture, Yarn, llama3_factors};
use crate::gguf::GgufWriter;

/// The keys of `config.json` that matter. Files spell some of them in several ways.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_field_names, reason = "the names are those of the file")]
pub(super) struct Config {
    model_type: String,
    #[serde(rename = "_name_or_path")]
    name: Option<String>,
    /// Where models for text and images keep what is about text.
    text_config: Option<Box<Config>>,
    quantization_config: Option<Value>,
    num_hidden_layers: Option<usize>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f32>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    tie_word_embeddings: Option<bool>,
    rope_theta: Option<f32>,
    rope_local_base_freq: Option<f32>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<Value>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    sliding_window_pattern: Option<usize>,
    #[serde(rename = "_sliding_window_pattern")]
    private_sliding_window_pattern: Option<usize>,
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    query_pre_attn_scalar: Option<f32>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    use_bidirectional_attention: Option<bool>,
    pub(super) bos_token_id: Option<TokenIds>,
    pub(super) eos_token_id: Option<TokenIds>,
}

/// One token or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TokenIds {
    One(u32),
    Several(Vec<u32>),
}

impl TokenIds {
    pub(super) fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Several(ids) => ids,
        }
    }
}

/// Position embedding of some layers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RopeParameters {
    rope_type: Option<String>,
    /// What `rope_type` was called before; some files have both.
    r#type: Option<String>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
    factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    attention_factor: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    truncate: Option<bool>,
}

impl Config {
    pub(super) fn read(folder: &Path) -> Result<Self, FolderError> {
        let mut config: Self = read_json(folder, "config.json")?;
        if config.quantization_config.is_some() {
            return Err(unsupported("weights quantised in its own way (`quantization_config`)"));
        }
        if let Some(mut text) = config.text_config.take() {
            text.model_type = config.model_type;
            text.name = text.name.or(config.name);
            text.tie_word_embeddings = text.tie_word_embeddings.or(config.tie_word_embeddings);
            text.bos_token_id = text.bos_token_id.or(config.bos_token_id);
            text.eos_token_id = config.eos_token_id.or(text.eos_token_id);
            config = *text;
        }
        config.fill_in();
        Ok(config)
    }

    /// What the reference implementation assumes where files, which leave out what is usual, say nothing.
    fn fill_in(&mut self) {
        self.rms_norm_eps.get_or_insert(1e-6);
        if self.model_type.starts_with("gemma3") {
            self.num_attention_heads.get_or_insert(8);
            self.num_key_value_heads.get_or_insert(4);
            self.head_dim.get_or_insert(256);
            self.max_position_embeddings.get_or_insert(131_072);
            self.query_pre_attn_scalar.get_or_insert(256.0);
            self.rope_theta.get_or_insert(1_000_000.0);
        }
    }

    /// Writes the metadata; the family decides the prefix of the keys.
    pub(super) fn describe(&self, header: &mut GgufWriter) -> Result<Architecture, FolderError> {
        let Some(family) = Architecture::from_model_type(&self.model_type) else {
            let types = Architecture::ALL.iter().flat_map(|family| family.family().model_types);
            return Err(FolderError::ModelType {
                model_type: self.model_type.clone(),
                supported: types.copied().collect::<Vec<_>>().join(", "),
            });
        };
        self.refuse_unsupported(family)?;
        header
            .string("general.architecture", family.name())
            .string("general.name", self.name.as_deref().unwrap_or_default());
        let sizes = [
            ("block_count", "num_hidden_layers", self.num_hidden_layers),
            ("embedding_length", "hidden_size", self.hidden_size),
            ("feed_forward_length", "intermediate_size", self.intermediate_size),
            ("attention.head_count", "num_attention_heads", self.num_attention_heads),
        ];
        for (key, name, size) in sizes {
            let size = size.ok_or(FolderError::MissingKey { key: name })?;
            header.u32(&format!("{family}.{key}"), whole(size));
        }
        let optional = [
            ("attention.head_count_kv", self.num_key_value_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ];
        for (key, size) in optional {
            if let Some(size) = size {
                header.u32(&format!("{family}.{key}"), whole(size));
            }
        }
        let key = |suffix: &str| format!("{family}.{suffix}");
        let epsilon = self.rms_norm_eps.unwrap_or_default();
        header.f32(&key("attention.layer_norm_rms_epsilon"), epsilon);
        if let Some(scalar) = self.query_pre_attn_scalar.filter(|_| family == Architecture::Gemma3) {
            header.f32(&key("attention.scale"), 1.0 / scalar.sqrt());
        }
        self.describe_rope(family, header)?;
        self.describe_window(family, header);
        if let Some(experts) = self
            .num_experts
            .or(self.num_local_experts)
            .filter(|&experts| experts > 0)
        {
            let used = self.num_experts_per_tok.ok_or(FolderError::MissingKey {
                key: "num_experts_per_tok",
            })?;
            let width = self.moe_intermediate_size.ok_or(FolderError::MissingKey {
                key: "moe_intermediate_size",
            })?;
            header
                .u32(&key("expert_count"), whole(experts))
                .u32(&key("expert_used_count"), whole(used))
                .u32(&key("expert_feed_forward_length"), whole(width))
                .bool(&key("expert_weights_norm"), self.norm_topk_prob.unwrap_or(false));
        }
        Ok(family)
    }

    fn refuse_unsupported(&self, family: Architecture) -> Result<(), FolderError> {
        let expected = match family.family().activation {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
        };
        match self.hidden_activation.as_ref().or(self.hidden_act.as_ref()) {
            Some(name) if name != expected => return Err(unsupported(format!("the activation `{name}`"))),
            _ => {}
        }
        if self.attn_logit_softcapping.is_some() || self.final_logit_softcapping.is_some() {
            return Err(unsupported("soft limits of logits"));
        }
        if self.use_bidirectional_attention == Some(true) {
            return Err(unsupported("attention to what comes later"));
        }
        Ok(())
    }

    /// Whether the logits are computed with the embedding; `None` if the tensors decide.
    pub(super) fn ties_embeddings(&self, family: Architecture) -> Option<bool> {
        self.tie_word_embeddings
            .or((family == Architecture::Gemma3).then_some(true))
    }

    /// Position embedding of layers that see everything, and the base of the others.
    fn rope(&self) -> Result<(RopeParameters, Option<f32>), FolderError> {
        let read = |value: &Value| {
            serde_json::from_value::<RopeParameters>(value.clone()).map_err(|source| FolderError::Json {
                path: "config.json".into(),
                source,
            })
        };
        let (mut full, local) = match &self.rope_parameters {
            Some(both) if both.get("full_attention").is_some() => {
                let local = both.get("sliding_attention").map(read).transpose()?;
                (read(&both["full_attention"])?, local.and_then(|local| local.rope_theta))
            }
            Some(one) => (read(one)?, self.rope_local_base_freq),
            None => (self.rope_scaling.clone().unwrap_or_default(), self.rope_local_base_freq),
        };
        full.rope_theta = full.rope_theta.or(self.rope_theta);
        full.rope_type = full.rope_type.or(full.r#type.take());
        Ok((full, local))
    }

    fn describe_rope(&self, family: Architecture, header: &mut GgufWriter) -> Result<(), FolderError> {
        let key = |suffix: &str| format!("{family}.{suffix}");
        let (rope, local) = self.rope()?;
        let mut context = self.max_position_embeddings.ok_or(FolderError::MissingKey {
            key: "max_position_embeddings",
        })?;
        header.f32(&key("rope.freq_base"), rope.rope_theta.unwrap_or(10_000.0));
        if let Some(base) = local {
            header.f32(&key("rope.freq_base_swa"), base);
        }
        if let (Some(share), Some(dim)) = (rope.partial_rotary_factor, self.head_size()) {
            header.u32(&key("rope.dimension_count"), (share * dim as f32) as u32);
        }
        let factor = || {
            rope.factor.ok_or(FolderError::MissingKey {
                key: "rope_scaling.factor",
            })
        };
        match rope.rope_type.as_deref().unwrap_or("default") {
            // Of Llama 3 the factors of each pair come as a tensor.
            "default" | "llama3" => {}
            "linear" => {
                header
                    .string(&key("rope.scaling.type"), "linear")
                    .f32(&key("rope.scaling.factor"), factor()?);
            }
            "yarn" => {
                if rope.truncate == Some(false) {
                    return Err(unsupported("YaRN with borders between pairs (`truncate`)"));
                }
                let factor = factor()?;
                let original = rope.original_max_position_embeddings.unwrap_or(context);
                // Files usually keep the length that the model was trained on.
                context = context.max((original as f64 * f64::from(factor)) as usize);
                header
                    .string(&key("rope.scaling.type"), "yarn")
                    .f32(&key("rope.scaling.factor"), factor)
                    .u32(&key("rope.scaling.original_context_length"), whole(original))
                    .f32(&key("rope.scaling.yarn_beta_fast"), rope.beta_fast.unwrap_or(32.0))
                    .f32(&key("rope.scaling.yarn_beta_slow"), rope.beta_slow.unwrap_or(1.0));
                let attention = rope.yarn_attention_factor(factor);
                let published = Yarn::published_attention_factor(factor);
                header.f32(&key("rope.scaling.attn_factor"), attention / published);
            }
            other => return Err(unsupported(format!("rope scaling of type `{other}`"))),
        }
        header.u32(&key("context_length"), whole(context));
        Ok(())
    }

    /// The divisors of rotary frequencies, which GGUF files keep as a tensor, of Llama 3 and later.
    pub(super) fn rope_factors(&self) -> Result<Option<Vec<f32>>, FolderError> {
        let (rope, _) = self.rope()?;
        if rope.rope_type.as_deref() != Some("llama3") {
            return Ok(None);
        }
        let (Some(factor), Some(low), Some(high), Some(original), Some(dimensions)) = (
            rope.factor,
            rope.low_freq_factor,
            rope.high_freq_factor,
            rope.original_max_position_embeddings,
            self.head_size(),
        ) else {
            return Err(FolderError::MissingKey { key: "rope_scaling" });
        };
        let base = rope.rope_theta.unwrap_or(10_000.0);
        let factors = llama3_factors(base, dimensions, f64::from(factor), [low, high], original);
        Ok(Some(factors))
    }

    fn head_size(&self) -> Option<usize> {
        let quotient = || self.hidden_size?.checked_div(self.num_attention_heads?);
        self.head_dim.or_else(quotient)
    }

    fn describe_window(&self, family: Architecture, header: &mut GgufWriter) {
        // Qwen files name a window that is not used.
        let is_used = match family {
            Architecture::Llama | Architecture::Gemma3 => true,
            _ => self.use_sliding_window.unwrap_or(false),
        };
        let (Some(window), Some(layers), true) = (self.sliding_window, self.num_hidden_layers, is_used) else {
            return;
        };
        header.u32(&format!("{family}.attention.sliding_window"), whole(window));
        let pattern = format!("{family}.attention.sliding_window_pattern");
        if let Some(types) = &self.layer_types {
            let flags: Vec<i32> = types
                .iter()
                .map(|kind| i32::from(kind == "sliding_attention"))
                .collect();
            header.i32s(&pattern, &flags);
        } else if let Some(period) = self.sliding_window_pattern.or(self.private_sliding_window_pattern) {
            header.u32(&pattern, whole(period));
        } else if family != Architecture::Gemma3 {
            let first = self
                .max_window_layers
                .filter(|_| family != Architecture::Llama)
                .unwrap_or(0);
            let flags: Vec<i32> = (0..layers.min(1 << 16))
                .map(|layer| i32::from(layer >= first))
                .collect();
            header.i32s(&pattern, &flags);
        }
    }
}

impl RopeParameters {
    /// What queries and keys are multiplied by.
    fn yarn_attention_factor(&self, factor: f32) -> f32 {
        let scale = |weight: f32| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * weight * factor.ln() + 1.0
            }
        };
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => scale(one) / scale(all),
            _ => Yarn::published_attention_factor(factor),
        }
    }
}

fn unsupported(what: impl Into<String>) -> FolderError {
    FolderError::Unsupported { what: what.into() }
}

/// A size as GGUF stores it; the largest number, which is refused later, where it does not fit.
fn whole(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
