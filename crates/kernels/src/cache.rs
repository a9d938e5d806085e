//! Where do the cached keys and values live, and how does their memory come and go?
//!
//! A [`KvPool`] hands out fixed-size blocks from a bounded amount of memory. A [`KvCache`] is one sequence: for every
//! (layer, KV head) a table of blocks and a number of rows of its own. Forks share blocks and copy one when they write
//! to it. Rows that leave give their blocks back at once, and freed memory returns to the operating system.
//!
//! Rows are storage, not positions: who sits in which row is the caller's business.

mod features;
mod layout;
mod mask;
mod pool;

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use crate::threads::{SharedMut, ThreadPool};

pub use pool::KvPool;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use layout::GROUP_DIMS;
pub(crate) use layout::{BLOCK_ROWS, Layout};
use mask::Mask;
use pool::Block;

/// From this many new rows on, all threads write them.
const ROWS_FOR_ALL: usize = 4;

/// Element type of the stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// Half precision: 2 bytes a number.
    #[default]
    F16,
    /// Single precision: 4 bytes a number, exact.
    F32,
    /// Signed bytes with one half-precision scale per 32 dimensions of a row: 1.0625 bytes a number.
    Q8_0,
}

impl fmt::Display for KvType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
        })
    }
}

impl FromStr for KvType {
    type Err = CacheError;

    fn from_str(text: &str) -> Result<Self, CacheError> {
        match text {
            "f16" => Ok(Self::F16),
            "f32" => Ok(Self::F32),
            "q8_0" => Ok(Self::Q8_0),
            _ => Err(CacheError::Type(text.to_owned())),
        }
    }
}

/// What every cache of a pool has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Attention layers, at least 1.
    pub layers: usize,
    /// KV heads of a layer, at least 1.
    pub kv_heads: usize,
    /// Numbers in a key or value row: a multiple of 16, at most 512.
    pub head_dim: usize,
    /// How they are stored.
    pub kv_type: KvType,
}

/// Why a cache operation was refused. Nothing has changed when one is returned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The element type has another name.
    #[error("unknown KV type `{0}`: use f16, f32 or q8_0")]
    Type(String),
    /// The shape cannot be stored.
    #[error(
        "a KV cache of {layers} layers, {kv_heads} KV heads and head size {head_dim} is not supported: give at least \
         one layer and KV head, and a head size that is a multiple of 16 up to 512"
    )]
    Config {
        /// Layers asked for.
        layers: usize,
        /// KV heads asked for.
        kv_heads: usize,
        /// Head size asked for.
        head_dim: usize,
    },
    /// The pool's bound would be exceeded.
    #[error(
        "the KV cache needs {needed} bytes but its limit is {limit}: raise the limit, shorten the context or choose a \
         smaller budget"
    )]
    OutOfMemory {
        /// Bytes that would be in use after the operation.
        needed: usize,
        /// The pool's limit in bytes.
        limit: usize,
    },
    /// The operating system gave no memory.
    #[error("the operating system gave no memory for the KV cache ({0}): close other programs or shorten the context")]
    Map(#[from] std::io::Error),
    /// Keys and values do not have the shape of the pool.
    #[error(
        "{keys} key and {values} value numbers do not make whole rows of {row} numbers: pass [rows][kv_heads][head_dim]"
    )]
    Shape {
        /// Length of the keys.
        keys: usize,
        /// Length of the values.
        values: usize,
        /// `kv_heads * head_dim`.
        row: usize,
    },
    /// The layer or head does not exist.
    #[error("layer {layer}, KV head {head} does not exist: the cache has {layers} layers of {kv_heads} KV heads")]
    Head {
        /// Layer asked for.
        layer: usize,
        /// KV head asked for.
        head: usize,
        /// Layers of the pool.
        layers: usize,
        /// KV heads of the pool.
        kv_heads: usize,
    },
    /// A move of an eviction plan goes the wrong way or starts outside.
    #[error("the plan moves row {from} to {to} in a head of {rows} rows: moves go from a held row to a lower one")]
    Move {
        /// Source row.
        from: u32,
        /// Destination row.
        to: u32,
        /// Rows held.
        rows: usize,
    },
    /// There is not one place per head.
    #[error("{plans} plans for {heads} heads: give one place per layer and KV head")]
    Plans {
        /// Places given.
        plans: usize,
        /// Layers times KV heads.
        heads: usize,
    },
    /// A row to be masked is not there.
    #[error("row {row} of a head of {rows} rows cannot be masked: give rows that are held")]
    Mask {
        /// Row given.
        row: u32,
        /// Rows held.
        rows: usize,
    },
    /// A plan keeps more rows than there are.
    #[error("the plan keeps {kept} rows of {rows}: keep at most what is held")]
    Rows {
        /// Rows that the plan keeps.
        kept: usize,
        /// Rows held.
        rows: usize,
    },
}

