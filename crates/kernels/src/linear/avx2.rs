//! AVX2 with FMA and F16C: one register holds a quad of 8 features, half of a group.
//!
//! `vpmaddubsw` takes unsigned weights and signed inputs and adds pairs into 16 bits, saturating; so only as many quads
//! are summed in 16 bits as cannot saturate, and 8-bit weights pass their sign to the inputs first. Offsets are applied
//! to the integer sums by means of the sum of the inputs. The formula is that of `scalar`.

#![allow(clippy::wildcard_imports, reason = "half of the file is names of this module")]
#![expect(
    clippy::needless_range_loop,
    reason = "registers of a tile are addressed by group and row"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::activations::{TILE, TileBlock};
use super::layout::{GROUP, Layout, format};
use super::matmul::{PANEL_GROUPS, Unit, by_format};

/// Blocks of a panel: with two groups 20 KiB of unpacked weights, which stay in the first-level cache.
const PANEL_BLOCKS: usize = 16;
/// Inputs of a panel of float weights: 8 KiB.
const PANEL_INPUTS: usize = 128;
/// How far ahead of its use a weight is asked for in the product with one row, in bytes.
const AHEAD: usize = 1536;

/// # Safety
/// The machine has AVX2, FMA and F16C; the rest as for `scalar::run`.
pub(super) unsafe fn run(unit: &Unit) {
    // SAFETY: as promised by the caller.
    unsafe { by_format!(unit, quantised, floats) }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantised<const FORMAT: u8>(unit: &Unit) {
    // SAFETY: as promised by the caller.
    unsafe {
        if unit.x.rows() == 1 {
            for group in unit.groups.clone() {
                one_row::<FORMAT>(unit, group);
            }
        } else {
            for first in unit.groups.clone().step_by(PANEL_GROUPS) {
                many_rows::<FORMAT>(&unit.part(first..unit.groups.end.min(first + PANEL_GROUPS)));
            }
        }
    }
}

/// The eight quads of 8 features of a block: unsigned, but signed for the 8-bit type.
///
/// # Safety
/// `block` points to the quants of a block, for the upper 8 features 32 bytes further.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn quads<const FORMAT: u8>(block: *const u8) -> [__m256i; 8] {
    // SAFETY: a block has `quant_bytes` bytes in lines of 64, and half of each is read.
    let line = |index: usize| unsafe { _mm256_loadu_si256(block.add(index * 64).cast()) };
    if format::bits(FORMAT) == 8 {
        return std::array::from_fn(line);
    }
    let mut quads = [_mm256_setzero_si256(); 8];
    let nibble = _mm256_set1_epi8(15);
    for quad in 0..4 {
        let both = line(quad);
        quads[quad] = _mm256_and_si256(both, nibble);
        quads[quad + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble);
    }
    // Bits that a shift carries over from the neighbouring byte are masked away.
    if format::bits(FORMAT) == 5 {
        let high = line(4);
        let shifted = [
            _mm256_slli_epi16::<4>(high),
            _mm256_slli_epi16::<3>(high),
            _mm256_slli_epi16::<2>(high),
            _mm256_slli_epi16::<1>(high),
            high,
            _mm256_srli_epi16::<1>(high),
            _mm256_srli_epi16::<2>(high),
            _mm256_srli_epi16::<3>(high),
        ];
        for (quad, shifted) in quads.iter_mut().zip(shifted) {
            *quad = _mm256_or_si256(*quad, _mm256_and_si256(shifted, _mm256_set1_epi8(16)));
        }
    } else if format::bits(FORMAT) == 6 {
        for half in 0..2 {
            let high = line(4 + half);
            let shifted = [
                _mm256_slli_epi16::<4>(high),
                _mm256_slli_epi16::<2>(high),
                high,
                _mm256_srli_epi16::<2>(high),
            ];
            for (quad, shifted) in quads[4 * half..].iter_mut().zip(shifted) {
                *quad = _mm256_or_si256(*quad, _mm256_and_si256(shifted, _mm256_set1_epi8(48)));
            }
        }
    }
    quads
}

