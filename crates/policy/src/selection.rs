//! Which rows leave: the lowest-ranked, found in linear time.
//!
//! Every row gets a 64-bit key whose order is the ranking: what is protected, then what is rescued by rank, then by
//! utility; among equals the later position stays. Keys of one ranking are distinct, so selection never depends on the
//! order of rows, and protection never on a tie.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::adaptive::RowSet;
use crate::protect::Guard;
use crate::ranking::{Ranking, UNRANKED};

/// Buffers of the selection, kept between steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    keys: Vec<u64>,
    head_keys: Vec<Vec<u64>>,
    pool: Vec<(u64, u32)>,
    heap: Vec<Reverse<(u64, u32)>>,
    chosen: Vec<Vec<u32>>,
}

/// What to rank by: the rows, their (possibly smoothed) utilities and what is protected.
#[derive(Clone, Copy)]
pub(crate) struct Candidates<'a> {
    pub(crate) ranking: &'a Ranking,
    pub(crate) values: &'a [f32],
    pub(crate) guard: &'a Guard,
    /// Whether neither protection nor rescue applies, which allows the plainest scan.
    pub(crate) plain: bool,
}

// Above all keys of finite utilities: those end at 0xff7f_ffff.
const PROTECTED: u32 = u32::MAX;
const BEST_RESCUED: u32 = u32::MAX - 1;
const WORST_RESCUED: u32 = 0xff80_0001;

// The key no row has, as positions end one below: that of a row already chosen.
const GONE: u64 = u64::MAX;

/// The bits of a finite float as a number with the same order; −0 equals 0.
pub(crate) fn ordered(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

fn joined(class: u32, position: u32) -> u64 {
    u64::from(class) << 32 | u64::from(position)
}

impl Candidates<'_> {
    fn key(&self, row: usize) -> u64 {
        let position = self.ranking.positions[row];
        let class = if self.plain {
            ordered(self.values[row])
        } else if self.guard.protects(position) {
            PROTECTED
        } else {
            match self.ranking.best_rank.get(row) {
                Some(&rank) if rank != UNRANKED => BEST_RESCUED.saturating_sub(rank).max(WORST_RESCUED),
                _ => ordered(self.values[row]),
            }
        };
        joined(class, position)
    }

    fn rows(&self) -> usize {
        self.values.len()
    }

    fn write_keys(&self, keys: &mut Vec<u64>) {
        keys.clear();
        if self.plain {
            let rows = self.values.iter().zip(&self.ranking.positions);
            keys.extend(rows.map(|(&value, &position)| joined(ordered(value), position)));
        } else {
            keys.extend((0..self.rows()).map(|row| self.key(row)));
        }
    }

    /// The row with the smallest key.
    fn lowest(&self) -> Option<u32> {
        if self.plain {
            self.lowest_plain()
        } else {
            lowest_key((0..self.rows()).map(|row| self.key(row))).map(|(_, row)| row)
        }
    }

    // Twice over the values, each time in a loop the compiler vectorises: the steady state of every step.
    #[allow(
        clippy::float_cmp,
        reason = "the least value is one of the values, bit for bit or as the other zero"
    )]
    #[allow(
        clippy::needless_bitwise_bool,
        reason = "a branch per value would keep the loop scalar"
    )]
    fn lowest_plain(&self) -> Option<u32> {
        let least = least(self.values);
        let mut found: Option<(u64, u32)> = None;
        for (chunk_index, chunk) in self.values.chunks(CHUNK).enumerate() {
            if !chunk.iter().fold(false, |any, &value| any | (value == least)) {
                continue;
            }
            for (offset, _) in chunk.iter().enumerate().filter(|&(_, &value)| value == least) {
                let row = chunk_index * CHUNK + offset;
                let candidate = (self.key(row), row as u32);
                found = Some(found.map_or(candidate, |best| best.min(candidate)));
            }
        }
        found.map(|(_, row)| row)
    }
}

