//! Prints what the linear kernels reach on this machine: GB/s of weights for one row, GOP/s for many.
//!
//! `cargo run --release -p inertiakv-kernels --example linear_speed [threads [rows]]`. Shapes are those of SmolLM2-135M
//! and Qwen2.5-0.5B. For one row as many copies of a weight are used in turn as exceed the caches of small machines.

use std::time::Instant;

use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::linear::encode::encode;
use inertiakv_kernels::linear::{Activations, Linear, WeightType, matmul_with};
use inertiakv_kernels::threads::ThreadPool;

/// Type, output features, input features.
const SHAPES: [(WeightType, usize, usize); 14] = [
    (WeightType::Q4_1, 576, 576),
    (WeightType::Q4_1, 192, 576),
    (WeightType::Q4_1, 1536, 576),
    (WeightType::Q4_1, 576, 1536),
    (WeightType::Q8_0, 49152, 576),
    (WeightType::Q5_0, 4864, 896),
    (WeightType::Q5_0, 896, 896),
    (WeightType::Q5_0, 128, 896),
    (WeightType::Q4K, 896, 4864),
    (WeightType::Q6K, 896, 4864),
    (WeightType::Q8_0, 151_936, 896),
    (WeightType::Q4_0, 4864, 896),
    (WeightType::F16, 4864, 896),
    (WeightType::F32, 4864, 896),
];

/// Bytes that the copies of a weight fill together.
const FOOTPRINT: usize = 96 << 20;

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse().expect("a number"));
    let threads = arguments.next().unwrap_or(2);
    let many = arguments.next().unwrap_or(512);
    let pool = ThreadPool::new(threads);
    println!("{threads} threads; one row: GB/s of weights (microseconds); {many} rows: GOP/s");
    println!("reading memory: {:.1} GB/s", read_bandwidth(&pool));
    print!("{:24}", "");
    for isa in Isa::available() {
        print!("{:>24}", isa.to_string());
    }
    println!();
    for (ty, out_features, in_features) in SHAPES {
        print!("{:24}", format!("{ty} [{out_features}, {in_features}]"));
        let pattern: Vec<f32> = (0..256 * 61)
            .map(|i| ((i * 7919 % 4001) as f32 - 2000.0) * 1e-4)
            .collect();
        let bytes: Vec<u8> = encode(ty, &pattern)
            .into_iter()
            .cycle()
            .take(ty.bytes_of(out_features * in_features).expect("whole blocks"))
            .collect();
        let copies = (FOOTPRINT / bytes.len()).clamp(1, 64);
        let weights: Vec<Linear> = (0..copies)
            .map(|_| Linear::from_gguf(ty, out_features, in_features, &bytes).expect("a valid weight"))
            .collect();
        for isa in Isa::available() {
            let seconds = time(isa, &pool, &weights, 1, 0.15);
            let bandwidth = weights[0].bytes() as f64 / seconds * 1e-9;
            // The largest matrices multiply one row in practice, and many rows on the scalar path take seconds.
            let speed = if out_features > 10_000 || isa == Isa::Scalar {
                "-".to_owned()
            } else {
                let seconds = time(isa, &pool, &weights[..1], many, 0.1);
                let operations = 2.0 * (many * out_features * in_features) as f64;
                format!("{:.0}", operations / seconds * 1e-9)
            };
            print!("{:>10.1} ({:>6.0}){speed:>5}", bandwidth, seconds * 1e6);
        }
        println!();
    }
}

/// GB/s of plain reading by all threads, the best of a few passes over memory that no cache holds.
fn read_bandwidth(pool: &ThreadPool) -> f64 {
    const PART: usize = 32 << 10;
    let memory = vec![1_u64; 2 * FOOTPRINT / 8];
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        pool.run(memory.len() / PART, &|item| {
            let part = &memory[item * PART..][..PART];
            std::hint::black_box(part.iter().fold(0, |sum: u64, value| sum.wrapping_add(*value)));
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    memory.len() as f64 * 8e-9 / best
}

/// Seconds of one product: the lower quartile of as many as fit into `budget` seconds, at least two.
fn time(isa: Isa, pool: &ThreadPool, weights: &[Linear], rows: usize, budget: f64) -> f64 {
    let (inputs, outputs) = (weights[0].in_features(), weights[0].out_features());
    let x: Vec<f32> = (0..rows * inputs)
        .map(|i| ((i * 31 % 997) as f32 - 500.0) * 1e-3)
        .collect();
    let mut activations = Activations::new();
    activations.set(pool, &x, rows, inputs);
    let mut out = vec![0.0; rows * outputs];
    let mut seconds = Vec::new();
    let begin = Instant::now();
    for weight in weights.iter().cycle() {
        let start = Instant::now();
        matmul_with(isa, pool, &activations, &mut [(weight, &mut out)]);
        seconds.push(start.elapsed().as_secs_f64());
        if seconds.len() > 2 && begin.elapsed().as_secs_f64() > budget {
            break;
        }
    }
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 4]
}
