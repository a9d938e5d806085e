//! A task taken apart into the pointers that the items of a dispatch need, and the memory they share.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::kernel::{CHUNK_BLOCKS, Chunk, Kernels, Sight, TILE, Tile};
use super::{AttentionTask, GroupPooling, SPLIT_ROWS};
use crate::cache::{BLOCK_ROWS, KvCache, KvConfig, KvType, Layout};

/// One task, checked.
pub(super) struct Job<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) layer: usize,
    pub(super) rows: usize,
    /// Most entries that a row sees.
    window: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Query heads of a KV head.
    pub(super) group: usize,
    pub(super) dim: usize,
    /// In units of log2.
    pub(super) scale: f32,
    /// Layout of staged blocks.
    pub(super) staged: Layout,
    queries: *const f32,
    out: *mut f32,
    pub(super) mass: Option<MassJob>,
    borrow: PhantomData<&'a mut [f32]>,
}

/// The mass that a task asks for.
pub(super) struct MassJob {
    pub(super) pooling: GroupPooling,
    /// Number of the last rows to sum over.
    pub(super) window: usize,
    /// Per KV head, one number per entry: zeros, unless there are few rows: their merge overwrites.
    pub(super) heads: Vec<*mut f32>,
}

// SAFETY: the pointers lead to slices that the task borrows for as long as the job lives; items of a dispatch write
// disjoint parts of them (rows and heads of `out`, entries of a mass).
unsafe impl Sync for Job<'_> {}

impl<'a> Job<'a> {
    pub(super) fn new(task: &'a mut AttentionTask, heads: usize, scale: f32) -> Self {
        let config = *task.cache.pool().config();
        let KvConfig {
            layers,
            kv_heads,
            head_dim: dim,
            ..
        } = config;
        let numbers = task.rows * heads * dim;
        assert!(
            heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} query heads over {kv_heads} KV heads"
        );
        assert!(task.layer < layers, "layer {} of {layers}", task.layer);
        assert_eq!(task.queries.len(), numbers, "queries are [rows][heads][head_dim]");
        assert_eq!(task.out.len(), numbers, "out is [rows][heads][head_dim]");
        for head in 0..kv_heads {
            let held = task.cache.head(task.layer, head).rows();
            assert!(held >= task.rows, "{} queries over {held} cached rows", task.rows);
            let own = task.cache.head(task.layer, head).mask().reaches(held - task.rows);
            assert!(!own, "the rows of the queries themselves are not masked");
        }
        let window = task.window.unwrap_or(usize::MAX);
        assert!(window > 0, "a row sees itself at least");
        assert!(
            task.window.is_none() || task.mass.is_none(),
            "windowed layers are not scored"
        );
        let mass = task.mass.as_mut().map(|(mass, pooling, window)| {
            mass.heads.resize_with(kv_heads, Vec::new);
            for (head, numbers) in mass.heads.iter_mut().enumerate() {
                if !(1..=SPLIT_ROWS).contains(&task.rows) {
                    numbers.clear();
                }
                numbers.resize(task.cache.head(task.layer, head).rows(), 0.0);
            }
            MassJob {
                pooling: *pooling,
                window: (*window).min(task.rows),
                heads: mass.heads.iter_mut().map(Vec::as_mut_ptr).collect(),
            }
        });
        Self {
            cache: task.cache,
            layer: task.layer,
            rows: task.rows,
            window,
            heads,
            kv_heads,
            group: heads / kv_heads,
            dim,
            scale,
            staged: staged_layout(&config),
            queries: task.queries.as_ptr(),
            out: task.out.as_mut_ptr(),
            mass,
            borrow: PhantomData,
        }
    }

    /// Entries held by a KV head.
    pub(super) fn entries(&self, head: usize) -> usize {
        self.cache.head(self.layer, head).rows()
    }

    /// A query row sees the entries before this one of `entries` entries.
    pub(super) fn visible(&self, entries: usize, row: usize) -> usize {
        entries - (self.rows - 1 - row)
    }

    /// And only those from this one on.
    pub(super) fn hidden(&self, entries: usize, row: usize) -> usize {
        self.visible(entries, row).saturating_sub(self.window)
    }

    /// What these columns see of a chunk that begins at entry `first` of `entries`.
    pub(super) fn sight(&self, chunk: &Chunk, entries: usize, first: usize, columns: std::ops::Range<usize>) -> Sight {
        let mut sight = Sight::default();
        for (slot, column) in columns.enumerate() {
            let row = column / self.group;
            let end = self.visible(entries, row).saturating_sub(first).min(chunk.entries);
            let start = self.hidden(entries, row).saturating_sub(first);
            if start < end {
                (sight.start[slot], sight.end[slot]) = (start, end);
            }
        }
        sight
    }

    /// The query of column `column` of KV head `head`; columns count `[row][group]`.
    pub(super) fn query(&self, head: usize, column: usize) -> *const f32 {
        // SAFETY: inside the queries, by the check of their length.
        unsafe { self.queries.add(self.offset(head, column)) }
    }

    /// Its output.
    pub(super) fn output(&self, head: usize, column: usize) -> *mut f32 {
        // SAFETY: inside the output, by the check of its length.
        unsafe { self.out.add(self.offset(head, column)) }
    }

    fn offset(&self, head: usize, column: usize) -> usize {
        let (row, query) = (column / self.group, column % self.group);
        debug_assert!(row < self.rows && head < self.kv_heads);
        (row * self.heads + head * self.group + query) * self.dim
    }

    /// [`chunk_of`] a head.
    pub(super) fn chunk(&self, head: usize, first: usize, blocks: usize, end: usize) -> Chunk<'_> {
        chunk_of(self.cache, (self.layer, head), first, blocks, end)
    }

    /// [`stage`] with the memory's layout.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn stage<'b>(&'b self, kernels: &Kernels, chunk: Chunk<'b>, stage: &mut Vec<Line>) -> Chunk<'b> {
        // SAFETY: passed on.
        unsafe { self::stage(kernels, &self.staged, chunk, stage) }
    }
}

