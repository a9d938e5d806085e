//! A model without a download: tiny random GGUF files of every supported family.
//!
//! The weights are random but fixed by a seed, so what such a model says is nonsense, but always the same nonsense.
//! Tokenizer, template, metadata and tensors are complete: everything from opening the file to the last sampled token
//! runs on it as on a real model.

use std::path::Path;

use inertiakv_kernels::linear::WeightType;
use inertiakv_kernels::linear::encode::encode;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::config::Architecture;
use crate::gguf::{GgmlType, GgufError, GgufWriter};
use crate::tokenizer::ByteAlphabet;

/// Merge rules of the tiny vocabulary, in the byte alphabet (`Ġ` is a space, `Ċ` a line break).
const MERGES: &[&str] = &[
    "Ġ t",
    "h e",
    "Ġt he",
    "i n",
    "e r",
    "Ġ a",
    "o n",
    "r e",
    "Ġ Ġ",
    "Ċ Ċ",
    "ĠĠ ĠĠ",
    "in g",
    "l l",
    "he ll",
    "hell o",
];

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
                             message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
                             {{ '<|im_start|>assistant\n' }}{% endif %}";

/// What the tiny model should look like. Start from the default and change what a test is about.
///
/// ```
/// use inertiakv::config::{Architecture, ModelConfig};
/// use inertiakv::gguf::Gguf;
/// use inertiakv::testing::TinyModel;
/// let model = TinyModel { family: Architecture::Qwen2, layers: 3, ..TinyModel::default() };
/// let config = ModelConfig::from_gguf(&Gguf::from_bytes(model.to_bytes())?)?;
/// assert_eq!(config.layers, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TinyModel {
    /// The family, which decides biases and the rotary style.
    pub family: Architecture,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream, a multiple of the weight type's block.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Width of the feed-forward network, a multiple of the weight type's block.
    pub feed_forward: usize,
    /// Longest context the model claims.
    pub context: usize,
    /// Every number in the file follows from it.
    pub seed: u64,
    /// Type of the matrices in the blocks and of the output.
    pub weights: WeightType,
    /// Type of the embedding.
    pub embedding: WeightType,
    /// Leave out `output.weight`.
    pub tied: bool,
    /// Window of every layer but each second; `None` if all see everything.
    pub window: Option<usize>,
    /// Experts of each layer, of which two are used, in families that have them.
    pub experts: usize,
}

impl Default for TinyModel {
    /// Two Llama layers with heads wider than `hidden / heads`, in types coarse enough to be real and fine enough that
    /// logits do not jump.
    fn default() -> Self {
        Self {
            family: Architecture::Llama,
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            feed_forward: 96,
            context: 4096,
            seed: 0,
            weights: WeightType::Q8_0,
            embedding: WeightType::F16,
            tied: true,
            window: None,
            experts: 4,
        }
    }
}

impl TinyModel {
    /// The file, still open for changes: tests remove or add what they are about.
    #[must_use]
    pub fn writer(&self) -> GgufWriter {
        let mut writer = GgufWriter::new();
        self.write_metadata(&mut writer);
        let vocabulary = write_tokenizer(&mut writer, self.family);
        self.write_tensors(&mut writer, vocabulary);
        writer
    }