/// The keys and values of one sequence, ragged: every (layer, KV head) has its own number of rows.
///
/// Dropping it gives its blocks back to the pool.
pub struct KvCache {
    pool: KvPool,
    /// `[layer][kv_head]`.
    heads: Vec<Head>,
}

/// Block table of one (layer, KV head).
#[derive(Clone, Default)]
pub(crate) struct Head {
    blocks: Vec<Block>,
    rows: usize,
    mask: Mask,
}

impl Head {
    /// Rows held.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The blocks, each of [`BLOCK_ROWS`] rows; the last one may be partly filled.
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Rows that get no attention.
    pub(crate) fn mask(&self) -> &Mask {
        &self.mask
    }

    /// Whether the next row goes into a block that is already there.
    fn has_open_block(&self) -> bool {
        !self.rows.is_multiple_of(BLOCK_ROWS)
    }

    /// Blocks to take from the pool before `rows` more can be written: growth, and a copy of a shared last block.
    fn blocks_to_grow(&mut self, rows: usize) -> usize {
        let growth = (self.rows + rows).div_ceil(BLOCK_ROWS) - self.blocks.len();
        let copy = rows > 0
            && self.has_open_block()
            && self.blocks.last_mut().is_some_and(|block| block.bytes_mut().is_none());
        growth + usize::from(copy)
    }

    /// Blocks that a plan writes to although a fork has them too.
    fn shared_blocks(&mut self, plan: &HeadPlan<'_>) -> usize {
        let mut written: Vec<usize> = plan.moves.iter().map(|&(_, to)| to as usize / BLOCK_ROWS).collect();
        written.dedup();
        written.sort_unstable();
        written.dedup();
        written.retain(|&block| self.blocks[block].bytes_mut().is_none());
        written.len()
    }

    /// Writes rows behind those held, to blocks that are there; rows lie `stride` numbers apart.
    fn write(&mut self, layout: &Layout, keys: &[f32], values: &[f32], stride: usize, rows: usize) {
        let mut done = 0;
        while done < rows {
            let slot = self.rows % BLOCK_ROWS;
            let count = (BLOCK_ROWS - slot).min(rows - done);
            let block = &mut self.blocks[self.rows / BLOCK_ROWS];
            let bytes = block.bytes_mut().expect("new or made exclusive before");
            let start = done * stride;
            layout.write(bytes, slot, count, &keys[start..], &values[start..], stride);
            self.rows += count;
            done += count;
        }
    }

    /// Carries out the moves of a plan that has been checked; the supply has [`Head::shared_blocks`] blocks.
    fn move_rows(&mut self, layout: &Layout, plan: &HeadPlan<'_>, supply: &mut Supply) {
        for &(from, to) in plan.moves {
            let (from, to) = (from as usize, to as usize);
            let (low, high) = self.blocks.split_at_mut(to / BLOCK_ROWS + 1);
            let target = low.last_mut().expect("split after the target block");
            supply.spent.extend(make_exclusive(target, &mut supply.fresh));
            let target = target.bytes_mut().expect("made exclusive above");
            if from / BLOCK_ROWS == to / BLOCK_ROWS {
                layout.move_within(target, from % BLOCK_ROWS, to % BLOCK_ROWS);
            } else {
                let source = high[from / BLOCK_ROWS - to / BLOCK_ROWS - 1].bytes();
                layout.copy_row(source, from % BLOCK_ROWS, target, to % BLOCK_ROWS);
            }
        }
    }
}

