//! How is attention computed over cached blocks?
//!
//! Causal softmax attention of new queries over a ragged [`KvCache`], for several sequences in one call. Query heads
//! that share a KV head (GQA) share every pass over its keys and values. On request the softmax mass that each cached
//! row receives comes along: the same probabilities, added up.
//!
//! Few query rows (decoding) are split along the entries, many rows (prefill) along the rows. Both splits have fixed
//! sizes, so results depend neither on the number of threads nor on the other sequences of the call.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocked;
mod expected;
mod job;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod reconstruct;
mod scalar;
mod split;
mod statistics;

use crate::cache::KvCache;
use crate::isa::Isa;
use crate::threads::ThreadPool;

pub use expected::{expected_attention, expected_attention_with};
pub use reconstruct::{Reconstruction, Subset, reconstruct, reconstruct_with};
pub use statistics::{Gaussian, QueryStatistics};

use blocked::Blocked;
use job::{Job, Scratch};
use kernel::Kernels;
use split::Split;

/// Tasks with at most this many rows are split along the entries.
const SPLIT_ROWS: usize = 16;

/// How the query heads of a KV head become one number per entry, after the softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum GroupPooling {
    /// Their sum.
    #[default]
    Sum,
    /// The largest.
    Max,
}

/// Softmax mass that the cached rows of one layer received. Reuse it from layer to layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mass {
    /// Per KV head one number per row, in row order: the sum over the window's queries of the pooled probabilities.
    pub heads: Vec<Vec<f32>>,
}

/// The newest rows of one sequence, to attend over everything in its cache.
pub struct AttentionTask<'a> {
    /// The cache; the keys and values of the `rows` queries are already its newest rows.
    pub cache: &'a KvCache,
    /// The layer.
    pub layer: usize,
    /// `[rows][heads][head_dim]`, rotated.
    pub queries: &'a [f32],
    /// Number of query rows; row `i` sees all entries but the last `rows - 1 - i`.
    pub rows: usize,
    /// How many of those entries a row sees at most, the newest ones; `None` for all (sliding-window layers).
    pub window: Option<usize>,
    /// `[rows][heads][head_dim]`, overwritten.
    pub out: &'a mut [f32],
    /// Where to put the mass, how to pool it, and over how many of the last queries to sum it (at most all).
    pub mass: Option<(&'a mut Mass, GroupPooling, usize)>,
}

/// Computes attention for all tasks. `heads` is the number of query heads, a multiple of the KV heads; `scale`
/// multiplies the dot products (usually `1 / sqrt(head_dim)`). Masked rows ([`KvCache::mask`]) get probability 0.
///
/// # Panics
/// If a slice does not have its shape, the layer does not exist, a head holds fewer rows than there are queries, a row of
/// the queries themselves is masked, a window is empty or comes with a request for mass, or the scale is not positive.
pub fn attend(pool: &ThreadPool, heads: usize, scale: f32, tasks: &mut [AttentionTask]) {
    attend_with(Isa::detect(), pool, heads, scale, tasks);
}

/// [`attend`] with a given instruction set, for tests and measurements.
///
/// # Panics
/// As [`attend`], and if this machine does not have the set.
#[doc(hidden)]
pub fn attend_with(isa: Isa, pool: &ThreadPool, heads: usize, scale: f32, tasks: &mut [AttentionTask]) {
    let kernels = Kernels::of(isa);
    assert!(scale > 0.0, "a positive scale, not {scale}");
    let scale = scale * std::f32::consts::LOG2_E;
    let jobs: Vec<Job> = tasks.iter_mut().map(|task| Job::new(task, heads, scale)).collect();
    let (few, many): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(|job| job.rows <= SPLIT_ROWS);

    let mut numbers = 0;
    let split = Split::new(&few, &mut numbers);
    let blocked = Blocked::new(&many, &mut numbers);
    Scratch::with(numbers, |scratch| {
        // Long items first: rows near the end of a prefill see the most.
        let long = blocked.items();
        pool.run(long + split.items(), &|item| {
            // SAFETY: `Kernels::of` was given an available set, and each item runs once.
            unsafe {
                if item < long {
                    blocked.run(kernels, scratch, item);
                } else {
                    split.run(kernels, scratch, item - long);
                }
            }
        });
        pool.run(blocked.mass_items(), &|item| {
            // SAFETY: as above; the main pass is over.
            unsafe { blocked.run_mass(kernels, scratch, item) }
        });
    });
}
