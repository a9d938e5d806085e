//! How alike are two rankings of the same entries?

/// Spearman's rank correlation: the correlation of the ranks, where equal scores share the mean of theirs. `None` where it
/// is not defined: lists of different lengths, fewer than two entries, or all scores of one list equal.
#[must_use]
pub fn spearman(left: &[f32], right: &[f32]) -> Option<f64> {
    if left.len() != right.len() {
        return None;
    }
    let (left, right) = (ranks(left), ranks(right));
    // The mean of ranks 0 to n - 1, with or without ties.
    let mean = (left.len() as f64 - 1.0) / 2.0;
    let (mut product, mut left_square, mut right_square) = (0.0, 0.0, 0.0);
    for (left, right) in left.iter().zip(&right) {
        let (left, right) = (left - mean, right - mean);
        product += left * right;
        left_square += left * left;
        right_square += right * right;
    }
    let scale = (left_square * right_square).sqrt();
    (scale > 0.0).then(|| product / scale)
}

/// Jaccard index of the sets of the `best` highest entries of each list: what both keep over what either keeps. Of equal
/// scores the later entry counts as the higher one, as in every ranking here. `None` where it is not defined: lists of
/// different lengths, or nothing kept.
#[must_use]
pub fn top_jaccard(left: &[f32], right: &[f32], best: usize) -> Option<f64> {
    let best = best.min(left.len());
    if left.len() != right.len() || best == 0 {
        return None;
    }
    let (left, right) = (top(left, best), top(right, best));
    let both = left.iter().zip(&right).filter(|&(left, right)| *left && *right).count();
    Some(both as f64 / (2 * best - both) as f64)
}

/// Ranks from 0, equal scores at the mean of their ranks.
fn ranks(scores: &[f32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_unstable_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    let mut ranks = vec![0.0; scores.len()];
    let mut first = 0;
    for equal in order.chunk_by(|&a, &b| scores[a] == scores[b]) {
        let rank = first as f64 + (equal.len() as f64 - 1.0) / 2.0;
        for &entry in equal {
            ranks[entry] = rank;
        }
        first += equal.len();
    }
    ranks
}

/// Whether each entry is among the `best` highest, 1 to all of them.
fn top(scores: &[f32], best: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Adding zero makes a positive zero of a negative one, which is its equal.
    order.select_nth_unstable_by(best - 1, |&a, &b| {
        (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)).then(b.cmp(&a))
    });
    let mut top = vec![false; scores.len()];
    for &entry in &order[..best] {
        top[entry] = true;
    }
    top
}

#[cfg(test)]
mod tests {
    use super::{spearman, top_jaccard};

    fn close(found: Option<f64>, expected: f64) {
        assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?} is not {expected}");
    }

    #[test]
    fn spearman_sees_the_order_alone() {
        close(spearman(&[1.0, 2.0, 3.0, 4.0], &[0.0, 0.1, 100.0, 101.0]), 1.0);
        close(spearman(&[1.0, 2.0, 3.0, 4.0], &[9.0, 7.0, 5.0, -3.0]), -1.0);
        // 1 - 6 Σd² / (n (n² - 1)), with d = 1, 1, 0, 1, 1.
        close(
            spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 3.0, 6.0, 4.5]),
            1.0 - 6.0 * 4.0 / 120.0,
        );
    }

    #[test]
    fn equal_scores_share_their_rank() {
        // Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: 4.5 / √(4.5 · 5).
        close(
            spearman(&[1.0, 2.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 4.0]),
            4.5 / (4.5_f64 * 5.0).sqrt(),
        );
        close(spearman(&[0.0, -0.0, 1.0], &[-0.0, 0.0, 1.0]), 1.0);
    }

    #[test]
    fn what_has_no_order_has_no_correlation() {
        assert_eq!(spearman(&[1.0; 3], &[1.0, 2.0, 3.0]), None);
        assert_eq!(spearman(&[1.0], &[1.0]), None);
        assert_eq!(spearman(&[], &[]), None);
        assert_eq!(spearman(&[1.0, 2.0], &[1.0, 2.0, 3.0]), None);
    }

    #[test]
    fn jaccard_of_the_highest() {
        let left = [5.0, 4.0, 3.0, 2.0, 1.0];
        close(top_jaccard(&left, &left, 2), 1.0);
        close(top_jaccard(&left, &[1.0, 2.0, 3.0, 4.0, 5.0], 2), 0.0);
        close(top_jaccard(&left, &[1.0, 5.0, 4.0, 2.0, 3.0], 3), 2.0 / 4.0);
        close(top_jaccard(&left, &[1.0, 2.0, 3.0, 4.0, 5.0], 9), 1.0);
        assert_eq!(top_jaccard(&left, &left, 0), None);
        assert_eq!(top_jaccard(&left, &left[1..], 2), None);
    }

    #[test]
    fn of_equals_the_later_is_kept() {
        close(top_jaccard(&[1.0; 4], &[0.0, 0.0, 5.0, 5.0], 2), 1.0);
        close(top_jaccard(&[0.0, 0.0, -0.0, -0.0], &[0.0, 0.0, 5.0, 5.0], 2), 1.0);
    }
}
