//! What an instruction set has to provide, and the step that all of attention is made of.
//!
//! Attention runs over *chunks* of up to 8 cache blocks and *tiles* of up to 8 query columns; a column is one query
//! head of one query row, and all columns of a tile read the same KV head. [`Kernels::fold`] adds one chunk to one
//! tile by the online softmax: with m the largest score so far, l the sum of 2^(score − m) and o the weighted sum of
//! values, a chunk that raises m first rescales l and o. Scores are in units of log2, so that only 2^x is needed.
//!
//! Scores and probabilities of a chunk lie as
//!
//! ```text
//!  block 0: [column 0: 32 entries][column 1: 32 entries] …    block 1: … at `stride` numbers from block 0
//! ```

use super::GroupPooling;
use crate::cache::{BLOCK_ROWS, Layout};
use crate::isa::{Isa, vectorised};

/// Most columns of a tile.
pub(super) const TILE: usize = 8;
/// Most blocks of a chunk.
pub(super) const CHUNK_BLOCKS: usize = 8;

/// A run of consecutive blocks of one head.
pub(super) struct Chunk<'a> {
    pub(super) layout: &'a Layout,
    /// Addresses of the blocks; the first `entries.div_ceil(32)` are valid.
    pub(super) blocks: [*const u8; CHUNK_BLOCKS],
    /// Entries held in them.
    pub(super) entries: usize,
    /// Converted just now, so that prefetching is not worth while.
    pub(super) warm: bool,
    /// Entries that stay out of every softmax: bit `i` of a word is entry `i` of that block.
    pub(super) excluded: [u32; CHUNK_BLOCKS],
}

impl<'a> Chunk<'a> {
    /// A chunk of so many entries; its blocks are to be filled in.
    pub(super) fn new(layout: &'a Layout, entries: usize) -> Self {
        Self {
            layout,
            blocks: [std::ptr::null(); CHUNK_BLOCKS],
            entries,
            warm: false,
            excluded: [0; CHUNK_BLOCKS],
        }
    }

    /// Leaves out the first so many entries.
    pub(super) fn exclude_below(&mut self, entries: usize) {
        for (word, first) in self.excluded.iter_mut().zip((0..).step_by(BLOCK_ROWS)) {
            *word |= first_bits(entries.saturating_sub(first));
        }
    }

    pub(super) fn block_count(&self) -> usize {
        self.entries.div_ceil(BLOCK_ROWS)
    }
}

/// Query columns on their way through the chunks.
pub(super) struct Tile {
    pub(super) columns: usize,
    /// `dim` numbers each.
    pub(super) queries: [*const f32; TILE],
    /// `dim` numbers each; need no initial value, as the first chunk rescales by zero.
    pub(super) outputs: [*mut f32; TILE],
    pub(super) maximum: [f32; TILE],
    pub(super) sum: [f32; TILE],
}

impl Tile {
    pub(super) fn new() -> Self {
        Self {
            columns: 0,
            queries: [std::ptr::null(); TILE],
            outputs: [std::ptr::null_mut(); TILE],
            maximum: [f32::NEG_INFINITY; TILE],
            sum: [0.0; TILE],
        }
    }

    pub(super) fn push(&mut self, query: *const f32, output: *mut f32) {
        self.queries[self.columns] = query;
        self.outputs[self.columns] = output;
        self.columns += 1;
    }
}

/// The entries of a chunk that each column of a tile sees: from `start` to before `end`.
#[derive(Clone, Copy, Default)]
pub(super) struct Sight {
    pub(super) start: [usize; TILE],
    /// 0 for a column that sees nothing.
    pub(super) end: [usize; TILE],
}

/// Where the softmax of one column lies.
pub(super) struct Scores {
    /// Entry 0 of block 0 of the column.
    pub(super) start: *mut f32,
    /// Numbers from one block to the next.
    pub(super) stride: usize,
    pub(super) blocks: usize,
    /// Entries that the column may see; the others get probability 0.
    pub(super) visible: usize,
    /// Factor of the raw scores.
    pub(super) scale: f32,
}

