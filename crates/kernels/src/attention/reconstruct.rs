//! Which entries does the model look at when it writes its context once more?
//!
//! The scores of `KVzip` (Kim et al., 2025): the context is repeated behind itself, a part at a time, and an entry counts
//! as much as the largest probability that any query of the repetition gives it. Nothing is weighed, so a first pass
//! finds maximum and sum of every query, and a second one, over the scored part alone, needs no more powers than there
//! are entries: the largest 2^(score − m)/l is the power of the largest score − m − log2 l.

use std::ops::Range;

use super::blocked::{BLOCKS, rows_of_tile};
use super::job::{Line, numbers, stage, staged_layout, tiles, with_stage};
use super::kernel::{CHUNK_BLOCKS, Chunk, Kernels, Sight, TILE, Tile, first_bits};
use crate::cache::{BLOCK_ROWS, KvCache, KvConfig, Layout};
use crate::isa::{Isa, vectorised};
use crate::threads::{SharedMut, ThreadPool};

/// Entries of an item of the second pass.
const CHUNK: usize = CHUNK_BLOCKS * BLOCK_ROWS;

/// The entries of a cache that a repetition attends to: `[0, sinks)`, `[start, end)`, and of the repetition itself, from
/// row `context` on, what is not later than the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subset {
    /// First entries that are seen whichever part is repeated, at most `start`: what exceeds it is ignored.
    pub sinks: usize,
    /// First entry of the part that is repeated and scored.
    pub start: usize,
    /// Where it ends, at most `context`.
    pub end: usize,
    /// Rows held before the repetition began.
    pub context: usize,
}

/// The newest rows of a repetition.
pub struct Reconstruction<'a> {
    /// The cache; the keys and values of the `rows` queries are already its newest rows.
    pub cache: &'a KvCache,
    /// The layer.
    pub layer: usize,
    /// `[rows][heads][head_dim]`, rotated.
    pub queries: &'a [f32],
    /// Number of query rows; row `i` sees nothing of the last `rows - 1 - i` entries.
    pub rows: usize,
    /// What they see.
    pub subset: Subset,
    /// Per KV head `end - start` numbers, raised to the largest probability that the rows and the head's query group
    /// give each entry (0 for a masked one): begin with zeros and pass a long repetition in several calls.
    pub out: &'a mut [Vec<f32>],
}

/// Raises the scores of a repeated part by what some rows of the repetition attend to. `heads` is the number of query
/// heads, a multiple of the KV heads; `scale` multiplies the dot products (usually `1 / sqrt(head_dim)`).
///
/// # Panics
/// If a slice does not have its shape, the layer does not exist, the subset is out of order, a head holds fewer rows than
/// the context and the queries, a row of the queries themselves is masked, or the scale is not positive.
pub fn reconstruct(pool: &ThreadPool, heads: usize, scale: f32, task: &mut Reconstruction) {
    reconstruct_with(Isa::detect(), pool, heads, scale, task);
}

/// [`reconstruct`] with a given instruction set, for tests and measurements.
///
/// # Panics
/// As [`reconstruct`], and if this machine does not have the set.
#[doc(hidden)]
pub fn reconstruct_with(isa: Isa, pool: &ThreadPool, heads: usize, scale: f32, task: &mut Reconstruction) {
    let kernels = Kernels::of(isa);
    assert!(scale > 0.0, "a positive scale, not {scale}");
    let job = Job::new(task, heads, scale * std::f32::consts::LOG2_E);
    let Subset { start, end, .. } = task.subset;
    let columns = job.rows * job.group;

    // `[KV head][row][query head]`: log2 of the sum of 2^score.
    let mut totals = vec![0.0_f32; job.parts.len() * columns];
    let tile_rows = rows_of_tile(job.group);
    let row_tiles = job.rows.div_ceil(tile_rows);
    let shared = SharedMut::new(&mut totals);
    pool.run(job.parts.len() * row_tiles, &|item| {
        let (head, first) = (item / row_tiles, item % row_tiles * tile_rows);
        let columns_of_item = first * job.group..(first + tile_rows).min(job.rows) * job.group;
        // SAFETY: every item has its own columns; the set is available.
        unsafe {
            let totals = shared.part(head * columns + columns_of_item.start, columns_of_item.len());
            with_stage(|stage| job.write_totals(kernels, head, columns_of_item, stage, totals));
        }
    });

    let blocks = if start < end {
        end.div_ceil(BLOCK_ROWS) - start / BLOCK_ROWS
    } else {
        0
    };
    let chunks = blocks.div_ceil(CHUNK_BLOCKS);
    let out: Vec<SharedMut<f32>> = task.out.iter_mut().map(|numbers| SharedMut::new(numbers)).collect();
    pool.run(job.parts.len() * chunks, &|item| {
        let (head, chunk) = (item / chunks, item % chunks);
        let first = (start / BLOCK_ROWS + chunk * CHUNK_BLOCKS) * BLOCK_ROWS;
        let scored = first.max(start)..(first + CHUNK).min(end);
        // SAFETY: every item has its own entries; the set is available.
        unsafe {
            let out = out[head].part(scored.start - start, scored.len());
            let totals = &totals[head * columns..][..columns];
            with_stage(|stage| job.raise(kernels, head, totals, scored, stage, out));
        }
    });
}

