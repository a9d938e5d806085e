//! NEON with dot products: one register holds a quad of 4 features, two of them are half a group.
//!
//! `sdot` multiplies the quads of a register with one quad of inputs, which it picks from a register of four. So one
//! load brings a quad of the four rows of a tile, or four quads of a single row:
//!
//! ```text
//!  weights  [feature 0: 4 inputs|feature 1|feature 2|feature 3]   times any one of
//!  inputs   [row 0: 4 inputs    |row 1    |row 2    |row 3    ]   of a tile, for one row [quad 0|quad 1|quad 2|quad 3]
//! ```
//!
//! Half a group by four rows is 8 integer and 8 float sums, which leaves room among 32 registers for what is multiplied.
//! Weights up to 63 are signed bytes as they are; integer sums start at minus offset times the sum of the inputs. The
//! formula is that of `scalar`. Nothing is prefetched: there was no machine to measure on.

#![allow(clippy::wildcard_imports, reason = "half of the file is names of this module")]
#![expect(
    clippy::inline_always,
    reason = "unpacked weights stay in registers only if the loops see where they come from"
)]

use std::arch::aarch64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::activations::{TILE, TileBlock};
use super::layout::{GROUP, Layout, format};
use super::matmul::{PANEL_GROUPS, Unit, by_format};
use crate::neon::sdot;

/// Blocks of a panel: with two groups 20 KiB of unpacked weights, which stay in the first-level cache.
const PANEL_BLOCKS: usize = 16;
/// Inputs of a panel of float weights: 8 KiB.
const PANEL_INPUTS: usize = 128;

/// A quad of half a group.
type Quad = [int8x16_t; 2];
/// Integer sums, one for each of 8 features.
type Dots = [int32x4_t; 2];
/// Floats, one for each of 8 features.
type Floats = [float32x4_t; 2];

/// # Safety
/// The machine has NEON and its dot products; the rest as for `scalar::run`.
pub(super) unsafe fn run(unit: &Unit) {
    // SAFETY: as promised by the caller.
    unsafe { by_format!(unit, quantised, floats) }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "neon,dotprod")]
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
#[inline(always)]
unsafe fn quads<const FORMAT: u8>(block: *const u8) -> [Quad; 8] {
    // SAFETY: a block has `quant_bytes` bytes in lines of 64, and half of each is read.
    unsafe {
        let mut quads = [[vdupq_n_s8(0); 2]; 8];
        for part in 0..2 {
            let unpacked = unpack::<FORMAT>(block.add(part * 16));
            for (quad, unpacked) in quads.iter_mut().zip(unpacked) {
                quad[part] = vreinterpretq_s8_u8(unpacked);
            }
        }
        quads
    }
}

/// The eight quads of 4 features.
///
/// # Safety
/// As [`quads`], 16 bytes further for the next 4 features.
#[inline(always)]
unsafe fn unpack<const FORMAT: u8>(block: *const u8) -> [uint8x16_t; 8] {
    // SAFETY: a block has `quant_bytes` bytes in lines of 64, and a quarter of each is read.
    unsafe {
        let mut quads = [vdupq_n_u8(0); 8];
        if format::bits(FORMAT) == 8 {
            for (index, quad) in quads.iter_mut().enumerate() {
                *quad = vld1q_u8(block.add(index * 64));
            }
            return quads;
        }
        for quad in 0..4 {
            let both = vld1q_u8(block.add(quad * 64));
            quads[quad] = vandq_u8(both, vdupq_n_u8(15));
            quads[quad + 4] = vshrq_n_u8::<4>(both);
        }
        if format::bits(FORMAT) == 5 {
            let high = vld1q_u8(block.add(4 * 64));
            let shifted = [
                vshlq_n_u8::<4>(high),
                vshlq_n_u8::<3>(high),
                vshlq_n_u8::<2>(high),
                vshlq_n_u8::<1>(high),
                high,
                vshrq_n_u8::<1>(high),
                vshrq_n_u8::<2>(high),
                vshrq_n_u8::<3>(high),
            ];
            for (quad, shifted) in quads.iter_mut().zip(shifted) {
                *quad = vorrq_u8(*quad, vandq_u8(shifted, vdupq_n_u8(16)));
            }
        } else if format::bits(FORMAT) == 6 {
            for half in 0..2 {
                let high = vld1q_u8(block.add((4 + half) * 64));
                let shifted = [
                    vshlq_n_u8::<4>(high),
                    vshlq_n_u8::<2>(high),
                    high,
                    vshrq_n_u8::<2>(high),
                ];
                for (quad, shifted) in quads[4 * half..].iter_mut().zip(shifted) {
                    *quad = vorrq_u8(*quad, vandq_u8(shifted, vdupq_n_u8(48)));
                }
            }
        }
        quads
    }
}

