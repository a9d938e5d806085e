//! AVX-512 with VNNI: one register holds a quad of 16 features, and one instruction multiplies it into 16 sums.
//!
//! `vpdpbusd` takes unsigned weights and signed inputs, so weights keep their unsigned form (8-bit ones are shifted by
//! 128) and the integer sums start at minus offset times the sum of the inputs. The formula is that of `scalar`.

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
use super::matmul::{FEW_ROWS, PANEL_GROUPS, Unit, by_format};

/// Blocks of a panel: with two groups 20 KiB of unpacked weights, which stay in the first-level cache.
const PANEL_BLOCKS: usize = 16;
/// Inputs of a panel of float weights: 16 KiB.
const PANEL_INPUTS: usize = 128;
/// How far ahead of its use a weight is asked for in the product with few rows, in bytes.
const AHEAD: usize = 4096;

/// # Safety
/// The machine has AVX-512 F, BW, DQ, VL and VNNI; the rest as for `scalar::run`.
pub(super) unsafe fn run(unit: &Unit) {
    // SAFETY: as promised by the caller.
    unsafe { by_format!(unit, quantised, floats) }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn quantised<const FORMAT: u8>(unit: &Unit) {
    // SAFETY: as promised by the caller.
    unsafe {
        if unit.x.rows() == 1 {
            for group in unit.groups.clone() {
                one_row::<FORMAT>(unit, group);
            }
        } else if unit.x.rows() <= FEW_ROWS {
            for group in unit.groups.clone() {
                few_rows::<FORMAT>(unit, group);
            }
        } else if unit.groups.len() == PANEL_GROUPS {
            many_rows::<FORMAT, PANEL_GROUPS>(unit);
        } else {
            for group in unit.groups.clone() {
                many_rows::<FORMAT, 1>(&unit.part(group..group + 1));
            }
        }
    }
}

/// The eight quads of a block, unsigned.
///
/// # Safety
/// `block` points to the quants of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn quads<const FORMAT: u8>(block: *const u8) -> [__m512i; 8] {
    // SAFETY: a block has `quant_bytes` bytes, the lines read below.
    let line = |index: usize| unsafe { _mm512_loadu_si512(block.add(index * 64).cast()) };
    let mut quads = [_mm512_setzero_si512(); 8];
    if format::bits(FORMAT) == 8 {
        for (index, quad) in quads.iter_mut().enumerate() {
            *quad = _mm512_xor_si512(line(index), _mm512_set1_epi8(-128));
        }
        return quads;
    }
    let nibble = _mm512_set1_epi8(15);
    for quad in 0..4 {
        let both = line(quad);
        quads[quad] = _mm512_and_si512(both, nibble);
        quads[quad + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
    }
    // Bits that a shift carries over from the neighbouring byte are masked away: `low | (high & mask)`.
    if format::bits(FORMAT) == 5 {
        let high = line(4);
        let shifted = [
            _mm512_slli_epi16::<4>(high),
            _mm512_slli_epi16::<3>(high),
            _mm512_slli_epi16::<2>(high),
            _mm512_slli_epi16::<1>(high),
            high,
            _mm512_srli_epi16::<1>(high),
            _mm512_srli_epi16::<2>(high),
            _mm512_srli_epi16::<3>(high),
        ];
        for (quad, shifted) in quads.iter_mut().zip(shifted) {
            *quad = _mm512_ternarylogic_epi32::<0xF8>(*quad, shifted, _mm512_set1_epi8(16));
        }
    } else if format::bits(FORMAT) == 6 {
        for half in 0..2 {
            let high = line(4 + half);
            let shifted = [
                _mm512_slli_epi16::<4>(high),
                _mm512_slli_epi16::<2>(high),
                high,
                _mm512_srli_epi16::<2>(high),
            ];
            for (quad, shifted) in quads[4 * half..].iter_mut().zip(shifted) {
                *quad = _mm512_ternarylogic_epi32::<0xF8>(*quad, shifted, _mm512_set1_epi8(48));
            }
        }
    }
    quads
}

/// The scales of a block, and its minima, or for `Q6_K` the scales of the second half.
///
/// # Safety
/// `group` points to a group of this layout, and `block` is one of its blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn scales<const FORMAT: u8>(layout: &Layout, group: *const u8, block: usize) -> [__m512; 2] {
    // SAFETY: every block has its scales, and every eight blocks those of a super-block.
    unsafe {
        let halves = |at: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
        let own = group.add(layout.scales_at() + block * format::scale_bytes(FORMAT));
        if !format::is_super(FORMAT) {
            let minimum = if format::has_minimum(FORMAT) {
                halves(own.add(32))
            } else {
                _mm512_setzero_ps()
            };
            return [halves(own), minimum];
        }
        let supers = group.add(layout.supers_at() + block / 8 * format::super_bytes(FORMAT));
        let first = _mm_loadu_si128(own.cast());
        let second = _mm_loadu_si128(own.add(GROUP).cast());
        if FORMAT == format::Q6K {
            let signed = |bytes| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
            let scale = halves(supers);
            return [
                _mm512_mul_ps(scale, signed(first)),
                _mm512_mul_ps(scale, signed(second)),
            ];
        }
        let unsigned = |bytes| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        let minimum = _mm512_mul_ps(halves(supers.add(32)), unsigned(second));
        [
            _mm512_mul_ps(halves(supers), unsigned(first)),
            _mm512_xor_ps(minimum, _mm512_set1_ps(-0.0)),
        ]
    }
}

