//! What sets the model families apart where neither metadata nor tensors tell? One row each.

use std::fmt;

use inertiakv_kernels::ops::{Activation, RopeStyle};

/// A supported model family, as `general.architecture` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3, Mistral, `SmolLM` and whatever else is stored under this name.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3.
    Qwen3,
    /// Qwen 3 with a mixture of experts.
    Qwen3Moe,
    /// Gemma 3, text.
    Gemma3,
}

/// A row of the table of families.
#[expect(clippy::struct_excessive_bools, reason = "a table of what is there and what is not")]
pub(crate) struct Family {
    architecture: Architecture,
    name: &'static str,
    /// What `model_type` in a Hugging Face `config.json` says.
    pub(crate) model_types: &'static [&'static str],
    /// How GGUF converters leave the rows of the query and key weights: Llama's are permuted for interleaved rotation.
    /// Hugging Face folders are always half-split.
    pub(crate) rope_style: RopeStyle,
    /// Heads of queries and keys are normalised before their rotation.
    pub(crate) qk_norm: bool,
    /// What attention and the feed-forward network add is normalised once more.
    pub(crate) post_norms: bool,
    pub(crate) activation: Activation,
    /// Embeddings are multiplied by the root of their width.
    pub(crate) scaled_embedding: bool,
    /// Feed-forward networks may be mixtures of experts.
    pub(crate) experts: bool,
    /// Added to the weights of norms in a Hugging Face folder; GGUF files hold the sum.
    pub(crate) norm_offset: f32,
    /// Layers that look at a window only.
    pub(crate) sliding: SlidingDefaults,
}

/// What holds where a file names a window but not which layers have it.
pub(crate) struct SlidingDefaults {
    /// The last of so many layers sees everything; 0 if all have the window.
    pub(crate) period: usize,
    /// Rotary base of layers with a window; `None` if it is that of the others.
    pub(crate) rope_base: Option<f32>,
}

/// A plain decoder, which the others are told apart from.
const LLAMA: Family = Family {
    architecture: Architecture::Llama,
    name: "llama",
    model_types: &["llama", "mistral"],
    rope_style: RopeStyle::Interleaved,
    qk_norm: false,
    post_norms: false,
    activation: Activation::Silu,
    scaled_embedding: false,
    experts: false,
    norm_offset: 0.0,
    sliding: SlidingDefaults {
        period: 0,
        rope_base: None,
    },
};

/// All families, in the order of [`Architecture`].
static FAMILIES: [Family; 5] = [
    LLAMA,
    Family {
        architecture: Architecture::Qwen2,
        name: "qwen2",
        model_types: &["qwen2"],
        rope_style: RopeStyle::HalfSplit,
        ..LLAMA
    },
    Family {
        architecture: Architecture::Qwen3,
        name: "qwen3",
        model_types: &["qwen3"],
        rope_style: RopeStyle::HalfSplit,
        qk_norm: true,
        ..LLAMA
    },
    Family {
        architecture: Architecture::Qwen3Moe,
        name: "qwen3moe",
        model_types: &["qwen3_moe"],
        rope_style: RopeStyle::HalfSplit,
        qk_norm: true,
        experts: true,
        ..LLAMA
    },
    Family {
        architecture: Architecture::Gemma3,
        name: "gemma3",
        model_types: &["gemma3_text", "gemma3"],
        rope_style: RopeStyle::HalfSplit,
        qk_norm: true,
        post_norms: true,
        activation: Activation::GeluTanh,
        scaled_embedding: true,
        experts: false,
        norm_offset: 1.0,
        sliding: SlidingDefaults {
            period: 6,
            rope_base: Some(10_000.0),
        },
    },
];

impl Architecture {
    /// All supported families.
    pub const ALL: [Self; FAMILIES.len()] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Qwen3Moe, Self::Gemma3];

    /// The name in `general.architecture`, which is also the prefix of the family's metadata keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.family().name
    }

    /// What sets it apart.
    pub(crate) fn family(self) -> &'static Family {
        &FAMILIES[self as usize]
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.name() == name)
    }

    /// The family that a Hugging Face `model_type` belongs to.
    pub(crate) fn from_model_type(model_type: &str) -> Option<Self> {
        let family = FAMILIES
            .iter()
            .find(|family| family.model_types.contains(&model_type))?;
        Some(family.architecture)
    }

    pub(super) fn list() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Architecture;

    #[test]
    fn every_family_has_its_row() {
        for architecture in Architecture::ALL {
            assert_eq!(architecture.family().architecture, architecture);
            assert_eq!(Architecture::from_name(architecture.name()), Some(architecture));
            for model_type in architecture.family().model_types {
                assert_eq!(Architecture::from_model_type(model_type), Some(architecture));
            }
        }
        assert_eq!(Architecture::from_name("mamba"), None);
    }
}
