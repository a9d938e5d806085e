//! Many query rows: tiles of rows are computed like a matrix product against chunks of entries. A chunk is converted
//! to `f32` once per tile of rows and then serves all its columns; the online softmax keeps what each column has
//! summed so far in its place of the output, so nothing of size rows × entries exists.
//!
//! The mass of the last rows takes a second pass over those rows alone, once their maxima and sums are known.

use super::job::{Job, Line, Scratch, tile_of, tiles, with_stage};
use super::kernel::{CHUNK_BLOCKS, Kernels, MassPart, Scores, TILE, Tile};
use crate::cache::BLOCK_ROWS;

/// Blocks of a chunk: a tile's scores stay in the first-level cache, the converted chunk in the second.
pub(super) const BLOCKS: usize = 4;
/// Columns that share a converted chunk, about.
const COLUMNS: usize = 128;
/// Entries of an item of the mass pass.
const MASS_CHUNK: usize = CHUNK_BLOCKS * BLOCK_ROWS;

/// All tasks of this kind.
pub(super) struct Blocked<'a> {
    parts: Vec<Part<'a>>,
    /// Part and first row.
    items: Vec<(usize, usize)>,
    /// Part and first entry.
    mass_items: Vec<(usize, usize)>,
}

/// One KV head of one task.
struct Part<'a> {
    job: &'a Job<'a>,
    head: usize,
    entries: usize,
    /// Rows of a tile.
    tile_rows: usize,
    /// Scratch: `[column of the window][maximum, 1 / sum]`; only if the mass is asked for.
    statistics: usize,
}

impl<'a> Blocked<'a> {
    pub(super) fn new(jobs: &[&'a Job<'a>], numbers: &mut usize) -> Self {
        let mut parts = Vec::new();
        let mut items = Vec::new();
        let mut mass_items = Vec::new();
        for &job in jobs {
            let tile_rows = rows_of_tile(job.group);
            for head in 0..job.kv_heads {
                let entries = job.entries(head);
                let window = job.mass.as_ref().map_or(0, |mass| mass.window);
                items.extend((0..job.rows).step_by(tile_rows).map(|row| (parts.len(), row)));
                if window > 0 {
                    let firsts = (0..entries).step_by(MASS_CHUNK);
                    mass_items.extend(firsts.map(|first| (parts.len(), first)));
                }
                parts.push(Part {
                    job,
                    head,
                    entries,
                    tile_rows,
                    statistics: Scratch::plan(numbers, 2 * window * job.group),
                });
            }
        }
        // The last rows see the most: longest items first. The sort is stable, so the order is fixed.
        items.sort_by_key(|&(part, row)| {
            let part: &Part = &parts[part];
            std::cmp::Reverse(part.job.visible(part.entries, row))
        });
        Self {
            parts,
            items,
            mass_items,
        }
    }

    pub(super) fn items(&self) -> usize {
        self.items.len()
    }

    pub(super) fn mass_items(&self) -> usize {
        self.mass_items.len()
    }

    /// Computes one tile of rows of one head.
    ///
    /// # Safety
    /// As for [`Kernels`]; each item runs once.
    pub(super) unsafe fn run(&self, kernels: &Kernels, scratch: &Scratch, item: usize) {
        let (part, first_row) = self.items[item];
        let part = &self.parts[part];
        // SAFETY: passed on.
        with_stage(|stage| unsafe { part.run_rows(kernels, scratch, first_row, stage) });
    }

    /// Adds up the mass of one run of entries of one head.
    ///
    /// # Safety
    /// As for [`Kernels`]; each item runs once, after all of [`Blocked::run`].
    pub(super) unsafe fn run_mass(&self, kernels: &Kernels, scratch: &Scratch, item: usize) {
        let (part, first) = self.mass_items[item];
        let part = &self.parts[part];
        // SAFETY: passed on.
        with_stage(|stage| unsafe { part.run_mass(kernels, scratch, first, stage) });
    }
}

