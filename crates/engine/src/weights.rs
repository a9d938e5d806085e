//! How do the tensors of a file become a decoder?

use std::collections::BTreeMap;

use inertiakv_kernels::linear::{Linear, WeightType};
use inertiakv_kernels::ops;

use sha2::{Digest, Sha256};

use crate::Error;
use crate::backend::{Backend, CpuBackend, HeadShape};
use crate::catalog::hexadecimal;
use crate::config::{ModelConfig, Rope, RopeScaling, RopeStyle};
use crate::decoder::{Decoder, Layer, Projection};
use crate::gguf::{Gguf, GgufError};

/// Loads every tensor that `config` implies; the configuration has checked names and shapes.
///
/// Repacking the layers is shared by `threads` threads.
pub(crate) fn load<B: Backend>(
    file: &Gguf,
    config: &ModelConfig,
    backend: &B,
    threads: usize,
) -> Result<Decoder<B>, Error> {
    let loader = Loader { file, backend };
    let layers = loader.layers(config, threads)?;
    Ok(Decoder {
        shape: HeadShape {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        },
        hidden: config.hidden,
        feed_forward_size: config.feed_forward,
        vocabulary: config.vocabulary,
        norm_epsilon: config.rms_epsilon,
        rope_style: match config.rope.style {
            RopeStyle::Interleaved => ops::RopeStyle::Interleaved,
            RopeStyle::HalfSplit => ops::RopeStyle::HalfSplit,
        },
        rope_frequencies: frequencies(&config.rope),
        embedding: loader.linear("token_embd.weight")?,
        layers,
        output_norm: loader.vector("output_norm.weight")?,
        output: if config.tied_embeddings {
            None
        } else {
            Some(loader.linear("output.weight")?)
        },
    })
}

/// What tells two models of one shape apart without reading all of them: the SHA-256 of the first bytes of every tensor.
pub(crate) fn fingerprint(file: &Gguf) -> Result<String, GgufError> {
    const BYTES: usize = 4096;
    let mut hash = Sha256::new();
    for tensor in file.tensors() {
        let data = file.tensor_data(tensor.name())?;
        hash.update(tensor.name());
        hash.update(&data[..data.len().min(BYTES)]);
    }
    Ok(hexadecimal(&hash.finalize()))
}

/// Weight types and how many tensors have each, most first, as in `Q5_0 ×132, F32 ×121`.
pub(crate) fn quantisation(file: &Gguf) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for tensor in file.tensors() {
        *counts.entry(tensor.kind().to_string()).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} ×{count}")).collect();
    parts.join(", ")
}

/// What the weights take, and what they cost a token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    /// Bytes in memory.
    pub bytes: usize,
    /// Bytes that a decode step reads: all but rows of an embedding that is not the output too.
    pub bytes_per_step: usize,
    /// Multiplications of one row by all layers, the output layer not included.
    pub products_per_row: usize,
}

pub(crate) fn sizes(decoder: &Decoder<CpuBackend>) -> Sizes {
    let mut sizes = Sizes::default();
    let vector = |vector: &Vec<f32>| size_of_val(vector.as_slice());
    for layer in &decoder.layers {
        let projections = [&layer.query, &layer.key, &layer.value, &layer.attention_output];
        let linears = projections.map(|projection| &projection.weight);
        for linear in linears.into_iter().chain([&layer.gate, &layer.up, &layer.down]) {
            sizes.bytes += linear.bytes();
            sizes.products_per_row += linear.in_features() * linear.out_features();
        }
        let biases = projections.iter().filter_map(|projection| projection.bias.as_ref());
        sizes.bytes += biases.map(vector).sum::<usize>();
        sizes.bytes += vector(&layer.attention_norm) + vector(&layer.feed_forward_norm);
    }
    sizes.bytes += vector(&decoder.output_norm);
    sizes.bytes_per_step = sizes.bytes + decoder.output.as_ref().unwrap_or(&decoder.embedding).bytes();
    sizes.bytes += decoder.embedding.bytes() + decoder.output.as_ref().map_or(0, Linear::bytes);
    sizes
}

/// Radians per position of each rotated pair.
fn frequencies(rope: &Rope) -> Vec<f64> {
    let stretch = match rope.scaling {
        RopeScaling::None => 1.0,
        RopeScaling::Linear(factor) => f64::from(factor),
    };
    (0..rope.dimensions / 2)
        .map(|pair| {
            let exponent = -2.0 * pair as f64 / rope.dimensions as f64;
            let factor = rope
                .frequency_factors
                .as_ref()
                .map_or(1.0, |factors| f64::from(factors[pair]));
            f64::from(rope.base).powf(exponent) / stretch / factor
        })
        .collect()
}

struct Loader<'a, B> {
    file: &'a Gguf,
    backend: &'a B,
}

impl<B: Backend> Loader<'_, B> {
    fn layers(&self, config: &ModelConfig, threads: usize) -> Result<Vec<Layer<B>>, Error> {
        let indices: Vec<usize> = (0..config.layers).collect();
        let loaded = std::thread::scope(|scope| {
            let load = |part: &[usize]| {
                part.iter()
                    .map(|&index| self.layer(index, config))
                    .collect::<Result<Vec<_>, _>>()
            };
            let parts: Vec<_> = indices
                .chunks(config.layers.div_ceil(threads))
                .map(|part| scope.spawn(move || load(part)))
                .collect();
            let finished = parts
                .into_iter()
                .map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            finished.collect::<Result<Vec<_>, Error>>()
        })?;
        Ok(loaded.into_iter().flatten().collect())
    }

    fn layer(&self, index: usize, config: &ModelConfig) -> Result<Layer<B>, Error> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let projection = |part: &str, bias: bool| {
            Ok::<_, Error>(Projection {
                weight: self.linear(&name(&format!("{part}.weight")))?,
                bias: if bias {
                    Some(self.vector(&name(&format!("{part}.bias")))?)
                } else {
                    None
                },
            })
        };
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm.weight"))?,
            query: projection("attn_q", config.qkv_bias)?,
            key: projection("attn_k", config.qkv_bias)?,
            value: projection("attn_v", config.qkv_bias)?,
            attention_output: projection("attn_output", config.output_bias)?,
            feed_forward_norm: self.vector(&name("ffn_norm.weight"))?,
            gate: self.linear(&name("ffn_gate.weight"))?,
            up: self.linear(&name("ffn_up.weight"))?,
            down: self.linear(&name("ffn_down.weight"))?,
        })
    }

    fn linear(&self, name: &str) -> Result<B::Linear, Error> {
        let data = self.file.tensor_data(name)?;
        let wrong = |source| Error::Tensor {
            name: name.to_owned(),
            source,
        };
        let Some(tensor) = self.file.tensor(name) else {
            return Err(GgufError::MissingTensor { name: name.to_owned() }.into());
        };
        let weight_type = WeightType::from_ggml_id(tensor.kind().id()).map_err(wrong)?;
        let &[columns, rows] = tensor.dimensions() else {
            return Err(Error::NotAMatrix {
                name: name.to_owned(),
                dimensions: tensor.dimensions().to_vec(),
            });
        };
        let weight = self.backend.weight(weight_type, rows, columns, data).map_err(wrong)?;
        // The backend has its own copy now: a weight is never held twice.
        self.file.release(name);
        Ok(weight)
    }

    fn vector(&self, name: &str) -> Result<B::Vector, Error> {
        Ok(self.backend.vector(self.file.tensor_f32(name)?))
    }
}