/// How the rows of one head change: the moves `(from, to)` in order, each from a held row to a lower one, then the head
/// is cut to its first `rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct HeadPlan<'a> {
    /// Copies of one row over another.
    pub moves: &'a [(u32, u32)],
    /// Rows that stay.
    pub rows: usize,
}

impl HeadPlan<'_> {
    fn check(&self, held: usize) -> Result<(), CacheError> {
        if self.rows > held {
            return Err(CacheError::Rows {
                kept: self.rows,
                rows: held,
            });
        }
        match self
            .moves
            .iter()
            .find(|&&(from, to)| from <= to || from as usize >= held)
        {
            Some(&(from, to)) => Err(CacheError::Move { from, to, rows: held }),
            None => Ok(()),
        }
    }
}

/// Blocks to copy shared ones to, and the shared ones that were given up for them. Those go back when the threads are
/// done: giving one back may need the pool, which somebody who waits for the threads may hold.
struct Supply {
    fresh: Vec<Block>,
    spent: Vec<Block>,
}

impl KvCache {
    /// An empty sequence; takes no memory from the pool yet.
    #[must_use]
    pub fn new(pool: &KvPool) -> Self {
        let config = pool.config();
        Self {
            pool: pool.clone(),
            heads: vec![Head::default(); config.layers * config.kv_heads],
        }
    }

    /// The pool that holds the memory.
    #[must_use]
    pub fn pool(&self) -> &KvPool {
        &self.pool
    }

    /// Rows held by a head; 0 for one that does not exist.
    #[must_use]
    pub fn rows(&self, layer: usize, head: usize) -> usize {
        self.index(layer, head).map_or(0, |index| self.heads[index].rows)
    }