/// Where the integer sums of a row start: minus the offset of the weights times the sum of the inputs.
#[inline]
#[target_feature(enable = "avx512f")]
fn start<const FORMAT: u8>(negative_sum: i32) -> __m512i {
    let sum = _mm512_set1_epi32(negative_sum);
    match format::offset_shift(FORMAT) {
        Some(3) => _mm512_slli_epi32::<3>(sum),
        Some(4) => _mm512_slli_epi32::<4>(sum),
        Some(5) => _mm512_slli_epi32::<5>(sum),
        _ if format::bits(FORMAT) == 8 => _mm512_slli_epi32::<7>(sum),
        _ => _mm512_setzero_si512(),
    }
}

/// [`start`] for a block, or for one half of a `Q6_K` block.
#[inline]
#[target_feature(enable = "avx512f")]
fn start_of_part<const FORMAT: u8, const R: usize>(x: &TileBlock<R>, row: usize, part: usize) -> __m512i {
    if FORMAT == format::Q6K {
        start::<FORMAT>(x.negative_sums[part][row])
    } else {
        start::<FORMAT>(x.negative_sums[0][row] + x.negative_sums[1][row])
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn input(quad: [i8; 4]) -> __m512i {
    _mm512_set1_epi32(i32::from_le_bytes(quad.map(|byte| byte as u8)))
}

/// Adds the products of a block, for `Q6_K` of one of its halves, to the float sums: the formula of `scalar`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_part<const FORMAT: u8, const R: usize>(
    sum: __m512,
    dot: __m512i,
    scales: [__m512; 2],
    x: &TileBlock<R>,
    row: usize,
    part: usize,
) -> __m512 {
    let scale = _mm512_mul_ps(scales[part], _mm512_set1_ps(x.scale[row]));
    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, sum);
    if format::has_minimum(FORMAT) {
        return _mm512_fmadd_ps(scales[1], _mm512_set1_ps(x.scaled_sum[row]), sum);
    }
    sum
}

/// Asks for the block that is `ahead` bytes of quants further on, and its scales: past the end of the group those of the
/// next one, which follows it in memory.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch<const FORMAT: u8>(layout: &Layout, group: *const u8, block: usize, ahead: usize) {
    let size = format::quant_bytes(FORMAT);
    let mut group = group;
    let mut block = block + ahead / size;
    if block >= layout.blocks() {
        block -= layout.blocks();
        group = group.wrapping_add(layout.group_bytes());
    }
    // After the last group there may be nothing; a prefetch never faults.
    let ask = |offset: usize| _mm_prefetch::<_MM_HINT_T0>(group.wrapping_add(offset).cast());
    for line in 0..size / 64 {
        ask(block * size + line * 64);
    }
    ask(layout.scales_at() + block * format::scale_bytes(FORMAT));
    if format::is_super(FORMAT) {
        ask(layout.supers_at() + block / 8 * format::super_bytes(FORMAT));
    }
}

