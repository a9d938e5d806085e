//! How much do two texts share as bags of words?

use std::collections::HashMap;
use std::hash::Hash;

use crate::python;

/// `string.punctuation`.
pub(super) fn is_ascii_punctuation(character: char) -> bool {
    character.is_ascii_punctuation()
}

/// F1 of the answer's words, normalised as in `SQuAD`: lower case, without ASCII punctuation and without articles. Two texts
/// of which nothing is left score 0.
pub(super) fn qa_f1(prediction: &str, reference: &str) -> f64 {
    let (prediction, reference) = (normalised(prediction), normalised(reference));
    f1(
        &python::split(&prediction).collect::<Vec<_>>(),
        &python::split(&reference).collect::<Vec<_>>(),
    )
}

/// F1 of two multisets; 0 if they share nothing.
pub(super) fn f1<T: Eq + Hash>(prediction: &[T], reference: &[T]) -> f64 {
    let mut left: HashMap<&T, usize> = HashMap::new();
    for token in reference {
        *left.entry(token).or_default() += 1;
    }
    let mut common = 0;
    for token in prediction {
        if let Some(count) = left.get_mut(token).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    if common == 0 {
        return 0.0;
    }
    let precision = f64::from(common) / prediction.len() as f64;
    let recall = f64::from(common) / reference.len() as f64;
    (2.0 * precision * recall) / (precision + recall)
}

fn normalised(text: &str) -> String {
    let bare: String = text
        .to_lowercase()
        .chars()
        .filter(|c| !is_ascii_punctuation(*c))
        .collect();
    without_articles(&bare)
}

/// Replaces every whole word `a`, `an` and `the` by a space.
fn without_articles(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let same_kind = |c: char| python::is_word(c) != python::is_word(first);
        let (run, after) = rest.split_at(rest.find(same_kind).unwrap_or(rest.len()));
        kept.push_str(if matches!(run, "a" | "an" | "the") { " " } else { run });
        rest = after;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::{f1, qa_f1, without_articles};

    #[test]
    fn articles_are_whole_words() {
        assert_eq!(without_articles("the theme of an anthem, a"), "  theme of   anthem,  ");
        // A combining mark is no word character, so the word ends before it.
        assert_eq!(without_articles("a\u{301} b"), " \u{301} b");
        assert_eq!(without_articles("a_ a1 段a"), "a_ a1 段a");
    }

    #[test]
    fn punctuation_goes_before_articles() {
        assert_eq!(qa_f1("A.", "b"), 0.0);
        assert_eq!(qa_f1("the-end", "theend"), 1.0);
        assert_eq!(qa_f1("İstanbul", "i\u{307}stanbul"), 1.0);
    }

    #[test]
    fn repeats_count_as_often_as_both_have_them() {
        assert_eq!(f1(&["x", "x", "y"], &["x", "x", "x"]), 2.0 / 3.0);
        assert_eq!(f1::<&str>(&[], &[]), 0.0);
    }
}
