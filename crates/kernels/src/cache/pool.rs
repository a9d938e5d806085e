//! The allocator of blocks.
//!
//! Blocks are cut from slabs of anonymous memory. A freed block first joins a short *warm* list, so that a steady
//! decode reuses resident memory; what exceeds that reserve is given back to the operating system page by page and
//! joins the *cold* list. A page is only released once every block that touches it is free.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{MmapMut, MmapRaw};

use super::layout::{BLOCK_ROWS, Layout, MAX_DIM};
use super::{CacheError, KvConfig};
use crate::threads::ThreadPool;

/// Bytes of a slab, about.
const SLAB: usize = 4 << 20;
/// Granularity in which memory is given back: a page here, the largest common page elsewhere.
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 65536 };

/// A bounded supply of cache blocks, shared by the sequences of a model. Cloning it is cheap and shares the supply.
#[derive(Clone)]
pub struct KvPool {
    inner: Arc<Inner>,
}

struct Inner {
    config: KvConfig,
    layout: Layout,
    limit: Option<usize>,
    slots_per_slab: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slabs: Vec<Slab>,
    /// Free, memory kept. Slots count through all slabs.
    warm: Vec<usize>,
    /// Free, memory given back.
    cold: Vec<usize>,
    in_use: usize,
    peak: usize,
}

struct Slab {
    /// Raw, because blocks of one slab are read and written by different owners at the same time.
    map: MmapRaw,
    free: Vec<bool>,
}

/// A counted reference to a block. Its bytes can be written only while there is no second reference.
#[derive(Clone)]
pub(crate) struct Block {
    pointer: NonNull<u8>,
    bytes: usize,
    owner: Arc<Owner>,
}

/// Gives the slot back when the last reference goes.
struct Owner {
    inner: Arc<Inner>,
    slot: usize,
}

