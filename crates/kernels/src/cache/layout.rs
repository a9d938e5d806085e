//! Where a number sits inside a block.
//!
//! A block holds 32 rows (entries) of one layer and KV head. Keys lie transposed, so that attention multiplies one
//! broadcast number of the query with the keys of many entries at once; values lie as rows, so that it adds up whole
//! rows. `g` counts groups of 32 dimensions, for `q8_0` only:
//!
//! ```text
//!             entry 0   entry 1   …   entry 31
//!  keys  d=0 [   k    |    k    | … |    k    ]      f16: 64 bytes, one cache line
//!        d=1 [   k    |    k    | … |    k    ]
//!         …
//!  key scales    g=0 [ s | s | … | s ]  g=1 …        f16, one per entry
//!
//!             d=0 d=1 …  d=dim-1
//!  values e=0 [ v | v | … | v ]
//!         e=1 [ v | v | … | v ]
//!          …
//!  value scales  g=0 [ s | s | … | s ]  g=1 …        f16, one per entry
//! ```
//!
//! Each of the four parts starts on a 64-byte border.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{KvConfig, KvType};

/// Rows of a block.
pub(crate) const BLOCK_ROWS: usize = 32;
/// Dimensions that share a scale in `q8_0`.
pub(crate) const GROUP_DIMS: usize = 32;
/// Largest head size.
pub(crate) const MAX_DIM: usize = 512;

/// Byte offsets inside a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Element type.
    pub(crate) kv_type: KvType,
    /// Numbers in a row.
    pub(crate) dim: usize,
    /// Where the scales of the keys begin.
    pub(crate) key_scales: usize,
    /// Where the values begin.
    pub(crate) values: usize,
    /// Where the scales of the values begin.
    pub(crate) value_scales: usize,
    /// Bytes of a block, a multiple of 64.
    pub(crate) bytes: usize,
}

impl Layout {
    pub(crate) fn new(config: &KvConfig) -> Self {
        let dim = config.head_dim;
        let (element, groups) = match config.kv_type {
            KvType::F16 => (2, 0),
            KvType::F32 => (4, 0),
            KvType::Q8_0 => (1, dim.div_ceil(GROUP_DIMS)),
        };
        let numbers = (BLOCK_ROWS * dim * element).next_multiple_of(64);
        let scales = (BLOCK_ROWS * groups * 2).next_multiple_of(64);
        Self {
            kv_type: config.kv_type,
            dim,
            key_scales: numbers,
            values: numbers + scales,
            value_scales: 2 * numbers + scales,
            bytes: 2 * (numbers + scales),
        }
    }

    /// A block of nothing but `f32` keys: a `[rows][32]` matrix.
    pub(crate) fn matrix(rows: usize) -> Self {
        let bytes = rows * BLOCK_ROWS * size_of::<f32>();
        Self {
            kv_type: KvType::F32,
            dim: rows,
            key_scales: bytes,
            values: bytes,
            value_scales: bytes,
            bytes,
        }
    }

    /// Scales of a `q8_0` row.
    pub(crate) fn groups(&self) -> usize {
        self.dim.div_ceil(GROUP_DIMS)
    }

