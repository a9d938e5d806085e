//! What does a trained scorer say about the entries of a layer?
//!
//! The learned scorer of the paper (section 5.1) is a bilinear form of query and key,
//! `score(q, k) = (W_k k)ᵀ(W_q q) / √64`, with `W_q` on the concatenated query heads and `W_k` on the concatenated KV
//! heads: 327,680 parameters on Llama-3.1-8B. What the paper leaves open is decided here and ours: one pair of matrices
//! serves all layers, and it sees queries and keys after their rotation, as the cache holds them.
//!
//! A key never has to be multiplied by `W_k`: with `u = W_kᵀ(W_q q) / 8` the score of an entry is `k · u`, which costs no
//! more than one attention head as wide as all KV heads together.

mod error;
mod file;
mod loss;
mod optimiser;
mod training;

use inertiakv_kernels::attention::Mass;
use inertiakv_kernels::cache::KvCache;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;
use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;

pub use error::ScorerError;
pub use training::{Schedule, Training, TrainingOptions, TrainingRecord};

/// Rows of both matrices.
const WIDTH: usize = 64;
/// √[`WIDTH`].
const ROOT: f32 = 8.0;

/// The sizes of a model that a scorer is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScorerShape {
    /// Layers with attention.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
}

impl ScorerShape {
    fn of(config: &ModelConfig) -> Self {
        Self {
            layers: config.layers,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        }
    }

    /// Columns of `W_q` and of `W_k`.
    fn columns(&self) -> [usize; 2] {
        [self.heads * self.head_dim, self.kv_heads * self.head_dim]
    }
}

/// A trained scorer. It belongs to one model.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedScorer {
    model: String,
    shape: ScorerShape,
    /// `W_q` then `W_k`, each `[64][columns]`.
    parameters: Vec<f32>,
    training: TrainingRecord,
}

impl LearnedScorer {
    /// A scorer that has learned nothing yet.
    fn untrained(model: &str, config: &ModelConfig, training: TrainingRecord, random: &mut ChaCha8Rng) -> Self {
        let shape = ScorerShape::of(config);
        let parameters = shape
            .columns()
            .into_iter()
            .flat_map(|columns| std::iter::repeat_n(columns, WIDTH * columns))
            .map(|columns| {
                // Uniform with variance INITIAL² / columns: scores begin near zero, the softmax over them near uniform.
                let uniform = f64::from(random.next_u32()) / 2_f64.powi(31) - 1.0;
                (uniform * INITIAL * (3.0 / columns as f64).sqrt()) as f32
            })
            .collect();
        Self {
            model: model.to_owned(),
            shape,
            parameters,
            training,
        }
    }

    /// The model it was trained on, as reports call it.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The sizes of that model.
    #[must_use]
    pub fn shape(&self) -> ScorerShape {
        self.shape
    }

    /// How many numbers were trained.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.parameters.len()
    }

    /// How it was trained.
    #[must_use]
    pub fn training(&self) -> &TrainingRecord {
        &self.training
    }

    /// Whether it can score the entries of this model.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<(), ScorerError> {
        let model = ScorerShape::of(config);
        if model == self.shape {
            return Ok(());
        }
        Err(ScorerError::OtherShape {
            trained: self.model.clone(),
            found: self.shape,
            model,
        })
    }

    /// What the policy is shown of a layer: per KV head its share of the score of each entry, times the number of heads,
    /// so that the mean over heads is the score.
    pub(crate) fn relevance(&self, cache: &KvCache, layer: usize, query: &[f32], out: &mut [Vec<f32>]) {
        let mut direction = self.direction(&self.reduced(query));
        for number in &mut direction {
            *number *= self.shape.kv_heads as f32;
        }
        self.dots(cache, layer, &direction, out);
    }

    /// The loss at one query of a layer, and its change with the parameters, added to `gradient`. `mass` is the attention
    /// of this query, summed over the heads of each group.
    fn learn(&self, cache: &KvCache, layer: usize, query: &[f32], mass: &Mass, gradient: &mut [f32]) -> f32 {
        let ScorerShape { heads, kv_heads, .. } = self.shape;
        let reduced = self.reduced(query);
        let mut by_head = vec![Vec::new(); kv_heads];
        self.dots(cache, layer, &self.direction(&reduced), &mut by_head);
        let mut scores = sum(&by_head);
        let mut target = sum(&mass.heads);
        for share in &mut target {
            *share /= heads as f32;
        }
        let loss = loss::loss(&mut scores, &target);

        // score_i = k_i · u, so what the parameters see of the entries is r = Σ ds_i k_i:
        // dW_q = (W_k r) qᵀ / 8 and dW_k = (W_q q) rᵀ / 8.
        let mut pull = Vec::with_capacity(self.shape.columns()[1]);
        let mut head_pull = Vec::new();
        for head in 0..kv_heads {
            cache.key_sum(layer, head, &scores, &mut head_pull);
            pull.extend(head_pull.iter().map(|number| number / ROOT));
        }
        let (query_gradient, key_gradient) = gradient.split_at_mut(WIDTH * query.len());
        add_outer(query_gradient, &product(self.matrices().1, &pull), query);
        add_outer(key_gradient, &reduced, &pull);
        loss
    }

    fn matrices(&self) -> (&[f32], &[f32]) {
        self.parameters.split_at(WIDTH * self.shape.columns()[0])
    }

    /// `W_q q`.
    fn reduced(&self, query: &[f32]) -> Vec<f32> {
        product(self.matrices().0, query)
    }

    /// `u = W_kᵀ a / 8`.
    fn direction(&self, reduced: &[f32]) -> Vec<f32> {
        let columns = self.shape.columns()[1];
        let mut direction = vec![0.0; columns];
        for (row, factor) in self.matrices().1.chunks_exact(columns).zip(reduced) {
            let factor = factor / ROOT;
            for (sum, number) in direction.iter_mut().zip(row) {
                *sum += factor * number;
            }
        }
        direction
    }

    /// Each KV head's part of `k · u`, for all entries of a layer.
    fn dots(&self, cache: &KvCache, layer: usize, direction: &[f32], out: &mut [Vec<f32>]) {
        let parts = direction.chunks_exact(self.shape.head_dim);
        for (head, (out, part)) in out.iter_mut().zip(parts).enumerate() {
            cache.key_dots(layer, head, part, out);
        }
    }
}

/// Spread of untrained weights, beside that which keeps the spread of what they multiply.
const INITIAL: f64 = 0.1;

/// A `[64][x.len()]` matrix times a vector.
fn product(matrix: &[f32], x: &[f32]) -> Vec<f32> {
    matrix.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

/// In sixteen partial sums, as the compiler may not reorder one.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    for (left, right) in left.chunks(16).zip(right.chunks(16)) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    sums.iter().sum()
}

/// Adds `left rightᵀ` to a matrix.
fn add_outer(matrix: &mut [f32], left: &[f32], right: &[f32]) {
    for (row, factor) in matrix.chunks_exact_mut(right.len()).zip(left) {
        for (sum, number) in row.iter_mut().zip(right) {
            *sum += factor * number;
        }
    }
}

/// The sum over heads that hold the same entries.
fn sum(heads: &[Vec<f32>]) -> Vec<f32> {
    let mut total = heads[0].clone();
    for head in &heads[1..] {
        for (total, number) in total.iter_mut().zip(head) {
            *total += number;
        }
    }
    total
}
