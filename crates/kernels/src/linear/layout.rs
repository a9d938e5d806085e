//! How repacked weights lie in memory, and how a GGUF tensor gets there.
//!
//! Output features come in groups of 16 (the last one padded with zeros), inputs in blocks of 32. A *quad* is four
//! neighbouring inputs; a block has eight. One group is contiguous:
//!
//! ```text
//! quants   for each block:  low   [quad 4][feature 16][input of the quad 4]           256 bytes, 4-bit to 6-bit types:
//!                                 quads 0..4 in the low nibbles, quads 4..8 in the high ones
//!                           high  5-bit types: [feature 16][input 4]                    64 bytes, bit q is quad q's
//!                                 6-bit type:  [half 2][feature 16][input 4]           128 bytes, 2 bits per quad
//!                           or    8-bit type:  [quad 8][feature 16][input 4]           512 bytes, signed
//! scales   for each block:  f16 d[16], then f16 m[16] if the type has minima           32 or 64 bytes
//!                           or    K types:     u8 s[16], u8 t[16] (Q6_K: i8 s[2][16])   32 bytes
//! supers   for each 256 inputs of K types:     f16 d[16], f16 m[16] (Q6_K: d only)      64 or 32 bytes
//! ```
//!
//! That is exactly the size of the file's blocks but for `Q4_K` and `Q5_K`, whose six-bit numbers become bytes (4.625
//! instead of 4.5 bits per weight). Float weights are `[input][feature 16]`.

use half::{bf16, f16};

use super::WeightType;
use super::gguf::Parts;

/// Output features of a group.
pub(super) const GROUP: usize = 16;
/// Inputs of a block.
pub(super) const BLOCK: usize = 32;

/// Number formats as constants, so that kernels are compiled for each.
pub(super) mod format {
    use crate::linear::WeightType;

    pub(in crate::linear) const Q4_0: u8 = 0;
    pub(in crate::linear) const Q4_1: u8 = 1;
    pub(in crate::linear) const Q5_0: u8 = 2;
    pub(in crate::linear) const Q5_1: u8 = 3;
    pub(in crate::linear) const Q8_0: u8 = 4;
    pub(in crate::linear) const Q4K: u8 = 5;
    pub(in crate::linear) const Q5K: u8 = 6;
    pub(in crate::linear) const Q6K: u8 = 7;
    pub(in crate::linear) const F16: u8 = 8;
    pub(in crate::linear) const F32: u8 = 9;
    pub(in crate::linear) const BF16: u8 = 10;

    pub(in crate::linear) const fn of(ty: WeightType) -> u8 {
        match ty {
            WeightType::Q4_0 => Q4_0,
            WeightType::Q4_1 => Q4_1,
            WeightType::Q5_0 => Q5_0,
            WeightType::Q5_1 => Q5_1,
            WeightType::Q8_0 => Q8_0,
            WeightType::Q4K => Q4K,
            WeightType::Q5K => Q5K,
            WeightType::Q6K => Q6K,
            WeightType::F16 => F16,
            WeightType::BF16 => BF16,
            WeightType::F32 => F32,
        }
    }

    /// Bits of a quantised element.
    pub(in crate::linear) const fn bits(format: u8) -> u32 {
        match format {
            Q4_0 | Q4_1 | Q4K => 4,
            Q5_0 | Q5_1 | Q5K => 5,
            Q6K => 6,
            _ => 8,
        }
    }

    /// Whether each block of 32 has a minimum.
    pub(in crate::linear) const fn has_minimum(format: u8) -> bool {
        matches!(format, Q4_1 | Q5_1 | Q4K | Q5K)
    }

    /// Whether scales are integers times the scale of a super-block.
    pub(in crate::linear) const fn is_super(format: u8) -> bool {
        matches!(format, Q4K | Q5K | Q6K)
    }

    /// What is subtracted from the stored unsigned integer, as a power of two; `None` if nothing is.
    pub(in crate::linear) const fn offset_shift(format: u8) -> Option<u32> {
        match format {
            Q4_0 => Some(3),
            Q5_0 => Some(4),
            Q6K => Some(5),
            _ => None,
        }
    }

    /// Bytes of the quants of one block of one group.
    pub(in crate::linear) const fn quant_bytes(format: u8) -> usize {
        super::GROUP * super::BLOCK * bits(format) as usize / 8
    }

    /// Bytes of the scales of one block of one group.
    pub(in crate::linear) const fn scale_bytes(format: u8) -> usize {
        if is_super(format) || !has_minimum(format) {
            32
        } else {
            64
        }
    }

    /// Bytes of the scales of one super-block of one group.
    pub(in crate::linear) const fn super_bytes(format: u8) -> usize {
        match format {
            Q4K | Q5K => 64,
            Q6K => 32,
            _ => 0,
        }
    }
}

/// Sizes and offsets, in bytes, of a repacked weight.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    ty: WeightType,
    in_features: usize,
    groups: usize,
    /// Blocks of 32 inputs; for float weights the inputs themselves.
    blocks: usize,
    scales_at: usize,
    supers_at: usize,
    group_bytes: usize,
}

