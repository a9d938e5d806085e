//! Which words occur most often?

use std::collections::BTreeSet;

use super::{Draft, Family, Ruler};
use crate::dice::Dice;

/// Words that are asked for in a numbered list.
pub(super) const COMMON: usize = 10;

/// A numbered list of `units` distinct words, of which ten occur often, with one solved example before it.
pub(super) fn common_words(ruler: &Ruler, length: usize, units: usize, dice: &mut Dice) -> Draft {
    let (example, list) = if length < super::SHORT {
        ((20, 3, 1), (units, 6, 1))
    } else {
        ((40, 10, 3), (units, 30, 3))
    };
    let (context, answers) = numbered(ruler, list, dice);
    let (example, solution) = numbered(ruler, example, dice);
    let parts = ruler.wording.render(Family::CommonWords, false, &example, &[]);
    Draft {
        front: format!("{} {}\n", parts.text(), enumerated(&solution)),
        context,
        answers,
        ..Draft::default()
    }
}

fn numbered(ruler: &Ruler, (words, often, seldom): (usize, usize, usize), dice: &mut Dice) -> (String, Vec<String>) {
    let words = ruler.words.distinct(words, dice);
    let (common, others) = words.split_at(COMMON);
    let mut list: Vec<&str> = Vec::new();
    for (words, times) in [(common, often), (others, seldom)] {
        list.extend(std::iter::repeat_n(words, times).flatten().map(String::as_str));
    }
    ruler.shuffle(&mut list, dice);
    (enumerated(&list), common.to_vec())
}

/// "1. a 2. b".
fn enumerated<T: AsRef<str>>(words: &[T]) -> String {
    let item = |(index, word): (usize, &T)| format!("{}. {}", index + 1, word.as_ref());
    words.iter().enumerate().map(item).collect::<Vec<_>>().join(" ")
}

/// How many coded words the vocabulary of a text of so many tokens has.
pub(super) fn vocabulary_size(tokens: usize) -> usize {
    tokens / 50
}

/// Fewest coded words in a text: the fourth rank must be more frequent than the fifth.
pub(super) const LEAST_CODED: usize = 100;
/// Ranks that are drawn at least: noise, three answers, one that is none.
pub(super) const LEAST_VOCABULARY: usize = 5;

/// About `units` coded words whose frequencies fall with the square of their rank (zeta 2). The first rank is noise, the
/// next three are asked for.
pub(super) fn coded_words(ruler: &Ruler, vocabulary_size: usize, units: usize, dice: &mut Dice) -> Draft {
    let mut vocabulary = BTreeSet::new();
    while vocabulary.len() < vocabulary_size {
        vocabulary.insert(
            (0..6)
                .map(|_| char::from(b'a' + dice.below(26) as u8))
                .collect::<String>(),
        );
    }
    let mut vocabulary: Vec<String> = vocabulary.into_iter().collect();
    ruler.shuffle(&mut vocabulary, dice);
    vocabulary[0] = "...".into();
    let mut text: Vec<&str> = Vec::new();
    for (index, word) in vocabulary.iter().enumerate() {
        let rank = (index + 1) as f64;
        let zeta = std::f64::consts::PI * std::f64::consts::PI / 6.0;
        let count = (units as f64 / (rank * rank) / zeta) as usize;
        text.extend(std::iter::repeat_n(word.as_str(), count));
    }
    ruler.shuffle(&mut text, dice);
    Draft {
        context: text.join(" "),
        answers: vocabulary[1..4].to_vec(),
        ..Draft::default()
    }
}
