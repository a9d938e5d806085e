//! Weights and inputs of linear layers.

use inertiakv_kernels::linear::encode::encode;
use inertiakv_kernels::linear::{Activations, Linear, WeightType};
use inertiakv_kernels::threads::ThreadPool;

/// A weight whose numbers repeat; their values do not matter to the speed.
pub(crate) fn weight(ty: WeightType, out_features: usize, in_features: usize) -> Linear {
    let pattern: Vec<f32> = (0..256 * 61)
        .map(|i| ((i * 7919 % 4001) as f32 - 2000.0) * 1e-4)
        .collect();
    let bytes: Vec<u8> = encode(ty, &pattern)
        .into_iter()
        .cycle()
        .take(ty.bytes_of(out_features * in_features).expect("whole blocks"))
        .collect();
    Linear::from_gguf(ty, out_features, in_features, &bytes).expect("a valid weight")
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