// SAFETY: the memory behind `pointer` is owned through `owner`: shared blocks are only read, and writing takes `&mut`
// of the only reference.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl KvPool {
    /// A pool for caches of one shape that hands out at most `limit_bytes` bytes of blocks.
    ///
    /// # Errors
    /// [`CacheError::Config`] if there is no layer or KV head, or the head size is not a multiple of 16 up to 512.
    pub fn new(config: KvConfig, limit_bytes: Option<usize>) -> Result<Self, CacheError> {
        let KvConfig {
            layers,
            kv_heads,
            head_dim,
            ..
        } = config;
        if layers == 0 || kv_heads == 0 || head_dim == 0 || head_dim % 16 != 0 || head_dim > MAX_DIM {
            return Err(CacheError::Config {
                layers,
                kv_heads,
                head_dim,
            });
        }
        let layout = Layout::new(&config);
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                layout,
                limit: limit_bytes,
                slots_per_slab: (SLAB / layout.bytes).max(1),
                state: Mutex::default(),
            }),
        })
    }

    /// The shape and type of the caches.
    #[must_use]
    pub fn config(&self) -> &KvConfig {
        &self.inner.config
    }

    /// Bytes that one row of one layer and KV head takes, its share of the block's padding included.
    #[must_use]
    pub fn bytes_per_row(&self) -> usize {
        self.inner.layout.bytes / BLOCK_ROWS
    }

    /// Bytes of the blocks of a sequence whose heads all hold `rows` rows and which shares none of them.
    #[must_use]
    pub fn bytes_for(&self, rows: usize) -> usize {
        let KvConfig { layers, kv_heads, .. } = self.inner.config;
        rows.div_ceil(BLOCK_ROWS) * layers * kv_heads * self.inner.layout.bytes
    }

    /// Bytes of the blocks in use; a block shared by forks counts once.
    #[must_use]
    pub fn bytes_in_use(&self) -> usize {
        self.inner.lock().in_use * self.inner.layout.bytes
    }

    /// The most bytes that were in use at one time since the pool was made or [`KvPool::reset_peak`].
    #[must_use]
    pub fn bytes_peak(&self) -> usize {
        self.inner.lock().peak * self.inner.layout.bytes
    }

    /// Makes the present use the peak.
    pub fn reset_peak(&self) {
        let mut state = self.inner.lock();
        state.peak = state.in_use;
    }

    /// The limit in bytes, if there is one.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        self.inner.limit
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// Takes `count` zeroed blocks, all or none.
    pub(super) fn take(&self, count: usize) -> Result<Vec<Block>, CacheError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let inner = &self.inner;
        let bytes = inner.layout.bytes;
        let mut state = inner.lock();
        let needed = (state.in_use + count) * bytes;
        if let Some(limit) = inner.limit
            && needed > limit
        {
            return Err(CacheError::OutOfMemory { needed, limit });
        }
        while state.warm.len() + state.cold.len() < count {
            let slots = inner.slots_per_slab;
            let map = MmapMut::map_anon((slots * bytes).next_multiple_of(PAGE))?;
            let first = state.slabs.len() * slots;
            state.slabs.push(Slab {
                map: map.into(),
                free: vec![true; slots],
            });
            // Handed out from the end: lowest address first, so that neighbours in a table are neighbours in memory.
            state.cold.splice(0..0, (first..first + slots).rev());
        }
        state.in_use += count;
        state.peak = state.peak.max(state.in_use);
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            let slot = state.warm.pop().or_else(|| state.cold.pop());
            let slot = slot.expect("slabs were added above");
            let slab = &mut state.slabs[slot / inner.slots_per_slab];
            let index = slot % inner.slots_per_slab;
            slab.free[index] = false;
            // SAFETY: the slab has room for all its slots.
            let pointer = unsafe { slab.map.as_mut_ptr().add(index * bytes) };
            blocks.push(Block {
                pointer: NonNull::new(pointer).expect("a map is not at address zero"),
                bytes,
                owner: Arc::new(Owner {
                    inner: Arc::clone(inner),
                    slot,
                }),
            });
        }
        drop(state);
        for block in &mut blocks {
            if let Some(bytes) = block.bytes_mut() {
                bytes.fill(0);
            }
        }
        // Callers pop: the first one they get has the lowest address.
        blocks.reverse();
        Ok(blocks)
    }

    /// Gives the memory of free blocks beyond the warm reserve back to the operating system, on `threads` if there are.
    pub(super) fn trim(&self, threads: Option<&ThreadPool>) {
        // A step of a cache held at a multiple of 32 rows takes and frees one block per head; two sequences' worth.
        let reserve = 2 * self.inner.config.layers * self.inner.config.kv_heads;
        // Locked to the end: nobody may take a block whose page is about to go.
        let mut state = self.inner.lock();
        if state.warm.len() <= reserve {
            return;
        }
        let excess = state.warm.len() - reserve;
        let mut slots: Vec<usize> = state.warm.drain(..excess).collect();
        slots.sort_unstable();
        let same_run =
            |&left: &usize, &right: &usize| left + 1 == right && !right.is_multiple_of(self.inner.slots_per_slab);
        let runs: Vec<&[usize]> = slots.chunk_by(same_run).collect();
        state.cold.extend(slots.iter().rev());
        let slabs = &state.slabs;
        let release = |item: usize| {
            let run = runs[item];
            let first = run[0] % self.inner.slots_per_slab;
            slabs[run[0] / self.inner.slots_per_slab].release(first, first + run.len(), self.inner.layout.bytes);
        };
        // Giving back hundreds of megabytes takes the system milliseconds.
        match threads {
            Some(threads) => threads.run(runs.len(), &release),
            None => (0..runs.len()).for_each(release),
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock leaves the state half changed when it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slab {
    /// Releases the pages of the free blocks `[first, end)`, and border pages whose other blocks are free too.
    fn release(&self, mut first: usize, mut end: usize, bytes: usize) {
        let page_start = first * bytes / PAGE * PAGE;
        while first > 0 && first * bytes > page_start && self.free[first - 1] {
            first -= 1;
        }
        let page_end = (end * bytes).next_multiple_of(PAGE);
        while end < self.free.len() && end * bytes < page_end && self.free[end] {
            end += 1;
        }
        let from = (first * bytes).next_multiple_of(PAGE).max(page_start);
        let to = if end == self.free.len() {
            self.map.len()
        } else {
            end * bytes / PAGE * PAGE
        }
        .min(page_end);
        #[cfg(unix)]
        if from < to {
            // SAFETY: the range lies inside the map and touches only free blocks, whose content nobody relies on.
            let released = unsafe {
                self.map
                    .unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from)
            };
            // A refusal costs memory, not correctness.
            debug_assert!(released.is_ok(), "pages of the own map can be released");
        }
        #[cfg(not(unix))]
        let _ = (from, to);
    }
}

impl Block {
    /// Its number in the pool, which no other block in use has.
    pub(super) fn slot(&self) -> usize {
        self.owner.slot
    }

    /// The block's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside a slab that `owner` keeps alive, always initialised; nobody writes while this is borrowed,
        // because writing takes `&mut` of the only reference.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    /// The block's bytes to write, unless another reference shares them.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.owner)?;
        // SAFETY: as above, and `get_mut` proved that this is the only reference.
        Some(unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        let slots = self.inner.slots_per_slab;
        state.slabs[self.slot / slots].free[self.slot % slots] = true;
        state.warm.push(self.slot);
        state.in_use -= 1;
    }
}
