//! The kernels for NEON: registers of four numbers.
//!
//! Both products are the same loop: sums over k of a row of numbers times one number of each column, which stand in the
//! lanes of a register per column. For the scores k is a dimension, the row 32 keys and a column's numbers its query; for
//! the output k is an entry, the row its value and a column's numbers its probabilities.
//!
//! ```text
//!  row      [k][number 0..4|4..8| …]    N registers           sums   [column][number 0..4|4..8| …]    H × N registers
//!  columns  [k|k+1|k+2|k+3]             H registers           N = 8, 4 or 2: the fewer the more columns
//! ```
//!
//! So at most 16 of the 32 registers are sums. Nothing is prefetched: there was no machine to measure on.

#![expect(
    clippy::inline_always,
    reason = "the sums stay in registers only if the loops see that they do"
)]

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vaddq_s32, vaddvq_f32, vbicq_u32, vbslq_f32, vcltq_f32, vcltq_u32, vcvt_f32_f16,
    vcvt_high_f32_f16, vcvtq_f32_s32, vcvtq_s32_f32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u32, vfmaq_f32, vfmaq_laneq_f32,
    vfmaq_n_f32, vget_low_f16, vget_low_s16, vgetq_lane_f32, vld1_s8, vld1q_f32, vld1q_u16, vld1q_u32, vmaxnmq_f32,
    vmaxnmvq_f32, vmaxq_f32, vmovl_high_s16, vmovl_s8, vmovl_s16, vmulq_f32, vmulq_n_f32, vreinterpretq_f16_u16,
    vreinterpretq_f32_s32, vreinterpretq_f32_u32, vreinterpretq_u32_f32, vrndnq_f32, vshlq_n_s32, vst1q_f32, vsubq_f32,
};

use super::GroupPooling;
use super::kernel::{Chunk, EXP2, Kernels, MassPart, Scores, merge_body};
use crate::cache::{BLOCK_ROWS, GROUP_DIMS, KvType, Layout};
use crate::isa::Isa;

pub(super) static KERNELS: Kernels = Kernels {
    isa: Isa::Neon,
    scores,
    softmax,
    weigh,
    stage,
    // Plain loops use NEON on every AArch64.
    merge: merge_body,
    mass,
};

/// A stored number.
trait Number: Copy {
    /// Whether stored numbers are to be multiplied by scales.
    const SCALED: bool = false;
    /// Eight stored numbers as floats, without the scale.
    unsafe fn eight(at: *const Self) -> [float32x4_t; 2];
}

/// The bits of a half.
impl Number for u16 {
    #[inline(always)]
    unsafe fn eight(at: *const Self) -> [float32x4_t; 2] {
        // SAFETY: the caller gives 8 numbers.
        unsafe {
            let halves = vreinterpretq_f16_u16(vld1q_u16(at));
            [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)]
        }
    }
}

impl Number for f32 {
    #[inline(always)]
    unsafe fn eight(at: *const Self) -> [float32x4_t; 2] {
        // SAFETY: the caller gives 8 numbers.
        unsafe { [vld1q_f32(at), vld1q_f32(at.add(4))] }
    }
}

impl Number for i8 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn eight(at: *const Self) -> [float32x4_t; 2] {
        // SAFETY: the caller gives 8 numbers.
        unsafe {
            let wide = vmovl_s8(vld1_s8(at));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))),
                vcvtq_f32_s32(vmovl_high_s16(wide)),
            ]
        }
    }
}

/// `4 * N` stored numbers as floats; `N` is even.
#[inline(always)]
unsafe fn numbers<T: Number, const N: usize>(at: *const T) -> [float32x4_t; N] {
    // SAFETY: the caller gives so many numbers.
    unsafe {
        let mut numbers = [vdupq_n_f32(0.0); N];
        for (index, pair) in numbers.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *pair = T::eight(at.add(8 * index));
        }
        numbers
    }
}

/// The parts of a block. All functions point inside the block that [`Block::open`] was given.
#[derive(Clone, Copy)]
struct Block<T> {
    keys: *const T,
    key_scales: *const u16,
    values: *const T,
    value_scales: *const u16,
    dim: usize,
}