    /// Writes `count` rows from `slot` on; row `i` is `keys[i * stride..][..dim]`, values alike.
    pub(super) fn write(
        &self,
        block: &mut [u8],
        slot: usize,
        count: usize,
        keys: &[f32],
        values: &[f32],
        stride: usize,
    ) {
        let dim = self.dim;
        let (key_part, value_part) = block.split_at_mut(self.values);
        match self.kv_type {
            KvType::F32 => {
                let key_numbers = view_mut::<f32>(key_part, 0, BLOCK_ROWS * dim);
                let value_numbers = view_mut::<f32>(value_part, 0, BLOCK_ROWS * dim);
                for row in 0..count {
                    scatter(&keys[row * stride..][..dim], key_numbers, slot + row);
                    value_numbers[(slot + row) * dim..][..dim].copy_from_slice(&values[row * stride..][..dim]);
                }
            }
            KvType::F16 => {
                let key_numbers = view_mut::<f16>(key_part, 0, BLOCK_ROWS * dim);
                let value_numbers = view_mut::<f16>(value_part, 0, BLOCK_ROWS * dim);
                let mut halves = [f16::ZERO; MAX_DIM];
                for row in 0..count {
                    halves[..dim].convert_from_f32_slice(&keys[row * stride..][..dim]);
                    scatter(&halves[..dim], key_numbers, slot + row);
                    value_numbers[(slot + row) * dim..][..dim].convert_from_f32_slice(&values[row * stride..][..dim]);
                }
            }
            KvType::Q8_0 => {
                let groups = self.groups();
                let (key_numbers, key_scales) = key_part.split_at_mut(self.key_scales);
                let key_numbers = view_mut::<i8>(key_numbers, 0, BLOCK_ROWS * dim);
                let key_scales = view_mut::<f16>(key_scales, 0, BLOCK_ROWS * groups);
                let (value_numbers, value_scales) = value_part.split_at_mut(self.value_scales - self.values);
                let value_numbers = view_mut::<i8>(value_numbers, 0, BLOCK_ROWS * dim);
                let value_scales = view_mut::<f16>(value_scales, 0, BLOCK_ROWS * groups);
                let mut bytes = [0_i8; MAX_DIM];
                let mut scales = [f16::ZERO; MAX_DIM / GROUP_DIMS];
                for row in 0..count {
                    let at = slot + row;
                    quantise(&keys[row * stride..][..dim], &mut bytes, &mut scales);
                    scatter(&bytes[..dim], key_numbers, at);
                    scatter(&scales[..groups], key_scales, at);
                    let value_row = &mut value_numbers[at * dim..][..dim];
                    quantise(&values[row * stride..][..dim], value_row, &mut scales);
                    scatter(&scales[..groups], value_scales, at);
                }
            }
        }
    }

    /// Copies one row to another block.
    pub(super) fn copy_row(&self, source: &[u8], from: usize, target: &mut [u8], to: usize) {
        match self.kv_type {
            KvType::F16 => self.copy_parts::<u16>(source, from, target, to),
            KvType::F32 => self.copy_parts::<f32>(source, from, target, to),
            KvType::Q8_0 => self.copy_parts::<i8>(source, from, target, to),
        }
    }

    /// Copies one row to another place of the same block.
    pub(super) fn move_within(&self, block: &mut [u8], from: usize, to: usize) {
        match self.kv_type {
            KvType::F16 => self.move_parts::<u16>(block, from, to),
            KvType::F32 => self.move_parts::<f32>(block, from, to),
            KvType::Q8_0 => self.move_parts::<i8>(block, from, to),
        }
    }

    fn copy_parts<T: Plain>(&self, source: &[u8], from: usize, target: &mut [u8], to: usize) {
        let dim = self.dim;
        let numbers = BLOCK_ROWS * dim;
        copy_column(
            view::<T>(source, 0, numbers),
            from,
            view_mut::<T>(target, 0, numbers),
            to,
        );
        view_mut::<T>(target, self.values, numbers)[to * dim..][..dim]
            .copy_from_slice(&view::<T>(source, self.values, numbers)[from * dim..][..dim]);
        if self.kv_type == KvType::Q8_0 {
            let scales = BLOCK_ROWS * self.groups();
            for part in [self.key_scales, self.value_scales] {
                let source = view::<u16>(source, part, scales);
                copy_column(source, from, view_mut::<u16>(target, part, scales), to);
            }
        }
    }

