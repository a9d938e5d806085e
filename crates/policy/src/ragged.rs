//! One ranking over heads that hold different entries, as a prefill compression leaves them.
//!
//! The ranking has a row for every position that at least one head holds. What heads show of their own rows is brought
//! to the ranking's rows, and what leaves the ranking leaves every head that holds it. An entry costs memory in each
//! head that holds it, so budgets count entries over all heads.

use std::ops::Range;

use crate::plan::RowPlan;
use crate::ranking::SPARE_ROWS;

/// Which heads hold the rows of a ranking.
#[derive(Debug, Clone)]
pub(crate) struct Ragged {
    /// The heads that share the ranking: layer after layer, head after head.
    pub(crate) heads: Vec<Holding>,
    /// For each row of the ranking, how many heads hold it.
    pub(crate) holders: Vec<u32>,
    /// Entries over all heads: the sum of `holders`.
    entries: usize,
    /// Where each row goes in an eviction; kept between steps.
    new_row: Vec<u32>,
}

/// What one head holds, in the row order of its cache.
#[derive(Debug, Clone)]
pub(crate) struct Holding {
    /// The row of the ranking.
    pub(crate) rows: Vec<u32>,
    pub(crate) positions: Vec<u32>,
}

/// A row of the ranking that has left.
const GONE: u32 = u32::MAX;

impl Ragged {
    /// The positions that heads hold together, ascending, and who holds them.
    pub(crate) fn new(held: &[&[u32]]) -> (Vec<u32>, Ragged) {
        let mut positions: Vec<u32> = held.iter().copied().flatten().copied().collect();
        positions.sort_unstable();
        positions.dedup();
        let mut holders = vec![0; positions.len()];
        // A table, as a search per entry would be slower than the prefill is long.
        let end = positions.last().map_or(0, |&last| last as usize + 1);
        let mut row_of = vec![GONE; end];
        for (row, &position) in (0..).zip(&positions) {
            row_of[position as usize] = row;
        }
        let heads = held
            .iter()
            .map(|held| {
                let rows: Vec<u32> = held.iter().map(|&position| row_of[position as usize]).collect();
                for &row in &rows {
                    holders[row as usize] += 1;
                }
                Holding {
                    rows,
                    positions: held.to_vec(),
                }
            })
            .collect();
        let entries = held.iter().map(|held| held.len()).sum();
        let ragged = Ragged {
            heads,
            holders,
            entries,
            new_row: Vec::new(),
        };
        (positions, ragged)
    }

    /// Entries over all heads.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// New positions in every head, as rows from `first_row` on.
    pub(crate) fn append(&mut self, first_row: usize, positions: &Range<u32>) {
        let rows = first_row as u32..(first_row + positions.len()) as u32;
        for head in &mut self.heads {
            head.rows.extend(rows.clone());
            head.positions.extend(positions.clone());
        }
        self.holders.resize(rows.end as usize, self.heads.len() as u32);
        self.entries += self.heads.len() * positions.len();
    }

    /// Takes rows of the ranking, ascending, out of every head; `plan` is what closes their holes in the ranking.
    pub(crate) fn evict(&mut self, rows: &[u32], plan: &RowPlan) -> Vec<RowPlan> {
        let new_row = &mut self.new_row;
        new_row.clear();
        new_row.extend(0..self.holders.len() as u32);
        for &row in rows {
            new_row[row as usize] = GONE;
            self.entries -= self.holders[row as usize] as usize;
        }
        let mut leaving = Vec::new();
        let plans = self
            .heads
            .iter_mut()
            .map(|head| {
                leaving.clear();
                let gone = |&(_, &row): &(u32, &u32)| new_row[row as usize] == GONE;
                leaving.extend((0..).zip(&head.rows).filter(gone).map(|(row, _)| row));
                let plan = RowPlan::removing(&leaving, head.rows.len());
                plan.apply(&mut head.rows);
                plan.apply(&mut head.positions);
                shrink(&mut head.rows);
                shrink(&mut head.positions);
                plan
            })
            .collect();
        for &(from, to) in &plan.moves {
            new_row[from as usize] = to;
        }
        if !plan.moves.is_empty() {
            for row in self.heads.iter_mut().flat_map(|head| &mut head.rows) {
                *row = new_row[*row as usize];
            }
        }
        plan.apply(&mut self.holders);
        shrink(&mut self.holders);
        plans
    }
}

/// Gives back what a prompt needed and decoding does not.
fn shrink(values: &mut Vec<u32>) {
    if values.capacity() > 2 * values.len() + 2 * SPARE_ROWS {
        values.shrink_to(values.len() + SPARE_ROWS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_union_of_what_heads_hold() {
        let (positions, ragged) = Ragged::new(&[&[4, 1], &[1, 7, 9]]);
        assert_eq!(positions, [1, 4, 7, 9]);
        assert_eq!(ragged.holders, [2, 1, 1, 1]);
        assert_eq!(
            (ragged.heads[0].rows.as_slice(), ragged.entries()),
            ([1, 0].as_slice(), 5)
        );
    }

    #[test]
    fn what_leaves_the_ranking_leaves_every_head() {
        let (mut positions, mut ragged) = Ragged::new(&[&[4, 1], &[1, 7, 9]]);
        ragged.append(4, &(10..12));
        positions.extend(10..12);
        // Positions 1 and 9.
        let plan = RowPlan::removing(&[0, 3], 6);
        plan.apply(&mut positions);
        let plans = ragged.evict(&[0, 3], &plan);
        assert_eq!(plans.iter().map(|plan| plan.rows).collect::<Vec<_>>(), [3, 3]);
        for (head, expected) in ragged.heads.iter().zip([[4, 10, 11], [7, 10, 11]]) {
            let mut held = head.positions.clone();
            held.sort_unstable();
            assert_eq!(held, expected);
            let by_row: Vec<u32> = head.rows.iter().map(|&row| positions[row as usize]).collect();
            assert_eq!(by_row, head.positions);
        }
        assert_eq!(ragged.entries(), 6);
    }
}
