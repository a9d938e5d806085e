//! How is one job shared between threads?
//!
//! A decode step is hundreds of jobs of a few microseconds, so workers spin for a short while after a job and only then
//! sleep. A job is a number of items. Each thread has a run of neighbouring items of its own, which it takes one by one,
//! and then helps the others: so it reads memory in one stream and finds what it wrote in the last job in its own cache.
//! Who runs which item in the end is open, and results must not depend on it. A worker that comes when the items are
//! gone is not waited for: on a busy machine the caller does the work alone.
//!
//! What a job costs is cache lines that go from core to core, some 0.1 microseconds each. A worker reads one to learn of
//! a job ([`Slot`]), and otherwise writes only its own ([`Seat`]), at which the others look once they are out of items.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often a waiting thread looks before it sleeps: about 50 microseconds.
const SPINS: u32 = 4_000;

/// The number of a job that nobody has to do.
const FIRST: u64 = 1;

/// Bits of a claim that count items; the others tell jobs apart.
const ITEM_BITS: u32 = 24;

/// A fixed set of threads that run one job at a time. The calling thread is one of them.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time, whoever calls.
    turn: Mutex<()>,
}

struct Shared {
    slot: Slot,
    /// One per thread, the caller's first.
    seats: Vec<Seat>,
    /// Held by those who fall asleep and by who wakes them.
    bed: Mutex<()>,
    wake: Condvar,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// The current job, on a cache line of its own.
#[repr(align(128))]
struct Slot {
    /// Odd: the number of the last job. Even: a job is being written.
    state: AtomicU64,
    items: AtomicUsize,
    /// Valid while any item of the job is unfinished. Written only while no thread is busy.
    task: UnsafeCell<Option<Task>>,
    sleepers: AtomicUsize,
}

/// The place of a thread, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    /// The next item of this thread's run, behind the number of the job: of any other job none has been taken.
    claim: AtomicU64,
    /// The job that the worker is in, 0 if none.
    busy: AtomicU64,
}

/// The closure of a job with its lifetime removed.
type Task = *const (dyn Fn(usize) + Sync);