/// The scales of 8 features of a block, and their minima, or for `Q6_K` the scales of the second half of the inputs.
///
/// # Safety
/// `group` points to a group of this layout, `block` is one of its blocks, and `half` is 0 or 1.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn scales<const FORMAT: u8>(layout: &Layout, group: *const u8, block: usize, half: usize) -> [__m256; 2] {
    // SAFETY: every block has its scales, and every eight blocks those of a super-block.
    unsafe {
        let halves = |at: *const u8| _mm256_cvtph_ps(_mm_loadu_si128(at.add(half * 16).cast()));
        let own = group.add(layout.scales_at() + block * format::scale_bytes(FORMAT));
        if !format::is_super(FORMAT) {
            let minimum = if format::has_minimum(FORMAT) {
                halves(own.add(32))
            } else {
                _mm256_setzero_ps()
            };
            return [halves(own), minimum];
        }
        let supers = group.add(layout.supers_at() + block / 8 * format::super_bytes(FORMAT));
        let first = _mm_loadl_epi64(own.add(half * 8).cast());
        let second = _mm_loadl_epi64(own.add(GROUP + half * 8).cast());
        if FORMAT == format::Q6K {
            let signed = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            let scale = halves(supers);
            return [
                _mm256_mul_ps(scale, signed(first)),
                _mm256_mul_ps(scale, signed(second)),
            ];
        }
        let unsigned = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        let minimum = _mm256_mul_ps(halves(supers.add(32)), unsigned(second));
        [
            _mm256_mul_ps(halves(supers), unsigned(first)),
            _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0)),
        ]
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn input(quad: [i8; 4]) -> __m256i {
    _mm256_set1_epi32(i32::from_le_bytes(quad.map(|byte| byte as u8)))
}

/// Quads whose products may be summed in 16 bits: two products of largest weight times 127 each.
const fn quads_per_sum(format: u8) -> usize {
    match format::bits(format) {
        4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    }
}

/// Products of a quad, pairs added, in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn products<const FORMAT: u8>(weights: __m256i, x: __m256i) -> __m256i {
    if format::bits(FORMAT) == 8 {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    }
    _mm256_maddubs_epi16(weights, x)
}

/// The integer sums of `R` rows over `quads`, without the offset.
#[inline]
#[target_feature(enable = "avx2")]
fn dots<const FORMAT: u8, const R: usize>(quads: &[__m256i; 8], x: &TileBlock<R>, range: Range<usize>) -> [__m256i; R] {
    let ones = _mm256_set1_epi16(1);
    let mut dots = [_mm256_setzero_si256(); R];
    let step = quads_per_sum(FORMAT).min(range.len());
    for run in 0..range.len() / step {
        let start = range.start + run * step;
        let mut sums = [_mm256_setzero_si256(); R];
        for quad in start..start + step {
            for row in 0..R {
                let products = products::<FORMAT>(quads[quad], input(x.quads[quad][row]));
                sums[row] = if quad == start {
                    products
                } else {
                    _mm256_add_epi16(sums[row], products)
                };
            }
        }
        for row in 0..R {
            let wide = _mm256_madd_epi16(sums[row], ones);
            dots[row] = if run == 0 {
                wide
            } else {
                _mm256_add_epi32(dots[row], wide)
            };
        }
    }
    dots
}

/// Minus the offset of the weights times the sum of the inputs, added to the integer sums.
#[inline]
#[target_feature(enable = "avx2")]
fn shift_by_offset<const FORMAT: u8>(dot: __m256i, negative_sum: i32) -> __m256i {
    let sum = _mm256_set1_epi32(negative_sum);
    match format::offset_shift(FORMAT) {
        Some(3) => _mm256_add_epi32(dot, _mm256_slli_epi32::<3>(sum)),
        Some(4) => _mm256_add_epi32(dot, _mm256_slli_epi32::<4>(sum)),
        Some(5) => _mm256_add_epi32(dot, _mm256_slli_epi32::<5>(sum)),
        _ => dot,
    }
}

/// Adds the products of a block to the float sums of `R` rows: the formula of `scalar`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_block<const FORMAT: u8, const R: usize>(
    sums: &mut [__m256; R],
    quads: &[__m256i; 8],
    scales: [__m256; 2],
    x: &TileBlock<R>,
) {
    if FORMAT == format::Q6K {
        for half in 0..2 {
            let dots = dots::<FORMAT, R>(quads, x, half * 4..half * 4 + 4);
            for row in 0..R {
                let dot = shift_by_offset::<FORMAT>(dots[row], x.negative_sums[half][row]);
                let scale = _mm256_mul_ps(scales[half], _mm256_set1_ps(x.scale[row]));
                sums[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[row]);
            }
        }
        return;
    }
    let dots = dots::<FORMAT, R>(quads, x, 0..8);
    for row in 0..R {
        let negative_sum = x.negative_sums[0][row] + x.negative_sums[1][row];
        let dot = shift_by_offset::<FORMAT>(dots[row], negative_sum);
        let scale = _mm256_mul_ps(scales[0], _mm256_set1_ps(x.scale[row]));
        sums[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[row]);
        if format::has_minimum(FORMAT) {
            sums[row] = _mm256_fmadd_ps(scales[1], _mm256_set1_ps(x.scaled_sum[row]), sums[row]);
        }
    }
}