    fn move_parts<T: Plain>(&self, block: &mut [u8], from: usize, to: usize) {
        let dim = self.dim;
        let numbers = BLOCK_ROWS * dim;
        for line in view_mut::<T>(block, 0, numbers).chunks_exact_mut(BLOCK_ROWS) {
            line[to] = line[from];
        }
        view_mut::<T>(block, self.values, numbers).copy_within(from * dim..(from + 1) * dim, to * dim);
        if self.kv_type == KvType::Q8_0 {
            let scales = BLOCK_ROWS * self.groups();
            for part in [self.key_scales, self.value_scales] {
                for line in view_mut::<u16>(block, part, scales).chunks_exact_mut(BLOCK_ROWS) {
                    line[to] = line[from];
                }
            }
        }
    }

    /// The keys of a block as `f32`, `[dim][32]`.
    pub(crate) fn read_keys(&self, block: &[u8], out: &mut [f32]) {
        let numbers = BLOCK_ROWS * self.dim;
        let out = &mut out[..numbers];
        match self.kv_type {
            KvType::F32 => out.copy_from_slice(view::<f32>(block, 0, numbers)),
            KvType::F16 => view::<f16>(block, 0, numbers).convert_to_f32_slice(out),
            KvType::Q8_0 => {
                let bytes = view::<i8>(block, 0, numbers);
                let scales = view::<f16>(block, self.key_scales, BLOCK_ROWS * self.groups());
                let mut scale = [0.0; BLOCK_ROWS];
                for (d, (line, bytes)) in out
                    .chunks_exact_mut(BLOCK_ROWS)
                    .zip(bytes.chunks_exact(BLOCK_ROWS))
                    .enumerate()
                {
                    if d % GROUP_DIMS == 0 {
                        scales[d / GROUP_DIMS * BLOCK_ROWS..][..BLOCK_ROWS].convert_to_f32_slice(&mut scale);
                    }
                    for ((number, &byte), scale) in line.iter_mut().zip(bytes).zip(&scale) {
                        *number = f32::from(byte) * scale;
                    }
                }
            }
        }
    }

    /// The values of a block as `f32`, `[32][dim]`.
    pub(crate) fn read_values(&self, block: &[u8], out: &mut [f32]) {
        let numbers = BLOCK_ROWS * self.dim;
        let out = &mut out[..numbers];
        match self.kv_type {
            KvType::F32 => out.copy_from_slice(view::<f32>(block, self.values, numbers)),
            KvType::F16 => view::<f16>(block, self.values, numbers).convert_to_f32_slice(out),
            KvType::Q8_0 => {
                let groups = self.groups();
                let bytes = view::<i8>(block, self.values, numbers);
                let scales = view::<f16>(block, self.value_scales, BLOCK_ROWS * groups);
                for (entry, (line, bytes)) in out
                    .chunks_exact_mut(self.dim)
                    .zip(bytes.chunks_exact(self.dim))
                    .enumerate()
                {
                    for (group, (numbers, bytes)) in
                        line.chunks_mut(GROUP_DIMS).zip(bytes.chunks(GROUP_DIMS)).enumerate()
                    {
                        let scale = scales[group * BLOCK_ROWS + entry].to_f32();
                        for (number, &byte) in numbers.iter_mut().zip(bytes) {
                            *number = f32::from(byte) * scale;
                        }
                    }
                }
            }
        }
    }
}

/// Writes a row into column `slot` of a `[row.len()][32]` matrix.
fn scatter<T: Copy>(row: &[T], columns: &mut [T], slot: usize) {
    for (line, &number) in columns.chunks_exact_mut(BLOCK_ROWS).zip(row) {
        line[slot] = number;
    }
}

fn copy_column<T: Copy>(source: &[T], from: usize, target: &mut [T], to: usize) {
    for (target, source) in target.chunks_exact_mut(BLOCK_ROWS).zip(source.chunks_exact(BLOCK_ROWS)) {
        target[to] = source[from];
    }
}

/// Numbers of this size have no fraction bits.
const ROUNDING: f32 = 12_582_912.0;