impl<T: Number> Block<T> {
    #[inline(always)]
    unsafe fn open(layout: &Layout, block: *const u8) -> Self {
        // SAFETY: the parts lie inside the block and are aligned.
        unsafe {
            Self {
                keys: block.cast(),
                key_scales: block.add(layout.key_scales).cast(),
                values: block.add(layout.values).cast(),
                value_scales: block.add(layout.value_scales).cast(),
                dim: layout.dim,
            }
        }
    }

    /// `4 * N` keys from entry `lane` on, a row for each dimension from `d` on.
    #[inline(always)]
    unsafe fn keys(self, d: usize, lane: usize) -> Rows<T> {
        Rows {
            // SAFETY: `d` is below `dim`, the keys are some of 32.
            first: unsafe { self.keys.add(d * BLOCK_ROWS + lane) },
            stride: BLOCK_ROWS,
        }
    }

    /// Scales of `4 * N` keys from entry `lane` on for a group of dimensions, if there are any.
    #[inline(always)]
    unsafe fn key_scales<const N: usize>(self, group: usize, lane: usize) -> Option<[float32x4_t; N]> {
        // SAFETY: `group` is below the number of groups, the keys are some of 32.
        T::SCALED.then(|| unsafe { numbers::<u16, N>(self.key_scales.add(group * BLOCK_ROWS + lane)) })
    }

    /// Dimensions of the values from `d` on, a row for each entry.
    #[inline(always)]
    unsafe fn values(self, d: usize) -> Rows<T> {
        Rows {
            // SAFETY: `d` is below `dim`.
            first: unsafe { self.values.add(d) },
            stride: self.dim,
        }
    }

    /// Scales of the values for a group of dimensions, which must exist.
    #[inline(always)]
    unsafe fn value_scales(self, group: usize) -> [float32x4_t; BLOCK_ROWS / 4] {
        // SAFETY: `group` is below the number of groups, and there are scales.
        unsafe { numbers::<u16, { BLOCK_ROWS / 4 }>(self.value_scales.add(group * BLOCK_ROWS)) }
    }
}

/// The first of some rows of stored numbers, so many numbers apart.
#[derive(Clone, Copy)]
struct Rows<T> {
    first: *const T,
    stride: usize,
}

impl<T: Number> Rows<T> {
    /// `4 * N` numbers of row `k`, multiplied by the scales if there are any.
    #[inline(always)]
    unsafe fn get<const N: usize>(self, k: usize, scales: Option<&[float32x4_t; N]>) -> [float32x4_t; N] {
        // SAFETY: the caller has the row.
        unsafe {
            let mut row = numbers::<T, N>(self.first.add(k * self.stride));
            if let Some(scales) = scales {
                for (numbers, &scales) in row.iter_mut().zip(scales) {
                    *numbers = vmulq_f32(*numbers, scales);
                }
            }
            row
        }
    }
}