impl Layout {
    /// `None` if the size overflows.
    pub(super) fn new(ty: WeightType, out_features: usize, in_features: usize) -> Option<Self> {
        let format = format::of(ty);
        let groups = out_features.div_ceil(GROUP);
        let line = |bytes: usize| bytes.checked_next_multiple_of(64);
        let (blocks, scales_at, supers_at, end) = match ty {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => {
                let end = in_features.checked_mul(GROUP * ty.block_bytes())?;
                (in_features, end, end, end)
            }
            _ => {
                let blocks = in_features / BLOCK;
                let scales_at = line(blocks.checked_mul(format::quant_bytes(format))?)?;
                let scales = blocks.checked_mul(format::scale_bytes(format))?;
                let supers_at = line(scales_at.checked_add(scales)?)?;
                let supers = in_features / 256 * format::super_bytes(format);
                (blocks, scales_at, supers_at, supers_at.checked_add(supers)?)
            }
        };
        let group_bytes = line(end)?;
        groups.checked_mul(group_bytes)?;
        Some(Self {
            ty,
            in_features,
            groups,
            blocks,
            scales_at,
            supers_at,
            group_bytes,
        })
    }

    pub(super) fn weight_type(&self) -> WeightType {
        self.ty
    }

    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// Where the scales of a group start.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn scales_at(&self) -> usize {
        self.scales_at
    }

    /// Where the scales of the super-blocks of a group start.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn supers_at(&self) -> usize {
        self.supers_at
    }

    pub(super) fn bytes(&self) -> usize {
        self.groups * self.group_bytes
    }

    /// Fills `to`, zeroed and of [`bytes`](Self::bytes) bytes, from the rows of a GGUF tensor.
    pub(super) fn repack(&self, from: &[u8], to: &mut [u8]) {
        let size = self.ty.block_bytes();
        let row_bytes = self.in_features / self.ty.block_size() * size;
        let mut parts = Parts::new();
        let groups = to.chunks_exact_mut(self.group_bytes);
        for (group, rows) in groups.zip(from.chunks(row_bytes * GROUP)) {
            if self.ty.is_float() {
                for (input, place) in group.chunks_exact_mut(GROUP * size).take(self.blocks).enumerate() {
                    for (value, row) in place.chunks_exact_mut(size).zip(rows.chunks_exact(row_bytes)) {
                        value.copy_from_slice(&row[input * size..][..size]);
                    }
                }
                continue;
            }
            for (column, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (index, block) in row.chunks_exact(size).enumerate() {
                    parts.read(self.ty, block);
                    self.store(&parts, group, column, index);
                }
            }
        }
    }

    /// Puts block `index` of the file into its places.
    fn store(&self, parts: &Parts, group: &mut [u8], column: usize, index: usize) {
        let format = format::of(self.ty);
        let per_block = self.ty.block_size() / BLOCK;
        for (part, quants) in parts.quants.as_chunks().0.iter().take(per_block).enumerate() {
            let block = index * per_block + part;
            let size = format::quant_bytes(format);
            store_quants(format::bits(format), quants, &mut group[block * size..][..size], column);
            let size = format::scale_bytes(format);
            let scales = &mut group[self.scales_at + block * size..][..size];
            match format {
                format::Q6K => {
                    scales[column] = parts.sub_scales[2 * part];
                    scales[GROUP + column] = parts.sub_scales[2 * part + 1];
                }
                format::Q4K | format::Q5K => {
                    scales[column] = parts.sub_scales[part];
                    scales[GROUP + column] = parts.sub_minima[part];
                }
                _ => store_halves(parts, scales, column),
            }
        }
        let size = format::super_bytes(format);
        if size > 0 {
            store_halves(parts, &mut group[self.supers_at + index * size..][..size], column);
        }
    }

    /// Writes one row of the weight as floats.
    pub(super) fn row(&self, data: &[u8], index: usize, out: &mut [f32]) {
        let group = &data[index / GROUP * self.group_bytes..][..self.group_bytes];
        let column = index % GROUP;
        match self.ty {
            WeightType::F32 => float_row(group, 4, column, f32_at, out),
            WeightType::F16 => float_row(group, 2, column, f16_at, out),
            WeightType::BF16 => float_row(group, 2, column, bf16_at, out),
            _ => {
                let mut unpacked = Unpacked::new();
                for (block, values) in out.chunks_exact_mut(BLOCK).enumerate() {
                    self.unpack(group, block, &mut unpacked);
                    for (i, value) in values.iter_mut().enumerate() {
                        let quant = f32::from(unpacked.quants[i / 4][column * 4 + i % 4]);
                        *value = unpacked.scale[i / 16][column] * quant + unpacked.minimum[column];
                    }
                }
            }
        }
    }

    /// The integers and scales of a block of one group.
    pub(super) fn unpack(&self, group: &[u8], block: usize, to: &mut Unpacked) {
        let format = format::of(self.ty);
        let bits = format::bits(format);
        let size = format::quant_bytes(format);
        let stored = &group[block * size..][..size];
        if bits == 8 {
            for (quant, &byte) in to.quants.as_flattened_mut().iter_mut().zip(stored) {
                *quant = byte as i8;
            }
        } else {
            let offset = format::offset_shift(format).map_or(0, |shift| 1 << shift);
            for (quad, quants) in to.quants.iter_mut().enumerate() {
                let low = &stored[quad % 4 * 64..][..64];
                let shift = quad / 4 * 4;
                match bits {
                    4 => {
                        for (quant, &low) in quants.iter_mut().zip(low) {
                            *quant = (low >> shift & 15) as i8 - offset;
                        }
                    }
                    5 => {
                        for ((quant, &low), &high) in quants.iter_mut().zip(low).zip(&stored[256..]) {
                            *quant = (low >> shift & 15 | (high >> quad & 1) << 4) as i8 - offset;
                        }
                    }
                    _ => {
                        let high = &stored[256 + quad / 4 * 64..];
                        let high_shift = quad % 4 * 2;
                        for ((quant, &low), &high) in quants.iter_mut().zip(low).zip(high) {
                            *quant = (low >> shift & 15 | (high >> high_shift & 3) << 4) as i8 - offset;
                        }
                    }
                }
            }
        }
        for column in 0..GROUP {
            let scales = self.scales(group, block, column);
            to.scale[0][column] = scales.scale[0];
            to.scale[1][column] = scales.scale[1];
            to.minimum[column] = scales.minimum;
        }
    }

    /// The scales of 32 inputs of one feature. Every product is exact.
    fn scales(&self, group: &[u8], block: usize, column: usize) -> Scales {
        let format = format::of(self.ty);
        let scales = &group[self.scales_at + block * format::scale_bytes(format)..];
        let supers = &group[self.supers_at + block / 8 * format::super_bytes(format)..];
        match format {
            format::Q6K => Scales {
                scale: [scales[column], scales[GROUP + column]]
                    .map(|scale| f16_at(supers, column) * f32::from(scale as i8)),
                minimum: -0.0,
            },
            format::Q4K | format::Q5K => Scales {
                scale: [f16_at(supers, column) * f32::from(scales[column]); 2],
                minimum: -(f16_at(supers, GROUP + column) * f32::from(scales[GROUP + column])),
            },
            _ => Scales {
                scale: [f16_at(scales, column); 2],
                minimum: if format::has_minimum(format) {
                    f16_at(scales, GROUP + column)
                } else {
                    -0.0
                },
            },
        }
    }
}

