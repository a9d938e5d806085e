//! Statistics of queries and expected attention against their formulas in double precision.

use inertiakv_kernels::attention::{Gaussian, QueryStatistics, expected_attention, expected_attention_with};
use inertiakv_kernels::cache::KvType;
use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::ops::RopeStyle;
use inertiakv_kernels::threads::ThreadPool;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{
    Case, any_length, any_type, dot, fates, masked_and_evicted, numbers, softmax, stored_keys, wide, with_zeros,
};

/// `[rows][heads][dim]` with correlated coordinates and a mean of about `offset`.
fn queries(rows: usize, heads: usize, dim: usize, offset: f32, seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let means = numbers(&mut random, heads * dim);
    let mut queries = Vec::with_capacity(rows * heads * dim);
    for _ in 0..rows {
        for mean in &means {
            let shared = queries.last().map_or(0.0, |&last: &f32| last.fract());
            queries.push(offset * (1.0 + mean) + 0.5 * shared + random.random_range(-1.0..1.0_f32));
        }
    }
    queries
}

/// Mean and covariance of one head.
fn moments(queries: &[f32], heads: usize, dim: usize, head: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
    let rows: Vec<Vec<f64>> = queries.chunks(dim).skip(head).step_by(heads).map(wide).collect();
    let count = rows.len() as f64;
    let mean: Vec<f64> = (0..dim)
        .map(|d| rows.iter().map(|row| row[d]).sum::<f64>() / count)
        .collect();
    let covariance = |i: usize, j: usize| {
        let products = rows.iter().map(|row| (row[i] - mean[i]) * (row[j] - mean[j]));
        products.sum::<f64>() / count
    };
    let covariance = (0..dim).map(|i| (0..dim).map(|j| covariance(i, j)).collect()).collect();
    (mean, covariance)
}

/// The average rotation as a matrix.
fn average_rotation(style: RopeStyle, frequencies: &[f64], first: usize, count: usize, dim: usize) -> Vec<Vec<f64>> {
    let mut average = vec![vec![0.0; dim]; dim];
    let share = 1.0 / count as f64;
    for position in first..first + count {
        for (d, row) in average.iter_mut().enumerate().skip(2 * frequencies.len()) {
            row[d] += share;
        }
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (i, j) = match style {
                RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                RopeStyle::HalfSplit => (pair, pair + frequencies.len()),
            };
            let angle = position as f64 * frequency;
            average[i][i] += share * angle.cos();
            average[j][j] += share * angle.cos();
            average[i][j] -= share * angle.sin();
            average[j][i] += share * angle.sin();
        }
    }
    average
}

fn product(matrix: &[Vec<f64>], vector: &[f64]) -> Vec<f64> {
    matrix.iter().map(|row| dot(row, vector)).collect()
}

