//! How do the tensors of a file become a decoder?

use std::collections::BTreeMap;

use inertiakv_kernels::linear::encode::{decode, encode};
use inertiakv_kernels::linear::{Linear, LinearError, StoredType, WeightType};

use sha2::{Digest, Sha256};

use crate::Error;
use crate::backend::{Backend, CpuBackend, HeadShape};
use crate::catalog::hexadecimal;
use crate::config::{ModelConfig, Rope};
use crate::decoder::{Decoder, Experts, FeedForward, Gated, HeadNorms, Layer, Projection};
use crate::gguf::{GgmlType, Gguf, GgufError, TensorInfo};

/// Loads every tensor that `config` implies; the configuration has checked names and shapes.
///
/// Float matrices become `quantise`, if given. Repacking the layers is shared by `threads` threads.
pub(crate) fn load<B: Backend>(
    file: &Gguf,
    config: &ModelConfig,
    backend: &B,
    threads: usize,
    quantise: Option<WeightType>,
) -> Result<Decoder<B>, Error> {
    if let Some(kind) = quantise
        && !file.tensors().iter().any(|tensor| becomes(tensor, quantise).is_some())
    {
        return Err(Error::NothingToQuantise { kind });
    }
    let loader = Loader {
        file,
        backend,
        quantise,
    };
    let layers = loader.layers(config, threads)?;
    Ok(Decoder {
        shape: HeadShape {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: config.attention_scale,
        },
        hidden: config.hidden,
        vocabulary: config.vocabulary,
        norm_epsilon: config.rms_epsilon,
        activation: config.activation,
        embedding_scale: config.embedding_scale,
        rope_style: config.rope.style,
        rotations: rotations(config),
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

/// What tells two models of one shape apart without reading all of them: the SHA-256 of the first bytes of every tensor,
/// and of what it is quantised to.
pub(crate) fn fingerprint(file: &Gguf, quantise: Option<WeightType>) -> Result<String, GgufError> {
    const BYTES: usize = 4096;
    let mut hash = Sha256::new();
    for tensor in file.tensors() {
        let data = file.tensor_data(tensor.name())?;
        hash.update(tensor.name());
        hash.update(&data[..data.len().min(BYTES)]);
        if let Some(kind) = becomes(tensor, quantise) {
            hash.update(kind.to_string());
        }
    }
    Ok(hexadecimal(&hash.finalize()))
}

/// What a matrix is quantised to at load: nothing that is not stored as floats, and not routers, which are small and
/// decide much.
fn becomes(tensor: &TensorInfo, quantise: Option<WeightType>) -> Option<WeightType> {
    let is_float = [GgmlType::F32, GgmlType::F16, GgmlType::BF16].contains(&tensor.kind());
    let is_matrix = tensor.dimensions().len() > 1 && !tensor.name().ends_with("ffn_gate_inp.weight");
    quantise.filter(|_| is_float && is_matrix)
}

/// Some rows at a time, so that there are never floats of all of a matrix.
fn reencode(from: WeightType, to: WeightType, columns: usize, data: &[u8]) -> Result<Vec<u8>, LinearError> {
    const ROWS: usize = 64;
    if !columns.is_multiple_of(to.block_size()) {
        return Err(LinearError::PartialBlock {
            in_features: columns,
            block: to.block_size(),
            ty: to,
        });
    }
    let mut bytes = Vec::new();
    for rows in data.chunks(ROWS * columns * from.block_bytes()) {
        bytes.extend(encode(to, &decode(from, rows)));
    }
    Ok(bytes)
}

/// Weight types and how many tensors have each, most first, as in `Q5_0 ×132, F32 ×121`.
pub(crate) fn quantisation(file: &Gguf, quantise: Option<WeightType>) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for tensor in file.tensors() {
        let name = becomes(tensor, quantise).map_or_else(|| tensor.kind().to_string(), |kind| kind.to_string());
        *counts.entry(name).or_default() += 1;
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
    /// Bytes that a decode step of one row reads: all but rows of an embedding that is not the output too, and experts that
    /// are not used.
    pub bytes_per_step: usize,
    /// Multiplications of one row by all layers, the output layer not included.
    pub products_per_row: usize,
}

pub(crate) fn sizes(decoder: &Decoder<CpuBackend>) -> Sizes {
    let mut sizes = Sizes::default();
    let vector = |vector: &Vec<f32>| size_of_val(vector.as_slice());
    let mut unread = 0;
    for layer in &decoder.layers {
        let mut add = |linear: &Linear| {
            sizes.bytes += linear.bytes();
            sizes.products_per_row += linear.in_features() * linear.out_features();
        };
        let projections = [&layer.query, &layer.key, &layer.value, &layer.attention_output];
        for projection in projections {
            add(&projection.weight);
        }
        let networks = layer.feed_forward.networks();
        let used = match &layer.feed_forward {
            FeedForward::Dense(_) => 1,
            FeedForward::Experts(experts) => {
                add(&experts.router);
                experts.used
            }
        };
        for (index, network) in networks.iter().enumerate() {
            for linear in [&network.gate, &network.up, &network.down] {
                if index < used {
                    add(linear);
                } else {
                    unread += linear.bytes();
                }
            }
        }
        let biases = projections.iter().filter_map(|projection| projection.bias.as_ref());
        sizes.bytes += biases.map(vector).sum::<usize>();
        let head_norms = layer.head_norms.iter().flat_map(|norms| [&norms.query, &norms.key]);
        let post_norms = [&layer.attention_post_norm, &layer.feed_forward_post_norm];
        let norms = [&layer.attention_norm, &layer.feed_forward_norm]
            .into_iter()
            .chain(head_norms)
            .chain(post_norms.into_iter().flatten());
        sizes.bytes += norms.map(vector).sum::<usize>();
    }
    sizes.bytes += vector(&decoder.output_norm);
    sizes.bytes_per_step = sizes.bytes + decoder.output.as_ref().unwrap_or(&decoder.embedding).bytes();
    sizes.bytes += unread + decoder.embedding.bytes() + decoder.output.as_ref().map_or(0, Linear::bytes);
    sizes
}

/// The frequencies of the layers that see everything, then those of layers with a window.
fn rotations(config: &ModelConfig) -> Vec<Vec<f64>> {
    let ropes = std::iter::once(&config.rope).chain(config.sliding.iter().map(|sliding| &sliding.rope));
    ropes.map(Rope::frequencies).collect()
}

struct Loader<'a, B> {
    file: &'a Gguf,
    backend: &'a B,
    quantise: Option<WeightType>,
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
        let norm = |is_there: bool, part: &str| is_there.then(|| self.vector(&name(part))).transpose();
        let window = config.window(index);
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm.weight"))?,
            query: projection("attn_q", config.qkv_bias)?,
            key: projection("attn_k", config.qkv_bias)?,
            value: projection("attn_v", config.qkv_bias)?,
            head_norms: if config.qk_norm {
                Some(HeadNorms {
                    query: self.vector(&name("attn_q_norm.weight"))?,
                    key: self.vector(&name("attn_k_norm.weight"))?,
                })
            } else {
                None
            },
            attention_output: projection("attn_output", config.output_bias)?,
            attention_post_norm: norm(config.post_norms, "post_attention_norm.weight")?,
            feed_forward_norm: self.vector(&name("ffn_norm.weight"))?,
            feed_forward: if config.has_experts(index) {
                FeedForward::Experts(self.experts(&name, config)?)
            } else {
                FeedForward::Dense(Gated {
                    gate: self.linear(&name("ffn_gate.weight"))?,
                    up: self.linear(&name("ffn_up.weight"))?,
                    down: self.linear(&name("ffn_down.weight"))?,
                })
            },
            feed_forward_post_norm: norm(config.post_norms, "post_ffw_norm.weight")?,
            rotation: usize::from(window.is_some()),
            window,
        })
    }

    fn experts(&self, name: &impl Fn(&str) -> String, config: &ModelConfig) -> Result<Experts<B>, Error> {
        let experts = config.experts.as_ref().expect("asked for a layer that has them");
        let matrix = |part: &str, index: usize| self.matrix(&name(&format!("ffn_{part}_exps.weight")), index);
        let networks = (0..experts.count).map(|index| {
            Ok(Gated {
                gate: matrix("gate", index)?,
                up: matrix("up", index)?,
                down: matrix("down", index)?,
            })
        });
        let networks = networks.collect::<Result<_, Error>>()?;
        for part in ["gate", "up", "down"] {
            self.file.release(&name(&format!("ffn_{part}_exps.weight")));
        }
        Ok(Experts {
            router: self.linear(&name("ffn_gate_inp.weight"))?,
            networks,
            used: experts.used,
            normalised: experts.normalised,
        })
    }

    fn linear(&self, name: &str) -> Result<B::Linear, Error> {
        let weight = self.matrix(name, 0)?;
        // The backend has its own copy now: a weight is never held twice.
        self.file.release(name);
        Ok(weight)
    }

    /// A matrix, or one of a stack.
    fn matrix(&self, name: &str, index: usize) -> Result<B::Linear, Error> {
        let wrong = |reason| Error::Tensor {
            name: name.to_owned(),
            reason,
        };
        let Some(tensor) = self.file.tensor(name) else {
            return Err(GgufError::MissingTensor { name: name.to_owned() }.into());
        };
        let (&[columns, rows] | &[columns, rows, _]) = tensor.dimensions() else {
            return Err(Error::NotAMatrix {
                name: name.to_owned(),
                dimensions: tensor.dimensions().to_vec(),
            });
        };
        let data = self.file.matrix_data(name, index)?;
        let stored = StoredType::from_ggml_id(tensor.kind().id()).map_err(wrong)?;
        let kept = stored.kept_as();
        let weight = match becomes(tensor, self.quantise) {
            Some(wanted) if wanted != kept => {
                let data = reencode(kept, wanted, columns, data).map_err(wrong)?;
                self.backend.weight(wanted, rows, columns, &data)
            }
            _ => self.backend.weight(kept, rows, columns, &stored.convert(data)),
        };
        weight.map_err(wrong)
    }

    fn vector(&self, name: &str) -> Result<B::Vector, Error> {
        Ok(self.backend.vector(self.file.tensor_f32(name)?))
    }
}
