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

#[cfg(test)]
mod tests {
    use super::*;
    use inertiakv_kernels::cache::{KvConfig, KvPool, KvType};
    use rand_chacha::rand_core::SeedableRng;

    const SHAPE: ScorerShape = ScorerShape {
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
    };
    const ENTRIES: usize = 40;

    struct World {
        scorer: LearnedScorer,
        cache: KvCache,
        /// `[entries][kv_heads][head_dim]` of layer 1.
        keys: Vec<f32>,
        query: Vec<f32>,
        mass: Mass,
    }

    fn world() -> World {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut draw = |count: usize, spread: f32| -> Vec<f32> {
            let number = |_| spread * ((f64::from(random.next_u32()) / 2_f64.powi(31) - 1.0) as f32);
            (0..count).map(number).collect()
        };
        let pool = KvPool::new(
            KvConfig {
                layers: SHAPE.layers,
                kv_heads: SHAPE.kv_heads,
                head_dim: SHAPE.head_dim,
                kv_type: KvType::F32,
            },
            None,
        )
        .unwrap();
        let [query_columns, key_columns] = SHAPE.columns();
        let keys = draw(ENTRIES * key_columns, 1.0);
        let mut cache = KvCache::new(&pool);
        cache.append(1, &keys, &keys).unwrap();
        let mut heads: Vec<Vec<f32>> = (0..2).map(|_| draw(ENTRIES, 1.0)).collect();
        for mass in &mut heads {
            let sum: f32 = mass.iter().map(|share| share.abs()).sum();
            for share in mass {
                *share = share.abs() * 2.0 / sum;
            }
        }
        World {
            scorer: LearnedScorer {
                model: "none".to_owned(),
                shape: SHAPE,
                parameters: draw(WIDTH * (query_columns + key_columns), 0.2),
                training: TrainingRecord::default(),
            },
            cache,
            keys,
            query: draw(query_columns, 1.0),
            mass: Mass { heads },
        }
    }

    /// `(W_k k)ᵀ(W_q q)/√64`, as it is written.
    fn plain_scores(world: &World) -> Vec<f64> {
        let [_, columns] = SHAPE.columns();
        let (query, key) = world.scorer.matrices();
        let times = |matrix: &[f32], x: &[f32]| -> Vec<f64> {
            let row = |row: &[f32]| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            matrix.chunks_exact(x.len()).map(row).collect()
        };
        let reduced = times(query, &world.query);
        let score = |k: &[f32]| times(key, k).iter().zip(&reduced).map(|(k, q)| k * q).sum::<f64>() / 8.0;
        world.keys.chunks_exact(columns).map(score).collect()
    }

    #[test]
    fn the_mean_over_heads_is_the_bilinear_form() {
        let world = world();
        let mut relevance = vec![Vec::new(); 2];
        world.scorer.relevance(&world.cache, 1, &world.query, &mut relevance);
        for (entry, expected) in plain_scores(&world).into_iter().enumerate() {
            let found = f64::from(relevance[0][entry] + relevance[1][entry]) / 2.0;
            assert!((found - expected).abs() < 1e-4, "{entry}: {found} is not {expected}");
        }
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let mut world = world();
        let mut gradient = vec![0.0; world.scorer.parameters()];
        let World {
            scorer,
            cache,
            query,
            mass,
            ..
        } = &mut world;
        let loss = scorer.learn(cache, 1, query, mass, &mut gradient);
        // What is known is added to.
        let mut twice = gradient.clone();
        assert_eq!(
            scorer.learn(cache, 1, query, mass, &mut twice).to_bits(),
            loss.to_bits()
        );
        assert!(
            twice
                .iter()
                .zip(&gradient)
                .all(|(two, one)| (two - 2.0 * one).abs() < 1e-6)
        );
        // One direction over all parameters, then single ones of both matrices.
        let length = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        let all: Vec<f32> = gradient.iter().map(|g| g / length).collect();
        let boundary = WIDTH * SHAPE.columns()[0];
        let single = [3, 1000, boundary + 7, boundary + 900].map(|index| {
            let mut direction = vec![0.0; all.len()];
            direction[index] = 1.0;
            direction
        });
        for direction in [vec![all], single.to_vec()].concat() {
            let at = |change: f32| {
                let mut changed = scorer.clone();
                for (parameter, direction) in changed.parameters.iter_mut().zip(&direction) {
                    *parameter += change * direction;
                }
                let mut unused = vec![0.0; direction.len()];
                f64::from(changed.learn(cache, 1, query, mass, &mut unused))
            };
            let slope = (at(0.02) - at(-0.02)) / 0.04;
            let found: f32 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
            assert!(
                (f64::from(found) - slope).abs() < 2e-5 + 0.01 * slope.abs(),
                "{found} is not {slope}"
            );
        }
    }

    #[test]
    fn a_wide_model_has_the_papers_number_of_parameters() {
        let llama = ScorerShape {
            layers: 32,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
        };
        assert_eq!(WIDTH * llama.columns().iter().sum::<usize>(), 327_680);
    }
}
