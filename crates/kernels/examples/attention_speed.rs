//! Milliseconds of attention: decode per token (all layers) and prefill per chunk of 512 rows, two threads.
//!
//! `cargo run --release -p inertiakv-kernels --example attention_speed [f16|f32|q8_0]`

use std::hint::black_box;
use std::time::Instant;

use inertiakv_kernels::attention::{AttentionTask, GroupPooling, Mass, attend};
use inertiakv_kernels::cache::{KvCache, KvConfig, KvPool, KvType};
use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::threads::ThreadPool;

struct Model {
    name: &'static str,
    layers: usize,
    kv_heads: usize,
    group: usize,
    dim: usize,
}

const MODELS: [Model; 2] = [
    Model {
        name: "Qwen2.5-0.5B",
        layers: 24,
        kv_heads: 2,
        group: 7,
        dim: 64,
    },
    Model {
        name: "SmolLM2-135M",
        layers: 30,
        kv_heads: 3,
        group: 3,
        dim: 64,
    },
];

fn main() {
    let kv_type = std::env::args()
        .nth(1)
        .map_or(KvType::F16, |text| text.parse().expect("a KV type"));
    let pool = ThreadPool::new(2);
    println!("{} with {kv_type} entries, 2 threads", Isa::detect());
    for model in &MODELS {
        println!("\n{}: decode, ms per token, median (mass adds)", model.name);
        for context in [512, 2048, 4096, 8192, 16384] {
            let cache = filled(model, kv_type, context);
            let mut mass = Mass::default();
            let (mut plain, mut scored) = (Vec::new(), Vec::new());
            let rounds = (60_000 / context).clamp(5, 40);
            for _ in 0..rounds {
                plain.push(token(model, &cache, &pool, None));
                scored.push(token(model, &cache, &pool, Some(&mut mass)));
            }
            let (plain, scored) = (median(plain), median(scored));
            let operations = (4 * model.layers * model.kv_heads * model.group * model.dim * context) as f64;
            println!(
                "  {context:>6}: {plain:7.3} ms  {:6.1} GFLOP/s  {:5.1} GB/s  (mass {:+.1} %)",
                operations / plain / 1e6,
                cache.bytes() as f64 / plain / 1e6,
                (scored / plain - 1.0) * 100.0
            );
        }
        println!("{}: prefill, ms per chunk of 512 rows (all layers)", model.name);
        for past in [0, 2048, 4096] {
            let cache = filled(model, kv_type, past + 512);
            let heads = model.kv_heads * model.group;
            let queries = pattern(512 * heads * model.dim);
            let mut out = vec![0.0; queries.len()];
            // A few layers stand for all: they are alike.
            let layers = 4;
            let times = (0..5)
                .map(|_| {
                    let start = Instant::now();
                    for layer in 0..layers {
                        let task = AttentionTask {
                            cache: &cache,
                            layer,
                            queries: &queries,
                            rows: 512,
                            out: &mut out,
                            mass: None,
                        };
                        attend(&pool, heads, 0.125, &mut [task]);
                    }
                    black_box(&out);
                    start.elapsed().as_secs_f64() * 1e3 * model.layers as f64 / layers as f64
                })
                .collect();
            let time = median(times);
            let pairs = 512.0 * (past as f64 + 256.5);
            let operations = 4.0 * pairs * (model.layers * heads * model.dim) as f64;
            println!("  {past:>6}: {time:7.1} ms  {:6.1} GFLOP/s", operations / time / 1e6);
        }
    }
}

fn pattern(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 211) as f32 / 105.0 - 1.0).collect()
}

fn filled(model: &Model, kv_type: KvType, entries: usize) -> KvCache {
    let config = KvConfig {
        layers: model.layers,
        kv_heads: model.kv_heads,
        head_dim: model.dim,
        kv_type,
    };
    let pool = KvPool::new(config, None).expect("a valid shape");
    let mut cache = KvCache::new(&pool);
    let row = model.kv_heads * model.dim;
    let numbers = pattern(entries * row);
    for first in (0..entries).step_by(512) {
        let part = &numbers[first * row..(first + 512).min(entries) * row];
        for layer in 0..model.layers {
            cache.append(layer, part, part).expect("no limit");
        }
    }
    cache
}

/// One decode step over all layers, in milliseconds.
fn token(model: &Model, cache: &KvCache, pool: &ThreadPool, mut mass: Option<&mut Mass>) -> f64 {
    let heads = model.kv_heads * model.group;
    let queries = pattern(heads * model.dim);
    let mut out = vec![0.0; queries.len()];
    let start = Instant::now();
    for layer in 0..model.layers {
        let task = AttentionTask {
            cache,
            layer,
            queries: &queries,
            rows: 1,
            out: &mut out,
            mass: mass.as_deref_mut().map(|mass| (mass, GroupPooling::Sum, 1)),
        };
        attend(pool, heads, 0.125, &mut [task]);
    }
    black_box(&out);
    start.elapsed().as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
