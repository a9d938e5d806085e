//! How are methods and budgets written in a grid?

use std::fmt::Display;
use std::str::FromStr;

use inertiakv::WeightType;
use inertiakv::policy::{Budget, Method};
use serde::de::{Deserialize, Deserializer, Error};

/// What stays: `10%` keeps a tenth of the prompt's entries, `512` keeps 512 entries.
///
/// # Errors
///
/// How to write it.
pub fn kept(text: &str) -> Result<Budget, String> {
    let explain = || {
        "write `10%` to keep a tenth of the prompt's entries, or `512` to keep 512 entries; at least one must stay"
            .to_owned()
    };
    match text.parse() {
        Ok(budget @ Budget::Tokens(_)) if !text.contains('=') => Ok(budget),
        Ok(budget) if text.ends_with('%') => Ok(budget),
        _ => Err(explain()),
    }
}

/// A value that is written as it is parsed.
pub(super) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// The name of a type that weights are quantised to.
pub(super) fn quantisation<'de, D: Deserializer<'de>>(from: D) -> Result<Option<WeightType>, D::Error> {
    parsed(from).map(Some)
}

/// Several of them.
pub(super) fn all_parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts
        .iter()
        .map(|text| text.parse().map_err(D::Error::custom))
        .collect()
}

pub(super) fn methods<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Method>, D::Error> {
    all_parsed(from)
}

/// Shares as texts, entries as numbers or texts.
pub(super) fn budgets<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Budget>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged, expecting = "a budget is a text such as \"10%\" or a number of entries")]
    enum Kept {
        Entries(usize),
        Text(String),
    }
    let budget = |budget: Kept| match budget {
        Kept::Entries(entries) => kept(&entries.to_string()).map_err(D::Error::custom),
        Kept::Text(text) => kept(&text).map_err(D::Error::custom),
    };
    Vec::<Kept>::deserialize(from)?.into_iter().map(budget).collect()
}

#[cfg(test)]
mod tests {
    use super::kept;
    use inertiakv::policy::Budget;

    #[test]
    fn budgets_say_what_stays() {
        let ratio = |text: &str| Budget::Ratio(text.parse().unwrap());
        assert_eq!(kept("10%"), Ok(ratio("0.9")));
        assert_eq!(kept("12.5%"), Ok(ratio("0.875")));
        assert_eq!(kept("0.1 %"), Ok(ratio("0.999")));
        assert_eq!(kept("100%"), Ok(ratio("0")));
        assert_eq!(kept("512"), Ok(Budget::Tokens(512)));
        for wrong in ["", "0", "0%", "0.1", "101%", "-5", "%", "ten", "1e3", "5.%%"] {
            assert!(kept(wrong).is_err(), "{wrong} was accepted");
        }
        assert!(kept("0.1").unwrap_err().contains("10%"));
    }
}