/// The scales of 8 features of a block, and their minima, or for `Q6_K` the scales of the second half of the inputs.
///
/// # Safety
/// `group` points to a group of this layout, `block` is one of its blocks, and `half` is 0 or 1.
#[inline(always)]
unsafe fn scales<const FORMAT: u8>(layout: &Layout, group: *const u8, block: usize, half: usize) -> [Floats; 2] {
    // SAFETY: every block has its scales, and every eight blocks those of a super-block.
    unsafe {
        let own = group.add(layout.scales_at() + block * format::scale_bytes(FORMAT));
        if !format::is_super(FORMAT) {
            let minimum = if format::has_minimum(FORMAT) {
                halves(own.add(32 + half * 16))
            } else {
                [vdupq_n_f32(0.0); 2]
            };
            return [halves(own.add(half * 16)), minimum];
        }
        let supers = group.add(layout.supers_at() + block / 8 * format::super_bytes(FORMAT) + half * 16);
        let first = vld1_u8(own.add(half * 8));
        let second = vld1_u8(own.add(GROUP + half * 8));
        let scale = halves(supers);
        if FORMAT == format::Q6K {
            return [multiply(scale, signed(first)), multiply(scale, signed(second))];
        }
        let minimum = multiply(halves(supers.add(32)), unsigned(second));
        [
            multiply(scale, unsigned(first)),
            [vnegq_f32(minimum[0]), vnegq_f32(minimum[1])],
        ]
    }
}

/// # Safety
/// There are eight numbers.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn halves(at: *const u8) -> Floats {
    // SAFETY: as promised by the caller.
    let numbers = vreinterpretq_f16_u16(unsafe { vld1q_u16(at.cast()) });
    [vcvt_f32_f16(vget_low_f16(numbers)), vcvt_high_f32_f16(numbers)]
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply(a: Floats, b: Floats) -> Floats {
    [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn unsigned(bytes: uint8x8_t) -> Floats {
    let wide = vmovl_u8(bytes);
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))),
        vcvtq_f32_u32(vmovl_high_u16(wide)),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn signed(bytes: uint8x8_t) -> Floats {
    let wide = vmovl_s8(vreinterpret_s8_u8(bytes));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))),
        vcvtq_f32_s32(vmovl_high_s16(wide)),
    ]
}

/// Where integer sums start: minus the offset of the weights times the sum of the inputs, given for each half of a block.
/// Sums of a whole block start in the first half.
#[inline]
#[target_feature(enable = "neon")]
fn starts<const FORMAT: u8>(negative_sums: Dots) -> Dots {
    let [first, second] = negative_sums;
    match format::offset_shift(FORMAT) {
        Some(3) => [vshlq_n_s32::<3>(vaddq_s32(first, second)), vdupq_n_s32(0)],
        Some(4) => [vshlq_n_s32::<4>(vaddq_s32(first, second)), vdupq_n_s32(0)],
        // `Q6_K` has a scale for each half.
        Some(5) => [vshlq_n_s32::<5>(first), vshlq_n_s32::<5>(second)],
        _ => [vdupq_n_s32(0); 2],
    }
}

/// What the float sums of up to four rows need of a block of the input, a row a lane.
struct Inputs {
    scale: float32x4_t,
    scaled_sum: float32x4_t,
}

/// Adds integer sums to the float sums of the row in lane `ROW`: the formula of `scalar`.
#[inline]
#[target_feature(enable = "neon")]
fn add_dots<const ROW: i32>(sums: &mut Floats, dots: Dots, scales: Floats, x: &Inputs) {
    for part in 0..2 {
        let scale = vmulq_laneq_f32::<ROW>(scales[part], x.scale);
        sums[part] = vfmaq_f32(sums[part], vcvtq_f32_s32(dots[part]), scale);
    }
}