    /// Rows of the longest head.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        self.heads.iter().map(|head| head.rows).max().unwrap_or(0)
    }

    /// Bytes of the blocks that this sequence refers to; blocks shared with a fork count in both.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.heads.iter().map(|head| head.blocks.len()).sum();
        blocks * self.pool.layout().bytes
    }

    /// Bytes of the blocks that sequences of one pool refer to; blocks that they share count once.
    #[must_use]
    pub fn bytes_together<'a>(caches: impl IntoIterator<Item = &'a Self>) -> usize {
        let heads = caches.into_iter().flat_map(|cache| &cache.heads);
        let mut blocks: Vec<(usize, usize)> = heads
            .flat_map(|head| &head.blocks)
            .map(|block| (block.slot(), block.bytes().len()))
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Adds rows at the end of every KV head of a layer. `keys` (rotated) and `values` are
    /// `[rows][kv_heads][head_dim]`.
    ///
    /// # Errors
    /// If the shape does not fit or memory runs out; then no row has been added to any head.
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), CacheError> {
        let cache = self;
        append_each(&ThreadPool::new(1), layer, &mut [NewRows { cache, keys, values }])
    }

    /// Takes the blocks that new rows of a layer need, and copies those that a fork has too, so that nothing but writing is
    /// left to do. Returns the rows.
    fn make_room(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<usize, CacheError> {
        let KvConfig { kv_heads, head_dim, .. } = *self.pool.config();
        let first = self.index(layer, 0)?;
        let row = kv_heads * head_dim;
        if keys.len() != values.len() || !keys.len().is_multiple_of(row) {
            return Err(CacheError::Shape {
                keys: keys.len(),
                values: values.len(),
                row,
            });
        }
        let rows = keys.len() / row;
        let heads = &mut self.heads[first..first + kv_heads];
        let needed = heads.iter_mut().map(|head| head.blocks_to_grow(rows)).sum();
        let mut fresh = self.pool.take(needed)?;
        for head in heads {
            if rows > 0 && head.has_open_block() {
                let last = head.blocks.last_mut().expect("an open block is in the table");
                make_exclusive(last, &mut fresh);
            }
            let grown = (head.rows + rows).div_ceil(BLOCK_ROWS);
            let growth = grown - head.blocks.len();
            head.blocks.extend(fresh.drain(fresh.len() - growth..));
        }
        Ok(rows)
    }

    /// Gives back what [`KvCache::make_room`] took and nobody wrote to.
    fn shrink(&mut self) {
        for head in &mut self.heads {
            head.blocks.truncate(head.rows.div_ceil(BLOCK_ROWS));
        }
    }

    /// A second sequence with the same rows. Nothing is copied until one of the two writes to a block.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            heads: self.heads.clone(),
        }
    }

    /// A second sequence with the first `rows` rows of every head, as [`KvCache::fork`] shares them; heads that hold fewer
    /// are shared whole.
    #[must_use]
    pub fn fork_front(&self, rows: usize) -> Self {
        let mut front = self.fork();
        for head in &mut front.heads {
            head.rows = head.rows.min(rows);
            head.blocks.truncate(head.rows.div_ceil(BLOCK_ROWS));
            head.mask.follow(&HeadPlan {
                moves: &[],
                rows: head.rows,
            });
        }
        front
    }

    /// A second sequence with the same rows in memory of its own.
    ///
    /// # Errors
    /// If the pool has not enough memory left.
    pub fn copy(&self) -> Result<Self, CacheError> {
        let mut copy = self.fork();
        let blocks = self.heads.iter().map(|head| head.blocks.len()).sum();
        let mut fresh = self.pool.take(blocks)?;
        for block in copy.heads.iter_mut().flat_map(|head| &mut head.blocks) {
            make_exclusive(block, &mut fresh);
        }
        Ok(copy)
    }

    /// Carries out an eviction: `plans` has one place per head, `[layer][kv_head]`, with nothing where nothing leaves.
    /// Blocks that become empty go back to the pool at once.
    ///
    /// # Errors
    /// If there is not one place per head, a plan does not fit its head (see [`HeadPlan`]), or copying shared blocks needs
    /// more memory than the pool may use; then nothing has changed.
    pub fn evict(&mut self, threads: &ThreadPool, plans: &[Option<HeadPlan<'_>>]) -> Result<(), CacheError> {
        if plans.len() != self.heads.len() {
            return Err(CacheError::Plans {
                plans: plans.len(),
                heads: self.heads.len(),
            });
        }
        let mut shared = Vec::with_capacity(plans.len());
        for (head, plan) in self.heads.iter_mut().zip(plans) {
            shared.push(match plan {
                Some(plan) => {
                    plan.check(head.rows)?;
                    head.shared_blocks(plan)
                }
                None => 0,
            });
        }
        let mut fresh = self.pool.take(shared.iter().sum())?;
        let supplies: Vec<Mutex<Supply>> = shared
            .iter()
            .map(|&count| {
                let fresh = fresh.split_off(fresh.len() - count);
                Mutex::new(Supply {
                    fresh,
                    spent: Vec::new(),
                })
            })
            .collect();
        let layout = self.pool.layout();
        let heads = SharedMut::new(&mut self.heads);
        threads.run(plans.len(), &|item| {
            if let Some(plan) = &plans[item] {
                // SAFETY: every head is one item's.
                let head = unsafe { &mut heads.part(item, 1)[0] };
                let mut supply = supplies[item].lock().unwrap_or_else(PoisonError::into_inner);
                head.move_rows(layout, plan, &mut supply);
            }
        });
        drop(supplies);
        for (head, plan) in self.heads.iter_mut().zip(plans) {
            if let Some(plan) = plan {
                head.blocks.truncate(plan.rows.div_ceil(BLOCK_ROWS));
                head.rows = plan.rows;
                head.mask.follow(plan);
            }
        }
        self.pool.trim(Some(threads));
        Ok(())
    }

    /// Gives up the oldest rows of a layer, in whole blocks, so that every head keeps at least its newest `rows`. The order
    /// of rows stays. Heads with masked rows are left as they are.
    ///
    /// # Errors
    /// If the layer does not exist.
    pub fn keep_newest(&mut self, layer: usize, rows: usize) -> Result<(), CacheError> {
        let first = self.index(layer, 0)?;
        let mut is_smaller = false;
        for head in &mut self.heads[first..][..self.pool.config().kv_heads] {
            let blocks = head.rows.saturating_sub(rows) / BLOCK_ROWS;
            if blocks > 0 && !head.mask.reaches(0) {
                head.blocks.drain(..blocks);
                head.rows -= blocks * BLOCK_ROWS;
                is_smaller = true;
            }
        }
        if is_smaller {
            self.pool.trim(None);
        }
        Ok(())
    }

    /// [`KvCache::evict`] for a single head.
    ///
    /// # Errors
    /// As there, and if the head does not exist.
    pub fn apply(&mut self, layer: usize, head: usize, moves: &[(u32, u32)], rows: usize) -> Result<(), CacheError> {
        let index = self.index(layer, head)?;
        let mut plans = vec![None; self.heads.len()];
        plans[index] = Some(HeadPlan { moves, rows });
        self.evict(&ThreadPool::new(1), &plans)
    }

    /// Block table of a head.
    ///
    /// # Panics
    /// If it does not exist.
    pub(crate) fn head(&self, layer: usize, head: usize) -> &Head {
        let kv_heads = self.pool.config().kv_heads;
        assert!(head < kv_heads, "KV head {head} of {kv_heads}");
        &self.heads[layer * kv_heads + head]
    }

    fn index(&self, layer: usize, head: usize) -> Result<usize, CacheError> {
        let KvConfig { layers, kv_heads, .. } = *self.pool.config();
        if layer < layers && head < kv_heads {
            Ok(layer * kv_heads + head)
        } else {
            Err(CacheError::Head {
                layer,
                head,
                layers,
                kv_heads,
            })
        }
    }
}

