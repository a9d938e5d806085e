//! How much attention would queries yet to come pay to each entry?
//!
//! Expected Attention (Devoto et al., 2025): for a query q ~ N(μ, Σ) the mean of exp(q·k/√d) over all queries is
//! exp(μ·k/√d + kᵀΣk/2d). The quadratic form is the cost: entries × heads × d² multiplications. Its rows times a chunk
//! of keys are scores as attention computes them, and only the triangle below the diagonal is needed:
//!
//! ```text
//!  logit(k) = Σ_j k_j (μ_j/√d + Σ_{i<j} Σ_ji k_i /d + Σ_jj k_j /2d)
//! ```

use super::GroupPooling;
use super::job::{Line, Scratch, chunk_of, numbers, stage, staged_layout, with_stage};
use super::kernel::{CHUNK_BLOCKS, Chunk, Kernels, MassPart, Scores, TILE};
use super::statistics::Gaussian;
use crate::cache::{BLOCK_ROWS, KvCache, KvConfig, Layout};
use crate::isa::{Isa, vectorised};
use crate::threads::{SharedMut, ThreadPool};

/// Entries of a chunk.
const CHUNK: usize = CHUNK_BLOCKS * BLOCK_ROWS;

/// The expected attention of each entry: per KV head one number per row, in row order, the mean over its `heads /
/// kv_heads` query heads of the softmax of the logits over the head's rows. The first `skip` rows (sinks) and masked
/// ones stay out of the softmax and get 0. `queries` are distributed as at the positions of the future, since the stored
/// keys are rotated. Replaces the content of `out`.
///
/// # Panics
/// If the layer does not exist, or the distribution is not one of `heads` heads of the cache's size, a multiple of its
/// KV heads.
pub fn expected_attention(
    pool: &ThreadPool,
    cache: &KvCache,
    layer: usize,
    heads: usize,
    queries: &Gaussian,
    skip: usize,
    out: &mut Vec<Vec<f32>>,
) {
    assert_eq!(heads, queries.heads(), "one distribution per query head");
    expected_attention_with(Isa::detect(), pool, cache, layer, queries, skip, out);
}

/// [`expected_attention`] with a given instruction set, for tests and measurements.
///
/// # Panics
/// As there, and if this machine does not have the set.
#[doc(hidden)]
pub fn expected_attention_with(
    isa: Isa,
    pool: &ThreadPool,
    cache: &KvCache,
    layer: usize,
    queries: &Gaussian,
    skip: usize,
    out: &mut Vec<Vec<f32>>,
) {
    let kernels = Kernels::of(isa);
    let mut total = 0;
    let expected = Expected::new(cache, layer, queries, skip, &mut total);
    let (group, items) = (expected.group, expected.items.len());
    out.resize_with(expected.parts.len(), Vec::new);
    for (out, part) in out.iter_mut().zip(&expected.parts) {
        out.clear();
        out.resize(part.entries, 0.0);
    }
    let out: Vec<SharedMut<f32>> = out.iter_mut().map(|numbers| SharedMut::new(numbers)).collect();
    let mut statistics = vec![Statistics::default(); items * group];
    Scratch::with(total, |scratch| {
        let shared = SharedMut::new(&mut statistics);
        pool.run(items, &|item| {
            // SAFETY: every item has its own statistics and runs once; the set is available.
            unsafe {
                let statistics = shared.part(item * group, group);
                with_stage(|stage| expected.run_chunk(kernels, scratch, item, stage, statistics));
            }
        });
        let factors = expected.factors(&statistics);
        pool.run(items, &|item| {
            // SAFETY: items are different entries; the first pass is over.
            unsafe { expected.pool_chunk(kernels, scratch, item, &factors[item * group..][..group], &out) };
        });
    });
}

/// One call, taken apart.
struct Expected<'a> {
    cache: &'a KvCache,
    layer: usize,
    dim: usize,
    /// Query heads of a KV head.
    group: usize,
    skip: usize,
    /// One per query head.
    logits: Vec<Logit>,
    staged: Layout,
    /// What the tiles of rows of a triangle see of the keys: their first 8, 16, … dimensions.
    triangle: Vec<Layout>,
    parts: Vec<Part>,
    /// Part and chunk.
    items: Vec<(usize, usize)>,
}

/// One KV head.
struct Part {
    entries: usize,
    /// Its items.
    items: std::ops::Range<usize>,
    /// Scratch: `[chunk][block][query head][32]`, 2^(logit − maximum of the chunk).
    probabilities: usize,
}