/// Adds the minima of weights to the float sums of the row in lane `ROW`.
#[inline]
#[target_feature(enable = "neon")]
fn add_minima<const ROW: i32>(sums: &mut Floats, minima: Floats, x: &Inputs) {
    for part in 0..2 {
        sums[part] = vfmaq_laneq_f32::<ROW>(sums[part], minima[part], x.scaled_sum);
    }
}

/// Integer sums of one row over four quads, in whose lanes its inputs are.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_row(mut dots: Dots, quads: &[Quad], x: int8x16_t) -> Dots {
    for part in 0..2 {
        dots[part] = sdot::<0>(dots[part], quads[0][part], x);
        dots[part] = sdot::<1>(dots[part], quads[1][part], x);
        dots[part] = sdot::<2>(dots[part], quads[2][part], x);
        dots[part] = sdot::<3>(dots[part], quads[3][part], x);
    }
    dots
}

/// # Safety
/// As [`run`]; there is one row.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn one_row<const FORMAT: u8>(unit: &Unit, group: usize) {
    let weights = unit.group(group).as_ptr();
    let size = format::quant_bytes(FORMAT);
    let mut sums = [[vdupq_n_f32(0.0); 2]; 2];
    for (block, x) in unit.x.single().iter().enumerate() {
        let [negative, more] = x.negative_sums;
        let starts = starts::<FORMAT>([vdupq_n_s32(negative[0]), vdupq_n_s32(more[0])]);
        // SAFETY: a block has eight quads.
        let quants = unsafe {
            [
                vld1q_s8((&raw const x.quads[0]).cast()),
                vld1q_s8((&raw const x.quads[4]).cast()),
            ]
        };
        let x = Inputs {
            scale: vdupq_n_f32(x.scale[0]),
            scaled_sum: vdupq_n_f32(x.scaled_sum[0]),
        };
        for (half, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the group has as many blocks as the row.
            let (quads, scales) = unsafe {
                (
                    quads::<FORMAT>(weights.add(block * size + half * 32)),
                    scales::<FORMAT>(unit.layout, weights, block, half),
                )
            };
            // Two chains, so that one need not wait for the other.
            let first = dot_row([starts[0]; 2], &quads[..4], quants[0]);
            let second = dot_row([starts[1]; 2], &quads[4..], quants[1]);
            if FORMAT == format::Q6K {
                add_dots::<0>(sums, first, scales[0], &x);
                add_dots::<0>(sums, second, scales[1], &x);
            } else {
                let dots = [vaddq_s32(first[0], second[0]), vaddq_s32(first[1], second[1])];
                add_dots::<0>(sums, dots, scales[0], &x);
            }
            if format::has_minimum(FORMAT) {
                add_minima::<0>(sums, scales[1], &x);
            }
        }
    }
    for (half, sums) in sums.iter().enumerate() {
        for (part, sum) in sums.iter().enumerate() {
            // SAFETY: row and group are the unit's.
            unsafe { store(unit, 0, group, 2 * half + part, *sum) };
        }
    }
}

/// Unpacked weights of 8 features.
struct Panel {
    quads: [MaybeUninit<[Quad; 8]>; PANEL_BLOCKS],
    scales: [MaybeUninit<[Floats; 2]>; PANEL_BLOCKS],
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
#[target_feature(enable = "neon,dotprod")]
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
                    // SAFETY: the panel was filled for these blocks just now; rows and group are the unit's.
                    unsafe { tile_rows::<FORMAT>(unit, panel, x, rows.clone(), (group, half), first > 0) };
                }
            }
        }
    }
}

/// Multiplies the rows of a tile by the weights of half a group; the sums go on from those in the output if `resume`.
///
/// # Safety
/// As [`run`]; the panel is filled for the blocks of `x`; rows and group are the unit's.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn tile_rows<const FORMAT: u8>(
    unit: &Unit,
    panel: &Panel,
    x: &[TileBlock<TILE>],
    rows: Range<usize>,
    (group, half): (usize, usize),
    resume: bool,
) {
    let mut sums = [[vdupq_n_f32(0.0); 2]; TILE];
    if resume {
        for (sums, row) in sums.iter_mut().zip(rows.clone()) {
            for (part, sum) in sums.iter_mut().enumerate() {
                // SAFETY: row and group are the unit's.
                *sum = unsafe { load(unit, row, group, 2 * half + part) };
            }
        }
    }
    for (block, x) in x.iter().enumerate() {
        // SAFETY: the panel is filled for this block.
        let (quads, scales) = unsafe {
            (
                panel.quads.get_unchecked(block).assume_init_ref(),
                panel.scales.get_unchecked(block).assume_init(),
            )
        };
        add_block::<FORMAT>(&mut sums, quads, scales, x);
    }
    for (sums, row) in sums.iter().zip(rows) {
        for (part, sum) in sums.iter().enumerate() {
            // SAFETY: row and group are the unit's.
            unsafe { store(unit, row, group, 2 * half + part, *sum) };
        }
    }
}

