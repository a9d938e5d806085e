//! What the cache has to do after a step.

use std::sync::Arc;

/// How the rows of one head change: apply the moves in order, then cut the head to `rows`.
///
/// In each move `(from, to)`, `from > to`, and `to` is a row whose entry has left or has already been moved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowPlan {
    /// Copies of one row over another.
    pub moves: Vec<(u32, u32)>,
    /// Rows left at the end.
    pub rows: usize,
}

impl RowPlan {
    /// Applies the plan to one value per row.
    ///
    /// # Panics
    /// If `values` has fewer rows than the plan was made for.
    pub fn apply<T: Copy>(&self, values: &mut Vec<T>) {
        for &(from, to) in &self.moves {
            values[to as usize] = values[from as usize];
        }
        values.truncate(self.rows);
    }

    /// Removes `evicted`, ascending, from `rows` rows.
    ///
    /// Few holes are filled from the tail, so that in the steady state of one in and one out a single row moves; when
    /// many leave, a compaction keeps the order.
    pub(crate) fn removing(evicted: &[u32], rows: usize) -> RowPlan {
        let left = rows - evicted.len();
        let moves = if evicted.len() <= (rows / 64).max(8) {
            let split = evicted.partition_point(|&row| (row as usize) < left);
            let (holes, gone_from_tail) = evicted.split_at(split);
            let mut gone_from_tail = gone_from_tail.iter().copied().peekable();
            let survivors = (left as u32..rows as u32).filter(|row| gone_from_tail.next_if_eq(row).is_none());
            survivors.zip(holes.iter().copied()).collect()
        } else {
            let mut holes = evicted.iter().copied().peekable();
            let first = evicted.first().copied().unwrap_or(rows as u32);
            let survivors = (first..rows as u32).filter(|row| holes.next_if_eq(row).is_none());
            survivors.zip(first..).collect()
        };
        RowPlan { moves, rows: left }
    }
}

/// What the cache has to do after a step, for all layers and KV heads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionPlan {
    /// No entry leaves.
    Nothing,
    /// The same rows in all heads of all evictable layers.
    Shared {
        /// The plan of each head.
        plan: RowPlan,
        /// One flag per layer: false where nothing may leave.
        layers: Arc<[bool]>,
    },
    /// One plan per layer, for all its heads; `None` where nothing may leave.
    PerLayer(Vec<Option<RowPlan>>),
    /// One plan per layer and KV head; no head where nothing may leave.
    PerHead(Vec<Vec<RowPlan>>),
}

impl EvictionPlan {
    /// The plan of one head, or `None` where no row leaves or moves.
    #[must_use]
    pub fn for_head(&self, layer: usize, head: usize) -> Option<&RowPlan> {
        match self {
            EvictionPlan::Nothing => None,
            EvictionPlan::Shared { plan, layers } => layers.get(layer).copied().unwrap_or(false).then_some(plan),
            EvictionPlan::PerLayer(plans) => plans.get(layer)?.as_ref(),
            EvictionPlan::PerHead(plans) => plans.get(layer)?.get(head),
        }
    }

    /// Whether no entry leaves.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, EvictionPlan::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_state_moves_one_row() {
        assert_eq!(
            RowPlan::removing(&[3], 101),
            RowPlan {
                moves: vec![(100, 3)],
                rows: 100
            }
        );
        assert_eq!(
            RowPlan::removing(&[100], 101),
            RowPlan {
                moves: vec![],
                rows: 100
            }
        );
    }

    #[test]
    fn many_holes_keep_the_order() {
        let evicted: Vec<u32> = (0..40).filter(|row| row % 4 != 1).collect();
        let plan = RowPlan::removing(&evicted, 40);
        let mut values: Vec<u32> = (0..40).collect();
        plan.apply(&mut values);
        assert_eq!(values, [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]);
        assert!(plan.moves.iter().all(|(from, to)| from > to));
    }

    #[test]
    fn every_small_removal_is_right() {
        for mask in 0u32..(1 << 12) {
            let evicted: Vec<u32> = (0..12).filter(|row| mask >> row & 1 == 1).collect();
            let plan = RowPlan::removing(&evicted, 12);
            let mut values: Vec<u32> = (0..12).collect();
            plan.apply(&mut values);
            values.sort_unstable();
            let expected: Vec<u32> = (0..12).filter(|row| mask >> row & 1 == 0).collect();
            assert_eq!(values, expected);
            assert!(plan.moves.iter().all(|(from, to)| from > to));
        }
    }
}