/// The logit of a query head as a function of the key, in units of log2.
struct Logit {
    linear: Vec<f32>,
    /// `[dim][dim]`, zero right of the diagonal.
    triangle: Vec<f32>,
}

/// The softmax of a query head over one chunk.
#[derive(Clone, Copy, Default)]
struct Statistics {
    maximum: f32,
    sum: f32,
}

impl<'a> Expected<'a> {
    fn new(cache: &'a KvCache, layer: usize, queries: &Gaussian, skip: usize, total: &mut usize) -> Self {
        let config = *cache.pool().config();
        let KvConfig {
            layers,
            kv_heads,
            head_dim: dim,
            ..
        } = config;
        let heads = queries.heads();
        assert!(layer < layers, "layer {layer} of {layers}");
        assert_eq!(queries.dim(), dim, "queries are as long as keys");
        assert!(
            heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} query heads over {kv_heads} KV heads"
        );
        let group = heads / kv_heads;
        let mut items = Vec::new();
        let parts = (0..kv_heads)
            .map(|head| {
                let entries = cache.rows(layer, head);
                let chunks = entries.div_ceil(CHUNK);
                let first = items.len();
                items.extend((0..chunks).map(|chunk| (head, chunk)));
                Part {
                    entries,
                    items: first..items.len(),
                    probabilities: Scratch::plan(total, chunks * CHUNK * group),
                }
            })
            .collect();
        Self {
            cache,
            layer,
            dim,
            group,
            skip,
            logits: (0..heads).map(|head| Logit::new(queries, head)).collect(),
            staged: staged_layout(&config),
            triangle: (TILE..=dim).step_by(TILE).map(Layout::matrix).collect(),
            parts,
            items,
        }
    }

    /// The softmax of the group's query heads over one chunk alone.
    ///
    /// # Safety
    /// As for [`Kernels`]; each item runs once.
    unsafe fn run_chunk(
        &self,
        kernels: &Kernels,
        scratch: &Scratch,
        item: usize,
        memory: &mut Vec<Line>,
        statistics: &mut [Statistics],
    ) {
        let (head, index) = self.items[item];
        let first = index * CHUNK;
        let place = self.parts[head].probabilities + first * self.group;
        let stride = self.group * BLOCK_ROWS;
        // SAFETY: passed on; every item has its own part of the scratch memory.
        unsafe {
            let mut chunk = chunk_of(
                self.cache,
                (self.layer, head),
                first,
                CHUNK_BLOCKS,
                self.parts[head].entries,
            );
            chunk.exclude_below(self.skip.saturating_sub(first));
            let chunk = stage(kernels, &self.staged, chunk, memory);
            let start = scratch.at(place, CHUNK * self.group);
            let blocks = chunk.block_count();
            for (member, statistics) in statistics.iter_mut().enumerate() {
                let start = start.add(member * BLOCK_ROWS);
                self.write_logits(kernels, &chunk, head * self.group + member, start, stride);
                kernels.exclude(&chunk, blocks, 1, start, stride);
                let scores = Scores {
                    start,
                    stride,
                    blocks,
                    visible: chunk.entries,
                    scale: 1.0,
                };
                let (mut maximum, mut sum) = (f32::NEG_INFINITY, 0.0);
                (kernels.softmax)(&scores, &mut maximum, &mut sum);
                *statistics = Statistics { maximum, sum };
            }
        }
    }

    /// The logits of a chunk of converted keys for one query head, 32 numbers per block at `stride` numbers.
    unsafe fn write_logits(&self, kernels: &Kernels, chunk: &Chunk, head: usize, out: *mut f32, stride: usize) {
        let logit = &self.logits[head];
        let blocks = chunk.block_count();
        let mut lines = [Line::ZERO; CHUNK_BLOCKS * TILE * BLOCK_ROWS / 16];
        let scores = numbers(&mut lines);
        let mut logits = [[0.0_f32; BLOCK_ROWS]; CHUNK_BLOCKS];
        for (tile, layout) in self.triangle.iter().enumerate() {
            let first = tile * TILE;
            let rows: [*const f32; TILE] =
                std::array::from_fn(|row| logit.triangle[(first + row) * self.dim..].as_ptr());
            let keys = Chunk {
                layout,
                warm: true,
                ..*chunk
            };
            // SAFETY: the blocks begin with a matrix of at least so many dimensions; the scores have room for a tile of
            // columns per block; `out` is as above.
            unsafe { (kernels.scores)(&keys, &rows, blocks, scores.as_mut_ptr(), TILE * BLOCK_ROWS) };
            let tiles = scores.chunks_exact(TILE * BLOCK_ROWS).zip(&mut logits);
            for (block, (scores, logits)) in tiles.take(blocks).enumerate() {
                // SAFETY: as above, and the set is available.
                unsafe {
                    let keys: *const f32 = chunk.blocks[block].cast();
                    let keys = std::slice::from_raw_parts(keys.add(first * BLOCK_ROWS), TILE * BLOCK_ROWS);
                    add_products(kernels.isa, keys, scores, &logit.linear[first..][..TILE], logits);
                }
            }
        }
        for (block, logits) in logits[..blocks].iter().enumerate() {
            // SAFETY: `out` has 32 numbers for each block.
            unsafe { out.add(block * stride).cast::<[f32; BLOCK_ROWS]>().write(*logits) };
        }
    }

    /// What the probabilities of each chunk and query head are to be multiplied with: `[item][query head]`.
    fn factors(&self, statistics: &[Statistics]) -> Vec<f32> {
        let mut factors = vec![0.0; statistics.len()];
        for part in &self.parts {
            for member in 0..self.group {
                let places = || part.items.clone().map(|item| item * self.group + member);
                let maximum = places().fold(f32::NEG_INFINITY, |most, at| most.max(statistics[at].maximum));
                let mut total = 0.0;
                for at in places() {
                    // A chunk of nothing but rows left out counts for nothing, not for −∞ − −∞.
                    if statistics[at].maximum > f32::NEG_INFINITY || statistics[at].sum.is_nan() {
                        factors[at] = (statistics[at].maximum - maximum).exp2();
                        total += factors[at] * statistics[at].sum;
                    }
                }
                if total != 0.0 {
                    let inverse = 1.0 / (total * self.group as f32);
                    places().for_each(|at| factors[at] *= inverse);
                }
            }
        }
        factors
    }

    /// Adds up the group's probabilities of one chunk.
    ///
    /// # Safety
    /// As for [`Kernels`]; each item runs once, after all of [`Expected::run_chunk`].
    unsafe fn pool_chunk(
        &self,
        kernels: &Kernels,
        scratch: &Scratch,
        item: usize,
        factors: &[f32],
        out: &[SharedMut<f32>],
    ) {
        let (head, index) = self.items[item];
        let part = &self.parts[head];
        let first = index * CHUNK;
        let entries = CHUNK.min(part.entries - first);
        // SAFETY: passed on.
        unsafe {
            (kernels.mass)(&MassPart {
                probabilities: scratch.at(part.probabilities + first * self.group, CHUNK * self.group),
                stride: self.group * BLOCK_ROWS,
                entries,
                factors,
                group: self.group,
                pooling: GroupPooling::Sum,
                out: out[head].part(first, entries).as_mut_ptr(),
            });
        }
    }
}

