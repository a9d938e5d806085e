//! How much of a reference do a text's words cover, as the Python package `rouge` 1.0.1 counts it?
//!
//! Everything there is a set of distinct words or word pairs, and ROUGE-L is the summary-level union of longest common
//! subsequences. Other packages of the same name give other numbers.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::python;

/// Recall, precision and F1 of one measure, each in [0, 1].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Share of the reference that is covered.
    pub r: f64,
    /// Share of the hypothesis that covers something.
    pub p: f64,
    /// `2pr / (p + r + 1e-8)`.
    pub f: f64,
}

/// The three measures that the package reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rouge {
    /// Distinct words.
    #[serde(rename = "rouge-1")]
    pub rouge_1: Overlap,
    /// Distinct pairs of neighbouring words.
    #[serde(rename = "rouge-2")]
    pub rouge_2: Overlap,
    /// Distinct words on a longest common subsequence of some pair of sentences.
    #[serde(rename = "rouge-l")]
    pub rouge_l: Overlap,
}

impl Rouge {
    /// Compares two texts; `None` where the package raises, which is when one has nothing but full stops.
    ///
    /// Not symmetric: which of several longest subsequences is found depends on which text is which. Sentences end at `.`
    /// and nowhere else. The package's recursion limit (about 990 words in one sentence) is not copied.
    #[must_use]
    pub fn between(hypothesis: &str, reference: &str) -> Option<Self> {
        let (hypothesis, reference) = (sentences(hypothesis), sentences(reference));
        if hypothesis.is_empty() || reference.is_empty() {
            return None;
        }
        let (hypothesis, reference) = (words(&hypothesis), words(&reference));
        Some(Self {
            rouge_1: n_grams(&hypothesis, &reference, 1),
            rouge_2: n_grams(&hypothesis, &reference, 2),
            rouge_l: longest_common(&hypothesis, &reference),
        })
    }
}

/// ROUGE-L F of a prediction; 0 where the package raises.
pub(super) fn rouge_l_f(hypothesis: &str, reference: &str) -> f64 {
    Rouge::between(hypothesis, reference).map_or(0.0, |rouge| rouge.rouge_l.f)
}

/// Pieces between full stops, white space collapsed. A piece of only white space stays, as an empty sentence.
fn sentences(text: &str) -> Vec<String> {
    text.split('.')
        .filter(|piece| !piece.is_empty())
        .map(python::collapse_space)
        .collect()
}

/// An empty sentence has one word, the empty one.
fn words(sentences: &[String]) -> Vec<Vec<&str>> {
    sentences.iter().map(|sentence| sentence.split(' ').collect()).collect()
}

fn n_grams(hypothesis: &[Vec<&str>], reference: &[Vec<&str>], n: usize) -> Overlap {
    let (hypothesis, reference) = (hypothesis.concat(), reference.concat());
    let hypothesis: HashSet<_> = hypothesis.windows(n).collect();
    let reference: HashSet<_> = reference.windows(n).collect();
    overlap(
        hypothesis.intersection(&reference).count(),
        hypothesis.len(),
        reference.len(),
    )
}

fn longest_common(hypothesis: &[Vec<&str>], reference: &[Vec<&str>]) -> Overlap {
    let mut union = HashSet::new();
    for sentence in reference {
        for candidate in hypothesis {
            collect_common(sentence, candidate, &mut union);
        }
    }
    let distinct = |sentences: &[Vec<&str>]| sentences.iter().flatten().collect::<HashSet<_>>().len();
    overlap(union.len(), distinct(hypothesis), distinct(reference))
}

/// Adds the words of one longest common subsequence of `x` and `y`. On a tie the way back drops a word of `y`, and that
/// decides which of several it is.
fn collect_common<'a>(x: &[&'a str], y: &[&str], union: &mut HashSet<&'a str>) {
    let width = y.len() + 1;
    let mut lengths = vec![0u32; (x.len() + 1) * width];
    for (i, left) in x.iter().enumerate() {
        for (j, right) in y.iter().enumerate() {
            lengths[(i + 1) * width + j + 1] = if left == right {
                lengths[i * width + j] + 1
            } else {
                lengths[i * width + j + 1].max(lengths[(i + 1) * width + j])
            };
        }
    }
    let (mut i, mut j) = (x.len(), y.len());
    while i > 0 && j > 0 {
        if x[i - 1] == y[j - 1] {
            union.insert(x[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
}

fn overlap(common: usize, hypothesis: usize, reference: usize) -> Overlap {
    let share = |of: usize| if of == 0 { 0.0 } else { common as f64 / of as f64 };
    let (p, r) = (share(hypothesis), share(reference));
    Overlap {
        r,
        p,
        f: 2.0 * ((p * r) / (p + r + 1e-8)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Rouge, rouge_l_f, sentences};

    #[test]
    fn white_space_between_full_stops_is_an_empty_sentence() {
        assert_eq!(sentences("a  b. .\n"), ["a b", "", ""]);
        assert_eq!(sentences("..."), Vec::<String>::new());
        assert_eq!(rouge_l_f(" ", " "), 2.0 * (1.0 / (2.0 + 1e-8)));
    }

    #[test]
    fn nothing_but_full_stops_has_no_score() {
        assert!(Rouge::between("", "a").is_none());
        assert!(Rouge::between("a", "..").is_none());
        assert_eq!(rouge_l_f("a", ""), 0.0);
    }

    #[test]
    fn pairs_cross_sentences_and_single_words_have_none() {
        let rouge = Rouge::between("a b. c", "b c").unwrap();
        assert_eq!((rouge.rouge_2.p, rouge.rouge_2.r), (0.5, 1.0));
        assert_eq!(Rouge::between("a", "a").unwrap().rouge_2.f, 0.0);
    }
}