/// `sums[column] += Σ row[k] · column[k]` over the first so many k, in order.
#[inline(always)]
unsafe fn accumulate<T: Number, const H: usize, const N: usize>(
    sums: &mut [[float32x4_t; N]; H],
    columns: [*const f32; H],
    count: usize,
    rows: Rows<T>,
    scales: Option<&[float32x4_t; N]>,
) {
    // SAFETY: there are `count` rows, and the caller's columns have `count` numbers.
    unsafe {
        let whole = count & !3;
        for k in (0..whole).step_by(4) {
            let mut numbers = [vdupq_n_f32(0.0); H];
            for (numbers, column) in numbers.iter_mut().zip(columns) {
                *numbers = vld1q_f32(column.add(k));
            }
            add_lane::<0, H, N>(sums, &numbers, rows.get(k, scales));
            add_lane::<1, H, N>(sums, &numbers, rows.get(k + 1, scales));
            add_lane::<2, H, N>(sums, &numbers, rows.get(k + 2, scales));
            add_lane::<3, H, N>(sums, &numbers, rows.get(k + 3, scales));
        }
        for k in whole..count {
            let row = rows.get(k, scales);
            for (sums, column) in sums.iter_mut().zip(columns) {
                for (sum, &numbers) in sums.iter_mut().zip(&row) {
                    *sum = vfmaq_n_f32(*sum, numbers, *column.add(k));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn add_lane<const LANE: i32, const H: usize, const N: usize>(
    sums: &mut [[float32x4_t; N]; H],
    columns: &[float32x4_t; H],
    row: [float32x4_t; N],
) {
    for (sums, &column) in sums.iter_mut().zip(columns) {
        for (sum, &number) in sums.iter_mut().zip(&row) {
            // SAFETY: an AArch64 has NEON.
            *sum = unsafe { vfmaq_laneq_f32::<LANE>(*sum, number, column) };
        }
    }
}

/// Calls a function with the element type of a layout, a constant number of columns, and as many registers of a row as
/// leave room for the sums: bytes take more, for their scales.
macro_rules! dispatch {
    ($layout:expr, $columns:expr, $function:ident $arguments:tt) => {
        match $layout.kv_type {
            KvType::F16 => dispatch!(@columns u16, [8, 8, 4, 4], $columns, $function $arguments),
            KvType::F32 => dispatch!(@columns f32, [8, 8, 4, 4], $columns, $function $arguments),
            KvType::Q8_0 => dispatch!(@columns i8, [8, 4, 4, 2], $columns, $function $arguments),
        }
    };
    (@columns $number:ty, [$one:expr, $two:expr, $three:expr, $four:expr], $columns:expr, $function:ident $arguments:tt) => {
        match $columns {
            1 => $function::<$number, 1, $one> $arguments,
            2 => $function::<$number, 2, $two> $arguments,
            3 => $function::<$number, 3, $three> $arguments,
            4 => $function::<$number, 4, $four> $arguments,
            5 => $function::<$number, 5, 2> $arguments,
            6 => $function::<$number, 6, 2> $arguments,
            7 => $function::<$number, 7, 2> $arguments,
            _ => $function::<$number, 8, 2> $arguments,
        }
    };
}

unsafe fn scores(chunk: &Chunk, queries: &[*const f32], blocks: usize, out: *mut f32, stride: usize) {
    // SAFETY: passed on.
    unsafe {
        dispatch!(
            chunk.layout,
            queries.len(),
            scores_of(chunk, queries, blocks, out, stride)
        );
    }
}

#[target_feature(enable = "neon")]
unsafe fn scores_of<T: Number, const H: usize, const N: usize>(
    chunk: &Chunk,
    queries: &[*const f32],
    blocks: usize,
    out: *mut f32,
    stride: usize,
) {
    let dim = chunk.layout.dim;
    let queries: [*const f32; H] = std::array::from_fn(|column| queries[column]);
    for index in 0..blocks {
        // SAFETY: blocks, queries and `out` are as `Kernels` demands.
        unsafe {
            let block = Block::<T>::open(chunk.layout, chunk.blocks[index]);
            for lane in (0..BLOCK_ROWS).step_by(4 * N) {
                let mut sums = [[vdupq_n_f32(0.0); N]; H];
                let group = if T::SCALED { GROUP_DIMS } else { dim };
                for first in (0..dim).step_by(group) {
                    let scales = block.key_scales::<N>(first / GROUP_DIMS, lane);
                    let queries = queries.map(|query| query.add(first));
                    let keys = block.keys(first, lane);
                    accumulate(&mut sums, queries, group.min(dim - first), keys, scales.as_ref());
                }
                for (column, sums) in sums.iter().enumerate() {
                    let out = out.add(index * stride + column * BLOCK_ROWS + lane);
                    for (part, &sum) in sums.iter().enumerate() {
                        vst1q_f32(out.add(4 * part), sum);
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn softmax(scores: &Scores, maximum: &mut f32, sum: &mut f32) -> f32 {
    let minus_infinity = vdupq_n_f32(f32::NEG_INFINITY);
    let mut largest = minus_infinity;
    // SAFETY: the column has 32 numbers in each of its blocks.
    unsafe {
        let lanes = vld1q_u32([0, 1, 2, 3].as_ptr());
        for block in 0..scores.blocks {
            let line = scores.start.add(block * scores.stride);
            for part in (0..BLOCK_ROWS).step_by(4) {
                let first = block * BLOCK_ROWS + part;
                let mut score = vmulq_n_f32(vld1q_f32(line.add(part)), scores.scale);
                if first + 4 > scores.visible {
                    let left = scores.visible.saturating_sub(first) as u32;
                    score = vbslq_f32(vcltq_u32(lanes, vdupq_n_u32(left)), score, minus_infinity);
                }
                // NaN is no maximum, but it stays among the scores.
                largest = vmaxnmq_f32(largest, score);
                vst1q_f32(line.add(part), score);
            }
        }
        let before = *maximum;
        *maximum = before.max(vmaxnmvq_f32(largest));
        // Nothing seen so far: any finite number avoids −∞ − −∞.
        let shift = if *maximum == f32::NEG_INFINITY { 0.0 } else { *maximum };
        let factor = vgetq_lane_f32::<0>(exp2(vdupq_n_f32(before - shift)));
        let shift = vdupq_n_f32(shift);
        let mut sums = [vdupq_n_f32(0.0); 4];
        // Half a line at a time: the compiler would unroll a line, and its powers need more registers than there are.
        for half in 0..2 * scores.blocks {
            let numbers = scores.start.add(half / 2 * scores.stride + half % 2 * 16);
            for (part, sum) in sums.iter_mut().enumerate() {
                let numbers = numbers.add(4 * part);
                let power = exp2(vsubq_f32(vld1q_f32(numbers), shift));
                *sum = vaddq_f32(*sum, power);
                vst1q_f32(numbers, power);
            }
        }
        let all = sums[1..].iter().fold(sums[0], |all, &sum| vaddq_f32(all, sum));
        *sum = *sum * factor + vaddvq_f32(all);
        factor
    }
}

/// 2^x for x up to 127; 0 below −126 and for −∞, NaN for NaN.
#[inline]
#[target_feature(enable = "neon")]
fn exp2(x: float32x4_t) -> float32x4_t {
    let least = vdupq_n_f32(-126.0);
    let unrepresentable = vcltq_f32(x, least);
    let x = vmaxq_f32(least, x);
    let whole = vrndnq_f32(x);
    let f = vsubq_f32(x, whole);
    let mut power = vdupq_n_f32(EXP2[5]);
    for &coefficient in EXP2[..5].iter().rev() {
        power = vfmaq_f32(vdupq_n_f32(coefficient), power, f);
    }
    power = vfmaq_f32(vdupq_n_f32(1.0), power, f);
    let exponent = vaddq_s32(vcvtq_s32_f32(whole), vdupq_n_s32(127));
    let scale = vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent));
    let power = vreinterpretq_u32_f32(vmulq_f32(power, scale));
    vreinterpretq_f32_u32(vbicq_u32(power, unrepresentable))
}

unsafe fn weigh(
    chunk: &Chunk,
    entries: usize,
    probabilities: *const f32,
    stride: usize,
    factors: &[f32],
    outputs: &[*mut f32],
) {
    // SAFETY: passed on.
    unsafe {
        dispatch!(
            chunk.layout,
            factors.len(),
            weigh_of(chunk, entries, probabilities, stride, factors, outputs)
        );
    }
}

#[target_feature(enable = "neon")]
unsafe fn weigh_of<T: Number, const H: usize, const N: usize>(
    chunk: &Chunk,
    entries: usize,
    probabilities: *const f32,
    stride: usize,
    factors: &[f32],
    outputs: &[*mut f32],
) {
    let dim = chunk.layout.dim;
    let shares = (probabilities, stride);
    let mut d = 0;
    // SAFETY: passed on; `d` and the width stay inside `dim`, a multiple of 16.
    unsafe {
        while d + 4 * N <= dim {
            weigh_strip::<T, H, N>(chunk, entries, shares, factors, outputs, d);
            d += 4 * N;
        }
        while N > 4 && d < dim {
            weigh_strip::<T, H, 4>(chunk, entries, shares, factors, outputs, d);
            d += 16;
        }
    }
}

/// `4 * N` dimensions of the outputs, kept in registers over all entries; they share their scales.
#[inline(always)]
unsafe fn weigh_strip<T: Number, const H: usize, const N: usize>(
    chunk: &Chunk,
    entries: usize,
    (probabilities, stride): (*const f32, usize),
    factors: &[f32],
    outputs: &[*mut f32],
    d: usize,
) {
    // SAFETY: blocks, probabilities and outputs are as `Kernels` demands.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); N]; H];
        for column in 0..H {
            // The first chunk finds no numbers in the output yet.
            if factors[column] != 0.0 {
                for (part, sum) in sums[column].iter_mut().enumerate() {
                    *sum = vmulq_n_f32(vld1q_f32(outputs[column].add(d + 4 * part)), factors[column]);
                }
            }
        }
        let mut scaled = [[0.0_f32; BLOCK_ROWS]; H];
        for index in 0..entries.div_ceil(BLOCK_ROWS) {
            let block = Block::<T>::open(chunk.layout, chunk.blocks[index]);
            let mut shares = probabilities.add(index * stride);
            if T::SCALED {
                for (part, &scales) in block.value_scales(d / GROUP_DIMS).iter().enumerate() {
                    for (column, scaled) in scaled.iter_mut().enumerate() {
                        let share = vld1q_f32(shares.add(column * BLOCK_ROWS + 4 * part));
                        vst1q_f32(scaled.as_mut_ptr().add(4 * part), vmulq_f32(share, scales));
                    }
                }
                shares = scaled.as_ptr().cast();
            }
            let count = (entries - index * BLOCK_ROWS).min(BLOCK_ROWS);
            let columns = std::array::from_fn(|column| shares.add(column * BLOCK_ROWS));
            accumulate(&mut sums, columns, count, block.values(d), None);
        }
        for (sums, output) in sums.iter().zip(outputs) {
            for (part, &sum) in sums.iter().enumerate() {
                vst1q_f32(output.add(d + 4 * part), sum);
            }
        }
    }
}

unsafe fn stage(layout: &Layout, block: *const u8, out: *mut f32) {
    // SAFETY: passed on.
    unsafe {
        match layout.kv_type {
            KvType::F16 => stage_of::<u16>(layout, block, out),
            KvType::F32 => stage_of::<f32>(layout, block, out),
            KvType::Q8_0 => stage_of::<i8>(layout, block, out),
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn stage_of<T: Number>(layout: &Layout, block: *const u8, out: *mut f32) {
    const LINE: usize = BLOCK_ROWS / 4;
    let dim = layout.dim;
    // SAFETY: the block has the layout's size, `out` room for its keys and values.
    unsafe {
        let block = Block::<T>::open(layout, block);
        for d in 0..dim {
            let scales = block.key_scales::<LINE>(d / GROUP_DIMS, 0);
            for (part, &keys) in block.keys(d, 0).get(0, scales.as_ref()).iter().enumerate() {
                vst1q_f32(out.add(d * BLOCK_ROWS + 4 * part), keys);
            }
        }
        let out = out.add(dim * BLOCK_ROWS);
        let mut scales = [1.0_f32; BLOCK_ROWS];
        for d in (0..dim).step_by(16) {
            if T::SCALED {
                for (part, &numbers) in block.value_scales(d / GROUP_DIMS).iter().enumerate() {
                    vst1q_f32(scales.as_mut_ptr().add(4 * part), numbers);
                }
            }
            for (entry, &scale) in scales.iter().enumerate() {
                for (part, &numbers) in block.values(d).get::<4>(entry, None).iter().enumerate() {
                    vst1q_f32(out.add(entry * dim + d + 4 * part), vmulq_n_f32(numbers, scale));
                }
            }
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn mass(part: &MassPart) {
    // SAFETY: the probabilities have 32 numbers per block and column, `out` has `entries`.
    unsafe {
        for first in (0..part.entries).step_by(4) {
            let offset = first / BLOCK_ROWS * part.stride + first % BLOCK_ROWS;
            let lanes = part.probabilities.add(offset);
            let share = |column: usize| vld1q_f32(lanes.add(column * BLOCK_ROWS));
            let mut total = vdupq_n_f32(0.0);
            match part.pooling {
                GroupPooling::Sum => {
                    for (column, &factor) in part.factors.iter().enumerate() {
                        total = vfmaq_n_f32(total, share(column), factor);
                    }
                }
                GroupPooling::Max => {
                    for (row, factors) in part.factors.chunks_exact(part.group).enumerate() {
                        let mut largest = vdupq_n_f32(0.0);
                        for (member, &factor) in factors.iter().enumerate() {
                            let share = share(row * part.group + member);
                            largest = vmaxnmq_f32(largest, vmulq_n_f32(share, factor));
                        }
                        total = vaddq_f32(total, largest);
                    }
                }
            }
            let out = part.out.add(first);
            if first + 4 <= part.entries {
                vst1q_f32(out, vaddq_f32(vld1q_f32(out), total));
            } else {
                let mut numbers = [0.0_f32; 4];
                vst1q_f32(numbers.as_mut_ptr(), total);
                for (entry, number) in numbers[..part.entries - first].iter().enumerate() {
                    *out.add(entry) += number;
                }
            }
        }
    }
}
