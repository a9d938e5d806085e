//! The input of linear layers: rows quantised to 8-bit integers, 32 values at a time.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::layout::BLOCK;
use crate::isa::Isa;
use crate::threads::{SharedMut, ThreadPool};

/// Rows of a tile when there are several.
pub(super) const TILE: usize = 4;

/// 1.5 * 2^23: adding it rounds to the nearest integer, ties to even, and leaves that integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// 32 inputs of `R` rows. A value is `scale * quant`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct TileBlock<const R: usize> {
    /// `[quad][row][input of the quad]`
    pub(super) quads: [[[i8; 4]; R]; 8],
    pub(super) scale: [f32; R],
    /// `scale` times the sum of the quants, to be multiplied by the minimum of a weight.
    pub(super) scaled_sum: [f32; R],
    /// Minus the sum of quants 0..16 and 16..32, to be multiplied by the offset of a weight.
    pub(super) negative_sums: [[i32; R]; 2],
}

impl<const R: usize> TileBlock<R> {
    const ZERO: Self = Self {
        quads: [[[0; 4]; R]; 8],
        scale: [0.0; R],
        scaled_sum: [0.0; R],
        negative_sums: [[0; R]; 2],
    };
}

/// Input rows ready for [`matmul`](super::matmul()), reused from call to call.
///
/// Each run of 32 values is stored as integers in -127..=127 with the scale `largest magnitude / 127`, rounded to
/// nearest, ties to even; a run with an infinity or NaN becomes NaN as a whole. Rows are padded with zeros to whole
/// blocks and tiles. The quantised numbers do not depend on the machine.
#[derive(Default)]
pub struct Activations {
    rows: usize,
    columns: usize,
    /// `[block]` if there is one row.
    single: Vec<TileBlock<1>>,
    /// `[tile][block]` otherwise.
    tiles: Vec<TileBlock<TILE>>,
    /// `[row][column]` as given, for float weights; empty if not asked for.
    floats: Vec<f32>,
}

impl Activations {
    /// No rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Quantises `x`, `[rows][columns]`, and keeps the floats for weights that need them.
    ///
    /// # Panics
    /// If `x` does not hold `rows * columns` values.
    pub fn set(&mut self, pool: &ThreadPool, x: &[f32], rows: usize, columns: usize) {
        self.set_quantised(pool, x, rows, columns);
        self.floats.extend_from_slice(x);
    }

    /// Like [`set`](Self::set) without the floats: for weights that do not
    /// [need them](super::Linear::needs_floats), saving a copy.
    ///
    /// # Panics
    /// If `x` does not hold `rows * columns` values.
    pub fn set_quantised(&mut self, pool: &ThreadPool, x: &[f32], rows: usize, columns: usize) {
        assert_eq!(Some(x.len()), rows.checked_mul(columns), "one value per row and column");
        self.rows = rows;
        self.columns = columns;
        self.floats.clear();
        let blocks = columns.div_ceil(BLOCK);
        if rows == 1 {
            self.single.resize(blocks, TileBlock::ZERO);
            quantise_row(Isa::detect(), x, &mut self.single);
            return;
        }
        let tiles = rows.div_ceil(TILE);
        self.tiles.resize(tiles * blocks, TileBlock::ZERO);
        if self.tiles.is_empty() {
            return;
        }
        let shared = SharedMut::new(&mut self.tiles);
        pool.run(tiles, &|tile| {
            // SAFETY: every tile is one item.
            let blocks = unsafe { shared.part(tile * blocks, blocks) };
            let first = tile * TILE;
            let x = &x[first * columns..rows.min(first + TILE) * columns];
            quantise_tile(Isa::detect(), x, columns, blocks);
        });
    }

    /// Rows set last.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The blocks of the only row.
    pub(super) fn single(&self) -> &[TileBlock<1>] {
        debug_assert_eq!(self.rows, 1, "several rows lie in tiles");
        &self.single
    }

    /// The blocks of a tile of rows.
    pub(super) fn tile(&self, tile: usize) -> &[TileBlock<TILE>] {
        debug_assert_ne!(self.rows, 1, "one row lies in a block of its own");
        let blocks = self.columns.div_ceil(BLOCK);
        &self.tiles[tile * blocks..][..blocks]
    }

