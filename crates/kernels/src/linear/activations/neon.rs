//! Quantising with NEON: 32 values in eight registers, the same numbers as the plain code.

#![allow(clippy::wildcard_imports, reason = "half of the file is names of this module")]

use std::arch::aarch64::*;

use super::{BLOCK, ROUND, TILE, TileBlock, scale_of};

/// Quantises 32 values of the only row.
///
/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn single(values: &[f32; BLOCK], block: &mut TileBlock<1>) {
    let (quants, scale) = quantise(values);
    for (half, quants) in quants.into_iter().enumerate() {
        // SAFETY: four quads of four bytes.
        unsafe { vst1q_s8((&raw mut block.quads[4 * half]).cast(), quants) };
    }
    describe(quants, scale, block, 0);
}

/// Quantises 32 values of each row of a tile.
///
/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn tile(values: [&[f32; BLOCK]; TILE], block: &mut TileBlock<TILE>) {
    let rows = values.map(|values| quantise(values));
    for half in 0..2 {
        let quads = rows.map(|(quants, _)| vreinterpretq_u32_s8(quants[half]));
        // SAFETY: four quads of four rows, which the instruction interleaves.
        unsafe {
            vst4q_u32(
                (&raw mut block.quads[4 * half]).cast(),
                uint32x4x4_t(quads[0], quads[1], quads[2], quads[3]),
            );
        }
    }
    for (row, (quants, scale)) in rows.into_iter().enumerate() {
        describe(quants, scale, block, row);
    }
}

/// The quants of 32 values in order, and their scale.
#[inline]
#[target_feature(enable = "neon")]
fn quantise(values: &[f32; BLOCK]) -> ([int8x16_t; 2], f32) {
    // SAFETY: 32 values.
    let loaded: [float32x4_t; 8] = std::array::from_fn(|part| unsafe { vld1q_f32(values.as_ptr().add(part * 4)) });
    let magnitude = |value| vreinterpretq_u32_f32(vabsq_f32(value));
    let top = loaded[1..]
        .iter()
        .fold(magnitude(loaded[0]), |top, &value| vmaxq_u32(top, magnitude(value)));
    let (scale, inverse) = scale_of(f32::from_bits(vmaxvq_u32(top)));
    let whole = loaded.map(|value| {
        let scaled = vmulq_n_f32(value, inverse);
        vreinterpretq_u16_f32(vaddq_f32(scaled, vdupq_n_f32(ROUND)))
    });
    // Even 16-bit numbers are the lower ones, and so are even bytes.
    let quants = |eight: &[uint16x8_t]| {
        let low = vreinterpretq_s8_u16(vuzp1q_u16(eight[0], eight[1]));
        let high = vreinterpretq_s8_u16(vuzp1q_u16(eight[2], eight[3]));
        vuzp1q_s8(low, high)
    };
    ([quants(&whole[..4]), quants(&whole[4..])], scale)
}

/// What a block says of the quants of a row.
#[inline]
#[target_feature(enable = "neon")]
fn describe<const R: usize>(quants: [int8x16_t; 2], scale: f32, block: &mut TileBlock<R>, row: usize) {
    let sums = quants.map(|quants| i32::from(vaddlvq_s8(quants)));
    block.scale[row] = scale;
    block.scaled_sum[row] = scale * (sums[0] + sums[1]) as f32;
    block.negative_sums[0][row] = -sums[0];
    block.negative_sums[1][row] = -sums[1];
}