/// Rounds a row to bytes with one scale per 32 numbers: the largest magnitude of a group becomes 127.
fn quantise(row: &[f32], bytes: &mut [i8], scales: &mut [f16]) {
    for ((numbers, bytes), scale) in row.chunks(GROUP_DIMS).zip(bytes.chunks_mut(GROUP_DIMS)).zip(scales) {
        let largest = numbers
            .iter()
            .fold(0.0_f32, |largest, number| largest.max(number.abs()));
        // A number that is not finite must not turn into a plausible one.
        let finite = numbers.iter().all(|number| number.is_finite());
        *scale = if finite {
            f16::from_f32(largest / 127.0)
        } else {
            f16::NAN
        };
        // The rounded scale is what readers multiply with.
        let step = scale.to_f32();
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        for (byte, number) in bytes.iter_mut().zip(numbers) {
            // Adding and taking away 1.5 · 2^23 rounds to whole numbers, faster than a library call.
            let whole = (number * inverse).clamp(-127.0, 127.0) + ROUNDING - ROUNDING;
            *byte = whole as i8;
        }
    }
}

/// Number types for which every bit pattern is a value.
///
/// # Safety
/// Implementors have no padding and no invalid bit pattern.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: plain numbers.
unsafe impl Plain for i8 {}
// SAFETY: plain numbers.
unsafe impl Plain for u16 {}
// SAFETY: plain numbers.
unsafe impl Plain for f16 {}
// SAFETY: plain numbers.
unsafe impl Plain for f32 {}

/// `count` numbers that begin at byte `offset`.
fn view<T: Plain>(bytes: &[u8], offset: usize, count: usize) -> &[T] {
    let bytes = &bytes[offset..offset + count * size_of::<T>()];
    // SAFETY: every bit pattern of a `Plain` type is valid.
    let (before, numbers, _) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty(), "blocks and their parts are aligned to 64 bytes");
    numbers
}

/// As [`view`], to write.
fn view_mut<T: Plain>(bytes: &mut [u8], offset: usize, count: usize) -> &mut [T] {
    let bytes = &mut bytes[offset..offset + count * size_of::<T>()];
    // SAFETY: every bit pattern of a `Plain` type is valid, and of `u8` too.
    let (before, numbers, _) = unsafe { bytes.align_to_mut::<T>() };
    assert!(before.is_empty(), "blocks and their parts are aligned to 64 bytes");
    numbers
}

#[cfg(test)]
mod tests {
    use super::{Layout, quantise};
    use crate::cache::{KvConfig, KvType};
    use half::f16;

    #[test]
    fn parts_are_aligned_and_q8_0_takes_about_half() {
        for head_dim in (16..=512).step_by(16) {
            let layout = |kv_type| {
                Layout::new(&KvConfig {
                    layers: 1,
                    kv_heads: 1,
                    head_dim,
                    kv_type,
                })
            };
            for kv_type in [KvType::F16, KvType::F32, KvType::Q8_0] {
                let layout = layout(kv_type);
                for offset in [layout.key_scales, layout.values, layout.value_scales, layout.bytes] {
                    assert_eq!(offset % 64, 0);
                }
            }
            assert_eq!(layout(KvType::F16).bytes, 2 * 32 * head_dim * 2);
            let share = layout(KvType::Q8_0).bytes as f64 / layout(KvType::F16).bytes as f64;
            assert!(share < 0.57 || head_dim == 16, "{head_dim}: {share}");
        }
    }

    #[test]
    fn quantised_rows_are_within_half_a_step() {
        let row: Vec<f32> = (0..48).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let (mut bytes, mut scales) = (vec![0; 48], vec![f16::ZERO; 2]);
        quantise(&row, &mut bytes, &mut scales);
        for (i, number) in row.iter().enumerate() {
            let step = scales[i / 32].to_f32();
            // Half a step, and what rounding the scale itself to half precision may cost at the largest magnitude.
            let error = (f32::from(bytes[i]) * step - number).abs();
            assert!(error <= 0.5 * step + 0.0006 * number.abs(), "{i}: {error}");
        }
    }
}