/// # Safety
/// As [`run`]; there is one row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn one_row<const FORMAT: u8>(unit: &Unit, group: usize) {
    let weights = unit.group(group).as_ptr();
    let size = format::quant_bytes(FORMAT);
    let mut sum = _mm512_setzero_ps();
    for (block, x) in unit.x.single().iter().enumerate() {
        // SAFETY: the group has as many blocks as the row.
        let (quads, scales) = unsafe {
            (
                quads::<FORMAT>(weights.add(block * size)),
                scales::<FORMAT>(unit.layout, weights, block),
            )
        };
        prefetch::<FORMAT>(unit.layout, weights, block, AHEAD);
        let mut dots = [
            start::<FORMAT>(x.negative_sums[0][0]),
            start::<FORMAT>(x.negative_sums[1][0]),
        ];
        for (index, quad) in quads.into_iter().enumerate() {
            let dot = &mut dots[index / 4];
            *dot = _mm512_dpbusd_epi32(*dot, quad, input(x.quads[index][0]));
        }
        if FORMAT == format::Q6K {
            sum = add_part::<FORMAT, 1>(sum, dots[0], scales, x, 0, 0);
            sum = add_part::<FORMAT, 1>(sum, dots[1], scales, x, 0, 1);
        } else {
            let dot = _mm512_add_epi32(dots[0], dots[1]);
            sum = add_part::<FORMAT, 1>(sum, dot, scales, x, 0, 0);
        }
    }
    // SAFETY: the mask keeps to the columns of the group.
    unsafe { _mm512_mask_storeu_ps(unit.place(0, group), mask(unit.columns(group)), sum) };
}

/// Two tiles at a time, weights unpacked into registers: while they are multiplied, the next ones are on their way.
///
/// # Safety
/// As [`run`]; there are several rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn few_rows<const FORMAT: u8>(unit: &Unit, group: usize) {
    let mut tiles = unit.tiles();
    while let Some((tile, rows)) = tiles.next() {
        // SAFETY: tiles and rows are the unit's.
        unsafe {
            match tiles.next() {
                Some((second, more)) => {
                    let x = [unit.x.tile(tile), unit.x.tile(second)];
                    few_tiles::<FORMAT, 2>(unit, group, x, [rows, more]);
                }
                None => few_tiles::<FORMAT, 1>(unit, group, [unit.x.tile(tile)], [rows]),
            }
        }
    }
}

/// # Safety
/// As [`run`]; `rows` are those of the tiles `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn few_tiles<const FORMAT: u8, const T: usize>(
    unit: &Unit,
    group: usize,
    x: [&[TileBlock<TILE>]; T],
    rows: [Range<usize>; T],
) {
    let weights = unit.group(group).as_ptr();
    let size = format::quant_bytes(FORMAT);
    let parts = if FORMAT == format::Q6K { 2 } else { 1 };
    let mut sums = [[_mm512_setzero_ps(); TILE]; T];
    for block in 0..unit.layout.blocks() {
        // SAFETY: a block of the group.
        let (quads, scales) = unsafe {
            (
                quads::<FORMAT>(weights.add(block * size)),
                scales::<FORMAT>(unit.layout, weights, block),
            )
        };
        prefetch::<FORMAT>(unit.layout, weights, block, AHEAD);
        for (x, sums) in x.iter().zip(&mut sums) {
            // SAFETY: every tile has as many blocks as the group.
            let x = unsafe { x.get_unchecked(block) };
            for part in 0..parts {
                let mut dots: [__m512i; TILE] = std::array::from_fn(|row| start_of_part::<FORMAT, TILE>(x, row, part));
                for quad in part * 8 / parts..(part + 1) * 8 / parts {
                    for (row, dot) in dots.iter_mut().enumerate() {
                        *dot = _mm512_dpbusd_epi32(*dot, quads[quad], input(x.quads[quad][row]));
                    }
                }
                for (row, dot) in dots.into_iter().enumerate() {
                    sums[row] = add_part::<FORMAT, TILE>(sums[row], dot, scales, x, row, part);
                }
            }
        }
    }
    let mask = mask(unit.columns(group));
    for (sums, rows) in sums.iter().zip(rows) {
        for (sum, row) in sums.iter().zip(rows) {
            // SAFETY: the mask keeps to the columns of the group.
            unsafe { _mm512_mask_storeu_ps(unit.place(row, group), mask, *sum) };
        }
    }
}

