//! The number formats of weights, as GGUF files name and store them.

use std::fmt;
use std::str::FromStr;

use super::LinearError;

/// A GGUF number format that weights may be stored in.
///
/// `q` is the stored integer of an element; scales `d` and minima `m` are f16 unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of IEEE single precision.
    BF16,
    /// Blocks of 32: `d * (q - 8)`, 4 bits.
    Q4_0,
    /// Blocks of 32: `d * q + m`, 4 bits.
    Q4_1,
    /// Blocks of 32: `d * (q - 16)`, 5 bits.
    Q5_0,
    /// Blocks of 32: `d * q + m`, 5 bits.
    Q5_1,
    /// Blocks of 32: `d * q`, 8 bits, signed.
    Q8_0,
    /// Blocks of 256: `d * s * q - m * t`, 4 bits; `s` and `t` are 6-bit integers for each 32 elements.
    Q4K,
    /// Blocks of 256: as [`Q4K`](Self::Q4K) with 5 bits.
    Q5K,
    /// Blocks of 256: `d * s * (q - 32)`, 6 bits; `s` is a signed 8-bit integer for each 16 elements.
    Q6K,
}

impl WeightType {
    /// Every type, in the order of the enum.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// The type with this number in a GGUF tensor header.
    pub fn from_ggml_id(id: u32) -> Result<Self, LinearError> {
        Self::ALL
            .into_iter()
            .find(|ty| ty.ggml_id() == id)
            .ok_or(LinearError::UnsupportedType { id })
    }

    /// The number of this type in a GGUF tensor header.
    #[must_use]
    pub fn ggml_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::BF16 => 30,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
        }
    }

    /// Elements that are stored together; rows must be a multiple of it.
    #[must_use]
    pub fn block_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block in a file.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Whether elements are stored as floats of their own, not as integers of a block.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Bytes of `elements` elements in a file; `None` if they do not fill whole blocks or the number overflows.
    #[must_use]
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_size()) {
            return None;
        }
        (elements / self.block_size()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        })
    }
}

/// The name of a type, in either case.
impl FromStr for WeightType {
    type Err = LinearError;

    fn from_str(text: &str) -> Result<Self, LinearError> {
        let named = |kind: &Self| kind.to_string().eq_ignore_ascii_case(text);
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| LinearError::UnknownName { name: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::WeightType;

    #[test]
    fn ids_round_trip_and_unknown_ids_are_errors() {
        for ty in WeightType::ALL {
            assert_eq!(WeightType::from_ggml_id(ty.ggml_id()), Ok(ty));
            assert_eq!(ty.to_string().to_lowercase().parse(), Ok(ty));
        }
        for id in [4, 5, 9, 10, 11, 15, 31, u32::MAX] {
            let message = WeightType::from_ggml_id(id).unwrap_err().to_string();
            assert!(message.contains(&id.to_string()), "{message}");
        }
    }

    #[test]
    fn only_whole_blocks_have_a_size() {
        assert_eq!(WeightType::Q4_1.bytes_of(64), Some(40));
        assert_eq!(WeightType::Q4_1.bytes_of(65), None);
        assert_eq!(WeightType::Q6K.bytes_of(512), Some(420));
        assert_eq!(WeightType::F32.bytes_of(usize::MAX), None);
    }
}
