//! Quantised linear layers: every instruction set against the scalar one, and that one against plain arithmetic.

use half::f16;
use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::linear::encode::{decode, encode};
use inertiakv_kernels::linear::{Activations, Linear, LinearError, WeightType, matmul, matmul_with};
use inertiakv_kernels::threads::ThreadPool;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Blocks of random bits, so that every quant and integer scale occurs, with scales of ordinary size.
fn random_weight(random: &mut ChaCha8Rng, ty: WeightType, elements: usize) -> Vec<u8> {
    let mut data = vec![0; ty.bytes_of(elements).expect("whole blocks")];
    random.fill(&mut data[..]);
    let halves: &[usize] = match ty {
        WeightType::F32 | WeightType::BF16 => {
            let values: Vec<f32> = (0..elements).map(|_| random.random_range(-1.0..1.0)).collect();
            return encode(ty, &values);
        }
        WeightType::F16 | WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => &[0],
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
        WeightType::Q6K => &[208],
    };
    for block in data.chunks_exact_mut(ty.block_bytes()) {
        for &at in halves {
            let scale = f16::from_f32(random.random_range(-0.02..0.02));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    data
}

fn random_rows(random: &mut ChaCha8Rng, values: usize) -> Vec<f32> {
    (0..values)
        .map(|_| random.random_range(-2.0..2.0_f32).powi(3))
        .collect()
}

fn multiply(isa: Isa, pool: &ThreadPool, linear: &Linear, x: &[f32], rows: usize) -> Vec<f32> {
    let mut activations = Activations::new();
    activations.set(pool, x, rows, linear.in_features());
    let mut out = vec![f32::NAN; rows * linear.out_features()];
    matmul_with(isa, pool, &activations, &mut [(linear, &mut out)]);
    out
}

/// Equal in every bit; `f32` equality would let NaN and signed zeros through.
fn assert_same(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits(), "{what}: value {index} is {a} and {b}");
    }
}

fn shapes(ty: WeightType) -> Vec<(usize, usize)> {
    match ty.block_size() {
        1 => vec![(1, 1), (16, 32), (33, 70), (70, 129), (5, 600)],
        32 => vec![(1, 32), (16, 64), (33, 96), (70, 544), (5, 1568)],
        _ => vec![(1, 256), (16, 512), (33, 768), (5, 1536)],
    }
}

