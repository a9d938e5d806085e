//! Which tensors must a model of this shape have?

use inertiakv_kernels::linear::StoredType;

use super::{ConfigError, ModelConfig};
use crate::gguf::{GgmlType, Gguf, TensorInfo};

impl ModelConfig {
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

    /// The tensors of a block without the `blk.N.` prefix.
    fn block_tensors(&self, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            ("attn_norm.weight", vec![self.hidden]),
            ("attn_q.weight", vec![self.hidden, query]),
            ("attn_k.weight", vec![self.hidden, key]),
            ("attn_v.weight", vec![self.hidden, key]),
            ("attn_output.weight", vec![query, self.hidden]),
            ("ffn_norm.weight", vec![self.hidden]),
        ];
        match &self.experts {
            Some(experts) if experts.layers[layer] => tensors.extend([
                ("ffn_gate_inp.weight", vec![self.hidden, experts.count]),
                (
                    "ffn_gate_exps.weight",
                    vec![self.hidden, experts.feed_forward, experts.count],
                ),
                (
                    "ffn_up_exps.weight",
                    vec![self.hidden, experts.feed_forward, experts.count],
                ),
                (
                    "ffn_down_exps.weight",
                    vec![experts.feed_forward, self.hidden, experts.count],
                ),
            ]),
            _ => tensors.extend([
                ("ffn_gate.weight", vec![self.hidden, self.feed_forward]),
                ("ffn_up.weight", vec![self.hidden, self.feed_forward]),
                ("ffn_down.weight", vec![self.feed_forward, self.hidden]),
            ]),
        }
        if self.qk_norm {
            tensors.extend([
                ("attn_q_norm.weight", vec![self.head_dim]),
                ("attn_k_norm.weight", vec![self.head_dim]),
            ]);
        }
        if self.post_norms {
            tensors.extend([
                ("post_attention_norm.weight", vec![self.hidden]),
                ("post_ffw_norm.weight", vec![self.hidden]),
            ]);
        }
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

    pub(super) fn check_tensors(&self, file: &Gguf) -> Result<(), ConfigError> {
        let mut known = 0;
        for (name, expected) in self.outer_tensors() {
            check_tensor(file, &name, &expected)?;
            known += 1;
        }
        let blocks: Vec<_> = (0..self.layers).map(|layer| self.block_tensors(layer)).collect();
        for (layer, block) in blocks.iter().enumerate() {
            for (suffix, expected) in block {
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
                    let block = layer.parse().ok().and_then(|layer: usize| blocks.get(layer));
                    block.is_some_and(|block| is_leftover(suffix) || block.iter().any(|(known, _)| *known == suffix))
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

pub(super) fn require_tensor<'a>(file: &'a Gguf, name: &str) -> Result<&'a TensorInfo, ConfigError> {
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
        (StoredType::from_ggml_id(kind.id()).is_ok(), StoredType::names())
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
