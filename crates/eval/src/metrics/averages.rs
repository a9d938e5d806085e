//! Which single numbers do the benchmarks publish?

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// RULER's score of the longest context that counts as mastered: Llama-2-7B at 4k, in percent.
const MASTERED: f64 = 85.6;

/// RULER's averages over lengths.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LengthAverages {
    /// Plain mean.
    pub average: f64,
    /// Weights 1, 2, 3, … from the shortest length: long contexts matter more.
    pub increasing: f64,
    /// Weights …, 3, 2, 1: short contexts matter more.
    pub decreasing: f64,
}

/// RULER's averages of the scores of several lengths, the shortest first; `None` without any.
#[must_use]
pub fn length_averages(scores: &[f64]) -> Option<LengthAverages> {
    let count = scores.len();
    let weighted = |weight: &dyn Fn(usize) -> usize| {
        let total: usize = (0..count).map(weight).sum();
        scores
            .iter()
            .enumerate()
            .map(|(index, score)| weight(index) as f64 * score)
            .sum::<f64>()
            / total as f64
    };
    (count > 0).then(|| LengthAverages {
        average: weighted(&|_| 1),
        increasing: weighted(&|index| index + 1),
        decreasing: weighted(&|index| count - index),
    })
}

/// RULER's effective length: the longest whose score in percent exceeds 85.6; `None` if none does.
#[must_use]
pub fn effective_length(scores: &BTreeMap<usize, f64>) -> Option<usize> {
    scores
        .iter()
        .rev()
        .find(|(_, score)| **score > MASTERED)
        .map(|(length, _)| *length)
}

/// `LongBench`'s average, the mean of the categories' means, from the category and score of each task; `None` without any.
/// Papers on caches mostly give the plain mean of their tasks instead, so say which it is.
#[must_use]
pub fn category_average<'a>(tasks: impl IntoIterator<Item = (&'a str, f64)>) -> Option<f64> {
    let mut categories: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (category, score) in tasks {
        categories.entry(category).or_default().push(score);
    }
    let means = categories
        .values()
        .map(|scores| scores.iter().sum::<f64>() / scores.len() as f64);
    (!categories.is_empty()).then(|| means.sum::<f64>() / categories.len() as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{category_average, effective_length, length_averages};

    #[test]
    fn averages_of_a_published_row() {
        // Gemini-1.5-Pro in the table of the RULER repository: 95.8, 95.5 and 96.1.
        let averages = length_averages(&[96.7, 95.8, 96.0, 95.9, 95.9, 94.4]).unwrap();
        let rounded = [averages.average, averages.increasing, averages.decreasing].map(|a| (a * 10.0).round() / 10.0);
        assert_eq!(rounded, [95.8, 95.5, 96.1]);
        assert_eq!(length_averages(&[]), None);
    }

    #[test]
    fn the_effective_length_is_the_longest_that_is_mastered() {
        let scores = BTreeMap::from([(4096, 90.0), (8192, 85.6), (16_384, 85.7), (32_768, 10.0)]);
        assert_eq!(effective_length(&scores), Some(16_384));
        assert_eq!(effective_length(&BTreeMap::from([(4096, 85.6)])), None);
    }

    #[test]
    fn categories_weigh_the_same() {
        assert_eq!(
            category_average([("qa", 10.0), ("qa", 30.0), ("code", 50.0)]),
            Some(35.0)
        );
        assert_eq!(category_average([]), None);
    }
}
