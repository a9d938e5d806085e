//! Which needles are hidden where, and which are asked for?

use std::collections::HashSet;

use super::{Draft, Ruler};
use crate::dice::Dice;

/// One of the eight needle tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NeedleTask {
    pub(super) haystack: Haystack,
    pub(super) keys: Kind,
    pub(super) values: Kind,
    /// How many keys there are, how many values each has, and how many keys are asked for.
    pub(super) counts: (usize, usize, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Haystack {
    /// Lines of the same few sentences.
    Noise,
    /// Running prose, a unit being a word.
    Essay,
    /// Lines of needles that nobody asks for.
    Needles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Words,
    Numbers,
    Uuids,
}

impl Kind {
    fn plural(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Numbers => "numbers",
            Self::Uuids => "uuids",
        }
    }

    fn draw(self, ruler: &Ruler, dice: &mut Dice) -> String {
        match self {
            Self::Words => ruler.words.key(dice),
            Self::Numbers => (1_000_000 + dice.below(9_000_000)).to_string(),
            Self::Uuids => uuid(dice),
        }
    }
}

impl NeedleTask {
    /// Fewest units: every needle needs a place of its own.
    pub(super) fn least_units(self) -> usize {
        self.counts.0 * self.counts.1
    }

    /// Units by which the official script shrinks a sample.
    pub(super) fn step(self, length: usize) -> usize {
        match self.haystack {
            Haystack::Essay => 500,
            _ if length < super::SHORT => 5,
            _ => 25,
        }
    }

    pub(super) fn draft(self, ruler: &Ruler, units: usize, dice: &mut Dice) -> Draft {
        let (key_count, value_count, query_count) = self.counts;
        let mut source = Source {
            ruler,
            seen: HashSet::new(),
        };
        let keys: Vec<String> = (0..key_count).map(|_| source.draw(self.keys, dice)).collect();
        let values: Vec<Vec<String>> = keys
            .iter()
            .map(|_| (0..value_count).map(|_| source.draw(self.values, dice)).collect())
            .collect();
        let mut needles = Vec::new();
        for (key, values) in keys.iter().zip(&values) {
            needles.extend(
                values
                    .iter()
                    .map(|value| ruler.wording.needle(self.values.plural(), key, value)),
            );
        }
        ruler.shuffle(&mut needles, dice);
        let asked = dice.distinct(key_count, query_count);
        let context = match self.haystack {
            Haystack::Essay => between_sentences(ruler, units, &needles, dice),
            Haystack::Noise => between_lines(vec![ruler.wording.noise.clone(); units], needles, dice),
            Haystack::Needles => {
                let mut line = || {
                    let (key, value) = (source.draw(self.keys, dice), source.draw(self.values, dice));
                    ruler.wording.needle(self.values.plural(), &key, &value)
                };
                let lines = (0..units).map(|_| line()).collect();
                between_lines(lines, needles, dice)
            }
        };
        let one_answer = query_count * value_count == 1;
        let kind = self.values.plural();
        let kind = if one_answer { &kind[..kind.len() - 1] } else { kind };
        let answers: Vec<String> = asked.iter().flat_map(|key| values[*key].clone()).collect();
        Draft {
            depth: context
                .find(&answers[0])
                .map(|at| 100.0 * at as f64 / context.len() as f64),
            context,
            one_answer,
            slots: vec![("type_needle_v", kind.into()), ("query", listed(&asked, &keys))],
            answers,
            ..Draft::default()
        }
    }
}

/// Draws keys and values, distinct ones if the profile wants them so.
struct Source<'a> {
    ruler: &'a Ruler,
    seen: HashSet<String>,
}

impl Source<'_> {
    fn draw(&mut self, kind: Kind, dice: &mut Dice) -> String {
        // Short word lists run out of keys; then repeats are let pass.
        const TRIES: usize = 1000;
        let mut text = kind.draw(self.ruler, dice);
        for _ in 0..TRIES {
            if !self.ruler.profile.has_distinct_needles() || self.seen.insert(text.clone()) {
                break;
            }
            text = kind.draw(self.ruler, dice);
        }
        text
    }
}

/// "a", or "a, b, and c".
fn listed(asked: &[usize], keys: &[String]) -> String {
    let names: Vec<&str> = asked.iter().map(|key| keys[*key].as_str()).collect();
    match names.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{}, and {last}", before.join(", ")),
        _ => names.concat(),
    }
}

/// Needles in their order at distinct depths of a text.
fn between_sentences(ruler: &Ruler, words: usize, needles: &[String], dice: &mut Dice) -> String {
    const DEPTHS: usize = 40;
    let sentences = ruler.prose.sentences(words);
    let place = |step: usize| {
        let percent = (step as f64 * 100.0 / (DEPTHS - 1) as f64).round();
        (sentences.len() as f64 * (percent / 100.0)) as usize
    };
    let mut places: Vec<usize> = dice.distinct(DEPTHS, needles.len()).into_iter().map(place).collect();
    places.sort_unstable();
    let mut pieces = Vec::new();
    let mut from = 0;
    for (place, needle) in places.into_iter().zip(needles) {
        pieces.push(sentences[from..place].join(" "));
        pieces.push(needle.clone());
        from = place;
    }
    pieces.push(sentences[from..].join(" "));
    if !ruler.profile.keeps_stray_spaces() {
        pieces.retain(|piece| !piece.is_empty());
    }
    pieces.join(" ")
}

/// Needles at distinct lines, the first the deepest; the last line is never a needle.
fn between_lines(lines: Vec<String>, needles: Vec<String>, dice: &mut Dice) -> String {
    let mut places = dice.distinct(lines.len(), needles.len());
    places.sort_unstable();
    let mut hidden = places.into_iter().zip(needles.into_iter().rev()).peekable();
    let mut all = Vec::with_capacity(lines.len() + hidden.len());
    for (index, line) in lines.into_iter().enumerate() {
        all.extend(hidden.next_if(|(place, _)| *place == index).map(|(_, needle)| needle));
        all.push(line);
    }
    all.join("\n")
}

/// A random (version 4) UUID.
fn uuid(dice: &mut Dice) -> String {
    let bits = (u128::from(dice.bits()) << 64) | u128::from(dice.bits());
    let bits = bits & !(0xf000 << 64) & !(0xc000 << 48) | (0x4000 << 64) | (0x8000 << 48);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::{between_lines, listed, uuid};
    use crate::dice::Dice;

    #[test]
    fn keys_are_listed_with_a_comma_before_and() {
        let keys = ["a", "b", "c"].map(String::from);
        assert_eq!(listed(&[1], &keys), "b");
        assert_eq!(listed(&[2, 0], &keys), "c, and a");
        assert_eq!(listed(&[2, 0, 1], &keys), "c, a, and b");
    }

    #[test]
    fn uuids_have_their_version_and_variant() {
        let mut dice = Dice::new(1, "uuid");
        for _ in 0..50 {
            let id = uuid(&mut dice);
            assert_eq!(id.len(), 36);
            assert_eq!(&id[14..15], "4");
            assert!("89ab".contains(&id[19..20]), "{id}");
        }
    }

    #[test]
    fn every_needle_gets_a_line_before_the_last() {
        let lines = |n| (0..n).map(|i: i32| format!("line {i}")).collect::<Vec<_>>();
        let text = between_lines(
            lines(3),
            ["n0", "n1", "n2"].map(String::from).to_vec(),
            &mut Dice::new(1, ""),
        );
        assert_eq!(text, "n2\nline 0\nn1\nline 1\nn0\nline 2");
    }
}
