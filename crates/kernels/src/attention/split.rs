//! Few query rows over many entries: every head is cut into chunks of 256 entries, chunks are computed on their own,
//! and whoever finishes the last chunk of a head merges them in order.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::job::{Job, Line, Scratch, tiles, with_stage};
use super::kernel::{CHUNK_BLOCKS, Chunk, Kernels, MassPart, TILE, Tile};
use crate::cache::{BLOCK_ROWS, KvType};

/// Entries of a chunk.
const CHUNK: usize = CHUNK_BLOCKS * BLOCK_ROWS;
/// From this many columns on, blocks are converted once instead of once per tile.
const STAGE_COLUMNS: usize = 3 * TILE;

/// All tasks of this kind.
pub(super) struct Split<'a> {
    parts: Vec<Part<'a>>,
    items: Vec<(usize, usize)>,
}

/// One KV head of one task, and its places in the scratch memory.
struct Part<'a> {
    job: &'a Job<'a>,
    head: usize,
    entries: usize,
    chunks: usize,
    /// The first chunk that any row sees.
    first_chunk: usize,
    columns: usize,
    /// `[chunk][column][dim]`: unnormalised outputs.
    outputs: usize,
    /// `[column][chunk]`: largest score; the merge replaces it by the chunk's factor.
    maxima: usize,
    /// `[column][chunk]`: sum of 2^(score − maximum).
    sums: usize,
    /// `[chunk][block][column][32]`: 2^(score − maximum); only if the mass is asked for.
    probabilities: usize,
    /// `[column of the window]`: factors of one chunk for the mass.
    factors: usize,
    /// Chunks that are not finished.
    open: AtomicUsize,
}

impl<'a> Split<'a> {
    pub(super) fn new(jobs: &[&'a Job<'a>], numbers: &mut usize) -> Self {
        let mut parts = Vec::new();
        let mut items = Vec::new();
        for &job in jobs.iter().filter(|job| job.rows > 0) {
            for head in 0..job.kv_heads {
                let entries = job.entries(head);
                let chunks = entries.div_ceil(CHUNK);
                let first_chunk = job.hidden(entries, 0) / CHUNK;
                let columns = job.rows * job.group;
                let (probabilities, factors) = if job.mass.is_some() {
                    (chunks * CHUNK * columns, columns)
                } else {
                    (0, 0)
                };
                items.extend((first_chunk..chunks).map(|chunk| (parts.len(), chunk)));
                parts.push(Part {
                    job,
                    head,
                    entries,
                    chunks,
                    first_chunk,
                    columns,
                    outputs: Scratch::plan(numbers, chunks * columns * job.dim),
                    maxima: Scratch::plan(numbers, columns * chunks),
                    sums: Scratch::plan(numbers, columns * chunks),
                    probabilities: Scratch::plan(numbers, probabilities),
                    factors: Scratch::plan(numbers, factors),
                    open: AtomicUsize::new(chunks - first_chunk),
                });
            }
        }
        Self { parts, items }
    }

    pub(super) fn items(&self) -> usize {
        self.items.len()
    }

    /// Computes one chunk, and merges the head if it was the last one.
    ///
    /// # Safety
    /// As for [`Kernels`]; each item runs once.
    pub(super) unsafe fn run(&self, kernels: &Kernels, scratch: &Scratch, item: usize) {
        let (part, chunk) = self.items[item];
        let part = &self.parts[part];
        // SAFETY: passed on; the counter orders every chunk before the merge.
        unsafe {
            part.run_chunk(kernels, scratch, chunk);
            if part.open.fetch_sub(1, Ordering::AcqRel) == 1 {
                part.merge(kernels, scratch);
            }
        }
    }
}