fn mask(columns: usize) -> __mmask16 {
    (u32::MAX >> (32 - columns)) as u16
}

/// Unpacked weights of `G` groups.
struct Panel<const G: usize> {
    quads: [[MaybeUninit<[__m512i; 8]>; PANEL_BLOCKS]; G],
    scales: [[MaybeUninit<[__m512; 2]>; PANEL_BLOCKS]; G],
}

/// # Safety
/// As [`run`]; the unit has `G` groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn many_rows<const FORMAT: u8, const G: usize>(unit: &Unit) {
    let mut panel = Panel::<G> {
        quads: [const { [MaybeUninit::uninit(); PANEL_BLOCKS] }; G],
        scales: [const { [MaybeUninit::uninit(); PANEL_BLOCKS] }; G],
    };
    let size = format::quant_bytes(FORMAT);
    let blocks = unit.layout.blocks();
    for first in (0..blocks).step_by(PANEL_BLOCKS) {
        let end = blocks.min(first + PANEL_BLOCKS);
        for g in 0..G {
            let weights = unit.group(unit.groups.start + g).as_ptr();
            for block in first..end {
                prefetch::<FORMAT>(unit.layout, weights, block, PANEL_BLOCKS * size);
                // SAFETY: a block of the group.
                unsafe {
                    panel.quads[g][block - first].write(quads::<FORMAT>(weights.add(block * size)));
                    panel.scales[g][block - first].write(scales::<FORMAT>(unit.layout, weights, block));
                }
            }
        }
        for (tile, rows) in unit.tiles() {
            let x = &unit.x.tile(tile)[first..end];
            // SAFETY: the panel was filled for these blocks just now; rows and groups are the unit's.
            unsafe { tile_rows::<FORMAT, G>(unit, &panel, x, rows, first > 0) };
        }
    }
}

/// Multiplies the rows of a tile by a panel; the sums go on from those in the output if `resume`.
///
/// # Safety
/// As [`many_rows`]; the panel is filled for the blocks of `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile_rows<const FORMAT: u8, const G: usize>(
    unit: &Unit,
    panel: &Panel<G>,
    x: &[TileBlock<TILE>],
    rows: Range<usize>,
    resume: bool,
) {
    let mut sums = if resume {
        // SAFETY: rows and groups are the unit's, and masks keep to the columns of the group.
        unsafe { load::<G>(unit, rows.clone()) }
    } else {
        [[_mm512_setzero_ps(); TILE]; G]
    };
    let parts = if FORMAT == format::Q6K { 2 } else { 1 };
    for (block, x) in x.iter().enumerate() {
        for part in 0..parts {
            let mut dots = [[_mm512_setzero_si512(); TILE]; G];
            for row in 0..TILE {
                let start = start_of_part::<FORMAT, TILE>(x, row, part);
                for dots in &mut dots {
                    dots[row] = start;
                }
            }
            let quads_per_part = 8 / parts;
            for quad in part * quads_per_part..(part + 1) * quads_per_part {
                for g in 0..G {
                    // SAFETY: filled, as the caller promises.
                    let weights = unsafe { panel.quads.get_unchecked(g).get_unchecked(block).assume_init_ref()[quad] };
                    for row in 0..TILE {
                        dots[g][row] = _mm512_dpbusd_epi32(dots[g][row], weights, input(x.quads[quad][row]));
                    }
                }
            }
            for g in 0..G {
                // SAFETY: filled, as the caller promises.
                let scales = unsafe { panel.scales.get_unchecked(g).get_unchecked(block).assume_init() };
                for row in 0..TILE {
                    sums[g][row] = add_part::<FORMAT, TILE>(sums[g][row], dots[g][row], scales, x, row, part);
                }
            }
        }
    }
    // SAFETY: as above.
    unsafe { store(unit, rows, &sums) };
}

