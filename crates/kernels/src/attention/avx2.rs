//! The kernels for AVX2 with FMA and F16C: half a line of keys is two registers, a tile of up to 6 columns keeps 12
//! sums in registers; wider tiles are computed in two parts.

#![expect(
    clippy::inline_always,
    reason = "helpers must take on the instruction set of their caller"
)]

use std::arch::x86_64::{
    __m256, _CMP_NLT_UQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0, _MM_HINT_T1, _mm_add_ps,
    _mm_add_ss, _mm_cvtss_f32, _mm_loadl_epi64, _mm_loadu_si128, _mm_max_ps, _mm_max_ss, _mm_movehdup_ps,
    _mm_movehl_ps, _mm_prefetch, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_blendv_ps,
    _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cmpgt_epi32, _mm256_cvtepi8_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_max_ps, _mm256_mul_ps, _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::GroupPooling;
use super::kernel::{Chunk, EXP2, Kernels, MassPart, Scores, merge_body};
use crate::cache::{BLOCK_ROWS, GROUP_DIMS, KvType, Layout};
use crate::isa::Isa;

pub(super) static KERNELS: Kernels = Kernels {
    isa: Isa::Avx2,
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
    /// Scales of 16 keys for a group of dimensions.
    type Scales: Copy;
    /// Bytes of a number.
    const BYTES: usize;
    unsafe fn open(layout: &Layout, block: *const u8) -> Self;
    unsafe fn key_scales(self, group: usize, lane: usize) -> Self::Scales;
    /// Dimension `d` of the block's 16 keys from `lane` on.
    unsafe fn keys(self, d: usize, lane: usize, scales: Self::Scales) -> [__m256; 2];
    /// Eight dimensions of a value from `d` on, without the scale.
    unsafe fn value(self, entry: usize, d: usize) -> __m256;
    /// Scales of the values of 8 entries from `entry` on for a group of dimensions, if there are any.
    unsafe fn value_scales(self, group: usize, entry: usize) -> Option<__m256>;
}

#[derive(Clone, Copy)]
struct Half {
    keys: *const u16,
    values: *const u16,
    dim: usize,
}

impl Element for Half {
    type Scales = ();
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
    unsafe fn key_scales(self, _group: usize, _lane: usize) {}

    #[inline(always)]
    unsafe fn keys(self, d: usize, lane: usize, (): ()) -> [__m256; 2] {
        // SAFETY: `d` is below `dim`, `lane` 0 or 16.
        unsafe {
            let line = self.keys.add(d * BLOCK_ROWS + lane);
            [half8(line), half8(line.add(8))]
        }
    }

    #[inline(always)]
    unsafe fn value(self, entry: usize, d: usize) -> __m256 {
        // SAFETY: `d + 8` is at most `dim`, `entry` below 32.
        unsafe { half8(self.values.add(entry * self.dim + d)) }
    }

    #[inline(always)]
    unsafe fn value_scales(self, _group: usize, _entry: usize) -> Option<__m256> {
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
    unsafe fn key_scales(self, _group: usize, _lane: usize) {}

    #[inline(always)]
    unsafe fn keys(self, d: usize, lane: usize, (): ()) -> [__m256; 2] {
        // SAFETY: `d` is below `dim`, `lane` 0 or 16.
        unsafe {
            let line = self.keys.add(d * BLOCK_ROWS + lane);
            [_mm256_loadu_ps(line), _mm256_loadu_ps(line.add(8))]
        }
    }

    #[inline(always)]
    unsafe fn value(self, entry: usize, d: usize) -> __m256 {
        // SAFETY: `d + 8` is at most `dim`, `entry` below 32.
        unsafe { _mm256_loadu_ps(self.values.add(entry * self.dim + d)) }
    }

    #[inline(always)]
    unsafe fn value_scales(self, _group: usize, _entry: usize) -> Option<__m256> {
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
    type Scales = [__m256; 2];
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
    unsafe fn key_scales(self, group: usize, lane: usize) -> [__m256; 2] {
        // SAFETY: `group` is below the number of groups, `lane` 0 or 16.
        unsafe {
            let line = self.key_scales.add(group * BLOCK_ROWS + lane);
            [half8(line), half8(line.add(8))]
        }
    }

    #[inline(always)]
    unsafe fn keys(self, d: usize, lane: usize, scales: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: `d` is below `dim`, `lane` 0 or 16.
        unsafe {
            let line = self.keys.add(d * BLOCK_ROWS + lane);
            [
                _mm256_mul_ps(byte8(line), scales[0]),
                _mm256_mul_ps(byte8(line.add(8)), scales[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn value(self, entry: usize, d: usize) -> __m256 {
        // SAFETY: `d + 8` is at most `dim`, `entry` below 32.
        unsafe { byte8(self.values.add(entry * self.dim + d)) }
    }

    #[inline(always)]
    unsafe fn value_scales(self, group: usize, entry: usize) -> Option<__m256> {
        // SAFETY: `group` is below the number of groups, `entry` a multiple of 8.
        Some(unsafe { half8(self.value_scales.add(group * BLOCK_ROWS + entry)) })
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
unsafe fn half8(numbers: *const u16) -> __m256 {
    // SAFETY: the caller gives 8 numbers.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(numbers.cast())) }
}

#[inline(always)]
unsafe fn byte8(numbers: *const i8) -> __m256 {
    // SAFETY: the caller gives 8 numbers.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(numbers.cast()))) }
}

/// Most columns whose sums fit in the registers.
const WIDEST: usize = 6;

/// Calls a function with the element type of a layout and a constant number of columns, at most [`WIDEST`].
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
            _ => $function::<$element, 6> $arguments,
        }
    };
}

unsafe fn scores(chunk: &Chunk, queries: &[*const f32], blocks: usize, out: *mut f32, stride: usize) {
    for columns in parts(queries.len()) {
        let queries = &queries[columns.clone()];
        // SAFETY: passed on.
        unsafe {
            let out = out.add(columns.start * BLOCK_ROWS);
            dispatch!(
                chunk.layout,
                queries.len(),
                scores_of(chunk, queries, blocks, out, stride)
            );
        }
    }
}

/// Cuts the columns of a tile into one or two parts that fit.
fn parts(columns: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let count = columns.div_ceil(WIDEST);
    (0..count).map(move |part| part * columns / count..(part + 1) * columns / count)
}

#[target_feature(enable = "avx2,fma,f16c")]
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
            for lane in [0, 16] {
                let mut sums = [[_mm256_setzero_ps(); 2]; H];
                for first in (0..dim).step_by(GROUP_DIMS) {
                    let scales = block.key_scales(first / GROUP_DIMS, lane);
                    for d in first..(first + GROUP_DIMS).min(dim) {
                        if lane == 0 && !chunk.warm {
                            prefetch::<E>(next_keys, values, d);
                        }
                        let keys = block.keys(d, lane, scales);
                        for (sums, query) in sums.iter_mut().zip(&queries) {
                            let number = _mm256_set1_ps(*query.add(d));
                            sums[0] = _mm256_fmadd_ps(keys[0], number, sums[0]);
                            sums[1] = _mm256_fmadd_ps(keys[1], number, sums[1]);
                        }
                    }
                }
                for (column, sums) in sums.iter().enumerate() {
                    let out = out.add(index * stride + column * BLOCK_ROWS + lane);
                    _mm256_storeu_ps(out, sums[0]);
                    _mm256_storeu_ps(out.add(8), sums[1]);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn softmax(scores: &Scores, maximum: &mut f32, sum: &mut f32) -> f32 {
    let scale = _mm256_set1_ps(scores.scale);
    let minus_infinity = _mm256_set1_ps(f32::NEG_INFINITY);
    let mut largest = minus_infinity;
    // SAFETY: the column has 32 numbers in each of its blocks.
    unsafe {
        for block in 0..scores.blocks {
            let line = scores.start.add(block * scores.stride);
            for part in (0..BLOCK_ROWS).step_by(8) {
                let first = block * BLOCK_ROWS + part;
                let mut score = _mm256_mul_ps(_mm256_loadu_ps(line.add(part)), scale);
                if first + 8 > scores.visible {
                    let left = scores.visible.saturating_sub(first).min(8) as i32;
                    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                    let seen = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), lanes);
                    score = _mm256_blendv_ps(minus_infinity, score, _mm256_castsi256_ps(seen));
                }
                largest = _mm256_max_ps(largest, score);
                _mm256_storeu_ps(line.add(part), score);
            }
        }
        let before = *maximum;
        *maximum = before.max(largest_of(largest));
        // Nothing seen so far: any finite number avoids −∞ − −∞.
        let shift = if *maximum == f32::NEG_INFINITY { 0.0 } else { *maximum };
        let factor = _mm_cvtss_f32(_mm256_castps256_ps128(exp2(_mm256_set1_ps(before - shift))));
        let shift = _mm256_set1_ps(shift);
        let mut sums = [_mm256_setzero_ps(); 4];
        for block in 0..scores.blocks {
            let line = scores.start.add(block * scores.stride);
            for (part, sum) in sums.iter_mut().enumerate() {
                let line = line.add(part * 8);
                let power = exp2(_mm256_sub_ps(_mm256_loadu_ps(line), shift));
                *sum = _mm256_add_ps(*sum, power);
                _mm256_storeu_ps(line, power);
            }
        }
        *sum = *sum * factor
            + sum_of(_mm256_add_ps(
                _mm256_add_ps(sums[0], sums[1]),
                _mm256_add_ps(sums[2], sums[3]),
            ));
        factor
    }
}

/// 2^x for x up to 127; 0 below −126 and for −∞, NaN for NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn exp2(x: __m256) -> __m256 {
    let least = _mm256_set1_ps(-126.0);
    let representable = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, least);
    // The second operand wins if one is NaN.
    let x = _mm256_max_ps(least, x);
    let whole = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let f = _mm256_sub_ps(x, whole);
    let mut power = _mm256_set1_ps(EXP2[5]);
    for &coefficient in EXP2[..5].iter().rev() {
        power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(coefficient));
    }
    power = _mm256_fmadd_ps(power, f, _mm256_set1_ps(1.0));
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    let scale = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent));
    _mm256_and_ps(_mm256_mul_ps(power, scale), representable)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest_of(numbers: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(numbers), _mm256_extractf128_ps::<1>(numbers));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_of(numbers: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(numbers), _mm256_extractf128_ps::<1>(numbers));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

unsafe fn weigh(
    chunk: &Chunk,
    entries: usize,
    probabilities: *const f32,
    stride: usize,
    factors: &[f32],
    outputs: &[*mut f32],
) {
    for columns in parts(factors.len()) {
        let factors = &factors[columns.clone()];
        let outputs = &outputs[columns.clone()];
        // SAFETY: passed on.
        unsafe {
            let probabilities = probabilities.add(columns.start * BLOCK_ROWS);
            dispatch!(
                chunk.layout,
                factors.len(),
                weigh_of(chunk, entries, probabilities, stride, factors, outputs)
            );
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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
        while H <= 3 && d + 32 <= dim {
            weigh_strip::<E, H, 4>(chunk, entries, shares, factors, outputs, d);
            d += 32;
        }
        while d < dim {
            weigh_strip::<E, H, 2>(chunk, entries, shares, factors, outputs, d);
            d += 16;
        }
    }
}

/// `8 * N` dimensions of the outputs, kept in registers over all entries.
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
        let mut sums = [[_mm256_setzero_ps(); N]; H];
        for column in 0..H {
            // The first chunk finds no numbers in the output yet.
            if factors[column] != 0.0 {
                let factor = _mm256_set1_ps(factors[column]);
                for (part, sum) in sums[column].iter_mut().enumerate() {
                    *sum = _mm256_mul_ps(_mm256_loadu_ps(outputs[column].add(d + part * 8)), factor);
                }
            }
        }
        let mut scaled = [[0.0_f32; BLOCK_ROWS]; H];
        for index in 0..entries.div_ceil(BLOCK_ROWS) {
            let block = E::open(chunk.layout, chunk.blocks[index]);
            let mut shares = probabilities.add(index * stride);
            for half in (0..BLOCK_ROWS).step_by(8) {
                if let Some(scales) = block.value_scales(d / GROUP_DIMS, half) {
                    for (column, scaled) in scaled.iter_mut().enumerate() {
                        let share = _mm256_loadu_ps(shares.add(column * BLOCK_ROWS + half));
                        _mm256_storeu_ps(scaled.as_mut_ptr().add(half), _mm256_mul_ps(share, scales));
                    }
                }
            }
            if block.value_scales(0, 0).is_some() {
                shares = scaled.as_ptr().cast();
            }
            for entry in 0..(entries - index * BLOCK_ROWS).min(BLOCK_ROWS) {
                let values: [__m256; N] = std::array::from_fn(|part| block.value(entry, d + part * 8));
                for (column, sums) in sums.iter_mut().enumerate() {
                    let share = _mm256_set1_ps(*shares.add(column * BLOCK_ROWS + entry));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = _mm256_fmadd_ps(value, share, *sum);
                    }
                }
            }
        }
        for (sums, output) in sums.iter().zip(outputs) {
            for (part, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(output.add(d + part * 8), *sum);
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

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn stage_of<E: Element>(layout: &Layout, block: *const u8, out: *mut f32) {
    let dim = layout.dim;
    // SAFETY: the block has the layout's size, `out` room for its keys and values.
    unsafe {
        let block = E::open(layout, block);
        for d in 0..dim {
            for lane in [0, 16] {
                let keys = block.keys(d, lane, block.key_scales(d / GROUP_DIMS, lane));
                let out = out.add(d * BLOCK_ROWS + lane);
                _mm256_storeu_ps(out, keys[0]);
                _mm256_storeu_ps(out.add(8), keys[1]);
            }
        }
        let out = out.add(dim * BLOCK_ROWS);
        for d in (0..dim).step_by(8) {
            let mut scales = [1.0_f32; BLOCK_ROWS];
            for entry in (0..BLOCK_ROWS).step_by(8) {
                if let Some(numbers) = block.value_scales(d / GROUP_DIMS, entry) {
                    _mm256_storeu_ps(scales.as_mut_ptr().add(entry), numbers);
                }
            }
            for (entry, &scale) in scales.iter().enumerate() {
                let value = _mm256_mul_ps(block.value(entry, d), _mm256_set1_ps(scale));
                _mm256_storeu_ps(out.add(entry * dim + d), value);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn merge(factors: &[f32], parts: *const f32, stride: usize, out: &mut [f32]) {
    // SAFETY: passed on.
    unsafe { merge_body(factors, parts, stride, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn mass(part: &MassPart) {
    // SAFETY: the probabilities have 32 numbers per block and column, `out` has `entries`.
    unsafe {
        for first in (0..part.entries).step_by(8) {
            let offset = first / BLOCK_ROWS * part.stride + first % BLOCK_ROWS;
            let lanes = part.probabilities.add(offset);
            let share = |column: usize| _mm256_loadu_ps(lanes.add(column * BLOCK_ROWS));
            let mut total = _mm256_setzero_ps();
            match part.pooling {
                GroupPooling::Sum => {
                    for (column, factor) in part.factors.iter().enumerate() {
                        total = _mm256_fmadd_ps(share(column), _mm256_set1_ps(*factor), total);
                    }
                }
                GroupPooling::Max => {
                    for (row, factors) in part.factors.chunks_exact(part.group).enumerate() {
                        let mut largest = _mm256_setzero_ps();
                        for (member, factor) in factors.iter().enumerate() {
                            let share = share(row * part.group + member);
                            largest = _mm256_max_ps(largest, _mm256_mul_ps(share, _mm256_set1_ps(*factor)));
                        }
                        total = _mm256_add_ps(total, largest);
                    }
                }
            }
            let out = part.out.add(first);
            if first + 8 <= part.entries {
                _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), total));
            } else {
                let mut numbers = [0.0_f32; 8];
                _mm256_storeu_ps(numbers.as_mut_ptr(), total);
                for (entry, number) in numbers[..part.entries - first].iter().enumerate() {
                    *out.add(entry) += number;
                }
            }
        }
    }
}
