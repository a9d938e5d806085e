//! How many entries a head may hold at the end of a step.

use std::fmt;
use std::str::FromStr;

use crate::error::PolicyError;
use crate::ratio::Ratio;
use crate::text;

/// The rule for the budget B, in entries per layer and KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Budget {
    /// No bound: nothing is ever evicted.
    Full,
    /// `B = max(1, floor((1 − ρ) · prompt tokens))` (section 3.1 of the paper); follow-up prompts add to the product.
    Ratio(Ratio),
    /// A fixed number of entries.
    Tokens(usize),
    /// `B = max(1, floor((1 − ρ) · tokens seen so far))`: grows while the answer does.
    SeenRatio(Ratio),
}

impl Budget {
    /// B for a sequence of which `prompt_tokens` came from prompts and `seen_tokens` is everything so far, or `None`
    /// without a bound.
    #[must_use]
    pub fn entries(self, prompt_tokens: usize, seen_tokens: usize) -> Option<usize> {
        let entries = match self {
            Budget::Full => return None,
            Budget::Ratio(ratio) => ratio.rest_of(prompt_tokens),
            Budget::Tokens(tokens) => tokens,
            Budget::SeenRatio(ratio) => ratio.rest_of(seen_tokens),
        };
        Some(entries.max(1))
    }

    pub(crate) fn validate(self) -> Result<(), PolicyError> {
        match self {
            Budget::Ratio(ratio) if ratio.is_one() => Err(text::bad_value("ratio", "1")),
            Budget::SeenRatio(ratio) if ratio.is_one() => Err(text::bad_value("seen_ratio", "1")),
            Budget::Tokens(0) => Err(text::bad_value("tokens", "0")),
            _ => Ok(()),
        }
    }
}

/// As in a method: `ratio=0.9`, `tokens=512`, `seen_ratio=0.9`; `full` without a bound.
impl fmt::Display for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Full => formatter.write_str("full"),
            Budget::Ratio(ratio) => write!(formatter, "ratio={ratio}"),
            Budget::Tokens(tokens) => write!(formatter, "tokens={tokens}"),
            Budget::SeenRatio(ratio) => write!(formatter, "seen_ratio={ratio}"),
        }
    }
}

/// What [`Display`](fmt::Display) prints, a plain whole number as `tokens`, and `10%` as the share of the prompt that stays.
///
/// A plain fraction is refused: 0.1 could mean the part that leaves or the part that stays.
impl FromStr for Budget {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let budget = match text.split_once('=') {
            None if text == "full" => Budget::Full,
            None if text.ends_with('%') => {
                Budget::Ratio(Ratio::leaving(text).ok_or_else(|| text::bad_value("budget", text))?)
            }
            None => Budget::Tokens(text::whole("tokens", text)?),
            Some(("ratio", value)) => Budget::Ratio(text::fraction("ratio", value)?),
            Some(("tokens", value)) => Budget::Tokens(text::whole("tokens", value)?),
            Some(("seen_ratio", value)) => Budget::SeenRatio(text::fraction("seen_ratio", value)?),
            Some(_) => return Err(text::bad_value("budget", text)),
        };
        budget.validate()?;
        Ok(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_entries() {
        let ratio = Budget::Ratio("0.9".parse().unwrap());
        assert_eq!(ratio.entries(1000, 1005), Some(100));
        assert_eq!(ratio.entries(3, 3), Some(1));
        assert_eq!(ratio.entries(0, 0), Some(1));
        assert_eq!(Budget::SeenRatio("0.9".parse().unwrap()).entries(1000, 1010), Some(101));
        assert_eq!(Budget::Tokens(7).entries(1000, 1010), Some(7));
        assert_eq!(Budget::Full.entries(1000, 1010), None);
    }

    #[test]
    fn a_percentage_is_what_stays() {
        let leaves = |text: &str| Ok(Budget::Ratio(text.parse().unwrap()));
        assert_eq!("10%".parse::<Budget>(), leaves("0.9"));
        assert_eq!("12.5%".parse::<Budget>(), leaves("0.875"));
        assert_eq!("0.1 %".parse::<Budget>(), leaves("0.999"));
        assert_eq!("100%".parse::<Budget>(), leaves("0"));
        for wrong in ["0%", "101%", "-5%", "%", "ten%", "5.%%", "."] {
            assert!(wrong.parse::<Budget>().is_err(), "{wrong} was accepted");
        }
    }

    #[test]
    fn text_round_trips() {
        for text in ["ratio=0.9", "tokens=512", "seen_ratio=0.25", "full"] {
            assert_eq!(text.parse::<Budget>().unwrap().to_string(), text);
        }
        assert_eq!("512".parse::<Budget>().unwrap(), Budget::Tokens(512));
        for text in ["0.9", "ratio=1", "tokens=0", "0", "entries=5", "", "ratio="] {
            assert!(text.parse::<Budget>().is_err(), "{text} was accepted");
        }
    }
}