impl Part<'_> {
    unsafe fn run_chunk(&self, kernels: &Kernels, scratch: &Scratch, index: usize) {
        let chunk = self.job.chunk(self.head, index * CHUNK, CHUNK_BLOCKS, self.entries);
        // SAFETY: passed on.
        unsafe {
            if self.columns >= STAGE_COLUMNS && chunk.layout.kv_type != KvType::F32 {
                with_stage(|stage| {
                    let chunk = self.job.stage(kernels, chunk, stage);
                    self.fold_tiles(kernels, scratch, index, &chunk);
                });
            } else {
                self.fold_tiles(kernels, scratch, index, &chunk);
            }
        }
    }

    unsafe fn fold_tiles(&self, kernels: &Kernels, scratch: &Scratch, index: usize, chunk: &Chunk) {
        let job = self.job;
        let first = index * CHUNK;
        let mut local = MaybeUninit::<[Line; CHUNK * TILE / 16]>::uninit();
        for columns in tiles(self.columns) {
            let mut tile = Tile::new();
            let sight = job.sight(chunk, self.entries, first, columns.clone());
            for column in columns.clone() {
                let place = self.outputs + (index * self.columns + column) * job.dim;
                tile.push(job.query(self.head, column), scratch.at(place, job.dim));
            }
            let (probabilities, stride) = if job.mass.is_some() {
                let stride = self.columns * BLOCK_ROWS;
                let place = self.probabilities + index * CHUNK_BLOCKS * stride + columns.start * BLOCK_ROWS;
                (
                    scratch.at(place, (CHUNK_BLOCKS - 1) * stride + columns.len() * BLOCK_ROWS),
                    stride,
                )
            } else {
                (local.as_mut_ptr().cast(), columns.len() * BLOCK_ROWS)
            };
            // SAFETY: passed on; every tile and chunk has its own part of the scratch memory. Columns that see
            // nothing of the chunk keep m = −∞, and their outputs, whatever they are, get no weight in the merge.
            unsafe {
                kernels.fold(chunk, &mut tile, &sight, job.scale, probabilities, stride);
                for (slot, column) in columns.enumerate() {
                    let place = column * self.chunks + index;
                    *scratch.at(self.maxima + place, 1) = tile.maximum[slot];
                    *scratch.at(self.sums + place, 1) = tile.sum[slot];
                }
            }
        }
    }

    /// Combines the chunks in order: `out = Σ_c 2^(m_c − M) o_c / Σ_c 2^(m_c − M) l_c`.
    unsafe fn merge(&self, kernels: &Kernels, scratch: &Scratch) {
        let job = self.job;
        for column in 0..self.columns {
            let place = column * self.chunks;
            // SAFETY: all chunks are finished, nobody else uses these parts; `out` parts belong to this head.
            unsafe {
                let maxima = scratch.at(self.maxima + place, self.chunks);
                let maxima = std::slice::from_raw_parts_mut(maxima, self.chunks);
                let sums = scratch.at(self.sums + place, self.chunks);
                let sums = std::slice::from_raw_parts(sums, self.chunks);
                // The row sees at least its own entry, so the maximum is not −∞; chunks it sees nothing of come first
                // (before its window) and last.
                let is_seen = |maximum: &f32| *maximum != f32::NEG_INFINITY;
                let first = self.first_chunk;
                let first = first + maxima[first..].iter().position(is_seen).unwrap_or(0);
                let used = first..maxima.iter().rposition(is_seen).map_or(first, |last| last + 1);
                let maximum = maxima[used.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut total = 0.0;
                for (factor, sum) in maxima[used.clone()].iter_mut().zip(&sums[first..]) {
                    *factor = (*factor - maximum).exp2();
                    total += *factor * sum;
                }
                maxima[..first].fill(0.0);
                maxima[used.end..].fill(0.0);
                for factor in &mut maxima[used.clone()] {
                    *factor /= total;
                }
                let parts = scratch.at(
                    self.outputs + (first * self.columns + column) * job.dim,
                    ((self.chunks - 1 - first) * self.columns + 1) * job.dim,
                );
                let out = std::slice::from_raw_parts_mut(job.output(self.head, column), job.dim);
                (kernels.merge)(&maxima[used], parts, self.columns * job.dim, out);
            }
        }
        let Some(mass) = &job.mass else {
            return;
        };
        // SAFETY: as above; the mass of a head is written by its merge alone. It is zeroed here and not before the
        // dispatch, so that no other thread has its lines.
        unsafe { mass.heads[self.head].write_bytes(0, self.entries) };
        let first = (job.rows - mass.window) * job.group;
        let columns = self.columns - first;
        let stride = self.columns * BLOCK_ROWS;
        for chunk in 0..self.chunks {
            // SAFETY: as above.
            unsafe {
                let factors = std::slice::from_raw_parts_mut(scratch.at(self.factors, columns), columns);
                for (column, factor) in factors.iter_mut().enumerate() {
                    *factor = *scratch.at(self.maxima + (first + column) * self.chunks + chunk, 1);
                }
                let place = self.probabilities + chunk * CHUNK_BLOCKS * stride;
                (kernels.mass)(&MassPart {
                    probabilities: scratch.at(place + first * BLOCK_ROWS, CHUNK_BLOCKS * stride - first * BLOCK_ROWS),
                    stride,
                    entries: (self.entries - chunk * CHUNK).min(CHUNK),
                    factors,
                    group: job.group,
                    pooling: mass.pooling,
                    out: mass.heads[self.head].add(chunk * CHUNK),
                });
            }
        }
    }
}
