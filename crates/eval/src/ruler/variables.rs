//! Which variables hold a value, through how many others?

use std::collections::BTreeSet;

use super::{Draft, Family, Ruler};
use crate::dice::Dice;

/// Assignments after the first.
const HOPS: usize = 4;

/// Fewest noise lines: every assignment needs a place of its own.
pub(super) const LEAST_UNITS: usize = HOPS + 1;

/// Units by which the official script shrinks a sample.
pub(super) fn step(length: usize) -> usize {
    if length < super::SHORT { 5 } else { 10 }
}

/// A sample, with one solved example before it.
pub(super) fn draft(ruler: &Ruler, units: usize, example_units: usize, dice: &mut Dice) -> Draft {
    let draft = chain(ruler, units, 5, None, dice);
    // Officially all examples have one skeleton; with the rules of 2024 even the names are the same.
    let example = if ruler.profile.has_fixed_order() {
        let mut shared = Dice::new(ruler.seed, "vt example");
        let names = if ruler.profile.is_legacy() {
            &mut Dice::new(ruler.seed, "vt example names")
        } else {
            dice
        };
        let value = if ruler.profile.is_legacy() { Some(12_345) } else { None };
        example(ruler, example_units, value, names, &mut shared)
    } else {
        let mut places = Dice::new(dice.bits(), "vt example");
        example(ruler, example_units, None, dice, &mut places)
    };
    Draft {
        front: format!("{example}\n"),
        ..draft
    }
}

/// The solved example, its last line the answer.
pub(super) fn trial_example(ruler: &Ruler, units: usize) -> String {
    example(
        ruler,
        units,
        Some(12_345),
        &mut Dice::new(ruler.seed, "vt trial names"),
        &mut Dice::new(ruler.seed, "vt trial"),
    )
}

fn example(ruler: &Ruler, units: usize, value: Option<usize>, names: &mut Dice, places: &mut Dice) -> String {
    let draft = statements(ruler, units, 3, value, names, places);
    let text = ruler
        .wording
        .render(Family::Variables, false, &draft.context, &draft.slots())
        .text();
    format!("{text} {}\n", draft.answers.join(" "))
}

fn chain(ruler: &Ruler, units: usize, letters: usize, value: Option<usize>, dice: &mut Dice) -> Draft {
    let mut places = Dice::new(dice.bits(), "vt places");
    statements(ruler, units, letters, value, dice, &mut places)
}

fn statements(
    ruler: &Ruler,
    units: usize,
    letters: usize,
    value: Option<usize>,
    names: &mut Dice,
    places: &mut Dice,
) -> Draft {
    let mut variables: Vec<String> = Vec::new();
    let mut seen = BTreeSet::new();
    while variables.len() <= HOPS {
        let name: String = (0..letters).map(|_| char::from(b'A' + names.below(26) as u8)).collect();
        if seen.insert(name.clone()) {
            variables.push(name);
        }
    }
    let value = value.unwrap_or_else(|| 10_000 + names.below(89_999)).to_string();
    let mut assignments = vec![format!("VAR {} = {value}", variables[0])];
    assignments.extend(
        variables
            .windows(2)
            .map(|pair| format!("VAR {} = VAR {} ", pair[1], pair[0])),
    );

    let mut at = places.distinct(units, assignments.len());
    at.sort_unstable();
    let mut hidden = at.into_iter().zip(assignments).peekable();
    let mut lines = Vec::with_capacity(units + HOPS + 1);
    for index in 0..units {
        lines.extend(
            hidden
                .next_if(|(place, _)| *place == index)
                .map(|(_, assignment)| assignment),
        );
        lines.push(ruler.wording.noise.clone());
    }
    Draft {
        context: lines.join("\n"),
        slots: vec![("query", value), ("num_v", (HOPS + 1).to_string())],
        answers: variables,
        ..Draft::default()
    }
}