/// The smallest key and its row; `None` where every key is the one no row has.
fn lowest_key(keys: impl Iterator<Item = u64>) -> Option<(u64, u32)> {
    let mut lowest = (GONE, 0);
    for (key, row) in keys.zip(0..) {
        // A branch seldom taken, where a minimum over pairs compares both halves each time.
        if key < lowest.0 {
            lowest = (key, row);
        }
    }
    (lowest.0 != GONE).then_some(lowest)
}

const CHUNK: usize = 64;

fn least(values: &[f32]) -> f32 {
    let smaller = |a: f32, b: f32| if b < a { b } else { a };
    let mut lanes = [f32::INFINITY; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = smaller(*lane, value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::INFINITY, smaller)
}

impl Selector {
    /// The fewest lowest-ranked rows that together take at least `excess` entries, in ascending row order, where row i is
    /// `holders[i]` entries.
    pub(crate) fn lowest_holding(&mut self, candidates: Candidates<'_>, holders: &[u32], excess: usize) -> &[u32] {
        self.chosen.resize_with(self.chosen.len().max(1), Vec::new);
        let chosen = &mut self.chosen[0];
        chosen.clear();
        // Sorted only as far as rows leave, which in the steady state is not far.
        let mut heap = std::mem::take(&mut self.heap);
        heap.clear();
        heap.extend((0..candidates.rows()).map(|row| Reverse((candidates.key(row), row as u32))));
        let mut heap = BinaryHeap::from(heap);
        let mut taken = 0;
        while taken < excess
            && let Some(Reverse((_, row))) = heap.pop()
        {
            taken += holders[row as usize] as usize;
            chosen.push(row);
        }
        self.heap = heap.into_vec();
        chosen.sort_unstable();
        chosen
    }

    /// The `count` lowest-ranked rows in ascending row order; `count` is at most the number of rows.
    pub(crate) fn lowest(&mut self, candidates: Candidates<'_>, count: usize) -> &[u32] {
        self.chosen.resize_with(self.chosen.len().max(1), Vec::new);
        let chosen = &mut self.chosen[0];
        chosen.clear();
        match count {
            0 => {}
            1 => chosen.extend(candidates.lowest()),
            _ => {
                candidates.write_keys(&mut self.keys);
                if count >= self.keys.len() {
                    chosen.extend(0..self.keys.len() as u32);
                } else {
                    // The selection permutes the keys, so they are made anew rather than kept twice.
                    let threshold = *self.keys.select_nth_unstable(count - 1).1;
                    chosen
                        .extend((0..candidates.rows() as u32).filter(|&row| candidates.key(row as usize) <= threshold));
                }
            }
        }
        chosen
    }

    /// The `count` highest-ranked rows by `values` alone, or all where there are no more.
    pub(crate) fn highest(&mut self, positions: &[u32], values: &[f32], count: usize) -> RowSet {
        let keys = || {
            values
                .iter()
                .zip(positions)
                .map(|(&value, &position)| joined(ordered(value), position))
        };
        self.keys.clear();
        self.keys.extend(keys());
        let least = match values.len().checked_sub(count) {
            None | Some(0) => 0,
            Some(below) => *self.keys.select_nth_unstable(below).1,
        };
        let mut rows = vec![0; values.len().div_ceil(64)];
        for (row, key) in keys().enumerate() {
            rows[row / 64] |= u64::from(key >= least) << (row % 64);
        }
        rows
    }

    /// The `count` lowest-ranked rows over several heads, of which each keeps its best `safeguard`; one ascending list of
    /// rows per head. `count` is at most what the safeguards leave.
    pub(crate) fn lowest_of_heads(&mut self, heads: &[Candidates<'_>], safeguard: usize, count: usize) -> &[Vec<u32>] {
        self.chosen.resize_with(self.chosen.len().max(heads.len()), Vec::new);
        for chosen in &mut self.chosen {
            chosen.clear();
        }
        if count <= 2 * heads.len() {
            self.few_of_heads(heads, safeguard, count);
        } else {
            self.many_of_heads(heads, safeguard, count);
        }
        &self.chosen[..heads.len()]
    }

    // One scan per head, and one more for each row that leaves.
    fn few_of_heads(&mut self, heads: &[Candidates<'_>], safeguard: usize, count: usize) {
        self.head_keys
            .resize_with(self.head_keys.len().max(heads.len()), Vec::new);
        let mut lowest = Vec::with_capacity(heads.len());
        for (head, keys) in heads.iter().zip(&mut self.head_keys) {
            head.write_keys(keys);
            lowest.push(if keys.len() > safeguard {
                lowest_key(keys.iter().copied())
            } else {
                None
            });
        }
        for _ in 0..count {
            let of_head = |(head, low): (usize, &Option<(u64, u32)>)| low.map(|(key, row)| (key, head, row));
            let Some((_, head, row)) = lowest.iter().enumerate().filter_map(of_head).min() else {
                break;
            };
            let (keys, chosen) = (&mut self.head_keys[head], &mut self.chosen[head]);
            chosen.push(row);
            keys[row as usize] = GONE;
            let is_spare = keys.len() - chosen.len() > safeguard;
            lowest[head] = if is_spare {
                lowest_key(keys.iter().copied())
            } else {
                None
            };
        }
        for chosen in &mut self.chosen {
            chosen.sort_unstable();
        }
    }

    fn many_of_heads(&mut self, heads: &[Candidates<'_>], safeguard: usize, count: usize) {
        self.pool.clear();
        // The largest key each head may lose, above which its safeguard begins.
        let mut limits = Vec::with_capacity(heads.len());
        for (index, head) in heads.iter().enumerate() {
            let losable = head.rows().saturating_sub(safeguard);
            if losable == 0 {
                limits.push(None);
                continue;
            }
            head.write_keys(&mut self.keys);
            limits.push(Some(*self.keys.select_nth_unstable(losable - 1).1));
            self.pool
                .extend(self.keys[..losable].iter().map(|&key| (key, index as u32)));
        }
        let count = count.min(self.pool.len());
        if count == 0 {
            return;
        }
        let threshold = *self.pool.select_nth_unstable(count - 1).1;
        for (index, (head, limit)) in heads.iter().zip(limits).enumerate() {
            let Some(limit) = limit else { continue };
            let leaves = |&row: &u32| {
                let key = head.key(row as usize);
                key <= limit && (key, index as u32) <= threshold
            };
            self.chosen[index].extend((0..head.rows() as u32).filter(leaves));
        }
    }

    /// Notes in `ranking.best_rank` where a score ranks its best `count` rows.
    pub(crate) fn note_best(&mut self, ranking: &mut Ranking, score: &[f32], count: usize) {
        ranking.best_rank.resize(score.len(), UNRANKED);
        let count = count.min(score.len());
        if count == 0 {
            return;
        }
        self.pool.clear();
        let key = |row: usize| joined(ordered(score[row]), ranking.positions[row]);
        self.pool.extend((0..score.len()).map(|row| (key(row), row as u32)));
        self.pool.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
        let best = &mut self.pool[..count];
        best.sort_unstable_by(|a, b| b.cmp(a));
        for (rank, &(_, row)) in best.iter().enumerate() {
            let noted = &mut ranking.best_rank[row as usize];
            *noted = (*noted).min(rank as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protect::{Protect, Protection};

    fn ranking(positions: &[u32], utility: &[f32]) -> Ranking {
        Ranking {
            positions: positions.to_vec(),
            utility: utility.to_vec(),
            ..Ranking::default()
        }
    }

    fn lowest(ranking: &Ranking, protect: &Protect, budget: usize, count: usize) -> Vec<u32> {
        let guard = Protection::new(protect, budget, 0).guard(budget, 100);
        let plain = guard.is_empty(100) && ranking.best_rank.is_empty();
        let candidates = Candidates {
            ranking,
            values: &ranking.utility,
            guard: &guard,
            plain,
        };
        Selector::default().lowest(candidates, count).to_vec()
    }

    #[test]
    fn order_of_floats() {
        let values = [f32::MIN, -1.0, -f32::MIN_POSITIVE, 0.0, 1e-45, 1.0, f32::MAX];
        assert!(values.windows(2).all(|pair| ordered(pair[0]) < ordered(pair[1])));
        assert_eq!(ordered(-0.0), ordered(0.0));
        assert!(ordered(f32::MAX) < WORST_RESCUED);
    }

    #[test]
    fn the_later_position_of_equals_stays() {
        // Rows are not in the order of positions.
        let ranking = ranking(&[5, 2, 9, 7], &[0.0, -0.0, 0.0, 1.0]);
        assert_eq!(lowest(&ranking, &Protect::NONE, 3, 1), [1]);
        assert_eq!(lowest(&ranking, &Protect::NONE, 2, 2), [0, 1]);
        assert_eq!(lowest(&ranking, &Protect::NONE, 1, 3), [0, 1, 2]);
        assert_eq!(lowest(&ranking, &Protect::NONE, 1, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn protection_and_rescue_rank_above_utility() {
        let mut ranking = ranking(&[0, 1, 2, 3, 4], &[0.0, 9.0, 0.0, f32::MAX, 5.0]);
        let protect = Protect {
            sinks: 1,
            ..Protect::NONE
        };
        assert_eq!(lowest(&ranking, &protect, 4, 1), [2]);
        ranking.best_rank = vec![UNRANKED, UNRANKED, 1, UNRANKED, 0];
        assert_eq!(lowest(&ranking, &protect, 4, 1), [1]);
        assert_eq!(lowest(&ranking, &protect, 3, 2), [1, 3]);
        assert_eq!(lowest(&ranking, &protect, 2, 3), [1, 2, 3]);
        assert_eq!(lowest(&ranking, &protect, 1, 4), [1, 2, 3, 4]);
    }

    #[test]
    fn few_and_many_agree() {
        let hash = |n: u32| (n.wrapping_mul(2_654_435_761) >> 20) as f32;
        let rankings: Vec<Ranking> = (0..4u32)
            .map(|head| {
                let rows = 20 + head;
                let utility: Vec<f32> = (0..rows).map(|row| hash(row * 7 + head) % 11.0).collect();
                ranking(&(0..rows).rev().collect::<Vec<_>>(), &utility)
            })
            .collect();
        let guard = Protection::new(&Protect::NONE, 5, 0).guard(5, 100);
        for plain in [true, false] {
            let heads: Vec<Candidates<'_>> = rankings
                .iter()
                .map(|ranking| Candidates {
                    ranking,
                    values: &ranking.utility,
                    guard: &guard,
                    plain,
                })
                .collect();
            for safeguard in [0, 5, 18, 20] {
                for count in 0..=4 * (20 - safeguard) {
                    let (mut few, mut many) = (Selector::default(), Selector::default());
                    few.chosen.resize_with(4, Vec::new);
                    many.chosen.resize_with(4, Vec::new);
                    few.few_of_heads(&heads, safeguard, count);
                    many.many_of_heads(&heads, safeguard, count);
                    assert_eq!(few.chosen, many.chosen);
                    assert_eq!(few.chosen.iter().map(Vec::len).sum::<usize>(), count);
                }
            }
        }
    }

    #[test]
    fn best_ranks_are_the_minimum_over_scores() {
        let mut ranking = ranking(&[0, 1, 2, 3], &[0.0; 4]);
        let mut selector = Selector::default();
        selector.note_best(&mut ranking, &[1.0, 4.0, 3.0, 2.0], 2);
        selector.note_best(&mut ranking, &[5.0, 0.0, 9.0, 0.0], 2);
        assert_eq!(ranking.best_rank, [1, 0, 0, UNRANKED]);
    }
}