/// What turns the integers of a block into floats: `scale[half] * quant + minimum`.
struct Scales {
    /// For inputs 0..16 and 16..32.
    scale: [f32; 2],
    /// Negative zero, which changes no sum, where the type has none.
    minimum: f32,
}

/// A block of 32 inputs of 16 features as plain numbers.
pub(super) struct Unpacked {
    /// `[quad 8][feature 16 x input of the quad 4]`, offset subtracted.
    pub(super) quants: [[i8; 64]; 8],
    /// `[half of the inputs][feature]`.
    pub(super) scale: [[f32; GROUP]; 2],
    /// Per feature.
    pub(super) minimum: [f32; GROUP],
}

impl Unpacked {
    pub(super) fn new() -> Self {
        Self {
            quants: [[0; 64]; 8],
            scale: [[0.0; GROUP]; 2],
            minimum: [0.0; GROUP],
        }
    }
}

fn store_halves(parts: &Parts, to: &mut [u8], column: usize) {
    to[column * 2..][..2].copy_from_slice(&parts.scale);
    if to.len() == 64 {
        to[32 + column * 2..][..2].copy_from_slice(&parts.minimum);
    }
}

fn store_quants(bits: u32, quants: &[u8; BLOCK], to: &mut [u8], column: usize) {
    let (quads, _) = quants.as_chunks::<4>();
    let quad = |index: usize| u32::from_le_bytes(quads[index]);
    for (index, line) in to.chunks_exact_mut(64).enumerate() {
        let word = match index {
            _ if bits == 8 => quad(index),
            0..4 => quad(index) & 0x0F0F_0F0F | (quad(index + 4) & 0x0F0F_0F0F) << 4,
            _ if bits == 5 => (0..8).fold(0, |word, i| word | (quad(i) >> 4 & 0x0101_0101) << i),
            _ => {
                let first = (index - 4) * 4;
                (0..4).fold(0, |word, i| word | (quad(first + i) >> 4 & 0x0303_0303) << (2 * i))
            }
        };
        line[column * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// One column of a group of float weights.
fn float_row(group: &[u8], size: usize, column: usize, read: fn(&[u8], usize) -> f32, out: &mut [f32]) {
    for (value, place) in out.iter_mut().zip(group.chunks_exact(size * GROUP)) {
        *value = read(place, column);
    }
}

pub(super) fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

pub(super) fn f16_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

pub(super) fn f32_at(bytes: &[u8], index: usize) -> f32 {
    let at = 4 * index;
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
