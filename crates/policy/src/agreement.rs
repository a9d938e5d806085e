//! How alike are two rankings of the same entries?

use crate::selection::Selector;

/// Spearman's rank correlation: the correlation of the ranks, where equal scores share the mean of theirs. `None` where it
/// is not defined: lists of different lengths, fewer than two entries, all scores of one list equal, or one that is NaN.
#[must_use]
pub fn spearman<T: Copy + Into<f64>>(left: &[T], right: &[T]) -> Option<f64> {
    let has_nan = |scores: &[T]| scores.iter().any(|&score| score.into().is_nan());
    if left.len() != right.len() || has_nan(left) || has_nan(right) {
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
    (scale > 0.0).then(|| (product / scale).clamp(-1.0, 1.0))
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
    let positions: Vec<u32> = (0..u32::try_from(left.len()).ok()?).collect();
    let top = |scores: &[f32]| Selector::default().highest(&positions, scores, best);
    Some(jaccard(&top(left), &top(right)))
}

/// Jaccard index of two sets of rows, which of two empty ones is 1.
pub(crate) fn jaccard(one: &[u64], other: &[u64]) -> f64 {
    let (mut both, mut either) = (0, 0);
    for (one, other) in one.iter().zip(other) {
        both += (one & other).count_ones();
        either += (one | other).count_ones();
    }
    if either == 0 {
        return 1.0;
    }
    f64::from(both) / f64::from(either)
}

/// Ranks from 0, equal scores at the mean of their ranks.
fn ranks<T: Copy + Into<f64>>(scores: &[T]) -> Vec<f64> {
    let scores: Vec<f64> = scores.iter().map(|&score| score.into()).collect();
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
        assert_eq!(spearman::<f32>(&[], &[]), None);
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
