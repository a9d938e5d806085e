//! The same with AVX-512 and VNNI: 64 bytes a load, sixteen floats or 64 bytes an operation.

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi128_si32, _mm512_castps_si512, _mm512_castsi512_si128, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_set1_ps, _mm512_setzero_si512, _mm512_xor_si512,
};
use std::hint::black_box;

use super::Loops;

/// Independent sums: enough to hide the latency of an operation.
const SUMS: usize = 12;

pub(super) const LOOPS: Loops = Loops {
    read,
    floats,
    float_operations: 2 * 16 * SUMS,
    bytes,
    byte_operations: 2 * 64 * SUMS,
};

/// # Safety
/// The machine has AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn read(data: &[u8]) -> u64 {
    let mut all = [_mm512_setzero_si512(); 4];
    for lines in data.chunks_exact(256) {
        for (part, all) in all.iter_mut().enumerate() {
            // SAFETY: inside the lines.
            let loaded = unsafe { _mm512_loadu_si512(lines.as_ptr().add(part * 64).cast()) };
            *all = _mm512_xor_si512(*all, loaded);
        }
    }
    fold(all[0], &all[1..]) as u64
}

/// # Safety
/// The machine has AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn floats(turns: usize) -> f32 {
    let factor = _mm512_set1_ps(black_box(0.5));
    let mut sums: [__m512; SUMS] = [_mm512_set1_ps(1.0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    let all = sums.map(|sum| _mm512_castps_si512(sum));
    fold(all[0], &all[1..]) as f32
}

/// # Safety
/// The machine has AVX-512 F, BW and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn bytes(turns: usize) -> i32 {
    let numbers = _mm512_set1_epi8(black_box(3));
    let mut sums = [_mm512_setzero_si512(); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, numbers, numbers);
        }
    }
    fold(sums[0], &sums[1..])
}

#[target_feature(enable = "avx512f")]
fn fold(first: __m512i, rest: &[__m512i]) -> i32 {
    let all = rest.iter().fold(first, |all, &part| _mm512_xor_si512(all, part));
    _mm_cvtsi128_si32(_mm512_castsi512_si128(all))
}