    /// The floats of all rows; empty if they were not kept.
    pub(super) fn floats(&self) -> &[f32] {
        &self.floats
    }
}

/// Quantises the only row.
fn quantise_row(isa: Isa, x: &[f32], blocks: &mut [TileBlock<1>]) {
    // Only the last run may end early.
    let mut padded = [0.0; BLOCK];
    for (index, block) in blocks.iter_mut().enumerate() {
        let values = run_of(x, index, &mut padded);
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the set is available, and it includes AVX2.
            Isa::Avx2 | Isa::Avx512 => unsafe { avx2::single(values, block) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the set is available.
            Isa::Neon => unsafe { neon::single(values, block) },
            _ => quantise_block(values, block, 0),
        }
    }
}

/// Quantises up to a tile of rows of `columns` values; rows that are not there are zeros.
fn quantise_tile(isa: Isa, x: &[f32], columns: usize, blocks: &mut [TileBlock<TILE>]) {
    let rows: [&[f32]; TILE] = std::array::from_fn(|row| x.get(row * columns..(row + 1) * columns).unwrap_or_default());
    let mut padded = [[0.0; BLOCK]; TILE];
    for (index, block) in blocks.iter_mut().enumerate() {
        let mut values = [&[0.0; BLOCK]; TILE];
        for ((values, row), padded) in values.iter_mut().zip(rows).zip(&mut padded) {
            *values = run_of(row, index, padded);
        }
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the set is available, and it includes AVX2.
            Isa::Avx2 | Isa::Avx512 => unsafe { avx2::tile(values, block) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the set is available.
            Isa::Neon => unsafe { neon::tile(values, block) },
            _ => (0..TILE).for_each(|row| quantise_block(values[row], block, row)),
        }
    }
}

/// Run `index` of 32 values of a row, in `padded`, which has zeros, where the row ends within it.
fn run_of<'a>(row: &'a [f32], index: usize, padded: &'a mut [f32; BLOCK]) -> &'a [f32; BLOCK] {
    let run = row.get(index * BLOCK..).unwrap_or_default();
    if let Some(run) = run.first_chunk() {
        return run;
    }
    padded[..run.len()].copy_from_slice(run);
    padded
}

/// Scale of a run and its inverse, from the largest magnitude in it.
fn scale_of(largest: f32) -> (f32, f32) {
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < 1e-30 {
        (0.0, 0.0)
    } else {
        (largest / 127.0, 127.0 / largest)
    }
}

/// The reference for every instruction set.
fn quantise_block<const R: usize>(values: &[f32; BLOCK], block: &mut TileBlock<R>, row: usize) {
    // Magnitudes compare like integers, and infinities and NaN are above all numbers.
    let largest = values
        .iter()
        .fold(0, |top, value| top.max((value.to_bits() & 0x7FFF_FFFF) as i32));
    let (scale, inverse) = scale_of(f32::from_bits(largest as u32));
    let mut quants = [0_i8; BLOCK];
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = (value * inverse + ROUND).to_bits() as i8;
    }
    let sum = |quants: &[i8]| quants.iter().map(|&quant| i32::from(quant)).sum::<i32>();
    let sums = [sum(&quants[..BLOCK / 2]), sum(&quants[BLOCK / 2..])];
    for (quad, four) in block.quads.iter_mut().zip(quants.chunks_exact(4)) {
        quad[row].copy_from_slice(four);
    }
    block.scale[row] = scale;
    block.scaled_sum[row] = scale * (sums[0] + sums[1]) as f32;
    block.negative_sums[0][row] = -sums[0];
    block.negative_sums[1][row] = -sums[1];
}

#[cfg(test)]
mod tests {
    use super::{Activations, TILE, TileBlock, quantise_row, quantise_tile};
    use crate::isa::Isa;
    use crate::threads::ThreadPool;

