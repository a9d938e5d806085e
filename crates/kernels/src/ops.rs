//! How are rows normalised, rotated and gated between the matrix products?
//!
//! Every function takes rows of `f32`, works on each row alone, and gives the same bits for any number of threads and
//! for any number of rows. The bodies are plain loops that the compiler vectorises; `vectorised!` compiles each once
//! per instruction set. They use no fused multiply-add, so all sets agree to the last bit.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::isa::vectorised;
use crate::threads::{SharedMut, ThreadPool};

/// Rows that one work item takes: enough to pay for handing it out.
const ROWS_PER_ITEM: usize = 16;

/// Partial sums of a row that run side by side, so that the sum has one order for every vector width.
const LANES: usize = 16;

/// Root-mean-square normalisation: `out = x / sqrt(mean(x²) + epsilon) · weight`, for each row of `weight.len()`.
///
/// # Panics
/// If `x` and `out` are not the same whole number of rows.
pub fn rms_norm(pool: &ThreadPool, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one output for each input");
    assert!(x.len().is_multiple_of(weight.len()), "whole rows");
    for_rows(pool, out, weight.len(), &|first, out| {
        let x = &x[first * weight.len()..];
        for (row, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            rms_norm_row(row, weight, epsilon, out);
        }
    });
}

vectorised! {
    fn rms_norm_row(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        let mut sums = [0.0_f32; LANES];
        let chunks = x.chunks_exact(LANES);
        let rest: f32 = chunks.remainder().iter().map(|value| value * value).sum();
        for chunk in chunks {
            for (sum, value) in sums.iter_mut().zip(chunk) {
                *sum += value * value;
            }
        }
        let mean = (sums.iter().sum::<f32>() + rest) / x.len() as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        for ((out, value), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = value * scale * weight;
        }
    }
}

/// [`rms_norm`] in place: each run of `weight.len()` numbers of `x` is a row (a head, where queries and keys are
/// normalised).
///
/// # Panics
/// If `x` is not a whole number of rows.
pub fn rms_norm_in_place(pool: &ThreadPool, x: &mut [f32], weight: &[f32], epsilon: f32) {
    assert!(x.len().is_multiple_of(weight.len()), "whole rows");
    for_rows(pool, x, weight.len(), &|_, x| {
        let mut before = vec![0.0; weight.len()];
        for row in x.chunks_exact_mut(weight.len()) {
            before.copy_from_slice(row);
            rms_norm_row(&before, weight, epsilon, row);
        }
    });
}

/// `x *= factor`.
pub fn scale(pool: &ThreadPool, x: &mut [f32], factor: f32) {
    let width = x.len().clamp(1, 4096);
    for_rows(pool, x, width, &|_, x| scale_slice(x, factor));
}

vectorised! {
    fn scale_slice(x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }
}

/// `x += factor · y`, element by element, on the calling thread: one row of a mixture of experts.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    assert_eq!(x.len(), y.len(), "as many summands as sums");
    add_scaled_slice(x, y, factor);
}

vectorised! {
    fn add_scaled_slice(x: &mut [f32], y: &[f32], factor: f32) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += factor * y;
        }
    }
}

/// `x += y`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn add(pool: &ThreadPool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "as many summands as sums");
    let width = y.len().min(4096);
    for_rows(pool, x, width.max(1), &|first, x| {
        add_slice(x, &y[first * width..first * width + x.len()]);
    });
}

vectorised! {
    fn add_slice(x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

/// Adds `bias` to every row of `x`.
///
/// # Panics
/// If `x` is not a whole number of rows.
pub fn add_bias(pool: &ThreadPool, x: &mut [f32], bias: &[f32]) {
    assert!(x.len().is_multiple_of(bias.len()), "whole rows");
    for_rows(pool, x, bias.len(), &|_, x| {
        for row in x.chunks_exact_mut(bias.len()) {
            add_slice(row, bias);
        }
    });
}

/// What the gate of a feed-forward layer goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x · Φ(x)` as approximated with a hyperbolic tangent: `x / (1 + e^(-2 √(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
}

/// The gate of a feed-forward layer: `gate = activation(gate) · up`.
///
/// # Panics
/// If the lengths differ.
pub fn gate_mul(pool: &ThreadPool, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "one factor for each gate");
    // An exponential each: worth handing out for a few rows.
    let width = up.len().min(128);
    for_rows(pool, gate, width.max(1), &|first, gate| {
        let up = &up[first * width..first * width + gate.len()];
        match activation {
            Activation::Silu => silu_mul_slice(gate, up),
            Activation::GeluTanh => gelu_mul_slice(gate, up),
        }
    });
}

