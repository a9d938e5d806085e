//! Weights and inputs of linear layers.

#![allow(dead_code, reason = "each bench uses a part of it")]

use inertiakv_kernels::linear::encode::encode;
use inertiakv_kernels::linear::{Activations, Linear, WeightType};
use inertiakv_kernels::threads::ThreadPool;

/// A weight whose numbers repeat; their values do not matter to the speed.
pub(crate) fn weight(ty: WeightType, out_features: usize, in_features: usize) -> Linear {
    let bytes = tensor(ty, out_features * in_features);
    Linear::from_gguf(ty, out_features, in_features, &bytes).expect("a valid weight")
}

/// As many copies of a weight as fill `footprint` bytes, at least one.
pub(crate) fn copies(ty: WeightType, out_features: usize, in_features: usize, footprint: usize) -> Vec<Linear> {
    let bytes = tensor(ty, out_features * in_features);
    let copy = || Linear::from_gguf(ty, out_features, in_features, &bytes).expect("a valid weight");
    let first = copy();
    let others = footprint / first.bytes();
    std::iter::once(first).chain((1..others).map(|_| copy())).collect()
}

/// `elements` numbers as a file stores them.
fn tensor(ty: WeightType, elements: usize) -> Vec<u8> {
    let pattern: Vec<f32> = (0..256 * 61)
        .map(|i| ((i * 7919 % 4001) as f32 - 2000.0) * 1e-4)
        .collect();
    encode(ty, &pattern)
        .into_iter()
        .cycle()
        .take(ty.bytes_of(elements).expect("whole blocks"))
        .collect()
}

/// `rows` input rows that fit any weight of `in_features`.
pub(crate) fn activations(pool: &ThreadPool, rows: usize, in_features: usize) -> Activations {
    let mut activations = Activations::new();
    activations.set(pool, &inputs(rows * in_features), rows, in_features);
    activations
}

/// `count` numbers between -0.5 and 0.5, always the same.
pub(crate) fn inputs(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 31 % 997) as f32 - 500.0) * 1e-3).collect()
}
