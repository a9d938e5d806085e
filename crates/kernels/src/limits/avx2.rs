//! The same with AVX2: 32 bytes a load, eight floats or 32 bytes an operation.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi32, _mm256_castps_si256, _mm256_extract_epi32, _mm256_fmadd_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_ps, _mm256_setzero_si256,
    _mm256_xor_si256,
};
use std::hint::black_box;

use super::Loops;

/// Independent sums: enough to hide the latency of an operation.
const SUMS: usize = 12;

pub(super) const LOOPS: Loops = Loops {
    read,
    floats,
    float_operations: 2 * 8 * SUMS,
    bytes,
    byte_operations: 2 * 32 * SUMS,
};

/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn read(data: &[u8]) -> u64 {
    let mut all = [_mm256_setzero_si256(); 4];
    for line in data.chunks_exact(128) {
        for (part, all) in all.iter_mut().enumerate() {
            // SAFETY: inside the line.
            let loaded = unsafe { _mm256_loadu_si256(line.as_ptr().add(part * 32).cast()) };
            *all = _mm256_xor_si256(*all, loaded);
        }
    }
    fold(all[0], &all[1..]) as u64
}

/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn floats(turns: usize) -> f32 {
    let factor = _mm256_set1_ps(black_box(0.5));
    let mut sums: [__m256; SUMS] = [_mm256_set1_ps(1.0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, factor);
        }
    }
    let all = sums.map(|sum| _mm256_castps_si256(sum));
    fold(all[0], &all[1..]) as f32
}

/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn bytes(turns: usize) -> i32 {
    let ones = _mm256_set1_epi16(1);
    let mut numbers = _mm256_set1_epi8(black_box(3));
    let mut sums = [_mm256_setzero_si256(); SUMS];
    for _ in 0..turns {
        // Products that could be computed once, if the compiler knew that nothing changes.
        numbers = black_box(numbers);
        for sum in &mut sums {
            let pairs = _mm256_maddubs_epi16(numbers, *sum);
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
        }
    }
    fold(sums[0], &sums[1..])
}

#[target_feature(enable = "avx2")]
fn fold(first: __m256i, rest: &[__m256i]) -> i32 {
    let all = rest.iter().fold(first, |all, &part| _mm256_xor_si256(all, part));
    _mm256_extract_epi32::<0>(all)
}
