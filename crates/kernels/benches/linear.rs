//! Linear layers in the types and shapes of the two small models, on all cores.
//!
//! One row prints GiB/s of weights, more rows print Gelem/s, an element being a multiplication or an addition.
//! `INERTIAKV_ISA=scalar|avx2` measures a lower instruction set.

#[path = "support/run.rs"]
mod run;
#[path = "support/weights.rs"]
mod weights;

use criterion::{BenchmarkId, Criterion, Throughput};
use inertiakv_kernels::linear::{WeightType, matmul};

use weights::{activations, copies};

/// Model and layer, type, output features, input features.
const WEIGHTS: &[(&str, WeightType, usize, usize)] = &[
    ("SmolLM2 query", WeightType::Q4_1, 576, 576),
    ("SmolLM2 key", WeightType::Q4_1, 192, 576),
    ("SmolLM2 up", WeightType::Q4_1, 1536, 576),
    ("SmolLM2 down", WeightType::Q4_1, 576, 1536),
    ("SmolLM2 output", WeightType::Q8_0, 49_152, 576),
    ("Qwen query", WeightType::Q5_0, 896, 896),
    ("Qwen key", WeightType::Q5_0, 128, 896),
    ("Qwen value", WeightType::Q8_0, 128, 896),
    ("Qwen up", WeightType::Q5_0, 4864, 896),
    ("Qwen down", WeightType::Q4K, 896, 4864),
    ("Qwen down", WeightType::Q6K, 896, 4864),
    ("Qwen output", WeightType::Q8_0, 151_936, 896),
    // Types that other files have.
    ("other up", WeightType::Q4_0, 4864, 896),
    ("other up", WeightType::F16, 4864, 896),
    ("other up", WeightType::F32, 4864, 896),
];

const ROWS: [usize; 3] = [1, 8, 512];

/// Weights with more output features than this are the output matrix, which multiplies few rows in practice.
const MOST_FEATURES_OF_MANY_ROWS: usize = 10_000;

/// Bytes that the copies of a weight fill together: what the smaller model's weights fill. They are multiplied one after
/// the other, since in a model, too, all others come before a weight's turn comes again.
const FOOTPRINT: usize = 96 << 20;

fn main() {
    let mut criterion = run::criterion();
    multiply(&mut criterion);
    criterion.final_summary();
}

fn multiply(criterion: &mut Criterion) {
    let pool = run::all_cores();
    for &(layer, ty, out_features, in_features) in WEIGHTS {
        let weights = copies(ty, out_features, in_features, FOOTPRINT);
        let mut group = criterion.benchmark_group(format!("{layer} {ty} [{out_features}, {in_features}]"));
        for rows in ROWS {
            if rows > 8 && out_features > MOST_FEATURES_OF_MANY_ROWS {
                continue;
            }
            group.throughput(if rows == 1 {
                Throughput::Bytes(weights[0].bytes() as u64)
            } else {
                Throughput::Elements(2 * (rows * out_features * in_features) as u64)
            });
            let input = activations(&pool, rows, in_features);
            let mut out = vec![0.0; rows * out_features];
            let mut next = weights.iter().cycle();
            group.bench_function(BenchmarkId::from_parameter(format_args!("{rows} rows")), |bencher| {
                bencher.iter(|| {
                    let weight = next.next().expect("an endless cycle");
                    matmul(&pool, &input, &mut [(weight, &mut out)]);
                });
            });
        }
        group.finish();
    }
}