/// Probabilities of a chunk to be summed into the mass of a KV head.
pub(super) struct MassPart<'a> {
    /// Entry 0 of block 0 of the first column.
    pub(super) probabilities: *const f32,
    pub(super) stride: usize,
    pub(super) entries: usize,
    /// One per column: whole rows of `group` columns.
    pub(super) factors: &'a [f32],
    pub(super) group: usize,
    pub(super) pooling: GroupPooling,
    /// `entries` numbers to add to.
    pub(super) out: *mut f32,
}

/// The inner loops of one instruction set.
///
/// All of them require that the machine has the set, that the chunk's blocks are valid for its layout, and that every
/// pointer leads to as many numbers as its documentation says.
pub(super) struct Kernels {
    /// The set.
    pub(super) isa: Isa,
    /// Raw dot products of all entries of so many blocks with the queries, to an address with a stride.
    pub(super) scores: unsafe fn(&Chunk, &[*const f32], usize, *mut f32, usize),
    /// Scores to 2^(scale·score − m); updates m and l and returns the factor for what was summed before.
    pub(super) softmax: unsafe fn(&Scores, &mut f32, &mut f32) -> f32,
    /// `output = output · factor + Σ probability · value` over the first so many entries, per column.
    pub(super) weigh: unsafe fn(&Chunk, usize, *const f32, usize, &[f32], &[*mut f32]),
    /// Converts a block to the `f32` layout.
    pub(super) stage: unsafe fn(&Layout, *const u8, *mut f32),
    /// `out = Σ factor · part` over parts of `dim` numbers that lie `stride` numbers apart.
    pub(super) merge: unsafe fn(&[f32], *const f32, usize, &mut [f32]),
    /// Pools the probabilities of each row over its query group and adds the rows to the mass.
    pub(super) mass: unsafe fn(&MassPart),
}