/// Fails unless both agree to a share of the standard deviations.
fn check(found: &Gaussian, head: usize, mean: &[f64], covariance: &[Vec<f64>], name: &str) {
    let spread = |i: usize| covariance[i][i].max(1e-3).sqrt();
    for (i, (&number, expected)) in found.mean(head).iter().zip(mean).enumerate() {
        let bound = 1e-6 * (spread(i) + expected.abs());
        assert!(
            (f64::from(number) - expected).abs() <= bound,
            "{name} mean {i}: {number} {expected}"
        );
    }
    for (at, &number) in found.covariance(head).iter().enumerate() {
        let (i, j) = (at / found.dim(), at % found.dim());
        let expected = covariance[i][j];
        let bound = 3e-6 * spread(i) * spread(j);
        assert!(
            (f64::from(number) - expected).abs() <= bound,
            "{name} {i} {j}: {number} {expected}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn statistics_are_mean_and_covariance(
        heads in 1..4_usize,
        dim in prop::sample::select(vec![6_usize, 16, 48, 64, 80, 128]),
        rows in prop_oneof![1..5_usize, 200..600_usize],
        cut in 0..600_usize,
        offset in prop::sample::select(vec![0.0_f32, 1.0, 100.0]),
        seed in any::<u64>(),
    ) {
        let queries = queries(rows, heads, dim, offset, seed);
        let (before, after) = queries.split_at(cut.min(rows) * heads * dim);
        let expected: Vec<_> = (0..heads).map(|head| moments(&queries, heads, dim, head)).collect();
        for isa in Isa::available() {
            let gathered = [1, 3].map(|threads| {
                let pool = ThreadPool::new(threads);
                let mut statistics = QueryStatistics::new(heads, dim);
                statistics.add_with(isa, &pool, before);
                statistics.add_with(isa, &pool, after);
                prop_assert_eq!(statistics.rows(), rows);
                // Without frequencies nothing rotates.
                Ok(statistics.rotated(RopeStyle::HalfSplit, &[], 7, 512))
            });
            let [one, three] = gathered;
            let one = one?;
            prop_assert_eq!(&one, &three?);
            for (head, (mean, covariance)) in expected.iter().enumerate() {
                check(&one, head, mean, covariance, &format!("{isa} {head}"));
            }
        }
    }

    #[test]
    fn rotation_is_the_average_matrix(
        style in prop_oneof![Just(RopeStyle::Interleaved), Just(RopeStyle::HalfSplit)],
        dim in prop::sample::select(vec![16_usize, 32]),
        unrotated in 0..3_usize,
        first in 0..100_000_usize,
        count in prop_oneof![4 => 1..600_usize, 1 => 10_000..40_000_usize],
        seed in any::<u64>(),
    ) {
        let queries = queries(50, 2, dim, 1.0, seed);
        let pairs = dim / 2 - 2 * unrotated;
        let mut frequencies: Vec<f64> =
            (0..pairs).map(|pair| 10_000_f64.powf(-(pair as f64) / pairs as f64)).collect();
        // One that stands still.
        frequencies[pairs - 1] = 0.0;
        let pool = ThreadPool::new(1);
        let mut statistics = QueryStatistics::new(2, dim);
        statistics.add(&pool, &queries);
        let rotated = statistics.rotated(style, &frequencies, first, count);
        prop_assert_eq!((rotated.heads(), rotated.dim()), (2, dim));
        let rotation = average_rotation(style, &frequencies, first, count, dim);
        for head in 0..2 {
            let (mean, covariance) = moments(&queries, 2, dim, head);
            // R (R Σ)ᵀ, row by row.
            let half: Vec<Vec<f64>> = covariance.iter().map(|row| product(&rotation, row)).collect();
            let columns = |j: usize| half.iter().map(|row| row[j]).collect::<Vec<f64>>();
            let both: Vec<Vec<f64>> = (0..dim).map(|j| product(&rotation, &columns(j))).collect();
            check(&rotated, head, &product(&rotation, &mean), &both, &format!("{style:?} {head}"));
        }
    }
}

impl Case {
    /// The distribution of its queries, wide enough for peaked logits.
    fn gaussian(&self, rows: usize, seed: u64) -> Gaussian {
        let pool = ThreadPool::new(1);
        let mut statistics = QueryStatistics::new(self.heads(), self.dim);
        statistics.add(&pool, &queries(rows, self.heads(), self.dim, 1.0, seed));
        statistics.rotated(RopeStyle::HalfSplit, &[], 0, 1)
    }

    fn expected(&self, gaussian: &Gaussian, skip: usize) -> Vec<Vec<f64>> {
        let root = (self.dim as f64).sqrt();
        (0..self.keys.len())
            .map(|kv_head| {
                let keys = stored_keys(&self.cache, kv_head);
                let mut shares = vec![0.0; keys.len()];
                for head in kv_head * self.group..(kv_head + 1) * self.group {
                    let mean = wide(gaussian.mean(head));
                    let covariance: Vec<Vec<f64>> = gaussian.covariance(head).chunks(self.dim).map(wide).collect();
                    let logit = |(row, key): (usize, &Vec<f64>)| {
                        if row < skip {
                            return f64::NEG_INFINITY;
                        }
                        dot(&mean, key) / root + dot(key, &product(&covariance, key)) / (2.0 * self.dim as f64)
                    };
                    let logits: Vec<f64> = keys.iter().enumerate().map(logit).collect();
                    for (share, probability) in shares.iter_mut().zip(softmax(&logits)) {
                        *share += probability / self.group as f64;
                    }
                }
                shares
            })
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn expected_attention_follows_its_formula(
        kv_type in any_type(),
        kv_heads in 1..3_usize,
        group in prop::sample::select(vec![1_usize, 2, 3, 7, 9]),
        dim in prop::sample::select(vec![16_usize, 48, 64, 80, 128]),
        entries in any_length(),
        skip in prop_oneof![3 => Just(4_usize), 1 => 0..700_usize],
        seed in any::<u64>(),
    ) {
        let case = Case::new(kv_type, kv_heads, group, dim, entries, 0, seed);
        let gaussian = case.gaussian(30, seed);
        let expected = case.expected(&gaussian, skip);
        for isa in Isa::available() {
            // What was there before must not matter.
            let mut out = vec![vec![f32::NAN; 5]; 9];
            expected_attention_with(isa, &ThreadPool::new(2), &case.cache, 0, &gaussian, skip, &mut out);
            prop_assert_eq!(out.len(), kv_heads);
            for (found, expected) in out.iter().zip(&expected) {
                prop_assert_eq!(found.len(), expected.len());
                for (row, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                    let error = (f64::from(found) - expected).abs();
                    prop_assert!(error <= 2e-5 * expected + 1e-9, "{} row {}: {} {}", isa, row, found, expected);
                    prop_assert!(row >= skip || found == 0.0, "{} row {}: {}", isa, row, found);
                }
            }
        }
    }
}

#[test]
fn wide_heads_agree() {
    // More dimensions than the columns of one chunk.
    let (rows, dim) = (40, 272);
    let queries = queries(rows, 1, dim, 1.0, 3);
    let (mean, covariance) = moments(&queries, 1, dim, 0);
    for isa in Isa::available() {
        let mut statistics = QueryStatistics::new(1, dim);
        statistics.add_with(isa, &ThreadPool::new(2), &queries);
        let gaussian = statistics.rotated(RopeStyle::HalfSplit, &[], 0, 1);
        check(&gaussian, 0, &mean, &covariance, &isa.to_string());
    }
}

#[test]
fn threads_do_not_change_a_bit_of_expected_attention() {
    let case = Case::new(KvType::F16, 3, 3, 64, 1000, 0, 5);
    let gaussian = case.gaussian(300, 6);
    for isa in Isa::available() {
        let run = |threads: usize| {
            let mut out = Vec::new();
            let pool = ThreadPool::new(threads);
            expected_attention_with(isa, &pool, &case.cache, 0, &gaussian, 4, &mut out);
            out
        };
        let one = run(1);
        assert!(one == run(2) && one == run(3), "{isa}");
    }
}

#[test]
fn masked_rows_are_expected_to_get_nothing() {
    let case = Case::new(KvType::F16, 2, 3, 64, 700, 0, 5);
    let gaussian = case.gaussian(300, 6);
    let fates = fates(&case, 300, 7);
    let (masked, evicted) = masked_and_evicted(&case, &fates);
    let pool = ThreadPool::new(2);
    for isa in Isa::available() {
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        expected_attention_with(isa, &pool, &masked, 0, &gaussian, 0, &mut found);
        expected_attention_with(isa, &pool, &evicted, 0, &gaussian, 0, &mut expected);
        for ((found, expected), fates) in found.iter().zip(&expected).zip(&fates) {
            let expected = with_zeros(expected, fates);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= 1e-5 * expected, "{isa}: {found} {expected}");
            }
        }
    }
}

#[test]
fn a_query_that_is_not_a_number_is_not_hidden() {
    let case = Case::new(KvType::F16, 1, 2, 16, 300, 0, 5);
    let pool = ThreadPool::new(1);
    let mut statistics = QueryStatistics::new(2, 16);
    let mut rows = queries(10, 2, 16, 1.0, 9);
    rows[77] = f32::NAN;
    statistics.add(&pool, &rows);
    let gaussian = statistics.rotated(RopeStyle::Interleaved, &[1.0], 300, 512);
    let mut out = Vec::new();
    expected_attention(&pool, &case.cache, 0, 2, &gaussian, 4, &mut out);
    assert!(out[0][4..].iter().all(|share| share.is_nan()));
}
