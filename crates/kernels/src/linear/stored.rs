//! Number formats of GGUF files that have no kernels, and what they are kept as.

use std::borrow::Cow;

use half::f16;

use super::encode::{encode, push_six_bits};
use super::{LinearError, WeightType};

/// How a GGUF file may store a weight: in a format with kernels, or in one whose numbers such a format can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredType {
    /// With kernels: kept as it is.
    Kept(WeightType),
    /// `Q2_K`, kept as `Q8_0`: rounded to 1/254 of the largest of 32 values.
    Q2K,
    /// `Q3_K`, kept as `Q6_K`, which holds the same numbers.
    Q3K,
    /// `IQ4_NL`, kept as `Q8_0`, which holds the same numbers.
    Iq4Nl,
    /// `IQ4_XS`, kept as `Q8_0`: the scale of 32 values is rounded to an f16.
    Iq4Xs,
}

/// What the four bits of the IQ4 formats stand for.
const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl StoredType {
    /// The formats without kernels, with their numbers in GGUF tensor headers and their names.
    pub const CONVERTED: [(Self, u32, &str); 4] = [
        (Self::Q2K, 10, "Q2_K"),
        (Self::Q3K, 11, "Q3_K"),
        (Self::Iq4Nl, 20, "IQ4_NL"),
        (Self::Iq4Xs, 23, "IQ4_XS"),
    ];

    /// The format with this number in a GGUF tensor header.
    pub fn from_ggml_id(id: u32) -> Result<Self, LinearError> {
        let converted = Self::CONVERTED.into_iter().find(|(_, number, _)| *number == id);
        match converted {
            Some((stored, _, _)) => Ok(stored),
            None => WeightType::from_ggml_id(id).map(Self::Kept),
        }
    }

    /// The names of all formats that can be read.
    #[must_use]
    pub fn names() -> String {
        let kept = WeightType::ALL.map(|kind| kind.to_string());
        let converted = Self::CONVERTED.map(|(_, _, name)| name.to_owned());
        [&kept[..], &converted[..]].concat().join(", ")
    }

    /// The format that the weight is kept in.
    #[must_use]
    pub fn kept_as(self) -> WeightType {
        match self {
            Self::Kept(kind) => kind,
            Self::Q3K => WeightType::Q6K,
            Self::Q2K | Self::Iq4Nl | Self::Iq4Xs => WeightType::Q8_0,
        }
    }

    /// The bytes of a tensor in the format it is kept in. A part of a block at the end is left out.
    #[must_use]
    pub fn convert(self, data: &[u8]) -> Cow<'_, [u8]> {
        let mut out = Vec::new();
        match self {
            Self::Kept(_) => return Cow::Borrowed(data),
            Self::Q2K => data
                .as_chunks()
                .0
                .iter()
                .for_each(|block| out.extend(encode(WeightType::Q8_0, &values_of_q2(block)))),
            Self::Q3K => data.as_chunks().0.iter().for_each(|block| convert_q3(block, &mut out)),
            Self::Iq4Nl => {
                for block in data.as_chunks::<18>().0 {
                    out.extend(&block[..2]);
                    push_iq4(&block[2..], &mut out);
                }
            }
            Self::Iq4Xs => data
                .as_chunks()
                .0
                .iter()
                .for_each(|block| convert_iq4_xs(block, &mut out)),
        }
        Cow::Owned(out)
    }
}

/// `16 × (scale, minimum) of 4 bits, 2 bits of 256, d, m`: `d * scale * q - m * minimum`.
fn values_of_q2(block: &[u8; 84]) -> [f32; 256] {
    let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
    std::array::from_fn(|i| {
        let both = block[i / 16];
        let quant = block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        scale * f32::from(both & 15) * f32::from(quant) - minimum * f32::from(both >> 4)
    })
}

/// `third bits of 256, 2 bits of 256, 12 bytes of six-bit scales, d`: `d * (scale - 32) * (q - 4)`.
fn convert_q3(block: &[u8; 110], out: &mut Vec<u8>) {
    let scales = &block[96..108];
    let scales = std::array::from_fn(|i| {
        let low = scales[i % 8] >> (i / 8 * 4) & 15;
        let high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    });
    let quants: [u8; 256] = std::array::from_fn(|i| {
        let low = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        let high = block[i % 32] >> (i / 32) & 1;
        // From -4..=3 with its own offset to -32..=31 with the other's.
        (low | high << 2) + 28
    });
    push_six_bits(&quants, scales, [block[108], block[109]], out);
}

/// `d, 2 upper and 4 lower bits of 8 scales, 4 bits of 256`: `d * (scale - 32) * value`.
fn convert_iq4_xs(block: &[u8; 136], out: &mut Vec<u8>) {
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (part, quants) in block[8..].chunks_exact(16).enumerate() {
        let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
        let scale = i16::from(low) | ((high >> (2 * part) & 3) << 4) as i16;
        let scale = half_at(block, 0) * f32::from(scale - 32);
        out.extend(f16::from_f32(scale).to_le_bytes());
        push_iq4(quants, out);
    }
}

/// 32 values of 4 bits, the first half in the low ones, as signed bytes.
fn push_iq4(quants: &[u8], out: &mut Vec<u8>) {
    let value = |index: u8| IQ4_VALUES[usize::from(index)] as u8;
    out.extend(quants.iter().map(|byte| value(byte & 15)));
    out.extend(quants.iter().map(|byte| value(byte >> 4)));
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
