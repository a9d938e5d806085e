//! Takes the blocks of GGUF tensors apart. Facts about the file format only; the layouts in memory are in `layout`.

use super::WeightType;

/// The numbers stored in one block. Unused fields keep their old values.
pub(super) struct Parts {
    /// One unsigned integer per element, high bits included; `Q8_0` as the bits of the signed integer.
    pub(super) quants: [u8; 256],
    /// Scale, the bits of an f16.
    pub(super) scale: [u8; 2],
    /// Minimum, the bits of an f16.
    pub(super) minimum: [u8; 2],
    /// Integer scales of a super-block: 8 unsigned ones, or 16 signed ones for `Q6_K`.
    pub(super) sub_scales: [u8; 16],
    /// Integer minima of a super-block.
    pub(super) sub_minima: [u8; 8],
}

impl Parts {
    pub(super) fn new() -> Self {
        Self {
            quants: [0; 256],
            scale: [0; 2],
            minimum: [0; 2],
            sub_scales: [0; 16],
            sub_minima: [0; 8],
        }
    }

    /// Fills `self` from one block of a quantised type.
    pub(super) fn read(&mut self, ty: WeightType, block: &[u8]) {
        match ty {
            WeightType::Q4_0 => self.read_small(block, 2, 2),
            WeightType::Q4_1 => self.read_small(block, 4, 4),
            WeightType::Q5_0 => self.read_small(block, 2, 6),
            WeightType::Q5_1 => self.read_small(block, 4, 8),
            WeightType::Q8_0 => {
                self.scale.copy_from_slice(&block[..2]);
                self.quants[..32].copy_from_slice(&block[2..34]);
            }
            WeightType::Q4K => self.read_super(block, None, &block[16..144]),
            WeightType::Q5K => self.read_super(block, Some(&block[16..48]), &block[48..176]),
            WeightType::Q6K => self.read_six(block),
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => unreachable!("floats have no parts"),
        }
    }

    /// `d, [m], [fifth bits], nibbles`: the fifth bits start at `high`, the nibbles at `low`.
    fn read_small(&mut self, block: &[u8], high: usize, low: usize) {
        self.scale.copy_from_slice(&block[..2]);
        self.minimum.copy_from_slice(&block[2..4]);
        for (i, &byte) in block[low..low + 16].iter().enumerate() {
            self.quants[i] = byte & 15;
            self.quants[i + 16] = byte >> 4;
        }
        if low > high {
            for (eight, &bits) in self.quants[..32].chunks_exact_mut(8).zip(&block[high..]) {
                for (i, quant) in eight.iter_mut().enumerate() {
                    *quant |= (bits >> i & 1) << 4;
                }
            }
        }
    }

    /// `d, m, 12 bytes of six-bit scales and minima, [fifth bits], nibbles` of `Q4_K` and `Q5_K`.
    fn read_super(&mut self, block: &[u8], high: Option<&[u8]>, low: &[u8]) {
        self.scale.copy_from_slice(&block[..2]);
        self.minimum.copy_from_slice(&block[2..4]);
        let packed = &block[4..16];
        for part in 0..4 {
            let (scale, minimum, both) = (packed[part], packed[part + 4], packed[part + 8]);
            self.sub_scales[part] = scale & 63;
            self.sub_minima[part] = minimum & 63;
            self.sub_scales[part + 4] = both & 15 | scale >> 6 << 4;
            self.sub_minima[part + 4] = both >> 4 | minimum >> 6 << 4;
        }
        for (pair, bytes) in low.chunks_exact(32).enumerate() {
            let quants = &mut self.quants[pair * 64..][..64];
            for (i, &byte) in bytes.iter().enumerate() {
                quants[i] = byte & 15;
                quants[i + 32] = byte >> 4;
            }
            if let Some(high) = high {
                for (i, &byte) in high.iter().enumerate() {
                    quants[i] |= (byte >> (2 * pair) & 1) << 4;
                    quants[i + 32] |= (byte >> (2 * pair + 1) & 1) << 4;
                }
            }
        }
    }

    /// `low nibbles, high bit pairs, 16 signed scales, d`, each half of 128 elements on its own.
    fn read_six(&mut self, block: &[u8]) {
        self.scale.copy_from_slice(&block[208..210]);
        self.sub_scales.copy_from_slice(&block[192..208]);
        for half in 0..2 {
            let low = &block[half * 64..][..64];
            let high = &block[128 + half * 32..][..32];
            let quants = &mut self.quants[half * 128..][..128];
            for i in 0..32 {
                quants[i] = low[i] & 15 | (high[i] & 3) << 4;
                quants[i + 32] = low[i + 32] & 15 | (high[i] >> 2 & 3) << 4;
                quants[i + 64] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                quants[i + 96] = low[i + 32] >> 4 | (high[i] >> 6) << 4;
            }
        }
    }
}