vectorised! {
    fn silu_mul_slice(gate: &mut [f32], up: &[f32]) {
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = *gate / (1.0 + exp(-*gate)) * up;
        }
    }
}

vectorised! {
    fn gelu_mul_slice(gate: &mut [f32], up: &[f32]) {
        // 2 √(2/π).
        const SLOPE: f32 = 1.595_769;
        for (gate, up) in gate.iter_mut().zip(up) {
            let x = *gate;
            *gate = x / (1.0 + exp(-SLOPE * (x + 0.044_715 * x * x * x))) * up;
        }
    }
}

/// `e^x` within 2 units in the last place for |x| ≤ 87; clamped outside, so never zero, infinite or NaN for a number.
#[inline]
fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer; the low mantissa bits then hold it.
    const ROUND: f32 = 12_582_912.0;
    // NaN passes through `clamp`.
    let x = x.clamp(-87.0, 87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    // ln 2 in two parts keeps the remainder exact.
    let remainder = (x - whole * 0.693_359_4) - whole * -2.121_944_4e-4;
    let mut polynomial = 1.987_569_1e-4_f32;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        polynomial = polynomial * remainder + coefficient;
    }
    let fraction = polynomial * remainder * remainder + remainder + 1.0;
    // `shifted` holds the integer in its low bits; moved to the exponent it is a factor of 2^whole.
    f32::from_bits(fraction.to_bits().wrapping_add(shifted.to_bits().wrapping_shl(23)))
}

/// Which coordinates of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Coordinates 2i and 2i + 1 (`llama` files).
    Interleaved,
    /// Coordinates i and i + d/2 (`qwen2` files).
    HalfSplit,
}

