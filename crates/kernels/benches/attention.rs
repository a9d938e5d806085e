//! Attention of one layer in the shapes of the two small models, on all cores.
//!
//! Decoding prints GiB/s of keys and values, with and without the mass that scoring needs; prefill of a chunk of 512 rows
//! prints Gelem/s, an element being a multiplication or an addition. `INERTIAKV_ISA=scalar|avx2` measures a lower
//! instruction set.

#[path = "support/caches.rs"]
mod caches;
#[path = "support/run.rs"]
mod run;

use criterion::{BenchmarkId, Criterion, Throughput};
use inertiakv_kernels::attention::{AttentionTask, GroupPooling, Mass, attend};
use inertiakv_kernels::cache::KvType;

use caches::{Model, QWEN, SMOLLM2, filled, numbers};

const MODELS: [Model; 2] = [SMOLLM2, QWEN];

/// Layers that are attended to in turn, so that the entries come from memory as they do in a model.
const LAYERS: usize = 24;

/// 1 / sqrt(head size) of both models.
const SCALE: f32 = 0.125;

fn main() {
    let mut criterion = run::criterion();
    decode(&mut criterion);
    together(&mut criterion);
    prefill(&mut criterion);
    criterion.final_summary();
}

fn decode(criterion: &mut Criterion) {
    let pool = run::all_cores();
    for model in &MODELS {
        for kv_type in [KvType::F16, KvType::Q8_0] {
            let mut group = criterion.benchmark_group(format!("decode {} {kv_type}", model.name));
            for entries in [512, 4096, 16_384] {
                let cache = filled(model, kv_type, LAYERS, entries);
                let queries = numbers(model.heads() * model.head_dim);
                let mut out = vec![0.0; queries.len()];
                let mut mass = Mass::default();
                let mut layers = (0..LAYERS).cycle();
                group.throughput(Throughput::Bytes((cache.bytes() / LAYERS) as u64));
                for with_mass in [false, true] {
                    let name = if with_mass { "with mass" } else { "plain" };
                    group.bench_function(BenchmarkId::new(name, entries), |bencher| {
                        bencher.iter(|| {
                            let task = AttentionTask {
                                cache: &cache,
                                layer: layers.next().expect("an endless cycle"),
                                queries: &queries,
                                rows: 1,
                                window: None,
                                out: &mut out,
                                mass: with_mass.then_some((&mut mass, GroupPooling::Sum, 1)),
                            };
                            attend(&pool, model.heads(), SCALE, &mut [task]);
                        });
                    });
                }
            }
            group.finish();
        }
    }
}

/// Several sequences with short caches, as after an eviction: what a head costs however little it holds.
fn together(criterion: &mut Criterion) {
    const SEQUENCES: usize = 8;
    let pool = run::all_cores();
    for model in &MODELS {
        let mut group = criterion.benchmark_group(format!("decode {} f16, {SEQUENCES} sequences", model.name));
        for entries in [16, 128, 512] {
            let caches: Vec<_> = (0..SEQUENCES)
                .map(|_| filled(model, KvType::F16, LAYERS, entries))
                .collect();
            let queries = numbers(model.heads() * model.head_dim);
            let mut outs = vec![vec![0.0; queries.len()]; SEQUENCES];
            let mut masses = vec![Mass::default(); SEQUENCES];
            let mut layers = (0..LAYERS).cycle();
            group.throughput(Throughput::Bytes((SEQUENCES * caches[0].bytes() / LAYERS) as u64));
            group.bench_function(BenchmarkId::new("with mass", entries), |bencher| {
                bencher.iter(|| {
                    let layer = layers.next().expect("an endless cycle");
                    let mut tasks: Vec<_> = caches
                        .iter()
                        .zip(&mut outs)
                        .zip(&mut masses)
                        .map(|((cache, out), mass)| AttentionTask {
                            cache,
                            layer,
                            queries: &queries,
                            rows: 1,
                            window: None,
                            out,
                            mass: Some((mass, GroupPooling::Sum, 1)),
                        })
                        .collect();
                    attend(&pool, model.heads(), SCALE, &mut tasks);
                });
            });
        }
        group.finish();
    }
}

fn prefill(criterion: &mut Criterion) {
    const ROWS: usize = 512;
    let pool = run::all_cores();
    for model in &MODELS {
        let mut group = criterion.benchmark_group(format!("prefill {} f16, {ROWS} rows", model.name));
        for past in [0, 4096] {
            let cache = filled(model, KvType::F16, 1, past + ROWS);
            let queries = numbers(ROWS * model.heads() * model.head_dim);
            let mut out = vec![0.0; queries.len()];
            // Row i sees the past and i + 1 rows of the chunk.
            let pairs = ROWS * past + ROWS * (ROWS + 1) / 2;
            group.throughput(Throughput::Elements(
                (4 * pairs * model.heads() * model.head_dim) as u64,
            ));
            group.bench_function(BenchmarkId::new("past", past), |bencher| {
                bencher.iter(|| {
                    let task = AttentionTask {
                        cache: &cache,
                        layer: 0,
                        queries: &queries,
                        rows: ROWS,
                        window: None,
                        out: &mut out,
                        mass: None,
                    };
                    attend(&pool, model.heads(), SCALE, &mut [task]);
                });
            });
        }
        group.finish();
    }
}