    /// The file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.writer().to_bytes()
    }

    /// Writes the file.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), GgufError> {
        self.writer().write(path)
    }

    fn write_metadata(&self, writer: &mut GgufWriter) {
        let family = self.family;
        writer
            .string("general.architecture", family.name())
            .string("general.name", "Tiny random model");
        let sizes = [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
        ];
        for (key, size) in sizes {
            writer.u32(&format!("{family}.{key}"), size as u32);
        }
        if let Some(window) = self.window {
            writer
                .u32(&format!("{family}.attention.sliding_window"), window as u32)
                .u32(&format!("{family}.attention.sliding_window_pattern"), 2);
        }
        if family.family().experts {
            writer
                .u32(&format!("{family}.expert_count"), self.experts as u32)
                .u32(&format!("{family}.expert_used_count"), 2)
                .u32(
                    &format!("{family}.expert_feed_forward_length"),
                    self.feed_forward as u32,
                );
        }
        writer.f32(&format!("{family}.attention.layer_norm_rms_epsilon"), 1e-5);
        writer.f32(&format!("{family}.rope.freq_base"), 10_000.0);
    }

    fn write_tensors(&self, writer: &mut GgufWriter, vocabulary: usize) {
        let mut numbers = Numbers {
            source: ChaCha8Rng::seed_from_u64(self.seed),
        };
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let bias = self.family == Architecture::Qwen2;
        numbers.matrix(
            writer,
            "token_embd.weight",
            self.hidden,
            vocabulary,
            self.embedding,
            1.0,
        );
        for layer in 0..self.layers {
            let name = |suffix: &str| format!("blk.{layer}.{suffix}");
            numbers.vector(writer, &name("attn_norm.weight"), self.hidden, 1.0, 0.2);
            for (part, rows) in [("q", query), ("k", key), ("v", key)] {
                self.linear(
                    &mut numbers,
                    writer,
                    &name(&format!("attn_{part}.weight")),
                    self.hidden,
                    rows,
                );
                if bias {
                    numbers.vector(writer, &name(&format!("attn_{part}.bias")), rows, 0.0, 0.2);
                }
            }
            self.linear(&mut numbers, writer, &name("attn_output.weight"), query, self.hidden);
            let family = self.family.family();
            if family.qk_norm {
                numbers.vector(writer, &name("attn_q_norm.weight"), self.head_dim, 1.0, 0.2);
                numbers.vector(writer, &name("attn_k_norm.weight"), self.head_dim, 1.0, 0.2);
            }
            if family.post_norms {
                numbers.vector(writer, &name("post_attention_norm.weight"), self.hidden, 1.0, 0.2);
                numbers.vector(writer, &name("post_ffw_norm.weight"), self.hidden, 1.0, 0.2);
            }
            numbers.vector(writer, &name("ffn_norm.weight"), self.hidden, 1.0, 0.2);
            if family.experts {
                self.write_experts(&mut numbers, writer, &name);
                continue;
            }
            self.linear(
                &mut numbers,
                writer,
                &name("ffn_gate.weight"),
                self.hidden,
                self.feed_forward,
            );
            self.linear(
                &mut numbers,
                writer,
                &name("ffn_up.weight"),
                self.hidden,
                self.feed_forward,
            );
            self.linear(
                &mut numbers,
                writer,
                &name("ffn_down.weight"),
                self.feed_forward,
                self.hidden,
            );
        }
        numbers.vector(writer, "output_norm.weight", self.hidden, 1.0, 0.2);
        if !self.tied {
            self.linear(&mut numbers, writer, "output.weight", self.hidden, vocabulary);
        }
    }

    fn write_experts(&self, numbers: &mut Numbers, writer: &mut GgufWriter, name: &impl Fn(&str) -> String) {
        let (hidden, width) = (self.hidden, self.feed_forward);
        let router = name("ffn_gate_inp.weight");
        numbers.matrix(writer, &router, hidden, self.experts, WeightType::F32, 1.0);
        for (part, inputs, outputs) in [("gate", hidden, width), ("up", hidden, width), ("down", width, hidden)] {
            let stack = name(&format!("ffn_{part}_exps.weight"));
            let values = numbers.draw(inputs * outputs * self.experts, 0.0, (3.0 / inputs as f32).sqrt());
            let kind = stored_type(self.weights);
            let dimensions = [inputs, outputs, self.experts];
            writer.tensor(&stack, &dimensions, kind, &encode(self.weights, &values));
        }
    }

    /// A matrix whose outputs have about the spread of its inputs.
    fn linear(&self, numbers: &mut Numbers, writer: &mut GgufWriter, name: &str, inputs: usize, outputs: usize) {
        let spread = (3.0 / inputs as f32).sqrt();
        numbers.matrix(writer, name, inputs, outputs, self.weights, spread);
    }
}

/// Writes a byte-level vocabulary: 256 bytes, the merged tokens, three control tokens. Returns its size.
fn write_tokenizer(writer: &mut GgufWriter, family: Architecture) -> usize {
    let mut tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| ByteAlphabet::character(byte).to_string())
        .collect();
    tokens.extend(MERGES.iter().map(|rule| rule.replace(' ', "")));
    let first_special = tokens.len();
    tokens.extend(SPECIAL.map(str::to_owned));
    let kinds: Vec<i32> = (0..tokens.len())
        .map(|id| if id < first_special { 1 } else { 3 })
        .collect();
    let pre = match family {
        Architecture::Llama => "smollm",
        _ => "qwen2",
    };
    writer
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", MERGES)
        .u32("tokenizer.ggml.bos_token_id", first_special as u32)
        .u32("tokenizer.ggml.eos_token_id", first_special as u32 + 2)
        .bool("tokenizer.ggml.add_bos_token", false)
        .string("tokenizer.chat_template", CHAT_TEMPLATE);
    tokens.len()
}

struct Numbers {
    source: ChaCha8Rng,
}

impl Numbers {
    fn draw(&mut self, count: usize, middle: f32, spread: f32) -> Vec<f32> {
        (0..count)
            .map(|_| middle + spread * (f64::from(self.source.next_u32()) / 2_f64.powi(31) - 1.0) as f32)
            .collect()
    }

    fn vector(&mut self, writer: &mut GgufWriter, name: &str, length: usize, middle: f32, spread: f32) {
        let values = self.draw(length, middle, spread);
        writer.tensor(name, &[length], GgmlType::F32, &encode(WeightType::F32, &values));
    }

    fn matrix(
        &mut self,
        writer: &mut GgufWriter,
        name: &str,
        inputs: usize,
        outputs: usize,
        kind: WeightType,
        spread: f32,
    ) {
        let values = self.draw(inputs * outputs, 0.0, spread);
        writer.tensor(name, &[inputs, outputs], stored_type(kind), &encode(kind, &values));
    }
}

fn stored_type(kind: WeightType) -> GgmlType {
    GgmlType::from_id(kind.ggml_id()).expect("the kernels' types are all in the file format")
}