/// One task, checked.
struct Job<'a> {
    cache: &'a KvCache,
    layer: usize,
    queries: &'a [f32],
    rows: usize,
    heads: usize,
    /// Query heads of a KV head.
    group: usize,
    dim: usize,
    /// In units of log2.
    scale: f32,
    staged: Layout,
    parts: Vec<Part>,
}

/// One KV head.
struct Part {
    held: usize,
    /// The blocks with entries of the subset, and which of their entries are not in it.
    blocks: Vec<(usize, u32)>,
}

impl<'a> Job<'a> {
    fn new(task: &Reconstruction<'a>, heads: usize, scale: f32) -> Self {
        let config = *task.cache.pool().config();
        let KvConfig {
            layers,
            kv_heads,
            head_dim: dim,
            ..
        } = config;
        let Subset {
            start, end, context, ..
        } = task.subset;
        assert!(
            heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} query heads over {kv_heads} KV heads"
        );
        assert!(task.layer < layers, "layer {} of {layers}", task.layer);
        assert_eq!(
            task.queries.len(),
            task.rows * heads * dim,
            "queries are [rows][heads][head_dim]"
        );
        assert!(
            start <= end && end <= context,
            "start <= end <= context: {:?}",
            task.subset
        );
        assert_eq!(task.out.len(), kv_heads, "out has one part per KV head");
        assert!(
            task.out.iter().all(|numbers| numbers.len() == end - start),
            "out has end - start numbers per KV head"
        );
        let parts = (0..kv_heads).map(|head| Part::new(task, head)).collect();
        Self {
            cache: task.cache,
            layer: task.layer,
            queries: task.queries,
            rows: task.rows,
            heads,
            group: heads / kv_heads,
            dim,
            scale,
            staged: staged_layout(&config),
            parts,
        }
    }

    /// Log2 of the sum of 2^score for some columns of a head; columns count `[row][query head]`.
    ///
    /// # Safety
    /// As for [`Kernels`].
    unsafe fn write_totals(
        &self,
        kernels: &Kernels,
        head: usize,
        columns: Range<usize>,
        memory: &mut Vec<Line>,
        totals: &mut [f32],
    ) {
        let part = &self.parts[head];
        let mut row_tiles: Vec<(usize, Tile)> = tiles(columns.len())
            .map(|tile_columns| {
                let mut tile = Tile::new();
                for column in tile_columns.clone() {
                    tile.push(self.query(head, columns.start + column), std::ptr::null_mut());
                }
                (tile_columns.start, tile)
            })
            .collect();
        let visible = |column: usize| part.held - (self.rows - 1 - column / self.group);
        let end = visible(columns.end - 1);
        let used = part.blocks.partition_point(|&(block, _)| block * BLOCK_ROWS < end);
        let mut probabilities = [Line::ZERO; BLOCKS * BLOCK_ROWS * TILE / 16];
        for blocks in part.blocks[..used].chunks(BLOCKS) {
            // SAFETY: passed on; the probabilities have room for a tile.
            unsafe {
                let chunk = self.chunk(head, blocks);
                let chunk = stage(kernels, &self.staged, chunk, memory);
                for (start, tile) in &mut row_tiles {
                    let mut sight = Sight::default();
                    for (slot, seen) in sight.end[..tile.columns].iter_mut().enumerate() {
                        let end = visible(columns.start + *start + slot);
                        *seen = blocks.iter().map(|&(block, _)| rows_below(end, block)).sum();
                    }
                    let stride = tile.columns * BLOCK_ROWS;
                    let probabilities = numbers(&mut probabilities).as_mut_ptr();
                    kernels.soften(&chunk, tile, &sight, self.scale, probabilities, stride);
                }
            }
        }
        for (start, tile) in &row_tiles {
            for slot in 0..tile.columns {
                totals[start + slot] = tile.maximum[slot] + tile.sum[slot].log2();
            }
        }
    }

    /// Raises the numbers of some entries to the largest probability that any column gives them.
    ///
    /// # Safety
    /// As for [`Kernels`].
    unsafe fn raise(
        &self,
        kernels: &Kernels,
        head: usize,
        totals: &[f32],
        scored: Range<usize>,
        memory: &mut Vec<Line>,
        out: &mut [f32],
    ) {
        let first_block = scored.start / BLOCK_ROWS;
        let blocks: Vec<(usize, u32)> = (first_block..scored.end.div_ceil(BLOCK_ROWS))
            .map(|block| (block, 0))
            .collect();
        // The comparisons below would lose a NaN.
        let lowest = if totals.iter().any(|total| total.is_nan()) {
            f32::NAN
        } else {
            f32::NEG_INFINITY
        };
        let mut largest = [[lowest; BLOCK_ROWS]; CHUNK_BLOCKS];
        let mut lines = [Line::ZERO; CHUNK * TILE / 16];
        let scores = numbers(&mut lines);
        // SAFETY: passed on; the scores have room for a tile.
        unsafe {
            let chunk = self.chunk(head, &blocks);
            let chunk = stage(kernels, &self.staged, chunk, memory);
            for columns in tiles(totals.len()) {
                let mut queries = [std::ptr::null(); TILE];
                for (query, column) in queries.iter_mut().zip(columns.clone()) {
                    *query = self.query(head, column);
                }
                let stride = columns.len() * BLOCK_ROWS;
                (kernels.scores)(
                    &chunk,
                    &queries[..columns.len()],
                    blocks.len(),
                    scores.as_mut_ptr(),
                    stride,
                );
                kernels.exclude(&chunk, blocks.len(), columns.len(), scores.as_mut_ptr(), stride);
                for (scores, largest) in scores.chunks_exact(stride).zip(&mut largest[..blocks.len()]) {
                    keep_largest(kernels.isa, scores, self.scale, &totals[columns.clone()], largest);
                }
            }
        }
        let largest = largest.as_flattened().iter().skip(scored.start % BLOCK_ROWS);
        for (out, &exponent) in out.iter_mut().zip(largest) {
            // Rounding must not make more than certainty of it.
            let probability = if exponent > 0.0 { 1.0 } else { exponent.exp2() };
            if probability > *out || probability.is_nan() {
                *out = probability;
            }
        }
    }

    /// The blocks of a head with these indices, in ascending order.
    fn chunk(&self, head: usize, blocks: &[(usize, u32)]) -> Chunk<'_> {
        let held = self.parts[head].held;
        let entries = blocks.iter().map(|&(block, _)| rows_below(held, block)).sum();
        let mut chunk = Chunk::new(self.cache.pool().layout(), entries);
        let table = self.cache.head(self.layer, head);
        for (slot, &(block, excluded)) in blocks.iter().enumerate() {
            chunk.blocks[slot] = table.blocks()[block].bytes().as_ptr();
            chunk.excluded[slot] = excluded | table.mask().words().get(block).copied().unwrap_or(0);
        }
        chunk
    }

    fn query(&self, head: usize, column: usize) -> *const f32 {
        let (row, query) = (column / self.group, column % self.group);
        self.queries[(row * self.heads + head * self.group + query) * self.dim..][..self.dim].as_ptr()
    }
}

