//! How is one job shared between threads?
//!
//! A decode step is hundreds of jobs of a few microseconds, so workers spin for a short while after a job and only then
//! sleep. A job is a number of items. Each thread has a run of neighbouring items of its own, which it takes one by one,
//! and then helps the others: so it reads memory in one stream and finds what it wrote in the last job in its own cache.
//! Who runs which item in the end is open, and results must not depend on it. A worker that comes when the items are
//! gone is not waited for: on a busy machine the caller does the work alone.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often a waiting thread looks before it sleeps: about 50 microseconds.
const SPINS: u32 = 4_000;

/// A fixed set of threads that run one job at a time. The calling thread is one of them.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time, whoever calls.
    turn: Mutex<()>,
}

struct Shared {
    /// Number of jobs published so far.
    generation: AtomicU64,
    job: Mutex<Option<Job>>,
    wake: Condvar,
    sleepers: AtomicUsize,
    /// One per thread, the caller's first.
    runs: Vec<Run>,
    /// Workers that are in the current job. Grows only under the lock of `job`, while there is one.
    running: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// Neighbouring items that one thread takes first, on a cache line of their own.
#[derive(Default)]
#[repr(align(128))]
struct Run {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// The closure of the current job with its lifetime removed; `run` keeps it alive until every worker is done.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
}

// SAFETY: the pointee is `Sync`, and `ThreadPool::run` outlives every use of the pointer.
unsafe impl Send for Job {}

impl ThreadPool {
    /// Pool of `threads` threads in all, at least one; one thread means that jobs run in the caller. Where the system
    /// gives fewer threads the pool works with those; results do not depend on it.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            generation: AtomicU64::new(0),
            job: Mutex::new(None),
            wake: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            runs: (0..threads.max(1)).map(|_| Run::default()).collect(),
            running: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let workers = (1..threads.max(1))
            .filter_map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("inertiakv-{index}"))
                    .spawn(move || shared.work(index))
                    .ok()
            })
            .collect();
        Self {
            shared,
            workers,
            turn: Mutex::new(()),
        }
    }

    /// Threads of the pool, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(item)` once for every item below `items`, on any thread and in any order, and waits for all.
    ///
    /// A task must not call `run` of its own pool: it would wait for itself.
    ///
    /// # Panics
    /// If a task panics on any thread.
    pub fn run(&self, items: usize, task: &(dyn Fn(usize) + Sync)) {
        self.run_beside(items, task, &mut || ());
    }

    /// [`run`](Self::run), but the calling thread does something else first, while the others begin: what takes it long
    /// costs as much less as they take off its share. Like a task, it must not call `run` of this pool.
    ///
    /// # Panics
    /// If a task or `beside` panics.
    pub fn run_beside(&self, items: usize, task: &(dyn Fn(usize) + Sync), beside: &mut dyn FnMut()) {
        if items <= 1 || self.workers.is_empty() {
            beside();
            (0..items).for_each(task);
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. `Finish` waits for all workers before this frame ends, also on a panic,
        // and clears the job.
        let task_pointer: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
        let threads = shared.runs.len();
        for (index, run) in shared.runs.iter().enumerate() {
            run.next.store((index * items).div_ceil(threads), Ordering::Relaxed);
            run.end
                .store(((index + 1) * items).div_ceil(threads), Ordering::Relaxed);
        }
        // A job that panicked in the caller too has not been asked about its workers.
        shared.panicked.store(false, Ordering::Relaxed);
        *shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(Job { task: task_pointer });
        shared.generation.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            // Taking the lock orders this wake-up after the check of a worker that is about to sleep.
            drop(shared.job.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        let finish = Finish { shared };
        beside();
        shared.take_items(0, task);
        drop(finish);
        assert!(
            !shared.panicked.swap(false, Ordering::Relaxed),
            "a task panicked on a worker thread"
        );
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        drop(self.shared.job.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Closes the job and waits for the workers in it when dropped, so that a panic in the caller's share cannot free a
/// closure still in use.
struct Finish<'a> {
    shared: &'a Shared,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let mut spins = 0;
        while self.shared.running.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Shared {
    /// The run of thread `index` first, then what the others have left.
    fn take_items(&self, index: usize, task: &(dyn Fn(usize) + Sync)) {
        let (before, from) = self.runs.split_at(index);
        for run in from.iter().chain(before) {
            let end = run.end.load(Ordering::Relaxed);
            // Reading is cheap with many threads, where counting up is not.
            while run.next.load(Ordering::Relaxed) < end {
                let item = run.next.fetch_add(1, Ordering::Relaxed);
                if item >= end {
                    break;
                }
                task(item);
            }
        }
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_job(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let job = {
                let job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(job) = *job else { continue };
                // Under the lock: whoever closes the job afterwards sees this worker in it.
                self.running.fetch_add(1, Ordering::Relaxed);
                job
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: this worker counts in `running`, and `run` does not return before that is zero again.
                self.take_items(index, unsafe { &*job.task });
            }));
            if outcome.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the generation of the next job after `seen`.
    fn wait_for_job(&self, seen: u64) -> u64 {
        for _ in 0..SPINS {
            let generation = self.generation.load(Ordering::Acquire);
            if generation != seen {
                return generation;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.job.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            if generation != seen {
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                return generation;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A mutable slice that the items of one job write in disjoint parts.
pub struct SharedMut<'a, T> {
    pointer: *mut T,
    length: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out as `&mut [T]` under the caller's promise that they do not overlap.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Wraps a slice for the duration of a job.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            pointer: slice.as_mut_ptr(),
            length: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// The part `[start, start + length)`.
    ///
    /// # Safety
    /// No two parts that live at the same time may overlap.
    ///
    /// # Panics
    /// If the part does not lie inside the slice.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    #[must_use]
    pub unsafe fn part(&self, start: usize, length: usize) -> &mut [T] {
        assert!(
            start <= self.length && length <= self.length - start,
            "part outside the shared slice"
        );
        // SAFETY: inside the slice by the check above; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::{SharedMut, ThreadPool};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = ThreadPool::new(threads);
            for items in [0, 1, 2, 7, 1000] {
                let mut hits = vec![0_u32; items];
                let shared = SharedMut::new(&mut hits);
                pool.run(items, &|item| {
                    // SAFETY: every item is its own part.
                    unsafe { shared.part(item, 1)[0] += 1 };
                });
                assert!(hits.iter().all(|&count| count == 1));
            }
        }
    }

    #[test]
    fn the_caller_does_something_else_once_while_the_others_begin() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            for items in [0, 1, 100] {
                let done = AtomicUsize::new(0);
                let mut beside = 0;
                pool.run_beside(
                    items,
                    &|_| {
                        done.fetch_add(1, Ordering::Relaxed);
                    },
                    &mut || {
                        // With one more thread nothing waits for the caller.
                        while threads > 1 && items > 1 && done.load(Ordering::Relaxed) < items {
                            std::thread::yield_now();
                        }
                        beside += 1;
                    },
                );
                assert_eq!((beside, done.into_inner()), (1, items));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = ThreadPool::new(3);
        let count = AtomicUsize::new(0);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            pool.run(10, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.into_inner(), 50);
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_survives() {
        let pool = ThreadPool::new(2);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(8, &|item| assert!(item != 3, "item three"));
        }));
        assert!(outcome.is_err());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(8, &|_| panic!("every item"));
        }));
        assert!(outcome.is_err());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run_beside(8, &|_| (), &mut || panic!("beside"));
        }));
        assert!(outcome.is_err());
        let count = AtomicUsize::new(0);
        pool.run(8, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 8);
    }
}