impl Kernels {
    /// The kernels of a set, which this machine must have.
    pub(super) fn of(isa: Isa) -> &'static Self {
        assert!(isa == Isa::detect() || isa.is_available(), "{isa} is not available");
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &super::avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &super::avx2::KERNELS,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &super::neon::KERNELS,
            _ => &super::scalar::KERNELS,
        }
    }

    /// Adds a chunk to a tile. `sight` says which of its entries each column may see; `probabilities` receives
    /// 2^(score − m) with the m of this moment, for all entries of the chunk.
    ///
    /// # Safety
    /// As for [`Kernels`]; `probabilities` has `stride` numbers per block of the chunk, at least 32 per column.
    pub(super) unsafe fn fold(
        &self,
        chunk: &Chunk,
        tile: &mut Tile,
        sight: &Sight,
        scale: f32,
        probabilities: *mut f32,
        stride: usize,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            let (seen, factors) = self.soften(chunk, tile, sight, scale, probabilities, stride);
            if seen > 0 {
                let columns = tile.columns;
                let (factors, outputs) = (&factors[..columns], &tile.outputs[..columns]);
                (self.weigh)(chunk, seen, probabilities, stride, factors, outputs);
            }
        }
    }

    /// The first half of [`Kernels::fold`]: everything but the values. Returns how many entries any column sees and the
    /// factors for what the columns have summed before.
    ///
    /// # Safety
    /// As there; the tile needs no outputs.
    pub(super) unsafe fn soften(
        &self,
        chunk: &Chunk,
        tile: &mut Tile,
        sight: &Sight,
        scale: f32,
        probabilities: *mut f32,
        stride: usize,
    ) -> (usize, [f32; TILE]) {
        let columns = tile.columns;
        let seen = sight.end[..columns].iter().copied().max().unwrap_or(0);
        let blocks = seen.div_ceil(BLOCK_ROWS);
        let mut factors = [1.0; TILE];
        // SAFETY: passed on from the caller.
        unsafe {
            for block in blocks..chunk.block_count() {
                probabilities.add(block * stride).write_bytes(0, columns * BLOCK_ROWS);
            }
            if seen == 0 {
                return (seen, factors);
            }
            (self.scores)(chunk, &tile.queries[..columns], blocks, probabilities, stride);
            self.exclude(chunk, blocks, columns, probabilities, stride);
            for (column, factor) in factors[..columns].iter_mut().enumerate() {
                self.exclude_before(sight.start[column], probabilities.add(column * BLOCK_ROWS), stride);
                let scores = Scores {
                    start: probabilities.add(column * BLOCK_ROWS),
                    stride,
                    blocks,
                    visible: sight.end[column],
                    scale,
                };
                *factor = (self.softmax)(&scores, &mut tile.maximum[column], &mut tile.sum[column]);
            }
        }
        (seen, factors)
    }

    /// The scores of the first so many entries of one column become −∞.
    ///
    /// # Safety
    /// As for [`Kernels`]; `scores` is the column's place in block 0 of a chunk that has the entries.
    unsafe fn exclude_before(&self, entries: usize, scores: *mut f32, stride: usize) {
        for block in 0..entries.div_ceil(BLOCK_ROWS) {
            // SAFETY: by the caller.
            unsafe {
                let line = std::slice::from_raw_parts_mut(scores.add(block * stride), BLOCK_ROWS);
                exclude(self.isa, first_bits(entries - block * BLOCK_ROWS), line);
            }
        }
    }

    /// The scores of a chunk's excluded entries in the first so many blocks and columns become −∞.
    ///
    /// # Safety
    /// As for [`Kernels`]; `scores` has `stride` numbers per block, at least 32 per column.
    pub(super) unsafe fn exclude(&self, chunk: &Chunk, blocks: usize, columns: usize, scores: *mut f32, stride: usize) {
        for (block, &entries) in chunk.excluded[..blocks].iter().enumerate() {
            if entries != 0 {
                // SAFETY: by the caller.
                unsafe {
                    let lines = std::slice::from_raw_parts_mut(scores.add(block * stride), columns * BLOCK_ROWS);
                    exclude(self.isa, entries, lines);
                }
            }
        }
    }
}

/// A word whose first so many bits are set.
pub(super) fn first_bits(count: usize) -> u32 {
    u32::MAX.checked_shr(32 - count.min(32) as u32).unwrap_or(0)
}

vectorised! {
    /// The scores of the entries whose bits are set become −∞, in every column of a block.
    unsafe fn exclude(entries: u32, columns: &mut [f32]) {
        let bits: [u32; BLOCK_ROWS] = std::array::from_fn(|entry| entries & (1 << entry));
        for column in columns.chunks_exact_mut(BLOCK_ROWS) {
            for (score, bit) in column.iter_mut().zip(bits) {
                *score = if bit == 0 { *score } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Coefficients of f, f², … in 2^f − 1 for f in [−½, ½]: the polynomial through the Chebyshev nodes, relative error
/// 1e-8 before rounding. Without a constant term to fit, 2^0 is exactly 1.
pub(super) const EXP2: [f32; 6] = [
    std::f32::consts::LN_2,
    2.402_265e-1,
    5.550_357e-2,
    9.618_083e-3,
    1.339_086_3e-3,
    1.545_316_3e-4,
];

/// Portable body of [`Kernels::merge`], compiled once per instruction set.
#[expect(clippy::inline_always, reason = "it must take on the instruction set of its caller")]
#[inline(always)]
pub(super) unsafe fn merge_body(factors: &[f32], parts: *const f32, stride: usize, out: &mut [f32]) {
    for (tile, out) in out.chunks_exact_mut(16).enumerate() {
        let mut sums = [0.0_f32; 16];
        for (part, &factor) in factors.iter().enumerate() {
            // SAFETY: the caller's parts have as many numbers as `out`.
            let numbers = unsafe { &*parts.add(part * stride + tile * 16).cast::<[f32; 16]>() };
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum += factor * number;
            }
        }
        out.copy_from_slice(&sums);
    }
}