/// Adds the products of a block to the float sums of a tile.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_block<const FORMAT: u8>(sums: &mut [Floats; TILE], quads: &[Quad; 8], scales: [Floats; 2], x: &TileBlock<TILE>) {
    // SAFETY: a tile has four rows.
    let (negative_sums, inputs) = unsafe {
        (
            [
                vld1q_s32(x.negative_sums[0].as_ptr()),
                vld1q_s32(x.negative_sums[1].as_ptr()),
            ],
            Inputs {
                scale: vld1q_f32(x.scale.as_ptr()),
                scaled_sum: vld1q_f32(x.scaled_sum.as_ptr()),
            },
        )
    };
    let [start, restart] = starts::<FORMAT>(negative_sums);
    let (quads, x) = (quads.as_chunks::<4>().0, x.quads.as_chunks::<4>().0);
    let mut dots = start_rows(start);
    dot_tile(&mut dots, &quads[0], &x[0]);
    let mut scale = scales[0];
    if FORMAT == format::Q6K {
        add_rows(sums, dots, scale, &inputs);
        dots = start_rows(restart);
        scale = scales[1];
    }
    dot_tile(&mut dots, &quads[1], &x[1]);
    add_rows(sums, dots, scale, &inputs);
    if format::has_minimum(FORMAT) {
        add_minima::<0>(&mut sums[0], scales[1], &inputs);
        add_minima::<1>(&mut sums[1], scales[1], &inputs);
        add_minima::<2>(&mut sums[2], scales[1], &inputs);
        add_minima::<3>(&mut sums[3], scales[1], &inputs);
    }
}

/// Integer sums of the rows of a tile that start with a number for each.
#[inline]
#[target_feature(enable = "neon")]
fn start_rows(start: int32x4_t) -> [Dots; TILE] {
    [
        [vdupq_laneq_s32::<0>(start); 2],
        [vdupq_laneq_s32::<1>(start); 2],
        [vdupq_laneq_s32::<2>(start); 2],
        [vdupq_laneq_s32::<3>(start); 2],
    ]
}

/// Adds four quads to the integer sums of the rows of a tile.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_tile(dots: &mut [Dots; TILE], quads: &[Quad; 4], x: &[[[i8; 4]; TILE]; 4]) {
    // Written out, since the compiler does not unroll loops around assembly.
    dot_quad(dots, quads[0], &x[0]);
    dot_quad(dots, quads[1], &x[1]);
    dot_quad(dots, quads[2], &x[2]);
    dot_quad(dots, quads[3], &x[3]);
}

/// Adds a quad, in whose inputs the rows of a tile are lanes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_quad(dots: &mut [Dots; TILE], weights: Quad, x: &[[i8; 4]; TILE]) {
    // SAFETY: a quad of four rows is 16 bytes.
    let x = unsafe { vld1q_s8(x.as_ptr().cast()) };
    for (part, weights) in weights.into_iter().enumerate() {
        dots[0][part] = sdot::<0>(dots[0][part], weights, x);
        dots[1][part] = sdot::<1>(dots[1][part], weights, x);
        dots[2][part] = sdot::<2>(dots[2][part], weights, x);
        dots[3][part] = sdot::<3>(dots[3][part], weights, x);
    }
}

/// [`add_dots`] for all rows of a tile.
#[inline]
#[target_feature(enable = "neon")]
fn add_rows(sums: &mut [Floats; TILE], dots: [Dots; TILE], scales: Floats, x: &Inputs) {
    add_dots::<0>(&mut sums[0], dots[0], scales, x);
    add_dots::<1>(&mut sums[1], dots[1], scales, x);
    add_dots::<2>(&mut sums[2], dots[2], scales, x);
    add_dots::<3>(&mut sums[3], dots[3], scales, x);
}

/// Features of a register that exist: its four are number `part` of a group of so many.
fn existing(columns: usize, part: usize) -> usize {
    columns.saturating_sub(part * 4).min(4)
}

