//! How does Python treat text and numbers, where the original metrics depend on it?

use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

/// White space of `str.split`, `str.strip` and `\s`: Unicode's, and the four separators U+001C to U+001F.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// `text.split()`.
pub(crate) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// `" ".join(text.split())`.
pub(crate) fn collapse_space(text: &str) -> String {
    split(text).collect::<Vec<_>>().join(" ")
}

/// `text.strip()`.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text.lstrip()`.
pub(crate) fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// `\w`: letters, numbers and the underscore, but no combining marks.
pub(crate) fn is_word(character: char) -> bool {
    character == '_'
        || matches!(
            character.general_category_group(),
            GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number
        )
}

/// `re.findall(r"\d+", text)`: runs of decimal digits of any script.
pub(crate) fn digit_runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| character.general_category() != GeneralCategory::DecimalNumber)
        .filter(|run| !run.is_empty())
}

/// `round(value, digits)`: the decimal nearest to the exact value, a true tie going to the even digit.
pub(crate) fn round(value: f64, digits: usize) -> f64 {
    // Rust prints the exact value, rounded in just this way; what it prints it can read.
    format!("{value:.digits$}").parse().unwrap_or(value)
}

/// `round(value, digits)` of a `numpy.float64`, which scales, rounds half to even and scales back.
pub(crate) fn numpy_round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round_ties_even() / scale
}

/// `numpy.mean(values)`; NaN for no values.
pub(crate) fn numpy_mean(values: &[f64]) -> f64 {
    pairwise_sum(values) / values.len() as f64
}

/// The order of additions of `numpy.add.reduce`: eight partial sums in blocks of at most 128, blocks as a binary tree.
fn pairwise_sum(values: &[f64]) -> f64 {
    const LANES: usize = 8;
    const BLOCK: usize = 128;
    if values.len() < LANES {
        return values.iter().sum();
    }
    if values.len() > BLOCK {
        let half = values.len() / 2;
        let (left, right) = values.split_at(half - half % LANES);
        return pairwise_sum(left) + pairwise_sum(right);
    }
    let mut lanes = [0.0; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    rest.iter()
        .fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::{collapse_space, digit_runs, is_word, numpy_mean, numpy_round, round};

    #[test]
    fn separators_are_space_as_in_python() {
        assert_eq!(collapse_space("\u{1c}a\u{a0}b \u{85}c\u{200b}"), "a b c\u{200b}");
    }

    #[test]
    fn digits_of_every_script_but_not_superscripts() {
        assert_eq!(digit_runs("7 x²Ⅷ ٣٤a12").collect::<Vec<_>>(), ["7", "٣٤", "12"]);
    }

    #[test]
    fn marks_are_no_word_characters() {
        assert!(is_word('é') && is_word('_') && is_word('Ⅷ') && is_word('段'));
        assert!(!is_word('\u{301}') && !is_word('Ⓐ') && !is_word('-'));
    }

    #[test]
    fn rounding_sees_the_exact_value() {
        assert_eq!(round(2.675, 2), 2.67); // 2.675 lies below the tie
        assert_eq!(round(0.125, 2), 0.12); // a true tie
        assert_eq!(round(2.5, 0), 2.0);
        assert_eq!(numpy_round(2.675, 2), 2.68); // scaling meets the tie again
    }

    #[test]
    fn sums_in_the_order_of_numpy() {
        // numpy.mean of 0.1 repeated, numpy 2.4.
        assert_eq!(numpy_mean(&[0.1; 10]), 0.1);
        assert_ne!([0.1f64; 10].iter().sum::<f64>() / 10.0, 0.1);
        assert!(numpy_mean(&[]).is_nan());
    }
}