impl Logit {
    fn new(queries: &Gaussian, head: usize) -> Self {
        let dim = queries.dim();
        let unit = std::f64::consts::LOG2_E;
        let linear = unit / (dim as f64).sqrt();
        let quadratic = unit / dim as f64;
        let mut triangle = vec![0.0; dim * dim];
        for (j, (out, row)) in triangle
            .chunks_exact_mut(dim)
            .zip(queries.covariance(head).chunks_exact(dim))
            .enumerate()
        {
            for (i, (out, &number)) in out[..=j].iter_mut().zip(row).enumerate() {
                let factor = if i == j { quadratic / 2.0 } else { quadratic };
                *out = (f64::from(number) * factor) as f32;
            }
        }
        let mean = queries.mean(head).iter();
        Self {
            linear: mean.map(|&number| (f64::from(number) * linear) as f32).collect(),
            triangle,
        }
    }
}

vectorised! {
    /// Adds `key · (linear + score)` over the dimensions of a tile to the logits of the 32 entries of a block.
    unsafe fn add_products(keys: &[f32], scores: &[f32], linear: &[f32], logits: &mut [f32; BLOCK_ROWS]) {
        let mut sums = *logits;
        for ((keys, scores), linear) in keys.chunks_exact(BLOCK_ROWS).zip(scores.chunks_exact(BLOCK_ROWS)).zip(linear) {
            for ((sum, key), score) in sums.iter_mut().zip(keys).zip(scores) {
                *sum += key * (linear + score);
            }
        }
        *logits = sums;
    }
}
