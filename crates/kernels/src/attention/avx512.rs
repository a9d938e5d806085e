//! The kernels for AVX-512: a line of 32 keys is two registers, a tile of 8 columns keeps 16 sums in registers.

#![expect(
    clippy::inline_always,
    reason = "helpers must take on the instruction set of their caller"
)]

use std::arch::x86_64::{
    __m512, _CMP_NLT_UQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0, _MM_HINT_T1, _mm_loadu_si128,
    _mm_prefetch, _mm256_loadu_si256, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_cmpgt_epi32_mask, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_cvtss_f32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_blend_ps,
    _mm512_maskz_scalef_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps,
    _mm512_roundscale_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
    _mm512_sub_ps,
};

use super::GroupPooling;
use super::kernel::{Chunk, EXP2, Kernels, MassPart, Scores, TILE, merge_body};
use crate::cache::{BLOCK_ROWS, GROUP_DIMS, KvType, Layout};
use crate::isa::Isa;

pub(super) static KERNELS: Kernels = Kernels {
    isa: Isa::Avx512,
    scores,
    softmax,
    weigh,
    stage,
    merge,
    mass,
};

/// How the numbers of a block become registers, one implementation per element type.
///
/// All functions read inside the block that `open` was given.
trait Element: Copy {
    /// Scales of 32 keys for a group of dimensions.
    type Scales: Copy;
    /// Most registers of a row of values that can be multiplied with the same probabilities.
    const WIDEST: usize;
    /// Bytes of a number.
    const BYTES: usize;
    unsafe fn open(layout: &Layout, block: *const u8) -> Self;
    unsafe fn key_scales(self, group: usize) -> Self::Scales;
    /// Dimension `d` of the block's 32 keys.
    unsafe fn keys(self, d: usize, scales: Self::Scales) -> [__m512; 2];
    /// Sixteen dimensions of a value from `d` on, without the scale.
    unsafe fn value(self, entry: usize, d: usize) -> __m512;
    /// Scales of the values of 16 entries from `entry` on for a group of dimensions, if there are any.
    unsafe fn value_scales(self, group: usize, entry: usize) -> Option<__m512>;
}

#[derive(Clone, Copy)]
struct Half {
    keys: *const u16,
    values: *const u16,
    dim: usize,
}

impl Element for Half {
    type Scales = ();
    const WIDEST: usize = 4;
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn open(layout: &Layout, block: *const u8) -> Self {
        // SAFETY: the parts lie inside the block and are aligned.
        unsafe {
            Self {
                keys: block.cast(),
                values: block.add(layout.values).cast(),
                dim: layout.dim,
            }
        }
    }

    #[inline(always)]
    unsafe fn key_scales(self, _group: usize) {}

    #[inline(always)]
    unsafe fn keys(self, d: usize, (): ()) -> [__m512; 2] {
        // SAFETY: `d` is below `dim`.
        unsafe {
            let line = self.keys.add(d * BLOCK_ROWS);
            [half16(line), half16(line.add(16))]
        }
    }

    #[inline(always)]
    unsafe fn value(self, entry: usize, d: usize) -> __m512 {
        // SAFETY: `d + 16` is at most `dim`, `entry` below 32.
        unsafe { half16(self.values.add(entry * self.dim + d)) }
    }

    #[inline(always)]
    unsafe fn value_scales(self, _group: usize, _entry: usize) -> Option<__m512> {
        None
    }
}

#[derive(Clone, Copy)]
struct Single {
    keys: *const f32,
    values: *const f32,
    dim: usize,
}

impl Element for Single {
    type Scales = ();
    const WIDEST: usize = 4;
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn open(layout: &Layout, block: *const u8) -> Self {
        // SAFETY: as for `Half`.
        unsafe {
            Self {
                keys: block.cast(),
                values: block.add(layout.values).cast(),
                dim: layout.dim,
            }
        }
    }

    #[inline(always)]
    unsafe fn key_scales(self, _group: usize) {}

    #[inline(always)]
    unsafe fn keys(self, d: usize, (): ()) -> [__m512; 2] {
        // SAFETY: `d` is below `dim`.
        unsafe {
            let line = self.keys.add(d * BLOCK_ROWS);
            [_mm512_loadu_ps(line), _mm512_loadu_ps(line.add(16))]
        }
    }

    #[inline(always)]
    unsafe fn value(self, entry: usize, d: usize) -> __m512 {
        // SAFETY: `d + 16` is at most `dim`, `entry` below 32.
        unsafe { _mm512_loadu_ps(self.values.add(entry * self.dim + d)) }
    }