    #[test]
    fn values_come_back_within_half_a_step_in_any_batch() {
        let pool = ThreadPool::new(2);
        let columns = 70;
        let x: Vec<f32> = (0..7 * columns)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013)
            .collect();
        let mut all = Activations::new();
        all.set(&pool, &x, 7, columns);
        let mut one = Activations::new();
        for row in 0..7 {
            let values = &x[row * columns..][..columns];
            one.set(&pool, values, 1, columns);
            for (index, (a, b)) in one.single().iter().zip(all.tile(row / TILE)).enumerate() {
                let lane = row % TILE;
                for i in 0..32 {
                    assert_eq!(a.quads[i / 4][0][i % 4], b.quads[i / 4][lane][i % 4]);
                    let back = a.scale[0] * f32::from(a.quads[i / 4][0][i % 4]);
                    let value = values.get(index * 32 + i).copied().unwrap_or(0.0);
                    assert!((back - value).abs() <= a.scale[0] * 0.501, "{back} for {value}");
                }
                assert_eq!(a.scale[0].to_bits(), b.scale[lane].to_bits());
                assert_eq!(a.scaled_sum[0].to_bits(), b.scaled_sum[lane].to_bits());
                assert_eq!(a.negative_sums[0][0], b.negative_sums[0][lane]);
                assert_eq!(a.negative_sums[1][0], b.negative_sums[1][lane]);
            }
        }
    }

    #[test]
    fn every_instruction_set_quantises_to_the_same_bits() {
        let columns = 32 * 40 + 7_usize;
        // Ordinary values, exact ties of the rounding, tiny and huge ones, and what is no number.
        let x: Vec<f32> = (0..5 * columns)
            .map(|i| match i / 32 % 7 {
                0 => ((i * 7919 % 4001) as f32 - 2000.0) * 1e-3,
                1 => (i % 255) as f32 - 127.0,
                2 => ((i % 32) as f32 - 15.5) * 0.5 + if i % 32 == 0 { 119.75 } else { 0.0 },
                3 => (i % 5) as f32 * 1e-39,
                4 => (i % 3) as f32 * 1e38,
                5 if i % 64 == 3 => f32::NAN,
                6 if i % 64 == 9 => f32::NEG_INFINITY,
                _ => -((i % 100) as f32),
            })
            .collect();
        let blocks = columns.div_ceil(32);
        for isa in Isa::available() {
            for rows in [1, 2, 4] {
                let x = &x[..rows * columns];
                let mut expected = vec![TileBlock::<TILE>::ZERO; blocks];
                quantise_tile(Isa::Scalar, x, columns, &mut expected);
                let mut tile = expected.clone();
                quantise_tile(isa, x, columns, &mut tile);
                let mut single = vec![TileBlock::<1>::ZERO; blocks];
                quantise_row(isa, &x[..columns], &mut single);
                for ((expected, tile), single) in expected.iter().zip(&tile).zip(&single) {
                    for row in 0..TILE {
                        if expected.scale[row].is_nan() {
                            assert!(tile.scale[row].is_nan() && tile.scaled_sum[row].is_nan());
                            continue;
                        }
                        assert_eq!(
                            expected.quads.map(|quad| quad[row]),
                            tile.quads.map(|quad| quad[row]),
                            "{isa}"
                        );
                        assert_eq!(expected.scale[row].to_bits(), tile.scale[row].to_bits());
                        assert_eq!(expected.scaled_sum[row].to_bits(), tile.scaled_sum[row].to_bits());
                        assert_eq!(
                            expected.negative_sums.map(|sums| sums[row]),
                            tile.negative_sums.map(|sums| sums[row])
                        );
                        if row == 0 {
                            assert_eq!(
                                tile.quads.map(|quad| quad[0]),
                                single.quads.map(|quad| quad[0]),
                                "{isa}"
                            );
                            assert_eq!(tile.scale[0].to_bits(), single.scale[0].to_bits());
                            assert_eq!(tile.scaled_sum[0].to_bits(), single.scaled_sum[0].to_bits());
                            assert_eq!(
                                tile.negative_sums.map(|sums| sums[0]),
                                single.negative_sums.map(|sums| sums[0])
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn odd_values_do_no_harm() {
        let pool = ThreadPool::new(1);
        let mut x = Activations::new();
        for (value, scale_is_number) in [
            (0.0, true),
            (1e-39, true),
            (-0.0, true),
            (3e38, true),
            (f32::NAN, false),
            (f32::INFINITY, false),
        ] {
            x.set(&pool, &[value; 32], 1, 32);
            assert_eq!(!x.single()[0].scale[0].is_nan(), scale_is_number, "{value}");
        }
        x.set(&pool, &[], 0, 32);
        assert_eq!((x.rows(), x.columns()), (0, 32));
    }
}
