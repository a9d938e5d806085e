//! The same with NEON and its dot products: 16 bytes a load, four floats or 16 bytes an operation.

use std::arch::aarch64::{
    float32x4_t, uint32x4_t, vaddq_f32, vaddvq_f32, vaddvq_s32, vaddvq_u32, vdupq_n_f32, vdupq_n_s8, vdupq_n_s32,
    vdupq_n_u32, veorq_s32, veorq_u32, vfmaq_f32, vld1q_u32,
};
use std::hint::black_box;

use super::Loops;
use crate::neon::sdot;

/// Independent sums: enough to hide the latency of an operation on four units.
const SUMS: usize = 16;

pub(super) const LOOPS: Loops = Loops {
    read,
    floats,
    float_operations: 2 * 4 * SUMS,
    bytes,
    byte_operations: 2 * 16 * SUMS,
};

/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
unsafe fn read(data: &[u8]) -> u64 {
    let mut all: [uint32x4_t; 4] = [vdupq_n_u32(0); 4];
    for line in data.chunks_exact(64) {
        for (part, all) in all.iter_mut().enumerate() {
            // SAFETY: inside the line.
            let loaded = unsafe { vld1q_u32(line.as_ptr().add(part * 16).cast()) };
            *all = veorq_u32(*all, loaded);
        }
    }
    u64::from(vaddvq_u32(
        all[1..].iter().fold(all[0], |all, &part| veorq_u32(all, part)),
    ))
}

/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
unsafe fn floats(turns: usize) -> f32 {
    let factor = vdupq_n_f32(black_box(0.5));
    let mut sums: [float32x4_t; SUMS] = [vdupq_n_f32(1.0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = vfmaq_f32(*sum, factor, factor);
        }
    }
    vaddvq_f32(sums[1..].iter().fold(sums[0], |all, &part| vaddq_f32(all, part)))
}

/// # Safety
/// The machine has NEON and its dot products.
#[target_feature(enable = "neon,dotprod")]
unsafe fn bytes(turns: usize) -> i32 {
    let numbers = vdupq_n_s8(black_box(3));
    let mut sums = [vdupq_n_s32(0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = sdot::<0>(*sum, numbers, numbers);
        }
    }
    vaddvq_s32(sums[1..].iter().fold(sums[0], |all, &part| veorq_s32(all, part)))
}