// SAFETY: the task is `Sync`. It is written by one thread at a time (`ThreadPool::turn`) while no worker is busy, and read
// by who has claimed an item, which `ThreadPool::run_beside` waits for.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl ThreadPool {
    /// Pool of `threads` threads in all, at least one; one thread means that jobs run in the caller. Where the system
    /// gives fewer threads the pool works with those; results do not depend on it.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            slot: Slot {
                state: AtomicU64::new(FIRST),
                items: AtomicUsize::new(0),
                task: UnsafeCell::new(None),
                sleepers: AtomicUsize::new(0),
            },
            seats: (0..threads.max(1)).map(|_| Seat::default()).collect(),
            bed: Mutex::new(()),
            wake: Condvar::new(),
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
    /// If a task panics on any thread, or there are more than 2²⁴ - 1 items.
    pub fn run(&self, items: usize, task: &(dyn Fn(usize) + Sync)) {
        self.run_beside(items, task, &mut || ());
    }

    /// [`run`](Self::run), but the calling thread does something else first, while the others begin: what takes it long
    /// costs as much less as they take off its share. Like a task, it must not call `run` of this pool.
    ///
    /// # Panics
    /// As [`run`](Self::run), and if `beside` does.
    pub fn run_beside(&self, items: usize, task: &(dyn Fn(usize) + Sync), beside: &mut dyn FnMut()) {
        if items <= 1 || self.workers.is_empty() {
            beside();
            (0..items).for_each(task);
            return;
        }
        assert!(items < 1 << ITEM_BITS, "{items} items are too many for one job");
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // A job that panicked in the caller too has not been asked about its workers.
        shared.panicked.store(false, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. `Finish` sees to it that all items are claimed and finished before this frame
        // ends, also on a panic.
        let task_pointer: Task =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
        let job = shared.publish(items, task_pointer);
        let finish = Finish { shared, job, items };
        beside();
        shared.take_items(0, job, items, task);
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
        let state = self.shared.slot.state.load(Ordering::Relaxed);
        // A job that nobody enters.
        self.shared.slot.state.store(state + 2, Ordering::SeqCst);
        drop(self.shared.bed.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Waits for the workers when dropped, so that a panic in the caller's share cannot free a closure still in use.
struct Finish<'a> {
    shared: &'a Shared,
    job: u64,
    items: usize,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let Self { shared, job, items } = *self;
        // After a panic there may be items left, which nobody is to run any more.
        shared.take_items(0, job, items, &|_| ());
        // Who has claimed an item was busy before; who comes later finds none.
        shared.wait_while_busy(job);
    }
}

impl Shared {
    /// Opens a job for the workers; returns its number.
    fn publish(&self, items: usize, task: Task) -> u64 {
        let before = self.slot.state.load(Ordering::Relaxed);
        // Either a late worker sees that the last job is over, or it is seen to be busy with it.
        self.slot.state.store(before + 1, Ordering::SeqCst);
        self.wait_while_busy(before);
        // SAFETY: no worker is busy, and none becomes so while the state is even; callers take turns.
        unsafe { *self.slot.task.get() = Some(task) };
        self.slot.items.store(items, Ordering::Relaxed);
        let job = before + 2;
        self.slot.state.store(job, Ordering::SeqCst);
        if self.slot.sleepers.load(Ordering::SeqCst) > 0 {
            // Taking the lock orders this wake-up after the check of a worker that is about to sleep.
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
        job
    }

    fn wait_while_busy(&self, job: u64) {
        for seat in &self.seats[1..] {
            let mut spins = 0;
            while seat.busy.load(Ordering::SeqCst) == job {
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Takes the run of thread `index` first, then what the others have left.
    fn take_items(&self, index: usize, job: u64, items: usize, task: &(dyn Fn(usize) + Sync)) {
        let threads = self.seats.len();
        for owner in (index..threads).chain(0..index) {
            let run = (owner * items).div_ceil(threads)..((owner + 1) * items).div_ceil(threads);
            while let Some(item) = self.seats[owner].claim(job, &run) {
                task(item);
            }
        }
    }

    fn work(&self, index: usize) {
        let seat = &self.seats[index];
        let mut job = FIRST;
        loop {
            job = self.wait_for_job(job);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seat.busy.store(job, Ordering::SeqCst);
            // See `publish`.
            if self.slot.state.load(Ordering::SeqCst) == job {
                let items = self.slot.items.load(Ordering::Relaxed);
                let run_item = |item| {
                    // SAFETY: an item of this job is claimed, so the task is there until this worker is not busy any more.
                    if let Some(task) = unsafe { *self.slot.task.get() } {
                        // SAFETY: as above.
                        unsafe { (*task)(item) };
                    }
                };
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    self.take_items(index, job, items, &run_item);
                }));
                if outcome.is_err() {
                    self.panicked.store(true, Ordering::Relaxed);
                }
            }
            seat.busy.store(0, Ordering::Release);
        }
    }

    /// The number of the next job after `seen`.
    fn wait_for_job(&self, seen: u64) -> u64 {
        let is_new = |state: u64| state % 2 == 1 && state != seen;
        for _ in 0..SPINS {
            let state = self.slot.state.load(Ordering::Acquire);
            if is_new(state) {
                return state;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = self.slot.state.load(Ordering::SeqCst);
            if is_new(state) {
                self.slot.sleepers.fetch_sub(1, Ordering::SeqCst);
                return state;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Seat {
    /// Claims the next item of this thread's run in a job.
    fn claim(&self, job: u64, run: &Range<usize>) -> Option<usize> {
        const ITEM: u64 = (1 << ITEM_BITS) - 1;
        let job = job << ITEM_BITS;
        // Acquire and release: who finds the run taken knows of those who took it that they are busy.
        let mut claim = self.claim.load(Ordering::Acquire);
        loop {
            let item = if claim & !ITEM == job {
                (claim & ITEM) as usize
            } else {
                run.start
            };
            // Looking is cheap with many threads, where claiming is not.
            if item >= run.end {
                return None;
            }
            let next = job | (item as u64 + 1);
            match self
                .claim
                .compare_exchange_weak(claim, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(item),
                Err(now) => claim = now,
            }
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
    fn many_short_jobs_lose_nothing_and_see_what_the_last_one_wrote() {
        // More threads than cores: workers come late, or when the next job is being written.
        for threads in [2, 7] {
            let pool = ThreadPool::new(threads);
            let mut numbers = vec![0_u32; 11];
            for job in 0..5_000 {
                let items = 2 + job % 10;
                let before = numbers.clone();
                let shared = SharedMut::new(&mut numbers);
                pool.run(items, &|item| {
                    // SAFETY: every item is its own part.
                    let number = &mut unsafe { shared.part(item, 1) }[0];
                    assert_eq!(*number, before[item]);
                    *number += 1;
                });
                let expected = before.iter().enumerate();
                let expected = expected.map(|(item, number)| number + u32::from(item < items));
                assert!(
                    numbers.iter().copied().eq(expected),
                    "job {job}: {before:?} became {numbers:?}"
                );
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
                        while pool.threads() > 1 && items > 1 && done.load(Ordering::Relaxed) < items {
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
