//! The element types a GGUF tensor can have: what a block of each measures.

use std::fmt;

/// Element type of a tensor, as the number the file stores. Only numbers in [`GgmlType::from_id`]'s table exist.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GgmlType {
    id: u32,
    name: &'static str,
    block_size: usize,
    block_bytes: usize,
}

/// `(id, name, elements per block, bytes per block)`. Types the kernels cannot compute with are listed too, so that
/// their files can be read and the error can name the type.
const TYPES: &[(u32, &str, usize, usize)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

impl GgmlType {
    /// 32-bit floats.
    pub const F32: Self = Self {
        id: 0,
        name: "F32",
        block_size: 1,
        block_bytes: 4,
    };
    /// 16-bit floats.
    pub const F16: Self = Self {
        id: 1,
        name: "F16",
        block_size: 1,
        block_bytes: 2,
    };
    /// Brain floats.
    pub const BF16: Self = Self {
        id: 30,
        name: "BF16",
        block_size: 1,
        block_bytes: 2,
    };
    /// 8-bit blocks of 32 with one scale.
    pub const Q8_0: Self = Self {
        id: 8,
        name: "Q8_0",
        block_size: 32,
        block_bytes: 34,
    };

    /// The type with this number, if there is one.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES
            .iter()
            .find(|entry| entry.0 == id)
            .map(|&(id, name, block_size, block_bytes)| Self {
                id,
                name,
                block_size,
                block_bytes,
            })
    }

    /// The number stored in files.
    #[must_use]
    pub fn id(self) -> u32 {
        self.id
    }

    /// The name people know it by, such as `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Elements per block; rows are a whole number of blocks.
    #[must_use]
    pub fn block_size(self) -> usize {
        self.block_size
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        self.block_bytes
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_the_table() {
        for constant in [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0] {
            assert_eq!(GgmlType::from_id(constant.id()), Some(constant));
        }
    }

    #[test]
    fn removed_and_future_numbers_are_unknown() {
        for id in [4, 5, 31, 36, 1000, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None);
        }
    }
}