/// Asks for what lies `ahead` bytes after the quants of a block.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch<const FORMAT: u8>(weights: *const u8, block: usize, ahead: usize) {
    let size = format::quant_bytes(FORMAT);
    for line in 0..size / 64 {
        // Past the end this asks for the next group, or for nothing; a prefetch never faults.
        _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(block * size + ahead + line * 64).cast());
    }
}

/// # Safety
/// As [`run`]; there is one row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_row<const FORMAT: u8>(unit: &Unit, group: usize) {
    let weights = unit.group(group).as_ptr();
    let size = format::quant_bytes(FORMAT);
    let mut sums = [[_mm256_setzero_ps()]; 2];
    for (block, x) in unit.x.single().iter().enumerate() {
        prefetch::<FORMAT>(weights, block, AHEAD);
        for (half, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the group has as many blocks as the row.
            let (quads, scales) = unsafe {
                (
                    quads::<FORMAT>(weights.add(block * size + half * 32)),
                    scales::<FORMAT>(unit.layout, weights, block, half),
                )
            };
            add_block::<FORMAT, 1>(sums, &quads, scales, x);
        }
    }
    for (half, sums) in sums.iter().enumerate() {
        // SAFETY: row and group are the unit's.
        unsafe { store(unit, 0, group, half, sums[0]) };
    }
}

/// Unpacked weights of 8 features.
struct Panel {
    quads: [MaybeUninit<[__m256i; 8]>; PANEL_BLOCKS],
    scales: [MaybeUninit<[__m256; 2]>; PANEL_BLOCKS],
}

impl Panel {
    const EMPTY: Self = Self {
        quads: [MaybeUninit::uninit(); PANEL_BLOCKS],
        scales: [MaybeUninit::uninit(); PANEL_BLOCKS],
    };
}

/// # Safety
/// As [`run`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(
    clippy::large_stack_arrays,
    reason = "20 KiB of scratch that stays in the first-level cache"
)]
unsafe fn many_rows<const FORMAT: u8>(unit: &Unit) {
    let mut panels = [const { Panel::EMPTY }; PANEL_GROUPS * 2];
    debug_assert!(unit.groups.len() <= PANEL_GROUPS);
    let size = format::quant_bytes(FORMAT);
    let blocks = unit.layout.blocks();
    for first in (0..blocks).step_by(PANEL_BLOCKS) {
        let end = blocks.min(first + PANEL_BLOCKS);
        for (group, panels) in unit.groups.clone().zip(panels.chunks_exact_mut(2)) {
            let weights = unit.group(group).as_ptr();
            for block in first..end {
                prefetch::<FORMAT>(weights, block, PANEL_BLOCKS * size);
                for (half, panel) in panels.iter_mut().enumerate() {
                    // SAFETY: a block of the group.
                    unsafe {
                        panel.quads[block - first].write(quads::<FORMAT>(weights.add(block * size + half * 32)));
                        panel.scales[block - first].write(scales::<FORMAT>(unit.layout, weights, block, half));
                    }
                }
            }
        }
        for (tile, rows) in unit.tiles() {
            let x = &unit.x.tile(tile)[first..end];
            for (group, panels) in unit.groups.clone().zip(panels.chunks_exact(2)) {
                for (half, panel) in panels.iter().enumerate() {
                    let mut sums = [_mm256_setzero_ps(); TILE];
                    if first > 0 {
                        for (sum, row) in sums.iter_mut().zip(rows.clone()) {
                            // SAFETY: row and group are the unit's.
                            *sum = unsafe { load(unit, row, group, half) };
                        }
                    }
                    for (block, x) in x.iter().enumerate() {
                        // SAFETY: the panel was filled for these blocks just now.
                        let (quads, scales) = unsafe {
                            (
                                panel.quads.get_unchecked(block).assume_init_ref(),
                                panel.scales.get_unchecked(block).assume_init(),
                            )
                        };
                        add_block::<FORMAT, TILE>(&mut sums, quads, scales, x);
                    }
                    for (sum, row) in sums.into_iter().zip(rows.clone()) {
                        // SAFETY: row and group are the unit's.
                        unsafe { store(unit, row, group, half, sum) };
                    }
                }
            }
        }
    }
}

