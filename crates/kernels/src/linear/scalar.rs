//! The kernels in portable Rust: the reference that every instruction set must equal bit for bit.
//!
//! For one row `x` and one output feature `w`, with blocks `b` in order and exact integer sums `dot`:
//!
//! ```text
//! sum = 0
//! for each block b:
//!     for each scale of the block (one; two halves for Q6_K):
//!         sum = fma(float(dot(w.quants, x.quants)), w.scale * x.scale, sum)
//!     if the type has minima:
//!         sum = fma(w.minimum, x.scaled_sum, sum)
//! ```
//!
//! Float weights: `sum = fma(w[k], x[k], sum)` for each input in order.

use super::WeightType;
use super::activations::TileBlock;
use super::layout::{GROUP, Unpacked, bf16_at, f16_at, f32_at, format};
use super::matmul::Unit;

/// # Safety
/// The unit lies inside its weight and output, and nobody else touches its part of the output.
pub(super) unsafe fn run(unit: &Unit) {
    match unit.layout.weight_type() {
        WeightType::F32 => floats(unit, 4, f32_at),
        WeightType::F16 => floats(unit, 2, f16_at),
        WeightType::BF16 => floats(unit, 2, bf16_at),
        _ => quantised(unit),
    }
}

fn quantised(unit: &Unit) {
    for group in unit.groups.clone() {
        let mut sums = vec![[0.0_f32; GROUP]; unit.rows.len()];
        let mut unpacked = Unpacked::new();
        for block in 0..unit.layout.blocks() {
            unit.layout.unpack(unit.group(group), block, &mut unpacked);
            if unit.x.rows() == 1 {
                add_block(unit, &unpacked, &unit.x.single()[block], &mut sums);
            } else {
                for (number, (tile, _)) in unit.tiles().enumerate() {
                    let rows = sums
                        .chunks_mut(super::activations::TILE)
                        .nth(number)
                        .unwrap_or_default();
                    add_block(unit, &unpacked, &unit.x.tile(tile)[block], rows);
                }
            }
        }
        store(unit, group, &sums);
    }
}

/// Adds the products of one block to the sums of up to `R` rows.
fn add_block<const R: usize>(unit: &Unit, weight: &Unpacked, x: &TileBlock<R>, sums: &mut [[f32; GROUP]]) {
    let format = format::of(unit.layout.weight_type());
    for (row, sums) in sums.iter_mut().enumerate() {
        let mut dots = [[0_i32; GROUP]; 2];
        for (quad, quants) in weight.quants.iter().enumerate() {
            let x = x.quads[quad][row].map(i32::from);
            for (dot, w) in dots[quad / 4].iter_mut().zip(quants.chunks_exact(4)) {
                *dot +=
                    i32::from(w[0]) * x[0] + i32::from(w[1]) * x[1] + i32::from(w[2]) * x[2] + i32::from(w[3]) * x[3];
            }
        }
        for (column, sum) in sums.iter_mut().enumerate() {
            let scales = [0, 1].map(|half| weight.scale[half][column] * x.scale[row]);
            if format == format::Q6K {
                *sum = (dots[0][column] as f32).mul_add(scales[0], *sum);
                *sum = (dots[1][column] as f32).mul_add(scales[1], *sum);
            } else {
                *sum = ((dots[0][column] + dots[1][column]) as f32).mul_add(scales[0], *sum);
            }
            if format::has_minimum(format) {
                *sum = weight.minimum[column].mul_add(x.scaled_sum[row], *sum);
            }
        }
    }
}

fn floats(unit: &Unit, size: usize, read: fn(&[u8], usize) -> f32) {
    for group in unit.groups.clone() {
        let mut sums = vec![[0.0_f32; GROUP]; unit.rows.len()];
        for (k, stored) in unit
            .group(group)
            .chunks_exact(GROUP * size)
            .take(unit.layout.blocks())
            .enumerate()
        {
            let weights: [f32; GROUP] = std::array::from_fn(|column| read(stored, column));
            for (row, sums) in unit.rows.clone().zip(&mut sums) {
                let x = unit.x.floats()[row * unit.x.columns() + k];
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = weight.mul_add(x, *sum);
                }
            }
        }
        store(unit, group, &sums);
    }
}

fn store(unit: &Unit, group: usize, sums: &[[f32; GROUP]]) {
    let columns = unit.columns(group);
    for (row, sums) in unit.rows.clone().zip(sums) {
        // SAFETY: row and group are the unit's; the group has this many columns, and they are this unit's alone.
        let out = unsafe { std::slice::from_raw_parts_mut(unit.place(row, group), columns) };
        out.copy_from_slice(&sums[..columns]);
    }
}