/// Zeros for features that do not exist.
///
/// # Safety
/// Row and group must be the unit's, and the group must be written by this unit alone.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(unit: &Unit, row: usize, group: usize, part: usize) -> float32x4_t {
    // SAFETY: only features of the group are read.
    unsafe {
        let place = unit.place(row, group).wrapping_add(part * 4);
        let count = existing(unit.columns(group), part);
        if count == 4 {
            return vld1q_f32(place);
        }
        let mut numbers = [0.0; 4];
        place.copy_to_nonoverlapping(numbers.as_mut_ptr(), count);
        vld1q_f32(numbers.as_ptr())
    }
}

/// # Safety
/// As [`load`].
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(unit: &Unit, row: usize, group: usize, part: usize, sum: float32x4_t) {
    // SAFETY: only features of the group are written.
    unsafe {
        let place = unit.place(row, group).wrapping_add(part * 4);
        let count = existing(unit.columns(group), part);
        if count == 4 {
            return vst1q_f32(place, sum);
        }
        let mut numbers = [0.0; 4];
        vst1q_f32(numbers.as_mut_ptr(), sum);
        place.copy_from_nonoverlapping(numbers.as_ptr(), count);
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "neon")]
unsafe fn floats<const FORMAT: u8>(unit: &Unit) {
    let mut panel = [[vdupq_n_f32(0.0); 4]; PANEL_INPUTS];
    let inputs = unit.layout.blocks();
    for group in unit.groups.clone() {
        let weights = unit.group(group).as_ptr();
        for first in (0..inputs).step_by(PANEL_INPUTS) {
            let count = PANEL_INPUTS.min(inputs - first);
            for (k, place) in (first..first + count).zip(&mut panel) {
                for (half, place) in place.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let lane = k * GROUP + half * 8;
                    // SAFETY: input `k` of the group.
                    *place = unsafe {
                        if FORMAT == format::F16 {
                            halves(weights.add(lane * 2))
                        } else if FORMAT == format::BF16 {
                            let bits = vld1q_u16(weights.add(lane * 2).cast());
                            [vmovl_u16(vget_low_u16(bits)), vmovl_high_u16(bits)]
                                .map(|bits| vreinterpretq_f32_u32(vshlq_n_u32::<16>(bits)))
                        } else {
                            let at = weights.add(lane * 4).cast();
                            [vld1q_f32(at), vld1q_f32(at.add(4))]
                        }
                    };
                }
            }
            for (_, rows) in unit.tiles() {
                // SAFETY: rows and group are the unit's.
                unsafe {
                    if rows.len() == 1 {
                        float_rows::<1>(unit, &panel, group, first..first + count, rows);
                    } else {
                        float_rows::<TILE>(unit, &panel, group, first..first + count, rows);
                    }
                }
            }
        }
    }
}

/// # Safety
/// Up to `R` rows and the group are the unit's, inputs those of the weight.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn float_rows<const R: usize>(
    unit: &Unit,
    panel: &[[float32x4_t; 4]; PANEL_INPUTS],
    group: usize,
    inputs: Range<usize>,
    rows: Range<usize>,
) {
    let mut sums = [[vdupq_n_f32(0.0); 4]; R];
    if inputs.start > 0 {
        for (row, sums) in rows.clone().zip(&mut sums) {
            for (part, sum) in sums.iter_mut().enumerate() {
                // SAFETY: row and group are the unit's.
                *sum = unsafe { load(unit, row, group, part) };
            }
        }
    }
    // Rows that do not exist repeat the last one and are not stored.
    let x: [*const f32; R] = std::array::from_fn(|lane| {
        let row = (rows.start + lane).min(rows.end - 1);
        unit.x.floats()[row * unit.x.columns()..][inputs.clone()].as_ptr()
    });
    for (k, panel) in panel.iter().enumerate().take(inputs.len()) {
        for (x, sums) in x.iter().zip(&mut sums) {
            // SAFETY: `k` is one of the inputs.
            let x = unsafe { *x.add(k) };
            for (weights, sum) in panel.iter().zip(sums) {
                *sum = vfmaq_n_f32(*sum, *weights, x);
            }
        }
    }
    for (row, sums) in rows.zip(&sums) {
        for (part, sum) in sums.iter().enumerate() {
            // SAFETY: row and group are the unit's.
            unsafe { store(unit, row, group, part, *sum) };
        }
    }
}
