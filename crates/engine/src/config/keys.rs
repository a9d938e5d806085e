//! What does the metadata of a model say, and is it sane?

use std::fmt;

use inertiakv_kernels::ops::RopeStyle;

use super::{
    Architecture, ConfigError, Experts, LARGEST_HEAD, LARGEST_WIDTH, LONGEST_CONTEXT, MOST_EXPERTS, MOST_LAYERS, Rope,
    RopeScaling, Sliding, Yarn,
};
use crate::gguf::{FromValue, Gguf, RopeLayout};

/// The metadata of one family.
pub(super) struct Keys<'a> {
    pub(super) file: &'a Gguf,
    pub(super) architecture: Architecture,
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

    pub(super) fn within(&self, suffix: &str, least: usize, most: usize) -> Result<usize, ConfigError> {
        self.file.require::<usize>(&self.name(suffix))?;
        self.within_or(suffix, least, most, least)
    }

    pub(super) fn within_or(
        &self,
        suffix: &str,
        least: usize,
        most: usize,
        default: usize,
    ) -> Result<usize, ConfigError> {
        let value = self.optional::<usize>(suffix)?.unwrap_or(default);
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(self.out_of_range(suffix, value, format!("from {least} to {most}")))
        }
    }

    pub(super) fn positive(&self, suffix: &str, default: Option<f32>) -> Result<f32, ConfigError> {
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

    pub(super) fn head_dim(&self, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
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

    pub(super) fn rope(&self, head_dim: usize, context: usize) -> Result<Rope, ConfigError> {
        let dimensions = self.within_or("rope.dimension_count", 2, head_dim, head_dim)?;
        if !dimensions.is_multiple_of(2) {
            return Err(self.out_of_range("rope.dimension_count", dimensions, "even"));
        }
        let scaling = self.rope_scaling(context)?;
        if dimensions < head_dim && matches!(scaling, RopeScaling::Yarn(_)) {
            // The factor of rotated elements would not be that of the others.
            return Err(ConfigError::Unsupported {
                what: format!("YaRN on {dimensions} of {head_dim} elements of a head"),
            });
        }
        Ok(Rope {
            base: self.positive("rope.freq_base", Some(10_000.0))?,
            dimensions,
            style: match self.file.rope_layout() {
                RopeLayout::AsConverted => self.architecture.family().rope_style,
                RopeLayout::HalfSplit => RopeStyle::HalfSplit,
            },
            scaling,
            frequency_factors: frequency_factors(self.file, dimensions)?,
        })
    }

    fn rope_scaling(&self, context: usize) -> Result<RopeScaling, ConfigError> {
        // Files made before there was a type have a bare factor, which meant linear scaling.
        let kind = self.optional::<&str>("rope.scaling.type")?.unwrap_or("linear");
        if !matches!(kind, "none" | "linear" | "yarn") {
            return Err(ConfigError::Unsupported {
                what: format!("rope scaling of type `{kind}`"),
            });
        }
        if kind == "none" {
            return Ok(RopeScaling::None);
        }
        for suffix in ["rope.scaling.factor", "rope.scale_linear"] {
            match self.optional::<f32>(suffix)? {
                None => {}
                Some(0.0 | 1.0) => return Ok(RopeScaling::None),
                Some(factor) if factor.is_finite() && factor > 1.0 => {
                    return if kind == "yarn" {
                        self.yarn(factor, context)
                    } else {
                        Ok(RopeScaling::Linear(factor))
                    };
                }
                Some(factor) => return Err(self.out_of_range(suffix, factor, "at least 1")),
            }
        }
        Ok(RopeScaling::None)
    }

    fn yarn(&self, factor: f32, context: usize) -> Result<RopeScaling, ConfigError> {
        let original = "rope.scaling.original_context_length";
        Ok(RopeScaling::Yarn(Yarn {
            factor,
            original_context: self.within_or(original, 1, LONGEST_CONTEXT, context)?,
            beta_fast: self.positive("rope.scaling.yarn_beta_fast", Some(32.0))?,
            beta_slow: self.positive("rope.scaling.yarn_beta_slow", Some(1.0))?,
            attention_factor: Yarn::published_attention_factor(factor)
                * self.positive("rope.scaling.attn_factor", Some(1.0))?,
        }))
    }

    /// The layers with a window. One as long as the context changes nothing where it comes with nothing else.
    pub(super) fn sliding(&self, layers: usize, context: usize, rope: &Rope) -> Result<Option<Sliding>, ConfigError> {
        let defaults = &self.architecture.family().sliding;
        let window = self.within_or("attention.sliding_window", 0, LONGEST_CONTEXT, 0)?;
        if window == 0 || (defaults.rope_base.is_none() && window >= context) {
            return Ok(None);
        }
        let pattern = "attention.sliding_window_pattern";
        let by_period = |period: usize| (1..=layers).map(|layer| period == 0 || layer % period != 0).collect();
        let flags: Vec<bool> = match self.file.numbers(&self.name(pattern)) {
            Ok(Some(flags)) if flags.len() == layers => flags.iter().map(|&flag| flag != 0.0).collect(),
            Ok(Some(flags)) => {
                return Err(self.out_of_range(pattern, flags.len(), format!("one flag for each of {layers} layers")));
            }
            // Not a list: a period.
            Ok(None) | Err(_) => by_period(self.within_or(pattern, 0, MOST_LAYERS, defaults.period)?),
        };
        if !flags.contains(&true) {
            return Ok(None);
        }
        let rope = match defaults.rope_base {
            None => rope.clone(),
            Some(base) => Rope {
                base: self.positive("rope.freq_base_swa", Some(base))?,
                scaling: RopeScaling::None,
                ..rope.clone()
            },
        };
        Ok(Some(Sliding {
            window,
            layers: flags,
            rope,
        }))
    }

    /// What multiplies dot products, before any factor of the position embedding.
    pub(super) fn attention_scale(
        &self,
        layers: usize,
        hidden: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<f32, ConfigError> {
        // The largest Gemma 3 was trained with another root, which its files do not mention.
        let width = match (self.architecture, layers) {
            (Architecture::Gemma3, 62) => hidden / heads,
            _ => head_dim,
        };
        self.positive("attention.scale", Some(1.0 / (width as f32).sqrt()))
    }

    pub(super) fn experts(&self, layers: usize) -> Result<Option<Experts>, ConfigError> {
        let count = self.within_or("expert_count", 0, MOST_EXPERTS, 0)?;
        if count == 0 {
            return Ok(None);
        }
        let has_router = |layer| self.file.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
        Ok(Some(Experts {
            count,
            used: self.within("expert_used_count", 1, count)?,
            feed_forward: self.within("expert_feed_forward_length", 1, LARGEST_WIDTH)?,
            normalised: self.optional("expert_weights_norm")?.unwrap_or(true),
            layers: (0..layers).map(has_router).collect(),
        }))
    }

    /// Refuses what would be computed wrongly.
    pub(super) fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        let refused = |what: &str| Err(ConfigError::Unsupported { what: what.to_owned() });
        let count = |suffix: &str| self.optional::<usize>(suffix).map(Option::unwrap_or_default);
        if count("expert_count")? > 0 && !self.architecture.family().experts {
            return refused("a mixture of experts");
        }
        if count("expert_shared_count")? > 0 {
            return refused("experts that all tokens share");
        }
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if self.optional::<f32>(key)?.is_some_and(|cap| cap != 0.0) {
                return refused("soft limits of logits");
            }
        }
        if self
            .file
            .optional::<usize>("split.count")?
            .is_some_and(|count| count > 1)
        {
            return refused("several GGUF files (merge them into one first)");
        }
        Ok(())
    }
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