#[test]
fn scalar_results_are_those_of_plain_arithmetic_but_for_the_rounding_of_the_input() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let pool = ThreadPool::new(2);
    for ty in WeightType::ALL {
        for (out_features, in_features) in shapes(ty) {
            let data = random_weight(&mut random, ty, out_features * in_features);
            let weights = decode(ty, &data);
            let linear = Linear::from_gguf(ty, out_features, in_features, &data).unwrap();
            for rows in [1, 6] {
                let x = random_rows(&mut random, rows * in_features);
                let out = multiply(Isa::Scalar, &pool, &linear, &x, rows);
                for (row, x) in x.chunks_exact(in_features).enumerate() {
                    for (feature, w) in weights.chunks_exact(in_features).enumerate() {
                        let mut exact = 0.0_f64;
                        let mut allowed = 1e-6;
                        for (x, w) in x.chunks(32).zip(w.chunks(32)) {
                            let half_step = x.iter().fold(0.0_f32, |top, x| top.max(x.abs())) / 254.0;
                            let half_step = if linear.needs_floats() { 0.0 } else { half_step };
                            for (&x, &w) in x.iter().zip(w) {
                                exact += f64::from(x) * f64::from(w);
                                allowed += f64::from(w.abs() * (half_step * 1.01 + x.abs() * 1e-5));
                            }
                        }
                        let found = f64::from(out[row * out_features + feature]);
                        assert!(
                            (found - exact).abs() <= allowed,
                            "{ty} [{out_features}, {in_features}] row {row} feature {feature}: {found} for {exact}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let pool = ThreadPool::new(2);
    for ty in WeightType::ALL {
        for (out_features, in_features) in shapes(ty) {
            let data = random_weight(&mut random, ty, out_features * in_features);
            let linear = Linear::from_gguf(ty, out_features, in_features, &data).unwrap();
            for rows in [1, 2, 3, 4, 5, 8, 13, 257] {
                let x = random_rows(&mut random, rows * in_features);
                let reference = multiply(Isa::Scalar, &pool, &linear, &x, rows);
                for isa in Isa::available() {
                    let out = multiply(isa, &pool, &linear, &x, rows);
                    assert_same(&out, &reference, &format!("{isa} {linear:?} x {rows} rows"));
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_in_any_batch() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let pool = ThreadPool::new(2);
    for ty in WeightType::ALL {
        let (out_features, in_features) = (35, ty.block_size().max(32) * 3);
        let data = random_weight(&mut random, ty, out_features * in_features);
        let linear = Linear::from_gguf(ty, out_features, in_features, &data).unwrap();
        let x = random_rows(&mut random, 600 * in_features);
        for isa in Isa::available() {
            let all = multiply(isa, &pool, &linear, &x, 600);
            for row in (0..600).step_by(7) {
                let one = multiply(isa, &pool, &linear, &x[row * in_features..][..in_features], 1);
                assert_same(
                    &one,
                    &all[row * out_features..][..out_features],
                    &format!("{isa} {ty} row {row}"),
                );
            }
            for rows in [2, 3, 4, 5, 7, 63, 64, 255, 256, 258, 511, 599] {
                let some = multiply(isa, &pool, &linear, &x[..rows * in_features], rows);
                assert_same(
                    &some,
                    &all[..rows * out_features],
                    &format!("{isa} {ty} first {rows} rows"),
                );
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let pools = [1, 2, 3, 7].map(ThreadPool::new);
    for ty in WeightType::ALL {
        let (out_features, in_features) = (330, 512);
        let data = random_weight(&mut random, ty, out_features * in_features);
        let linear = Linear::from_gguf(ty, out_features, in_features, &data).unwrap();
        for rows in [1, 9, 300] {
            let x = random_rows(&mut random, rows * in_features);
            for isa in Isa::available().into_iter().skip(usize::from(rows > 9)) {
                let one = multiply(isa, &pools[0], &linear, &x, rows);
                for pool in &pools[1..] {
                    let many = multiply(isa, pool, &linear, &x, rows);
                    assert_same(
                        &many,
                        &one,
                        &format!("{isa} {ty} {rows} rows, {} threads", pool.threads()),
                    );
                }
            }
        }
    }
}

#[test]
fn several_weights_in_one_job_give_what_each_gives_alone() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let pool = ThreadPool::new(2);
    let kinds = [
        (WeightType::Q5_0, 900),
        (WeightType::Q4K, 100),
        (WeightType::F16, 50),
        (WeightType::Q8_0, 64),
    ];
    let weights: Vec<Linear> = kinds
        .iter()
        .map(|&(ty, out)| Linear::from_gguf(ty, out, 512, &random_weight(&mut random, ty, out * 512)).unwrap())
        .collect();
    for rows in [1, 5, 300] {
        let x = random_rows(&mut random, rows * 512);
        let mut activations = Activations::new();
        activations.set(&pool, &x, rows, 512);
        let mut outs: Vec<Vec<f32>> = kinds.iter().map(|&(_, out)| vec![f32::NAN; rows * out]).collect();
        let mut jobs: Vec<(&Linear, &mut [f32])> = weights
            .iter()
            .zip(&mut outs)
            .map(|(weight, out)| (weight, &mut out[..]))
            .collect();
        matmul(&pool, &activations, &mut jobs);
        for (weight, out) in weights.iter().zip(&outs) {
            assert_same(
                out,
                &multiply(Isa::detect(), &pool, weight, &x, rows),
                &format!("{weight:?} x {rows}"),
            );
        }
    }
}

#[test]
fn rows_of_a_weight_are_exactly_what_the_file_says() {
    let mut random = ChaCha8Rng::seed_from_u64(6);
    for ty in WeightType::ALL {
        for (out_features, in_features) in shapes(ty) {
            let data = random_weight(&mut random, ty, out_features * in_features);
            let linear = Linear::from_gguf(ty, out_features, in_features, &data).unwrap();
            let mut out = vec![f32::NAN; in_features];
            for (index, expected) in decode(ty, &data).chunks_exact(in_features).enumerate() {
                linear.row(index, &mut out);
                assert_same(&out, expected, &format!("{linear:?} row {index}"));
            }
        }
    }
}

#[test]
fn memory_is_that_of_the_file_plus_bytes_for_six_bit_scales() {
    for ty in WeightType::ALL {
        let (out_features, in_features) = (64, 1024);
        let data = encode(ty, &vec![0.5; out_features * in_features]);
        let linear = Linear::from_gguf(ty, out_features, in_features, &data).unwrap();
        let extra = match ty {
            WeightType::Q4K | WeightType::Q5K => 1.03,
            _ => 1.0,
        };
        assert!(
            linear.bytes() as f64 <= data.len() as f64 * extra,
            "{ty}: {} for {}",
            linear.bytes(),
            data.len()
        );
    }
}

#[test]
fn impossible_weights_are_errors() {
    let new = |ty, out, inputs, bytes: usize| Linear::from_gguf(ty, out, inputs, &vec![0; bytes]).map(|_| ());
    for ty in WeightType::ALL {
        let size = ty.block_size();
        assert!(matches!(new(ty, 0, size, 0), Err(LinearError::Empty { .. })), "{ty}");
        assert!(matches!(new(ty, 1, 0, 0), Err(LinearError::Empty { .. })), "{ty}");
        assert!(
            matches!(
                new(ty, usize::MAX, size, 100),
                Err(LinearError::TooLarge { .. } | LinearError::WrongLength { .. })
            ),
            "{ty}"
        );
        assert!(
            matches!(
                new(ty, usize::MAX / 2, size * 4, 100),
                Err(LinearError::TooLarge { .. })
            ),
            "{ty}"
        );
        assert!(
            matches!(new(ty, 1 << 40, size, 100), Err(LinearError::WrongLength { .. })),
            "{ty}"
        );
        let right = ty.block_bytes() * 3;
        assert_eq!(new(ty, 3, size, right), Ok(()));
        for wrong in [0, right - 1, right + 1] {
            assert_eq!(
                new(ty, 3, size, wrong),
                Err(LinearError::WrongLength {
                    expected: right,
                    found: wrong
                })
            );
        }
        if size > 1 {
            assert!(
                matches!(new(ty, 1, size + 1, 100), Err(LinearError::PartialBlock { .. })),
                "{ty}"
            );
        }
    }
}

#[test]
fn not_a_number_in_the_input_reaches_its_row_and_no_other() {
    let pool = ThreadPool::new(2);
    for ty in WeightType::ALL {
        let linear = Linear::from_gguf(ty, 20, 256, &encode(ty, &vec![0.25; 20 * 256])).unwrap();
        let mut x = vec![1.0; 3 * 256];
        x[256 + 40] = f32::NAN;
        for isa in Isa::available() {
            let out = multiply(isa, &pool, &linear, &x, 3);
            for (index, value) in out.iter().enumerate() {
                assert_eq!(value.is_nan(), index / 20 == 1, "{isa} {ty} {index}");
            }
        }
    }
}

#[test]
fn extremes_do_not_overflow() {
    // The largest products of 8-bit numbers of one sign: 16-bit sums of pairs would saturate if they were taken.
    let pool = ThreadPool::new(1);
    for ty in WeightType::ALL {
        for byte in [0x00, 0x7F, 0x80, 0xFF] {
            let mut data = vec![byte; ty.bytes_of(256).unwrap()];
            let halves: &[usize] = match ty {
                WeightType::F32 => continue,
                WeightType::Q6K => &[208],
                _ => &[0, 2],
            };
            for block in data.chunks_exact_mut(ty.block_bytes()) {
                for &at in halves.iter().filter(|&&at| at + 2 <= ty.block_bytes()) {
                    block[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
                }
            }
            let linear = Linear::from_gguf(ty, 1, 256, &data).unwrap();
            for value in [1.0, -1.0] {
                let sum: f64 = decode(ty, &data).iter().map(|&w| f64::from(w * value)).sum();
                for isa in Isa::available() {
                    for rows in [1, 4] {
                        let out = multiply(isa, &pool, &linear, &vec![value; 256 * rows], rows);
                        let error = (f64::from(out[0]) - sum).abs();
                        assert!(
                            error <= 1e-5 * sum.abs(),
                            "{isa} {ty} {byte:x} {value}: {} for {sum}",
                            out[0]
                        );
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_shape_gives_the_same_bits_on_every_set(
        seed in any::<u64>(),
        ty in proptest::sample::select(&WeightType::ALL[..]),
        out_features in 1_usize..100,
        blocks in 1_usize..8,
        rows in 1_usize..30,
        threads in 1_usize..4,
    ) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let pool = ThreadPool::new(threads);
        let in_features = blocks * if ty.block_size() == 1 { 9 } else { ty.block_size() };
        let data = random_weight(&mut random, ty, out_features * in_features);
        let linear = Linear::from_gguf(ty, out_features, in_features, &data).unwrap();
        let x = random_rows(&mut random, rows * in_features);
        let reference = multiply(Isa::Scalar, &pool, &linear, &x, rows);
        for isa in Isa::available() {
            let out = multiply(isa, &pool, &linear, &x, rows);
            assert_same(&out, &reference, &format!("{isa} {linear:?} x {rows}"));
        }
    }
}
