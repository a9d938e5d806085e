//! How the benches of this crate run: long enough for a median, on all cores.

use std::time::Duration;

use criterion::Criterion;
use inertiakv_kernels::threads::ThreadPool;

pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args()
}

pub(crate) fn all_cores() -> ThreadPool {
    ThreadPool::new(std::thread::available_parallelism().map_or(1, usize::from))
}