impl Drop for KvCache {
    fn drop(&mut self) {
        self.heads.clear();
        self.pool.trim(None);
    }
}

/// New rows of one layer for one cache.
pub struct NewRows<'a> {
    /// The cache.
    pub cache: &'a mut KvCache,
    /// `[rows][kv_heads][head_dim]`, rotated.
    pub keys: &'a [f32],
    /// `[rows][kv_heads][head_dim]`
    pub values: &'a [f32],
}

/// [`KvCache::append`] for several caches of one pool, on all threads where that is worth while.
///
/// # Errors
/// As there; then no row has been added to any cache.
pub fn append_each(threads: &ThreadPool, layer: usize, tasks: &mut [NewRows]) -> Result<(), CacheError> {
    let mut writes = Vec::new();
    for index in 0..tasks.len() {
        let NewRows { cache, keys, values } = &mut tasks[index];
        match cache.make_room(layer, keys, values) {
            Ok(rows) => writes.push(rows),
            Err(error) => {
                tasks[..index].iter_mut().for_each(|task| task.cache.shrink());
                return Err(error);
            }
        }
    }
    let mut heads = Vec::new();
    for (task, &rows) in tasks.iter_mut().zip(&writes) {
        let KvCache { pool, heads: all } = &mut *task.cache;
        let KvConfig { kv_heads, head_dim, .. } = *pool.config();
        for (index, head) in all[layer * kv_heads..(layer + 1) * kv_heads].iter_mut().enumerate() {
            let start = (index * head_dim).min(task.keys.len());
            let (keys, values) = (&task.keys[start..], &task.values[start..]);
            heads.push((head, pool.layout(), keys, values, kv_heads * head_dim, rows));
        }
    }
    let write =
        |(head, layout, keys, values, stride, rows): &mut (&mut Head, &Layout, &[f32], &[f32], usize, usize)| {
            head.write(layout, keys, values, *stride, *rows);
        };
    if writes.iter().sum::<usize>() < ROWS_FOR_ALL {
        heads.iter_mut().for_each(write);
        return Ok(());
    }
    let count = heads.len();
    let heads = SharedMut::new(&mut heads);
    threads.run(count, &|item| {
        // SAFETY: every head is one item's.
        write(unsafe { &mut heads.part(item, 1)[0] });
    });
    Ok(())
}

/// Replaces a block that a fork also uses by a copy in a fresh one; returns what was replaced.
fn make_exclusive(block: &mut Block, fresh: &mut Vec<Block>) -> Option<Block> {
    if block.bytes_mut().is_some() {
        return None;
    }
    let mut copy = fresh.pop()?;
    let bytes = copy.bytes_mut().expect("a fresh block has one owner");
    bytes.copy_from_slice(block.bytes());
    Some(std::mem::replace(block, copy))
}
