//! Quantising with AVX2: 32 values in four registers, the same numbers as the plain code.

#![allow(clippy::wildcard_imports, reason = "half of the file is names of this module")]

use std::arch::x86_64::*;

use super::{BLOCK, ROUND, TILE, TileBlock, scale_of};

/// Quantises 32 values of the only row.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn single(values: &[f32; BLOCK], block: &mut TileBlock<1>) {
    let (quads, scale) = quantise(values);
    let sums = _mm256_hadd_epi32(sum_quads(quads), _mm256_setzero_si256());
    let sums = _mm256_hadd_epi32(sums, sums);
    let low = _mm256_extract_epi32::<0>(sums);
    let high = _mm256_extract_epi32::<4>(sums);
    // SAFETY: eight quads of four bytes.
    unsafe { _mm256_storeu_si256((&raw mut block.quads).cast(), quads) };
    block.scale = [scale];
    block.scaled_sum = [scale * (low + high) as f32];
    block.negative_sums = [[-low], [-high]];
}

/// Quantises 32 values of each row of a tile.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn tile(values: [&[f32; BLOCK]; TILE], block: &mut TileBlock<TILE>) {
    let rows = values.map(|values| quantise(values));
    let quads = rows.map(|(quads, _)| quads);
    let scale = rows.map(|(_, scale)| scale);

    // A lane is four quads of a row: rows 0 and 1, then 2 and 3, then all four are interleaved.
    let low = [
        _mm256_unpacklo_epi32(quads[0], quads[1]),
        _mm256_unpacklo_epi32(quads[2], quads[3]),
    ];
    let high = [
        _mm256_unpackhi_epi32(quads[0], quads[1]),
        _mm256_unpackhi_epi32(quads[2], quads[3]),
    ];
    let columns = [
        _mm256_unpacklo_epi64(low[0], low[1]),
        _mm256_unpackhi_epi64(low[0], low[1]),
        _mm256_unpacklo_epi64(high[0], high[1]),
        _mm256_unpackhi_epi64(high[0], high[1]),
    ];
    for (quad, column) in columns.into_iter().enumerate() {
        // SAFETY: a quad of four rows is 16 bytes, and there are eight.
        unsafe {
            _mm_storeu_si128((&raw mut block.quads[quad]).cast(), _mm256_castsi256_si128(column));
            _mm_storeu_si128(
                (&raw mut block.quads[quad + 4]).cast(),
                _mm256_extracti128_si256::<1>(column),
            );
        }
    }

    let sums = quads.map(|quads| sum_quads(quads));
    let sums = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    let (low, high) = (_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    block.scale = scale;
    // SAFETY: four numbers each.
    unsafe {
        let scaled = _mm_mul_ps(_mm_loadu_ps(scale.as_ptr()), _mm_cvtepi32_ps(_mm_add_epi32(low, high)));
        _mm_storeu_ps(block.scaled_sum.as_mut_ptr(), scaled);
        for (negative, sum) in block.negative_sums.iter_mut().zip([low, high]) {
            _mm_storeu_si128(negative.as_mut_ptr().cast(), _mm_sub_epi32(_mm_setzero_si128(), sum));
        }
    }
}

/// The quants of 32 values in order, and their scale.
#[target_feature(enable = "avx2")]
fn quantise(values: &[f32; BLOCK]) -> (__m256i, f32) {
    // SAFETY: 32 values.
    let loaded: [__m256; 4] = std::array::from_fn(|part| unsafe { _mm256_loadu_ps(values.as_ptr().add(part * 8)) });
    let magnitude = |value: __m256| _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FFF_FFFF));
    let top = _mm256_max_epi32(
        _mm256_max_epi32(magnitude(loaded[0]), magnitude(loaded[1])),
        _mm256_max_epi32(magnitude(loaded[2]), magnitude(loaded[3])),
    );
    let top = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256::<1>(top));
    let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b01_00_11_10>(top));
    let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b10_11_00_01>(top));
    let (scale, inverse) = scale_of(f32::from_bits(_mm_cvtsi128_si32(top) as u32));
    let bytes = loaded.map(|value| {
        let scaled = _mm256_mul_ps(value, _mm256_set1_ps(inverse));
        let whole = _mm256_castps_si256(_mm256_add_ps(scaled, _mm256_set1_ps(ROUND)));
        _mm256_and_si256(whole, _mm256_set1_epi32(0xFF))
    });
    // Packing works within lanes of four values: their order is put right at the end.
    let packed = _mm256_packus_epi16(
        _mm256_packus_epi32(bytes[0], bytes[1]),
        _mm256_packus_epi32(bytes[2], bytes[3]),
    );
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    (_mm256_permutevar8x32_epi32(packed, order), scale)
}

/// The sum of each quad.
#[target_feature(enable = "avx2")]
fn sum_quads(quads: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), quads);
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}
