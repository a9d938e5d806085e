//! Rows that stay in memory but get no attention.

use super::{BLOCK_ROWS, CacheError, HeadPlan, KvCache};

/// The masked rows of a head.
#[derive(Clone, Default)]
pub(crate) struct Mask {
    /// Bit `i` of a word is row `i` of that block; words at the end may be missing.
    words: Vec<u32>,
    count: usize,
}

impl Mask {
    /// One word per block, none for the blocks behind the last masked row.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether row `first` or a later one is masked.
    pub(crate) fn reaches(&self, first: usize) -> bool {
        (first..self.words.len() * BLOCK_ROWS).any(|row| self.get(row))
    }

    /// The mask goes where its rows go.
    pub(super) fn follow(&mut self, plan: &HeadPlan<'_>) {
        if self.count == 0 {
            return;
        }
        for &(from, to) in plan.moves {
            self.set(to as usize, self.get(from as usize));
        }
        for row in plan.rows..self.words.len() * BLOCK_ROWS {
            self.set(row, false);
        }
        self.words.truncate(plan.rows.div_ceil(BLOCK_ROWS));
    }

    fn get(&self, row: usize) -> bool {
        let word = self.words.get(row / BLOCK_ROWS).copied().unwrap_or(0);
        word >> (row % BLOCK_ROWS) & 1 == 1
    }

    fn set(&mut self, row: usize, masked: bool) {
        if self.get(row) == masked {
            return;
        }
        if self.words.len() <= row / BLOCK_ROWS {
            self.words.resize(row / BLOCK_ROWS + 1, 0);
        }
        self.words[row / BLOCK_ROWS] ^= 1 << (row % BLOCK_ROWS);
        self.count = if masked { self.count + 1 } else { self.count - 1 };
    }
}

impl KvCache {
    /// Masks rows of a head for good: they stay in memory and are still run over, but get probability 0, as if they had
    /// been evicted. It says what an eviction would do to the answers without doing it. The mask goes with its rows
    /// through later evictions; new rows are not masked.
    ///
    /// # Errors
    /// If the head does not exist or does not hold one of the rows; then nothing has changed.
    pub fn mask(&mut self, layer: usize, head: usize, rows: &[u32]) -> Result<(), CacheError> {
        let index = self.index(layer, head)?;
        let head = &mut self.heads[index];
        if let Some(&row) = rows.iter().find(|&&row| row as usize >= head.rows) {
            return Err(CacheError::Mask { row, rows: head.rows });
        }
        for &row in rows {
            head.mask.set(row as usize, true);
        }
        Ok(())
    }

    /// Number of masked rows of a head; 0 for one that does not exist.
    #[must_use]
    pub fn masked(&self, layer: usize, head: usize) -> usize {
        self.index(layer, head).map_or(0, |index| self.heads[index].mask.count)
    }
}