    #[inline(always)]
    unsafe fn value_scales(self, _group: usize, _entry: usize) -> Option<__m512> {
        None
    }
}

#[derive(Clone, Copy)]
struct Byte {
    keys: *const i8,
    key_scales: *const u16,
    values: *const i8,
    value_scales: *const u16,
    dim: usize,
}

impl Element for Byte {
    type Scales = [__m512; 2];
    const WIDEST: usize = GROUP_DIMS / 16;
    const BYTES: usize = 1;

    #[inline(always)]
    unsafe fn open(layout: &Layout, block: *const u8) -> Self {
        // SAFETY: as for `Half`.
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

    #[inline(always)]
    unsafe fn key_scales(self, group: usize) -> [__m512; 2] {
        // SAFETY: `group` is below the number of groups.
        unsafe {
            let line = self.key_scales.add(group * BLOCK_ROWS);
            [half16(line), half16(line.add(16))]
        }
    }

    #[inline(always)]
    unsafe fn keys(self, d: usize, scales: [__m512; 2]) -> [__m512; 2] {
        // SAFETY: `d` is below `dim`.
        unsafe {
            let line = self.keys.add(d * BLOCK_ROWS);
            [
                _mm512_mul_ps(byte16(line), scales[0]),
                _mm512_mul_ps(byte16(line.add(16)), scales[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn value(self, entry: usize, d: usize) -> __m512 {
        // SAFETY: `d + 16` is at most `dim`, `entry` below 32.
        unsafe { byte16(self.values.add(entry * self.dim + d)) }
    }

    #[inline(always)]
    unsafe fn value_scales(self, group: usize, entry: usize) -> Option<__m512> {
        // SAFETY: `group` is below the number of groups, `entry` 0 or 16.
        Some(unsafe { half16(self.value_scales.add(group * BLOCK_ROWS + entry)) })
    }
}

/// Asks for the cache lines of dimension `d` of the keys, and for as many of the values.
#[inline(always)]
unsafe fn prefetch<E: Element>(keys: *const u8, values: *const u8, d: usize) {
    for byte in (0..BLOCK_ROWS * E::BYTES).step_by(64) {
        let offset = d * BLOCK_ROWS * E::BYTES + byte;
        // SAFETY: inside the block; a hint reads nothing.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(keys.add(offset).cast());
            _mm_prefetch::<_MM_HINT_T1>(values.add(offset).cast());
        }
    }
}

#[inline(always)]
unsafe fn half16(numbers: *const u16) -> __m512 {
    // SAFETY: the caller gives 16 numbers.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(numbers.cast())) }
}

#[inline(always)]
unsafe fn byte16(numbers: *const i8) -> __m512 {
    // SAFETY: the caller gives 16 numbers.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(numbers.cast()))) }
}

/// Calls a function with the element type of a layout and a constant number of columns.
macro_rules! dispatch {
    ($layout:expr, $columns:expr, $function:ident $arguments:tt) => {
        match $layout.kv_type {
            KvType::F16 => dispatch!(@columns Half, $columns, $function $arguments),
            KvType::F32 => dispatch!(@columns Single, $columns, $function $arguments),
            KvType::Q8_0 => dispatch!(@columns Byte, $columns, $function $arguments),
        }
    };
    (@columns $element:ty, $columns:expr, $function:ident $arguments:tt) => {
        match $columns {
            1 => $function::<$element, 1> $arguments,
            2 => $function::<$element, 2> $arguments,
            3 => $function::<$element, 3> $arguments,
            4 => $function::<$element, 4> $arguments,
            5 => $function::<$element, 5> $arguments,
            6 => $function::<$element, 6> $arguments,
            7 => $function::<$element, 7> $arguments,
            _ => $function::<$element, TILE> $arguments,
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn scores_of<E: Element, const H: usize>(
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
            let block = E::open(chunk.layout, chunk.blocks[index]);
            // Meanwhile the next keys and this block's values are fetched; converted chunks are in the cache already.
            let next_keys = chunk.blocks[(index + 1).min(blocks - 1)];
            let values = chunk.blocks[index].add(chunk.layout.values);
            let mut sums = [[_mm512_setzero_ps(); 2]; H];
            for first in (0..dim).step_by(GROUP_DIMS) {
                let scales = block.key_scales(first / GROUP_DIMS);
                for d in first..(first + GROUP_DIMS).min(dim) {
                    if !chunk.warm {
                        prefetch::<E>(next_keys, values, d);
                    }
                    let keys = block.keys(d, scales);
                    for (sums, query) in sums.iter_mut().zip(&queries) {
                        let number = _mm512_set1_ps(*query.add(d));
                        sums[0] = _mm512_fmadd_ps(keys[0], number, sums[0]);
                        sums[1] = _mm512_fmadd_ps(keys[1], number, sums[1]);
                    }
                }
            }
            for (column, sums) in sums.iter().enumerate() {
                let out = out.add(index * stride + column * BLOCK_ROWS);
                _mm512_storeu_ps(out, sums[0]);
                _mm512_storeu_ps(out.add(16), sums[1]);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn softmax(scores: &Scores, maximum: &mut f32, sum: &mut f32) -> f32 {
    let scale = _mm512_set1_ps(scores.scale);
    let minus_infinity = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut largest = minus_infinity;
    // SAFETY: the column has 32 numbers in each of its blocks.
    unsafe {
        for block in 0..scores.blocks {
            let line = scores.start.add(block * scores.stride);
            for half in [0, 16] {
                let first = block * BLOCK_ROWS + half;
                let mut score = _mm512_mul_ps(_mm512_loadu_ps(line.add(half)), scale);
                if first + 16 > scores.visible {
                    let left = scores.visible.saturating_sub(first).min(16) as i32;
                    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                    let seen = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(left), lanes);
                    score = _mm512_mask_blend_ps(seen, minus_infinity, score);
                }
                largest = _mm512_max_ps(largest, score);
                _mm512_storeu_ps(line.add(half), score);
            }
        }
        let before = *maximum;
        *maximum = before.max(_mm512_reduce_max_ps(largest));
        // Nothing seen so far: any finite number avoids −∞ − −∞.
        let shift = if *maximum == f32::NEG_INFINITY { 0.0 } else { *maximum };
        let factor = _mm512_cvtss_f32(exp2(_mm512_set1_ps(before - shift)));
        let shift = _mm512_set1_ps(shift);
        let mut sums = [_mm512_setzero_ps(); 2];
        for block in 0..scores.blocks {
            let line = scores.start.add(block * scores.stride);
            for (half, sum) in sums.iter_mut().enumerate() {
                let line = line.add(half * 16);
                let power = exp2(_mm512_sub_ps(_mm512_loadu_ps(line), shift));
                *sum = _mm512_add_ps(*sum, power);
                _mm512_storeu_ps(line, power);
            }
        }
        *sum = *sum * factor + _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
        factor
    }
}

/// 2^x for x up to 127; 0 below −126 and for −∞, NaN for NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn exp2(x: __m512) -> __m512 {
    // Smaller powers have no normal number, and `scalef` takes some hundred cycles to make one that is not.
    let least = _mm512_set1_ps(-126.0);
    let representable = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, least);
    // The second operand wins if one is NaN.
    let x = _mm512_max_ps(least, x);
    let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let f = _mm512_sub_ps(x, whole);
    let mut power = _mm512_set1_ps(EXP2[5]);
    for &coefficient in EXP2[..5].iter().rev() {
        power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(coefficient));
    }
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(1.0));
    _mm512_maskz_scalef_ps(representable, power, whole)
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn weigh_of<E: Element, const H: usize>(
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
    // SAFETY: passed on; `d` and the width stay inside `dim`.
    unsafe {
        while H <= 4 && E::WIDEST >= 4 && d + 64 <= dim {
            weigh_strip::<E, H, 4>(chunk, entries, shares, factors, outputs, d);
            d += 64;
        }
        while d + 32 <= dim {
            weigh_strip::<E, H, 2>(chunk, entries, shares, factors, outputs, d);
            d += 32;
        }
        if d < dim {
            weigh_strip::<E, H, 1>(chunk, entries, shares, factors, outputs, d);
        }
    }
}

/// `16 * N` dimensions of the outputs, kept in registers over all entries.
#[inline(always)]
unsafe fn weigh_strip<E: Element, const H: usize, const N: usize>(
    chunk: &Chunk,
    entries: usize,
    (probabilities, stride): (*const f32, usize),
    factors: &[f32],
    outputs: &[*mut f32],
    d: usize,
) {
    // SAFETY: blocks, probabilities and outputs are as `Kernels` demands.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); N]; H];
        for column in 0..H {
            // The first chunk finds no numbers in the output yet.
            if factors[column] != 0.0 {
                let factor = _mm512_set1_ps(factors[column]);
                for (part, sum) in sums[column].iter_mut().enumerate() {
                    *sum = _mm512_mul_ps(_mm512_loadu_ps(outputs[column].add(d + part * 16)), factor);
                }
            }
        }
        let mut scaled = [[0.0_f32; BLOCK_ROWS]; H];
        for index in 0..entries.div_ceil(BLOCK_ROWS) {
            let block = E::open(chunk.layout, chunk.blocks[index]);
            let mut shares = probabilities.add(index * stride);
            for half in [0, 16] {
                if let Some(scales) = block.value_scales(d / GROUP_DIMS, half) {
                    for (column, scaled) in scaled.iter_mut().enumerate() {
                        let share = _mm512_loadu_ps(shares.add(column * BLOCK_ROWS + half));
                        _mm512_storeu_ps(scaled.as_mut_ptr().add(half), _mm512_mul_ps(share, scales));
                    }
                }
            }
            if block.value_scales(0, 0).is_some() {
                shares = scaled.as_ptr().cast();
            }
            for entry in 0..(entries - index * BLOCK_ROWS).min(BLOCK_ROWS) {
                let values: [__m512; N] = std::array::from_fn(|part| block.value(entry, d + part * 16));
                for (column, sums) in sums.iter_mut().enumerate() {
                    let share = _mm512_set1_ps(*shares.add(column * BLOCK_ROWS + entry));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = _mm512_fmadd_ps(value, share, *sum);
                    }
                }
            }
        }
        for (sums, output) in sums.iter().zip(outputs) {
            for (part, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(output.add(d + part * 16), *sum);
            }
        }
    }
}

unsafe fn stage(layout: &Layout, block: *const u8, out: *mut f32) {
    // SAFETY: passed on.
    unsafe {
        match layout.kv_type {
            KvType::F16 => stage_of::<Half>(layout, block, out),
            KvType::F32 => stage_of::<Single>(layout, block, out),
            KvType::Q8_0 => stage_of::<Byte>(layout, block, out),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn stage_of<E: Element>(layout: &Layout, block: *const u8, out: *mut f32) {
    let dim = layout.dim;
    // SAFETY: the block has the layout's size, `out` room for its keys and values.
    unsafe {
        let block = E::open(layout, block);
        for d in 0..dim {
            let keys = block.keys(d, block.key_scales(d / GROUP_DIMS));
            _mm512_storeu_ps(out.add(d * BLOCK_ROWS), keys[0]);
            _mm512_storeu_ps(out.add(d * BLOCK_ROWS + 16), keys[1]);
        }
        let out = out.add(dim * BLOCK_ROWS);
        for d in (0..dim).step_by(16) {
            let mut scales = [1.0_f32; BLOCK_ROWS];
            for half in [0, 16] {
                if let Some(numbers) = block.value_scales(d / GROUP_DIMS, half) {
                    _mm512_storeu_ps(scales.as_mut_ptr().add(half), numbers);
                }
            }
            for (entry, &scale) in scales.iter().enumerate() {
                let value = _mm512_mul_ps(block.value(entry, d), _mm512_set1_ps(scale));
                _mm512_storeu_ps(out.add(entry * dim + d), value);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn merge(factors: &[f32], parts: *const f32, stride: usize, out: &mut [f32]) {
    // SAFETY: passed on.
    unsafe { merge_body(factors, parts, stride, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn mass(part: &MassPart) {
    // SAFETY: the probabilities have 32 numbers per block and column, `out` has `entries`.
    unsafe {
        for first in (0..part.entries).step_by(16) {
            let offset = first / BLOCK_ROWS * part.stride + first % BLOCK_ROWS;
            let lanes = part.probabilities.add(offset);
            let share = |column: usize| _mm512_loadu_ps(lanes.add(column * BLOCK_ROWS));
            let mut total = _mm512_setzero_ps();
            match part.pooling {
                GroupPooling::Sum => {
                    for (column, factor) in part.factors.iter().enumerate() {
                        total = _mm512_fmadd_ps(share(column), _mm512_set1_ps(*factor), total);
                    }
                }
                GroupPooling::Max => {
                    for (row, factors) in part.factors.chunks_exact(part.group).enumerate() {
                        let mut largest = _mm512_setzero_ps();
                        for (member, factor) in factors.iter().enumerate() {
                            let share = share(row * part.group + member);
                            largest = _mm512_max_ps(largest, _mm512_mul_ps(share, _mm512_set1_ps(*factor)));
                        }
                        total = _mm512_add_ps(total, largest);
                    }
                }
            }
            let out = part.out.add(first);
            if first + 16 <= part.entries {
                _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), total));
            } else {
                let mut numbers = [0.0_f32; 16];
                _mm512_storeu_ps(numbers.as_mut_ptr(), total);
                for (entry, number) in numbers[..part.entries - first].iter().enumerate() {
                    *out.add(entry) += number;
                }
            }
        }
    }
}
