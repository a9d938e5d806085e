//! Rows that come and go: appending, and applying an eviction plan. One layer in the shape of Qwen2.5-0.5B, f16.
//!
//! Prints Gelem/s or Melem/s, an element being a row of one KV head that was appended, or held before the plan.

#[path = "support/caches.rs"]
mod caches;
#[path = "support/run.rs"]
mod run;

use criterion::{BatchSize, Criterion, Throughput};
use inertiakv_kernels::cache::{HeadPlan, KvCache, KvType};
use inertiakv_kernels::threads::ThreadPool;

use caches::{Model, QWEN, SMOLLM2, compaction, filled, numbers};

const ENTRIES: usize = 16_000;
const KEPT: usize = ENTRIES / 10;

fn main() {
    let mut criterion = run::criterion();
    evict(&mut criterion);
    steady_state(&mut criterion);
    append_chunk(&mut criterion);
    criterion.final_summary();
}

fn evict(criterion: &mut Criterion) {
    let threads = run::all_cores();
    for model in [SMOLLM2, QWEN] {
        let mut group = criterion.benchmark_group(format!("evict {}", model.name));
        group.throughput(Throughput::Elements((model.kv_heads * ENTRIES) as u64));
        let moves = compaction(ENTRIES, KEPT);
        // The setup fills a whole cache, so only a few exist at a time.
        group.bench_function(format!("{} of {ENTRIES}", ENTRIES - KEPT), |bencher| {
            bencher.iter_batched(
                || filled(&model, KvType::F16, 1, ENTRIES),
                |mut cache| {
                    apply(&mut cache, &threads, &model, &moves, KEPT);
                    cache
                },
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

/// The steady state of a held budget: a token comes, an entry leaves and the newest row takes its place.
fn steady_state(criterion: &mut Criterion) {
    let threads = run::all_cores();
    for model in [SMOLLM2, QWEN] {
        let mut group = criterion.benchmark_group(format!("step {}", model.name));
        group.throughput(Throughput::Elements(model.kv_heads as u64));
        let mut cache = filled(&model, KvType::F16, 1, KEPT);
        let row = numbers(model.kv_heads * model.head_dim);
        let mut holes = (0..KEPT as u32).cycle().step_by(37);
        group.bench_function(format!("append 1 and evict 1 of {KEPT}"), |bencher| {
            bencher.iter(|| {
                cache.append(0, &row, &row).expect("no limit");
                let hole = holes.next().expect("an endless cycle");
                apply(&mut cache, &threads, &model, &[(KEPT as u32, hole)], KEPT);
            });
        });
        group.finish();
    }
}

fn append_chunk(criterion: &mut Criterion) {
    const ROWS: usize = 512;
    let threads = run::all_cores();
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let mut group = criterion.benchmark_group(format!("append {} {kv_type}", QWEN.name));
        group.throughput(Throughput::Elements((QWEN.kv_heads * ROWS) as u64));
        let mut cache = filled(&QWEN, kv_type, 1, ROWS);
        let rows = numbers(ROWS * QWEN.kv_heads * QWEN.head_dim);
        group.bench_function(format!("{ROWS} rows"), |bencher| {
            bencher.iter(|| {
                apply(&mut cache, &threads, &QWEN, &[], 0);
                cache.append(0, &rows, &rows).expect("no limit");
            });
        });
        group.finish();
    }
}

fn apply(cache: &mut KvCache, threads: &ThreadPool, model: &Model, moves: &[(u32, u32)], rows: usize) {
    let plans = vec![Some(HeadPlan { moves, rows }); model.kv_heads];
    cache.evict(threads, &plans).expect("a valid plan");
}
