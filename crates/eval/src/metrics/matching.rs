//! Does the answer contain what was asked for: a class, a number, a string, a letter?

use crate::python;

/// 1 over the number of classes that the prediction names, if the right one is among them.
///
/// Classes that are part of the right one's name are dropped, but the loop of the original removes from the list that it
/// walks over, so it skips the class after each one it drops. Copied as it is.
pub(super) fn classification(prediction: &str, reference: &str, classes: &[String]) -> f64 {
    let mut named: Vec<&str> = classes
        .iter()
        .map(String::as_str)
        .filter(|class| prediction.contains(class))
        .collect();
    let mut index = 0;
    while let Some(&class) = named.get(index) {
        if class != reference && reference.contains(class) {
            // `list.remove` takes out the first equal item.
            named.retain({
                let mut gone = false;
                move |other| gone || *other != class || std::mem::replace(&mut gone, true)
            });
        }
        index += 1;
    }
    if named.contains(&reference) {
        1.0 / named.len() as f64
    } else {
        0.0
    }
}

/// Share of the prediction's digit runs that equal the right number, as strings; 0 without any.
pub(super) fn number(prediction: &str, number: &str) -> f64 {
    let (mut right, mut all) = (0, 0);
    for run in python::digit_runs(prediction) {
        all += 1;
        right += usize::from(run == number);
    }
    if all == 0 { 0.0 } else { right as f64 / all as f64 }
}

/// The digits right after the first `label` that has digits after it.
pub(super) fn labelled_number<'a>(reference: &'a str, label: &str) -> Option<&'a str> {
    reference.match_indices(label).find_map(|(start, _)| {
        let after = &reference[start + label.len()..];
        python::digit_runs(after).next().filter(|run| after.starts_with(run))
    })
}

/// Share of the references that occur in the prediction, without regard to case and word boundaries.
pub(super) fn share_contained(prediction: &str, references: &[String]) -> f64 {
    let prediction = prediction.to_lowercase();
    let contained = references
        .iter()
        .filter(|reference| prediction.contains(&reference.to_lowercase()));
    contained.count() as f64 / references.len() as f64
}

/// The letter of `The correct answer is (X)`, or without parentheses, whichever form occurs first in this order.
pub(super) fn chosen_letter(response: &str) -> Option<char> {
    let response = response.replace('*', "");
    let is_choice = |letter: &char| ('A'..='D').contains(letter);
    let in_parentheses = |after: &str| {
        let mut after = after.chars();
        (after.next() == Some('('))
            .then(|| after.next())?
            .filter(|_| after.next() == Some(')'))
    };
    let mut answers = response
        .match_indices(CORRECT_ANSWER)
        .map(|(start, phrase)| &response[start + phrase.len()..]);
    let plain = || {
        let mut answers = response
            .match_indices(CORRECT_ANSWER)
            .map(|(start, phrase)| &response[start + phrase.len()..]);
        answers.find_map(|after| after.chars().next().filter(is_choice))
    };
    answers
        .find_map(|after| in_parentheses(after).filter(is_choice))
        .or_else(plain)
}

/// Does the sentence with the right letter occur, in either form?
pub(super) fn names_letter(response: &str, letter: &str) -> bool {
    let response = response.replace('*', "");
    response.contains(&format!("{CORRECT_ANSWER}({letter})")) || response.contains(&format!("{CORRECT_ANSWER}{letter}"))
}

const CORRECT_ANSWER: &str = "The correct answer is ";

#[cfg(test)]
mod tests {
    use super::{chosen_letter, classification, labelled_number, names_letter, number, share_contained};

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_class_after_a_dropped_one_is_skipped() {
        // `city` and `other city` are both part of the right name; dropping the first hides the second.
        let classes = strings(&["city", "other", "some other city", "state"]);
        assert_eq!(classification("some other city", "some other city", &classes), 0.5);
        assert_eq!(
            classification("state, some other city", "some other city", &classes),
            1.0 / 3.0
        );
        assert_eq!(classification("nothing", "state", &classes), 0.0);
    }

    #[test]
    fn the_first_of_equal_classes_is_dropped() {
        // Both walk over [x, x, xy]: the first x goes, the second moves into its place and is skipped.
        assert_eq!(classification("xy", "xy", &strings(&["x", "x", "xy"])), 0.5);
    }

    #[test]
    fn numbers_are_compared_as_strings() {
        assert_eq!(number("3 of 30", "3"), 0.5);
        assert_eq!(number("٣", "3"), 0.0);
        assert_eq!(labelled_number("Paragraph x Paragraph 12b", "Paragraph "), Some("12"));
        assert_eq!(labelled_number("段落7", "段落"), Some("7"));
        assert_eq!(labelled_number("paragraph 7", "Paragraph "), None);
    }

    #[test]
    fn references_are_substrings() {
        assert_eq!(share_contained("ΣΑΣ", &strings(&["σας", "x"])), 0.5);
        assert_eq!(share_contained("", &strings(&[""])), 1.0);
    }

    #[test]
    fn parentheses_win_wherever_they_stand() {
        let both = "The correct answer is A. No: The correct answer is **(C)**.";
        assert_eq!(chosen_letter(both), Some('C'));
        assert_eq!(chosen_letter("The correct answer is Because"), Some('B'));
        assert_eq!(chosen_letter("The correct answer is: A"), None);
        assert_eq!(chosen_letter("the correct answer is A"), None);
        assert_eq!(
            chosen_letter("The correct answer is (E). The correct answer is (D"),
            None
        );
        assert!(names_letter(both, "A") && names_letter(both, "C") && !names_letter(both, "B"));
    }
}