impl Part {
    fn new(task: &Reconstruction, head: usize) -> Self {
        let Subset {
            sinks,
            start,
            end,
            context,
        } = task.subset;
        let held = task.cache.head(task.layer, head).rows();
        assert!(
            held >= context + task.rows,
            "{} queries after a context of {context} over {held} cached rows",
            task.rows
        );
        let own = task.cache.head(task.layer, head).mask().reaches(held - task.rows);
        assert!(!own, "the rows of the queries themselves are not masked");
        let ranges = [0..sinks.min(start), start..end, context..held];
        let blocks = (0..held.div_ceil(BLOCK_ROWS)).filter_map(|block| {
            let bits = |row: usize| first_bits(row.saturating_sub(block * BLOCK_ROWS));
            let seen = ranges
                .iter()
                .fold(0, |seen, range| seen | bits(range.end) & !bits(range.start));
            (seen != 0).then_some((block, !seen))
        });
        Self {
            held,
            blocks: blocks.collect(),
        }
    }
}

/// How many rows of a block are below row `end`.
fn rows_below(end: usize, block: usize) -> usize {
    end.saturating_sub(block * BLOCK_ROWS).min(BLOCK_ROWS)
}

vectorised! {
    /// `largest = max(largest, scale · score − total)` over the columns of a block.
    unsafe fn keep_largest(scores: &[f32], scale: f32, totals: &[f32], largest: &mut [f32; BLOCK_ROWS]) {
        let mut most = *largest;
        for (column, total) in scores.chunks_exact(BLOCK_ROWS).zip(totals) {
            for (most, score) in most.iter_mut().zip(column) {
                let exponent = score * scale - total;
                *most = if exponent > *most { exponent } else { *most };
            }
        }
        *largest = most;
    }
}