/// The blocks of a (layer, KV head) from entry `first` on, up to `blocks` of them and up to entry `end`.
pub(super) fn chunk_of(
    cache: &KvCache,
    (layer, head): (usize, usize),
    first: usize,
    blocks: usize,
    end: usize,
) -> Chunk<'_> {
    let mut chunk = Chunk::new(cache.pool().layout(), (end - first).min(blocks * BLOCK_ROWS));
    let table = cache.head(layer, head).blocks();
    let held = &table[first / BLOCK_ROWS..][..chunk.block_count()];
    for (slot, block) in chunk.blocks.iter_mut().zip(held) {
        *slot = block.bytes().as_ptr();
    }
    let masks = cache.head(layer, head).mask().words().iter().skip(first / BLOCK_ROWS);
    for (word, &masked) in chunk.excluded.iter_mut().zip(masks) {
        *word = masked;
    }
    chunk
}

/// The same chunk in the `f32` layout `staged`, converted into `stage` unless it has it already.
///
/// # Safety
/// As for [`Kernels`]; the result is valid until `stage` is used again.
pub(super) unsafe fn stage<'a>(
    kernels: &Kernels,
    staged: &'a Layout,
    chunk: Chunk<'a>,
    stage: &mut Vec<Line>,
) -> Chunk<'a> {
    if chunk.layout.kv_type == KvType::F32 {
        return chunk;
    }
    let lines = staged.bytes / size_of::<Line>();
    if stage.len() < CHUNK_BLOCKS * lines {
        stage.resize(CHUNK_BLOCKS * lines, Line::ZERO);
    }
    let mut result = Chunk {
        layout: staged,
        warm: true,
        ..chunk
    };
    for index in 0..chunk.block_count() {
        let target = stage[index * lines..].as_mut_ptr().cast::<f32>();
        // SAFETY: valid blocks by the caller; the target has the bytes of a staged block.
        unsafe { (kernels.stage)(chunk.layout, chunk.blocks[index], target) };
        result.blocks[index] = target.cast_const().cast();
    }
    result
}

/// The layout that the blocks of a cache are staged in.
pub(super) fn staged_layout(config: &KvConfig) -> Layout {
    Layout::new(&KvConfig {
        kv_type: KvType::F32,
        ..*config
    })
}

/// Cuts `columns` columns into the fewest tiles, of almost equal size.
pub(super) fn tiles(columns: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let count = columns.div_ceil(TILE);
    (0..count).map(move |tile| tile * columns / count..(tile + 1) * columns / count)
}

/// A tile of the given columns whose outputs are the job's.
pub(super) fn tile_of(job: &Job, head: usize, columns: std::ops::Range<usize>) -> Tile {
    let mut tile = Tile::new();
    for column in columns {
        tile.push(job.query(head, column), job.output(head, column));
    }
    tile
}

/// Sixteen numbers on a cache line of their own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; 16]);

impl Line {
    pub(super) const ZERO: Self = Self([0.0; 16]);
}

/// The numbers of some lines.
pub(super) fn numbers(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: a line is sixteen numbers and nothing else.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}

/// Numbers shared by the items of one dispatch, and their places.
pub(super) struct Scratch {
    pointer: *mut f32,
    numbers: usize,
}

// SAFETY: items use disjoint parts, or parts that an earlier item finished with (see `Split::run`).
unsafe impl Sync for Scratch {}

impl Scratch {
    /// Lends `numbers` numbers of no particular value; the memory is kept for the thread's next call.
    pub(super) fn with(numbers: usize, action: impl FnOnce(&Self)) {
        thread_local! {
            static MEMORY: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
        }
        let mut memory = MEMORY.take();
        if memory.len() * 16 < numbers {
            memory.resize(numbers.div_ceil(16), Line::ZERO);
        }
        action(&Self {
            pointer: memory.as_mut_ptr().cast(),
            numbers,
        });
        MEMORY.set(memory);
    }

    /// The place of number `offset`, with `length` numbers behind it.
    pub(super) fn at(&self, offset: usize, length: usize) -> *mut f32 {
        assert!(offset + length <= self.numbers, "scratch is planned before it is used");
        // SAFETY: inside the memory.
        unsafe { self.pointer.add(offset) }
    }

    /// Plans `length` numbers on their own cache lines; returns their offset.
    pub(super) fn plan(total: &mut usize, length: usize) -> usize {
        let offset = *total;
        *total += length.next_multiple_of(16);
        offset
    }
}

/// Lends the calling thread's memory for staged blocks.
pub(super) fn with_stage(action: impl FnOnce(&mut Vec<Line>)) {
    thread_local! {
        static STAGE: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    }
    let mut stage = STAGE.take();
    action(&mut stage);
    STAGE.set(stage);
}