/// The lanes of half a group that are features, for masked access; `None` if all are.
#[inline]
#[target_feature(enable = "avx2")]
fn mask(columns: usize, half: usize) -> Option<__m256i> {
    let columns = columns as i32 - half as i32 * 8;
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    (columns < 8).then(|| _mm256_cmpgt_epi32(_mm256_set1_epi32(columns), lanes))
}

/// # Safety
/// Row and group must be the unit's, and the group must be written by this unit alone.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(unit: &Unit, row: usize, group: usize, half: usize) -> __m256 {
    // SAFETY: the mask keeps to the columns of the group.
    unsafe {
        let place = unit.place(row, group).wrapping_add(half * 8);
        match mask(unit.columns(group), half) {
            None => _mm256_loadu_ps(place),
            Some(mask) => _mm256_maskload_ps(place, mask),
        }
    }
}

/// # Safety
/// As [`load`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(unit: &Unit, row: usize, group: usize, half: usize, sum: __m256) {
    // SAFETY: the mask keeps to the columns of the group.
    unsafe {
        let place = unit.place(row, group).wrapping_add(half * 8);
        match mask(unit.columns(group), half) {
            None => _mm256_storeu_ps(place, sum),
            Some(mask) => _mm256_maskstore_ps(place, mask, sum),
        }
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn floats<const FORMAT: u8>(unit: &Unit) {
    let mut panel = [[_mm256_setzero_ps(); 2]; PANEL_INPUTS];
    let inputs = unit.layout.blocks();
    for group in unit.groups.clone() {
        let weights = unit.group(group).as_ptr();
        for first in (0..inputs).step_by(PANEL_INPUTS) {
            let count = PANEL_INPUTS.min(inputs - first);
            for (k, place) in (first..first + count).zip(&mut panel) {
                for (half, place) in place.iter_mut().enumerate() {
                    let lane = k * GROUP + half * 8;
                    // SAFETY: input `k` of the group.
                    *place = unsafe {
                        if FORMAT == format::F16 {
                            _mm256_cvtph_ps(_mm_loadu_si128(weights.add(lane * 2).cast()))
                        } else if FORMAT == format::BF16 {
                            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(weights.add(lane * 2).cast()));
                            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
                        } else {
                            _mm256_loadu_ps(weights.add(lane * 4).cast())
                        }
                    };
                }
            }
            for (_, rows) in unit.tiles() {
                // SAFETY: rows and group are the unit's.
                unsafe { float_rows(unit, &panel, group, first..first + count, rows) };
            }
        }
    }
}

/// # Safety
/// Rows and group are the unit's, inputs those of the weight.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn float_rows(
    unit: &Unit,
    panel: &[[__m256; 2]; PANEL_INPUTS],
    group: usize,
    inputs: Range<usize>,
    rows: Range<usize>,
) {
    let mut sums = [[_mm256_setzero_ps(); 2]; TILE];
    if inputs.start > 0 {
        for (row, sums) in rows.clone().zip(&mut sums) {
            for (half, sum) in sums.iter_mut().enumerate() {
                // SAFETY: row and group are the unit's.
                *sum = unsafe { load(unit, row, group, half) };
            }
        }
    }
    // Rows that do not exist repeat the last one and are not stored.
    let x: [*const f32; TILE] = std::array::from_fn(|lane| {
        let row = (rows.start + lane).min(rows.end - 1);
        unit.x.floats()[row * unit.x.columns()..][inputs.clone()].as_ptr()
    });
    for (k, panel) in panel.iter().enumerate().take(inputs.len()) {
        for (x, sums) in x.iter().zip(&mut sums) {
            // SAFETY: `k` is one of the inputs.
            let x = unsafe { _mm256_set1_ps(*x.add(k)) };
            for (weights, sum) in panel.iter().zip(sums) {
                *sum = _mm256_fmadd_ps(*weights, x, *sum);
            }
        }
    }
    for (row, sums) in rows.zip(&sums) {
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: row and group are the unit's.
            unsafe { store(unit, row, group, half, *sum) };
        }
    }
}
