//! Plain conversions between floats and the bytes of a GGUF tensor, for tests and tiny hand-made models.
//!
//! [`encode`] picks scales the simple way (extremes of the block), not the way that loses least; real models are
//! quantised elsewhere. [`decode`] follows the definition of each format element by element and shares no code with
//! the repacked layouts, so it serves as their reference.

use half::{bf16, f16};

use super::WeightType;

/// Bytes of a GGUF tensor of type `ty` that holds about `values`.
///
/// # Panics
/// If `values` does not fill whole blocks of the type.
#[must_use]
pub fn encode(ty: WeightType, values: &[f32]) -> Vec<u8> {
    assert!(
        values.len().is_multiple_of(ty.block_size()),
        "{} values do not fill blocks of {} ({ty})",
        values.len(),
        ty.block_size()
    );
    let mut out = Vec::with_capacity(values.len() / ty.block_size() * ty.block_bytes());
    for block in values.chunks_exact(ty.block_size()) {
        match ty {
            WeightType::F32 => out.extend(block[0].to_le_bytes()),
            WeightType::F16 => out.extend(f16::from_f32(block[0]).to_le_bytes()),
            WeightType::BF16 => out.extend(bf16::from_f32(block[0]).to_le_bytes()),
            WeightType::Q4_0 => encode_symmetric(block, 4, &mut out),
            WeightType::Q5_0 => encode_symmetric(block, 5, &mut out),
            WeightType::Q4_1 => encode_with_minimum(block, 4, &mut out),
            WeightType::Q5_1 => encode_with_minimum(block, 5, &mut out),
            WeightType::Q8_0 => encode_bytes(block, &mut out),
            WeightType::Q4K => encode_super_block(block, 4, &mut out),
            WeightType::Q5K => encode_super_block(block, 5, &mut out),
            WeightType::Q6K => encode_six_bits(block, &mut out),
        }
    }
    out
}

/// Appends a number rounded to f16 and returns what it became.
fn push_f16(out: &mut Vec<u8>, value: f32) -> f32 {
    let rounded = f16::from_f32(value);
    out.extend(rounded.to_le_bytes());
    rounded.to_f32()
}

/// Nearest integer to `value / scale` in `[low, high]`; the end nearest to zero steps if the scale is zero.
fn step(value: f32, scale: f32, low: i32, high: i32) -> i32 {
    let steps = if scale == 0.0 { 0.0 } else { value / scale };
    (steps.round_ties_even() as i32).clamp(low, high)
}