/// # Safety
/// The rows are the unit's, which has `G` groups.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const G: usize>(unit: &Unit, rows: Range<usize>) -> [[__m512; TILE]; G] {
    let mut sums = [[_mm512_setzero_ps(); TILE]; G];
    for (g, sums) in sums.iter_mut().enumerate() {
        let group = unit.groups.start + g;
        let mask = mask(unit.columns(group));
        for (sum, row) in sums.iter_mut().zip(rows.clone()) {
            // SAFETY: the mask keeps to the columns of the group.
            *sum = unsafe { _mm512_maskz_loadu_ps(mask, unit.place(row, group)) };
        }
    }
    sums
}

/// # Safety
/// The rows are the unit's, which has `G` groups.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const G: usize>(unit: &Unit, rows: Range<usize>, sums: &[[__m512; TILE]; G]) {
    for (g, sums) in sums.iter().enumerate() {
        let group = unit.groups.start + g;
        let mask = mask(unit.columns(group));
        for (sum, row) in sums.iter().zip(rows.clone()) {
            // SAFETY: the mask keeps to the columns of the group.
            unsafe { _mm512_mask_storeu_ps(unit.place(row, group), mask, *sum) };
        }
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f")]
unsafe fn floats<const FORMAT: u8>(unit: &Unit) {
    let mut panel = [[_mm512_setzero_ps(); PANEL_INPUTS]; PANEL_GROUPS];
    let inputs = unit.layout.blocks();
    let mut groups = unit.groups.clone();
    while !groups.is_empty() {
        let end = groups.end.min(groups.start + PANEL_GROUPS);
        for first in (0..inputs).step_by(PANEL_INPUTS) {
            let count = PANEL_INPUTS.min(inputs - first);
            for (group, panel) in (groups.start..end).zip(&mut panel) {
                let weights = unit.group(group).as_ptr();
                for (k, place) in (first..first + count).zip(panel) {
                    // SAFETY: input `k` of the group.
                    *place = unsafe {
                        if FORMAT == format::F16 {
                            _mm512_cvtph_ps(_mm256_loadu_si256(weights.add(k * 32).cast()))
                        } else if FORMAT == format::BF16 {
                            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(weights.add(k * 32).cast()));
                            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
                        } else {
                            _mm512_loadu_ps(weights.add(k * 64).cast())
                        }
                    };
                }
            }
            for (_, rows) in unit.tiles() {
                // SAFETY: rows and groups are the unit's.
                unsafe { float_rows(unit, &panel, groups.start..end, first..first + count, rows) };
            }
        }
        groups.start = end;
    }
}

/// # Safety
/// Rows and groups are the unit's, inputs those of the weight.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn float_rows(
    unit: &Unit,
    panel: &[[__m512; PANEL_INPUTS]; PANEL_GROUPS],
    groups: Range<usize>,
    inputs: Range<usize>,
    rows: Range<usize>,
) {
    let mut sums = [[_mm512_setzero_ps(); TILE]; PANEL_GROUPS];
    if inputs.start > 0 {
        for (group, sums) in groups.clone().zip(&mut sums) {
            for (row, sum) in rows.clone().zip(sums) {
                // SAFETY: the mask keeps to the columns of the group.
                *sum = unsafe { _mm512_maskz_loadu_ps(mask(unit.columns(group)), unit.place(row, group)) };
            }
        }
    }
    // Rows that do not exist repeat the last one and are not stored.
    let x: [*const f32; TILE] = std::array::from_fn(|lane| {
        let row = (rows.start + lane).min(rows.end - 1);
        unit.x.floats()[row * unit.x.columns()..][inputs.clone()].as_ptr()
    });
    for k in 0..inputs.len() {
        for (panel, sums) in panel.iter().zip(&mut sums) {
            for (x, sum) in x.iter().zip(sums) {
                // SAFETY: `k` is one of the inputs.
                let x = unsafe { _mm512_set1_ps(*x.add(k)) };
                *sum = _mm512_fmadd_ps(panel[k], x, *sum);
            }
        }
    }
    for (group, sums) in groups.zip(&sums) {
        for (row, sum) in rows.clone().zip(sums) {
            // SAFETY: the mask keeps to the columns of the group.
            unsafe { _mm512_mask_storeu_ps(unit.place(row, group), mask(unit.columns(group)), *sum) };
        }
    }
}
