//! One decode step of the policy: the first large eviction, and the steady state of a held budget.
//!
//! Prints Gelem/s or Melem/s, an element being an entry that was ranked.

use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput};
use inertiakv_policy::{EvictionPlan, HeadObservation, Method, PolicyState, Shape};

const ENTRIES: usize = 16_000;
/// What the default ratio keeps of them.
const KEPT: usize = ENTRIES / 10;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    first_eviction(&mut criterion);
    steady_state(&mut criterion);
    criterion.final_summary();
}

/// Layers and heads as in Qwen2.5-0.5B.
fn shape() -> Shape {
    Shape::uniform(24, 2, 7)
}

fn first_eviction(criterion: &mut Criterion) {
    let mass = masses(ENTRIES + 1);
    let mut open = state_after_prefill();
    open_step(&mut open, &mass);
    let mut group = criterion.benchmark_group("finish_step");
    group.throughput(Throughput::Elements(ENTRIES as u64));
    group.bench_function(format!("evict 90 % of {ENTRIES}"), |bencher| {
        bencher.iter_batched(
            || open.clone(),
            |mut state| state.finish_step().expect("an open step"),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn steady_state(criterion: &mut Criterion) {
    let mut state = state_after_prefill();
    step(&mut state, &masses(ENTRIES + 1));
    assert_eq!(state.rows(0, 0), KEPT);
    let mass = masses(KEPT + 1);
    let mut group = criterion.benchmark_group("step");
    // Every layer's mass is added to the utility of every entry.
    group.throughput(Throughput::Elements(((KEPT + 1) * shape().layers) as u64));
    group.bench_function(format!("evict 1 of {}", KEPT + 1), |bencher| {
        bencher.iter(|| step(&mut state, &mass));
    });
    group.finish();
}

fn state_after_prefill() -> PolicyState {
    let method: Method = "inertia:ratio=0.9".parse().expect("a valid method");
    PolicyState::new(&method.decode.policy, &shape(), ENTRIES).expect("a valid policy")
}

/// A whole decode step of one token.
fn step(state: &mut PolicyState, mass: &[f32]) -> EvictionPlan {
    open_step(state, mass);
    state.finish_step().expect("an open step")
}

/// A step up to the point where the policy decides.
fn open_step(state: &mut PolicyState, mass: &[f32]) {
    let needs = state.begin_step(1);
    let heads = [HeadObservation {
        mass,
        ..HeadObservation::default()
    }; 2];
    for layer in 0..shape().layers {
        if needs.needs(layer) {
            state.observe(layer, 1, &heads).expect("one number per row");
        }
    }
}

/// Attention mass without order, always the same.
fn masses(entries: usize) -> Vec<f32> {
    (0..entries).map(|i| ((i * 7919) % 8191) as f32 / 8191.0).collect()
}