/// The element with the largest magnitude, sign kept.
fn extreme(values: &[f32]) -> f32 {
    values
        .iter()
        .fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

/// Elements 0..16 of a block of 32 in the low nibbles, 16..32 in the high ones; fifth bits in a word before them.
fn push_nibbles(out: &mut Vec<u8>, quants: &[u8], bits: u32) {
    if bits == 5 {
        let high = (0..32).fold(0_u32, |word, i| word | u32::from(quants[i] >> 4) << i);
        out.extend(high.to_le_bytes());
    }
    out.extend((0..16).map(|i| quants[i] & 15 | quants[i + 16] << 4));
}

fn encode_symmetric(block: &[f32], bits: u32, out: &mut Vec<u8>) {
    let offset = 1 << (bits - 1);
    let d = push_f16(out, extreme(block) / -(offset as f32));
    let quants: Vec<u8> = block
        .iter()
        .map(|&v| (step(v, d, -offset, offset - 1) + offset) as u8)
        .collect();
    push_nibbles(out, &quants, bits);
}

fn encode_with_minimum(block: &[f32], bits: u32, out: &mut Vec<u8>) {
    let top = (1 << bits) - 1;
    let low = block.iter().copied().fold(f32::INFINITY, f32::min);
    let high = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = push_f16(out, (high - low) / top as f32);
    let m = push_f16(out, low);
    let quants: Vec<u8> = block.iter().map(|&v| step(v - m, d, 0, top) as u8).collect();
    push_nibbles(out, &quants, bits);
}

fn encode_bytes(block: &[f32], out: &mut Vec<u8>) {
    let d = push_f16(out, extreme(block).abs() / 127.0);
    out.extend(block.iter().map(|&v| step(v, d, -127, 127) as i8 as u8));
}

fn encode_super_block(block: &[f32], bits: u32, out: &mut Vec<u8>) {
    let top = (1 << bits) - 1;
    let mut scales = [0.0_f32; 8];
    let mut minima = [0.0_f32; 8];
    for (part, values) in block.chunks_exact(32).enumerate() {
        let low = values.iter().copied().fold(0.0, f32::min);
        let high = values.iter().copied().fold(0.0, f32::max);
        scales[part] = (high - low) / top as f32;
        minima[part] = -low;
    }
    let d = push_f16(out, extreme(&scales) / 63.0);
    let m = push_f16(out, extreme(&minima) / 63.0);
    let s = scales.map(|scale| step(scale, d, 0, 63) as u8);
    let t = minima.map(|minimum| step(minimum, m, 0, 63) as u8);
    // Six-bit numbers: parts 0..4 in the low bits of bytes 0..8, parts 4..8 split over bytes 8..12 and the top bits.
    let mut packed = [0_u8; 12];
    for part in 0..4 {
        packed[part] = s[part] | s[part + 4] >> 4 << 6;
        packed[part + 4] = t[part] | t[part + 4] >> 4 << 6;
        packed[part + 8] = s[part + 4] & 15 | t[part + 4] << 4;
    }
    out.extend(packed);
    let quants: Vec<u8> = (0..256)
        .map(|i| {
            let part = i / 32;
            let value = block[i] + m * f32::from(t[part]);
            step(value, d * f32::from(s[part]), 0, top) as u8
        })
        .collect();
    if bits == 5 {
        out.extend((0..32).map(|i| (0..8).fold(0, |byte, part| byte | quants[part * 32 + i] >> 4 << part)));
    }
    for pair in quants.chunks_exact(64) {
        out.extend((0..32).map(|i| pair[i] & 15 | pair[i + 32] << 4));
    }
}

fn encode_six_bits(block: &[f32], out: &mut Vec<u8>) {
    let mut scales = [0.0_f32; 16];
    for (part, values) in block.chunks_exact(16).enumerate() {
        scales[part] = extreme(values) / -32.0;
    }
    let d = f16::from_f32(extreme(&scales).abs() / 127.0);
    let s = scales.map(|scale| step(scale, d.to_f32(), -127, 127) as i8);
    let quants: Vec<u8> = (0..256)
        .map(|i| (step(block[i], d.to_f32() * f32::from(s[i / 16]), -32, 31) + 32) as u8)
        .collect();
    push_six_bits(&quants, s, d.to_le_bytes(), out);
}

/// A block of `Q6_K`: quants with their offset of 32 added, and the bits of its f16.
pub(super) fn push_six_bits(quants: &[u8], scales: [i8; 16], d: [u8; 2], out: &mut Vec<u8>) {
    for half in quants.chunks_exact(128) {
        out.extend((0..64).map(|i| half[i] & 15 | half[i + 64] << 4));
    }
    for half in quants.chunks_exact(128) {
        out.extend((0..32).map(|i| (0..4).fold(0, |byte, part| byte | half[part * 32 + i] >> 4 << (2 * part))));
    }
    out.extend(scales.map(|scale| scale as u8));
    out.extend(d);
}

/// The floats that the bytes of a GGUF tensor of type `ty` stand for, each rounded at most once.
///
/// # Panics
/// If `data` does not consist of whole blocks of the type.
#[must_use]
pub fn decode(ty: WeightType, data: &[u8]) -> Vec<f32> {
    assert!(
        data.len().is_multiple_of(ty.block_bytes()),
        "{} bytes are not blocks of {} ({ty})",
        data.len(),
        ty.block_bytes()
    );
    let mut out = Vec::with_capacity(data.len() / ty.block_bytes() * ty.block_size());
    for block in data.chunks_exact(ty.block_bytes()) {
        for index in 0..ty.block_size() {
            out.push(element(ty, block, index));
        }
    }
    out
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Bits `[shift, shift + bits)` of a byte.
fn field(byte: u8, shift: usize, bits: u32) -> u8 {
    byte >> shift & ((1 << bits) - 1)
}

fn element(ty: WeightType, block: &[u8], i: usize) -> f32 {
    let nibble = |base: usize| f32::from(field(block[base + i % 16], i / 16 * 4, 4));
    let fifth = |base: usize| f32::from(field(block[base + i / 8], i % 8, 1) << 4);
    match ty {
        WeightType::F32 => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        WeightType::F16 => half_at(block, 0),
        WeightType::BF16 => bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        WeightType::Q4_0 => half_at(block, 0) * (nibble(2) - 8.0),
        WeightType::Q4_1 => half_at(block, 0) * nibble(4) + half_at(block, 2),
        WeightType::Q5_0 => half_at(block, 0) * (nibble(6) + fifth(2) - 16.0),
        WeightType::Q5_1 => half_at(block, 0) * (nibble(8) + fifth(4)) + half_at(block, 2),
        WeightType::Q8_0 => half_at(block, 0) * f32::from(block[2 + i] as i8),
        WeightType::Q4K => {
            let quant = field(block[16 + i / 64 * 32 + i % 32], i / 32 % 2 * 4, 4);
            super_block_value(block, i / 32, quant)
        }
        WeightType::Q5K => {
            let low = field(block[48 + i / 64 * 32 + i % 32], i / 32 % 2 * 4, 4);
            let high = field(block[16 + i % 32], i / 32, 1);
            super_block_value(block, i / 32, low | high << 4)
        }
        WeightType::Q6K => {
            let low = field(block[i / 128 * 64 + i % 64], i % 128 / 64 * 4, 4);
            let high = field(block[128 + i / 128 * 32 + i % 32], i % 128 / 32 * 2, 2);
            let scale = half_at(block, 208) * f32::from(block[192 + i / 16] as i8);
            scale * (f32::from(low | high << 4) - 32.0)
        }
    }
}

fn super_block_value(block: &[u8], part: usize, quant: u8) -> f32 {
    let scales = &block[4..16];
    let (s, t) = if part < 4 {
        (scales[part] & 63, scales[part + 4] & 63)
    } else {
        (
            scales[part + 4] & 15 | scales[part - 4] >> 6 << 4,
            scales[part + 4] >> 4 | scales[part] >> 6 << 4,
        )
    };
    half_at(block, 0) * f32::from(s) * f32::from(quant) - half_at(block, 2) * f32::from(t)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};
    use crate::linear::WeightType;

    #[test]
    fn decoding_what_was_encoded_gives_it_back_within_half_a_step() {
        let values: Vec<f32> = (0..1024).map(|i| (i as f32 * 0.37).sin() * 0.8 + 0.1).collect();
        for ty in WeightType::ALL {
            let bytes = encode(ty, &values);
            assert_eq!(Some(bytes.len()), ty.bytes_of(values.len()), "{ty}");
            let error = decode(ty, &bytes)
                .iter()
                .zip(&values)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            let allowed = match ty {
                WeightType::F32 => 0.0,
                WeightType::F16 => 5e-4,
                WeightType::BF16 | WeightType::Q8_0 => 4e-3,
                WeightType::Q6K => 0.03,
                WeightType::Q5_0 | WeightType::Q5_1 | WeightType::Q5K => 0.06,
                _ => 0.12,
            };
            assert!(error <= allowed, "{ty}: {error} > {allowed}");
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for ty in WeightType::ALL {
            assert!(decode(ty, &encode(ty, &[0.0; 256])).iter().all(|&v| v == 0.0), "{ty}");
        }
    }

    #[test]
    fn blocks_written_by_hand_read_as_defined() {
        // d = 2, first byte: low nibble 3 (element 0), high nibble 15 (element 16).
        let mut q4_0 = vec![0x00, 0x40, 0xF3];
        q4_0.extend([0x88; 15]);
        let values = decode(WeightType::Q4_0, &q4_0);
        assert_eq!((values[0], values[1], values[16], values[17]), (-10.0, 0.0, 14.0, 0.0));

        // d = 1, fifth bits of elements 0 and 31 set.
        let mut q5_0 = vec![0x00, 0x3C, 0x01, 0x00, 0x00, 0x80];
        q5_0.extend([0x21; 16]);
        let values = decode(WeightType::Q5_0, &q5_0);
        assert_eq!((values[0], values[1], values[30], values[31]), (1.0, -15.0, -14.0, 2.0));

        // d = 1, m = 0.5; parts 0 and 7 have scales 2 and 0x2A, minima 3 and 0x15; every quant is 1 (low) or 4 (high).
        let mut q4_k = vec![0x00, 0x3C, 0x00, 0x38];
        let mut scales = [0_u8; 12];
        scales[0] = 2;
        scales[4] = 3;
        scales[11] = 0x0A | 0x5 << 4;
        scales[3] = 0x2 << 6;
        scales[7] = 0x1 << 6;
        q4_k.extend(scales);
        q4_k.extend([0x41; 128]);
        let values = decode(WeightType::Q4K, &q4_k);
        assert_eq!(
            (values[0], values[32], values[255]),
            (0.5, 0.0, 42.0 * 4.0 - 0.5 * 21.0)
        );
    }
}