/// Cosines and sines of the rotary embedding for the rows of one forward pass, shared by its layers.
#[derive(Debug, Default)]
pub struct RopeAngles {
    pairs: usize,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl RopeAngles {
    /// Angles `positions[row] · frequencies[pair]`, in double precision, since positions reach 10^5.
    pub fn set(&mut self, positions: &[u32], frequencies: &[f64]) {
        self.pairs = frequencies.len();
        self.cosines.clear();
        self.sines.clear();
        for &position in positions {
            for &frequency in frequencies {
                let (sine, cosine) = (f64::from(position) * frequency).sin_cos();
                self.cosines.push(cosine as f32);
                self.sines.push(sine as f32);
            }
        }
    }
}

/// Rotates every head of every row in place; coordinates beyond the rotated pairs stay as they are.
///
/// `x` holds rows of `heads · head_dim`.
///
/// # Panics
/// If the rows do not fit the angles.
pub fn rope(pool: &ThreadPool, x: &mut [f32], heads: usize, head_dim: usize, style: RopeStyle, angles: &RopeAngles) {
    let pairs = angles.pairs;
    assert!(2 * pairs <= head_dim, "more rotated coordinates than the head has");
    for_rows(pool, x, heads * head_dim, &|first, x| {
        for (index, row) in x.chunks_exact_mut(heads * head_dim).enumerate() {
            let start = (first + index) * pairs;
            let cosines = &angles.cosines[start..start + pairs];
            let sines = &angles.sines[start..start + pairs];
            for head in row.chunks_exact_mut(head_dim) {
                match style {
                    RopeStyle::Interleaved => rotate_neighbours(&mut head[..2 * pairs], cosines, sines),
                    RopeStyle::HalfSplit => {
                        let (low, high) = head[..2 * pairs].split_at_mut(pairs);
                        rotate_halves(low, high, cosines, sines);
                    }
                }
            }
        }
    });
}

vectorised! {
    fn rotate_neighbours(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
        for ((pair, cosine), sine) in head.chunks_exact_mut(2).zip(cosines).zip(sines) {
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * cosine - b * sine;
            pair[1] = a * sine + b * cosine;
        }
    }
}

vectorised! {
    fn rotate_halves(low: &mut [f32], high: &mut [f32], cosines: &[f32], sines: &[f32]) {
        for (((low, high), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
            let (a, b) = (*low, *high);
            *low = a * cosine - b * sine;
            *high = a * sine + b * cosine;
        }
    }
}

/// Copies a row of `width` to each vector of `out`; says whether all of their numbers are finite.
///
/// # Panics
/// If `x` has fewer rows.
pub fn read_rows(pool: &ThreadPool, x: &[f32], width: usize, out: &mut [&mut Vec<f32>]) -> bool {
    let finite = AtomicBool::new(true);
    let count = out.len();
    let shared = SharedMut::new(out);
    pool.run(count, &|row| {
        // SAFETY: every vector is one item's.
        let out = unsafe { &mut *shared.part(row, 1)[0] };
        out.clear();
        out.extend_from_slice(&x[row * width..][..width]);
        if !all_finite(out) {
            finite.store(false, Ordering::Relaxed);
        }
    });
    finite.into_inner()
}

/// Whether no number is infinite or NaN; without a branch per number, so that it costs next to nothing.
#[must_use]
pub fn all_finite(x: &[f32]) -> bool {
    x.iter().fold(true, |all, value| all & value.is_finite())
}

/// Calls `task(first_row, rows)` for blocks of rows of `x`, on all threads when there are many.
fn for_rows(pool: &ThreadPool, x: &mut [f32], width: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let length = x.len();
    let block = ROWS_PER_ITEM * width;
    if length <= block {
        if length > 0 {
            task(0, x);
        }
        return;
    }
    let shared = SharedMut::new(x);
    pool.run(length.div_ceil(block), &|item| {
        let start = item * block;
        // SAFETY: blocks do not overlap.
        let part = unsafe { shared.part(start, block.min(length - start)) };
        task(item * ROWS_PER_ITEM, part);
    });
}

#[cfg(test)]
mod tests {
    use super::{
        Activation, RopeAngles, RopeStyle, add, add_bias, add_scaled, exp, gate_mul, read_rows, rms_norm,
        rms_norm_in_place, rope, scale,
    };
    use crate::threads::ThreadPool;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919) % 2003) as f32 / 400.0 - 2.5)
            .collect()
    }

    #[test]
    fn exp_is_close_to_the_standard_library() {
        for step in -8_700..8_700 {
            let x = step as f32 / 100.0;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 2.5e-7, "{x}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1e30) > 0.0 && exp(1e30).is_finite());
    }

    #[test]
    fn norm_of_a_row_matches_double_precision() {
        let pool = ThreadPool::new(2);
        let (rows, width) = (37, 100);
        let x = numbers(rows * width);
        let weight = numbers(width);
        let mut out = vec![0.0; x.len()];
        rms_norm(&pool, &x, &weight, 1e-5, &mut out);
        for (row, out) in x.chunks(width).zip(out.chunks(width)) {
            let mean: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
            for ((&value, &weight), &out) in row.iter().zip(&weight).zip(out) {
                let expected = f64::from(value) / (mean + 1e-5).sqrt() * f64::from(weight);
                assert!((f64::from(out) - expected).abs() < 1e-5);
            }
        }
        let mut heads = x.clone();
        rms_norm_in_place(&pool, &mut heads, &weight, 1e-5);
        assert_eq!(heads, out);
    }

    #[test]
    fn gate_and_sums_match_their_formulas() {
        let pool = ThreadPool::new(3);
        let (gate, up) = (numbers(70_000), numbers(70_001)[1..].to_vec());
        let mut out = gate.clone();
        gate_mul(&pool, Activation::Silu, &mut out, &up);
        for ((&g, &u), &out) in gate.iter().zip(&up).zip(&out) {
            let expected = f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u);
            assert!((f64::from(out) - expected).abs() < 1e-5);
        }
        let mut out = gate.clone();
        gate_mul(&pool, Activation::GeluTanh, &mut out, &up);
        for ((&g, &u), &out) in gate.iter().zip(&up).zip(&out) {
            let (g, root) = (f64::from(g), (2.0 / std::f64::consts::PI).sqrt());
            let expected = 0.5 * g * (1.0 + (root * (g + 0.044_715 * g.powi(3))).tanh()) * f64::from(u);
            assert!((f64::from(out) - expected).abs() < 1e-5, "{g}: {out}, not {expected}");
        }
        let mut scaled = gate.clone();
        scale(&pool, &mut scaled, 3.0);
        assert!(scaled.iter().zip(&gate).all(|(s, g)| *s == 3.0 * g));
        add_scaled(&mut scaled, &up, -0.5);
        let expected = |(g, u): (&f32, &f32)| 3.0 * g + -0.5 * u;
        assert!(
            scaled
                .iter()
                .zip(gate.iter().zip(&up).map(expected))
                .all(|(s, e)| *s == e)
        );
        let mut sum = gate.clone();
        add(&pool, &mut sum, &up);
        assert!(sum.iter().zip(gate.iter().zip(&up)).all(|(s, (g, u))| *s == g + u));
        let mut biased = gate.clone();
        add_bias(&pool, &mut biased, &up[..70]);
        assert!(biased.iter().enumerate().all(|(i, b)| *b == gate[i] + up[i % 70]));
    }

    #[test]
    fn rows_are_read_and_what_is_not_finite_is_seen() {
        let pool = ThreadPool::new(2);
        let width = 70;
        let mut x = numbers(6 * width);
        let mut rows = vec![vec![1.0; 3]; 5];
        let mut read = |x: &[f32]| {
            let mut out: Vec<&mut Vec<f32>> = rows.iter_mut().collect();
            let finite = read_rows(&pool, x, width, &mut out);
            for (out, row) in out.iter().zip(x.chunks(width)) {
                let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<u32>>();
                assert_eq!(bits(out), bits(row));
            }
            finite
        };
        assert!(read(&x));
        x[5 * width] = f32::NAN;
        assert!(read(&x), "the sixth row is nobody's");
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[4 * width - 1] = odd;
            assert!(!read(&x), "{odd}");
        }
    }

    #[test]
    fn rotation_keeps_lengths_and_turns_by_the_angle() {
        let pool = ThreadPool::new(2);
        let (heads, head_dim) = (3, 8);
        let positions: Vec<u32> = (0..40).map(|row| row * 1000).collect();
        let frequencies = [1.0, 0.1, 0.01, 0.001];
        let mut angles = RopeAngles::default();
        angles.set(&positions, &frequencies);
        let x = numbers(positions.len() * heads * head_dim);
        for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
            let mut rotated = x.clone();
            rope(&pool, &mut rotated, heads, head_dim, style, &angles);
            for (row, &position) in positions.iter().enumerate() {
                for head in 0..heads {
                    for (pair, frequency) in frequencies.iter().enumerate() {
                        let (i, j) = match style {
                            RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                            RopeStyle::HalfSplit => (pair, pair + 4),
                        };
                        let at = (row * heads + head) * head_dim;
                        let (sine, cosine) = (f64::from(position) * frequency).sin_cos();
                        let (a, b) = (f64::from(x[at + i]), f64::from(x[at + j]));
                        assert!((f64::from(rotated[at + i]) - (a * cosine - b * sine)).abs() < 1e-5);
                        assert!((f64::from(rotated[at + j]) - (a * sine + b * cosine)).abs() < 1e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_their_neighbours_or_on_threads() {
        let width = 576;
        let x = numbers(200 * width);
        let weight = numbers(width);
        let run = |threads: usize, rows: std::ops::Range<usize>| {
            let part = &x[rows.start * width..rows.end * width];
            let mut out = vec![0.0; part.len()];
            rms_norm(&ThreadPool::new(threads), part, &weight, 1e-6, &mut out);
            out
        };
        let all = run(1, 0..200);
        assert_eq!(all, run(3, 0..200));
        assert_eq!(all[77 * width..78 * width], run(2, 77..78));
    }
}