impl Part<'_> {
    unsafe fn run_rows(&self, kernels: &Kernels, scratch: &Scratch, first_row: usize, stage: &mut Vec<Line>) {
        let job = self.job;
        let rows = self.tile_rows.min(job.rows - first_row);
        let first_column = first_row * job.group;
        let mut row_tiles: Vec<(usize, Tile)> = tiles(rows * job.group)
            .map(|columns| {
                let columns = first_column + columns.start..first_column + columns.end;
                (columns.start, tile_of(job, self.head, columns))
            })
            .collect();
        let end = job.visible(self.entries, first_row + rows - 1);
        let mut probabilities = [Line::ZERO; BLOCKS * BLOCK_ROWS * TILE / 16];
        let start = job.hidden(self.entries, first_row) / BLOCK_ROWS * BLOCK_ROWS;
        for first in (start..end).step_by(BLOCKS * BLOCK_ROWS) {
            // SAFETY: passed on; outputs of different items are different rows or heads.
            unsafe {
                let chunk = job.chunk(self.head, first, BLOCKS, end);
                let chunk = job.stage(kernels, chunk, stage);
                for (start, tile) in &mut row_tiles {
                    let sight = job.sight(&chunk, self.entries, first, *start..*start + tile.columns);
                    let stride = tile.columns * BLOCK_ROWS;
                    let probabilities = probabilities.as_mut_ptr().cast();
                    kernels.fold(&chunk, tile, &sight, job.scale, probabilities, stride);
                }
            }
        }
        let window_start = (job.rows - job.mass.as_ref().map_or(0, |mass| mass.window)) * job.group;
        for (start, tile) in &row_tiles {
            for slot in 0..tile.columns {
                let inverse = 1.0 / tile.sum[slot];
                // SAFETY: this item's outputs and statistics.
                unsafe {
                    let output = std::slice::from_raw_parts_mut(tile.outputs[slot], job.dim);
                    for number in output {
                        *number *= inverse;
                    }
                    if let Some(column) = (start + slot).checked_sub(window_start) {
                        let place = scratch.at(self.statistics + 2 * column, 2);
                        *place = tile.maximum[slot];
                        *place.add(1) = inverse;
                    }
                }
            }
        }
    }

    unsafe fn run_mass(&self, kernels: &Kernels, scratch: &Scratch, first: usize, stage: &mut Vec<Line>) {
        let job = self.job;
        let Some(mass) = &job.mass else { return };
        let window_start = job.rows - mass.window;
        // Whole rows that fill a tile, or one row.
        let rows_at_once = (TILE / job.group).max(1);
        let stride = rows_at_once * job.group * BLOCK_ROWS;
        let mut probabilities = vec![Line::ZERO; CHUNK_BLOCKS * stride / 16];
        let start: *mut f32 = probabilities.as_mut_ptr().cast();
        let mut factors = vec![0.0; rows_at_once * job.group];
        // SAFETY: passed on; the mass of these entries is this item's alone.
        unsafe {
            let chunk = job.chunk(self.head, first, CHUNK_BLOCKS, self.entries);
            let chunk = job.stage(kernels, chunk, stage);
            for first_row in (window_start..job.rows).step_by(rows_at_once) {
                let rows = rows_at_once.min(job.rows - first_row);
                let columns = rows * job.group;
                let visible = |row: usize| job.visible(self.entries, row).saturating_sub(first).min(chunk.entries);
                let seen = visible(first_row + rows - 1);
                let blocks = seen.div_ceil(BLOCK_ROWS);
                for part in tiles(columns) {
                    let mut queries = [std::ptr::null(); TILE];
                    for (query, column) in queries.iter_mut().zip(part.clone()) {
                        *query = job.query(self.head, first_row * job.group + column);
                    }
                    let out = start.add(part.start * BLOCK_ROWS);
                    (kernels.scores)(&chunk, &queries[..part.len()], blocks, out, stride);
                }
                kernels.exclude(&chunk, blocks, columns, start, stride);
                for (column, factor) in factors[..columns].iter_mut().enumerate() {
                    let place = 2 * ((first_row - window_start) * job.group + column);
                    let statistics = scratch.at(self.statistics + place, 2);
                    // The maximum over all chunks stays the maximum: the same scores were computed before.
                    let (mut maximum, mut sum) = (*statistics, 0.0);
                    *factor = *statistics.add(1);
                    let scores = Scores {
                        start: start.add(column * BLOCK_ROWS),
                        stride,
                        blocks,
                        visible: visible(first_row + column / job.group),
                        scale: job.scale,
                    };
                    (kernels.softmax)(&scores, &mut maximum, &mut sum);
                }
                (kernels.mass)(&MassPart {
                    probabilities: start,
                    stride,
                    entries: seen,
                    factors: &factors[..columns],
                    group: job.group,
                    pooling: mass.pooling,
                    out: mass.heads[self.head].add(first),
                });
            }
        }
    }
}

/// Rows whose columns share a converted chunk, for a query group of this size.
pub(super) fn rows_of_tile(group: usize) -> usize {
    let fitting = (COLUMNS / group).max(1);
    if fitting > TILE { fitting / TILE * TILE } else { fitting }
}
