//! The hot kernels, each run once by one thread, for `cargo xtask instructions` to count their instructions.
//!
//! Prints the instruction set and then the name of each kernel as it runs. The counting is done from outside: every call
//! of `measured` is one kernel. Run by itself this shows nothing but that the kernels run.

#[path = "support/caches.rs"]
mod caches;
#[path = "support/weights.rs"]
mod weights;

use std::hint::black_box;

use inertiakv_kernels::attention::{AttentionTask, GroupPooling, Mass, attend};
use inertiakv_kernels::cache::KvType;
use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::linear::{Activations, WeightType, matmul};
use inertiakv_kernels::ops::{Activation, RopeAngles, RopeStyle, gate_mul, rms_norm, rope};
use inertiakv_kernels::threads::ThreadPool;

use caches::{QWEN, compaction, filled, numbers};
use weights::{activations, inputs, weight};

/// Types and shapes of the two small models' weights; where there are many output features, a slice of them.
const WEIGHTS: [(WeightType, usize, usize); 5] = [
    (WeightType::Q4_1, 576, 576),
    (WeightType::Q5_0, 896, 896),
    (WeightType::Q8_0, 512, 576),
    (WeightType::Q4K, 128, 4864),
    (WeightType::Q6K, 128, 4864),
];

/// Cached entries that attention runs over.
const ENTRIES: usize = 1024;

fn main() {
    println!("{}", Isa::detect());
    let pool = ThreadPool::new(1);
    for rows in [1, 64] {
        for (ty, out_features, in_features) in WEIGHTS {
            let weight = weight(ty, out_features, in_features);
            let input = activations(&pool, rows, in_features);
            let mut out = vec![0.0; rows * out_features];
            kernel(
                &format!("matmul {ty} [{out_features}, {in_features}], {}", counted(rows)),
                &mut || matmul(&pool, &input, &mut [(&weight, &mut out)]),
            );
        }
    }
    for kv_type in [KvType::F16, KvType::Q8_0] {
        attention(&pool, kv_type, 1, false);
        attention(&pool, kv_type, 1, true);
        attention(&pool, kv_type, 64, false);
    }
    cache();
    between(&pool);
}

fn attention(pool: &ThreadPool, kv_type: KvType, rows: usize, with_mass: bool) {
    let cache = filled(&QWEN, kv_type, 1, ENTRIES);
    let queries = numbers(rows * QWEN.heads() * QWEN.head_dim);
    let mut out = vec![0.0; queries.len()];
    let mut mass = Mass::default();
    let scoring = if with_mass { ", with mass" } else { "" };
    kernel(
        &format!("attention {kv_type}, {} over {ENTRIES}{scoring}", counted(rows)),
        &mut || {
            let task = AttentionTask {
                cache: &cache,
                layer: 0,
                queries: &queries,
                rows,
                window: None,
                out: &mut out,
                mass: with_mass.then_some((&mut mass, GroupPooling::Sum, 1)),
            };
            attend(pool, QWEN.heads(), 0.125, &mut [task]);
        },
    );
}

fn cache() {
    let rows = numbers(ENTRIES * QWEN.kv_heads * QWEN.head_dim);
    let kept = ENTRIES / 10;
    let moves = compaction(ENTRIES, kept);
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let mut cache = filled(&QWEN, kv_type, 1, 0);
        kernel(
            &format!("append {ENTRIES} rows to {kv_type} and evict 90 %"),
            &mut || {
                cache.append(0, &rows, &rows).expect("no limit");
                for head in 0..QWEN.kv_heads {
                    cache.apply(0, head, &moves, kept).expect("a valid plan");
                    cache.apply(0, head, &[], 0).expect("a valid plan");
                }
            },
        );
    }
}

/// What lies between the layers.
fn between(pool: &ThreadPool) {
    const ROWS: usize = 16;
    let width = QWEN.heads() * QWEN.head_dim;
    let x = inputs(ROWS * width);
    let mut out = x.clone();
    let mut quantised = Activations::new();
    kernel(&format!("quantise {ROWS} rows of {width}"), &mut || {
        quantised.set_quantised(pool, &x, ROWS, width);
    });
    kernel(&format!("rms_norm {ROWS} rows of {width}"), &mut || {
        rms_norm(pool, &x, &x[..width], 1e-6, &mut out);
    });
    kernel(&format!("silu_mul {ROWS} rows of {width}"), &mut || {
        gate_mul(pool, Activation::Silu, &mut out, &x)
    });
    let mut angles = RopeAngles::default();
    let positions: Vec<u32> = (0..ROWS as u32).collect();
    let frequencies: Vec<f64> = (0..QWEN.head_dim / 2).map(|pair| 0.8_f64.powi(pair as i32)).collect();
    angles.set(&positions, &frequencies);
    kernel(&format!("rope {ROWS} rows of {width}"), &mut || {
        rope(
            pool,
            &mut out,
            QWEN.heads(),
            QWEN.head_dim,
            RopeStyle::HalfSplit,
            &angles,
        );
    });
}

fn counted(rows: usize) -> String {
    format!("{rows} row{}", if rows == 1 { "" } else { "s" })
}

/// Runs a kernel twice: what it only does the first time (allocating, looking at the processor) is not counted.
fn kernel(name: &str, work: &mut dyn FnMut()) {
    println!("{name}");
    work();
    measured(work);
}

/// The function whose instructions, and those of all it calls, are counted. `xtask/src/instructions.rs` knows its name.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
    // Something is left to do after the call, so it cannot become a jump that counting would not follow.
    black_box(());
}
