//! A fraction between 0 and 1, kept exactly as the decimal a person wrote.

use std::fmt;
use std::str::FromStr;

use crate::error::PolicyError;

const MAX_PLACES: u32 = 12;

/// A decimal fraction in `0..=1` with at most 12 places, without rounding.
///
/// A compression ratio of 0.9 over 1,000 tokens must leave 100 entries, which the float `1.0 - 0.9` does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    digits: u64,
    // The denominator is ten to this power; trailing zeros are removed, so equal fractions compare equal.
    places: u32,
}

impl Ratio {
    /// The fraction 0.
    pub const ZERO: Ratio = Ratio { digits: 0, places: 0 };

    /// `digits` divided by ten to the power `places`: `Ratio::new(9, 1)` is 0.9.
    pub fn new(digits: u64, places: u32) -> Result<Ratio, PolicyError> {
        let refused = || PolicyError::BadRatio {
            text: format!("{digits}e-{places}"),
        };
        if places > MAX_PLACES || digits > 10u64.pow(places) {
            return Err(refused());
        }
        Ok(Ratio { digits, places }.normalised())
    }

    /// Hundredths, for constants: `Ratio::percent(90)` is 0.9. More than 100 is taken as 100.
    #[must_use]
    pub const fn percent(hundredths: u8) -> Ratio {
        let digits = if hundredths > 100 { 100 } else { hundredths as u64 };
        Ratio { digits, places: 2 }.normalised()
    }

    /// `floor(self × count)`, exactly.
    #[must_use]
    pub fn share_of(self, count: usize) -> usize {
        self.scaled(u128::from(self.digits), count)
    }

    /// What leaves where `12.5%` stays, exactly.
    pub(crate) fn leaving(percentage: &str) -> Option<Self> {
        let text = percentage.strip_suffix('%')?.trim();
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let stays = Self::new(digits.parse().ok()?, u32::try_from(fraction.len()).ok()? + 2).ok()?;
        Self::new(u64::try_from(stays.denominator()).ok()? - stays.digits, stays.places).ok()
    }

    /// `floor((1 − self) × count)`, exactly.
    #[must_use]
    pub fn rest_of(self, count: usize) -> usize {
        self.scaled(self.denominator() - u128::from(self.digits), count)
    }

    /// The nearest double.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.digits as f64 / 10f64.powi(self.places as i32)
    }

    /// Whether the fraction is exactly 1.
    #[must_use]
    pub fn is_one(self) -> bool {
        u128::from(self.digits) == self.denominator()
    }

    fn denominator(self) -> u128 {
        10u128.pow(self.places)
    }

    fn scaled(self, numerator: u128, count: usize) -> usize {
        // The numerator is at most the denominator, so the result fits where `count` does; 10^12 × 2^64 fits u128.
        (numerator * count as u128 / self.denominator()) as usize
    }

    const fn normalised(mut self) -> Ratio {
        while self.places > 0 && self.digits.is_multiple_of(10) {
            self.digits /= 10;
            self.places -= 1;
        }
        self
    }
}

impl FromStr for Ratio {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let refused = || PolicyError::BadRatio { text: text.to_owned() };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
            return Err(refused());
        }
        let fraction = fraction.trim_end_matches('0');
        let places = u32::try_from(fraction.len()).map_err(|_| refused())?;
        if places > MAX_PLACES {
            return Err(refused());
        }
        let digits = format!("0{whole}{fraction}").parse().map_err(|_| refused())?;
        Ratio::new(digits, places).map_err(|_| refused())
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.places == 0 {
            return write!(formatter, "{}", self.digits);
        }
        let unit = 10u64.pow(self.places);
        let width = self.places as usize;
        write!(formatter, "{}.{:0width$}", self.digits / unit, self.digits % unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_decimals() {
        for (text, printed) in [
            ("0.9", "0.9"),
            (".5", "0.5"),
            ("0.90", "0.9"),
            ("1", "1"),
            ("1.000", "1"),
            ("0", "0"),
        ] {
            assert_eq!(text.parse::<Ratio>().unwrap().to_string(), printed);
        }
        assert_eq!("0.000001".parse::<Ratio>().unwrap().to_string(), "0.000001");
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            ".",
            "-0.1",
            "1.1",
            "2",
            "0,9",
            "nan",
            "1e-1",
            "0.1234567890123",
            "+0.5",
            " 0.5",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Ratio>().is_err(), "{text} was accepted");
        }
        assert!(Ratio::new(11, 1).is_err());
        assert!(Ratio::new(1, 40).is_err());
    }

    #[test]
    fn multiplies_without_rounding() {
        let ratio: Ratio = "0.9".parse().unwrap();
        assert_eq!(ratio.rest_of(1000), 100);
        assert_eq!(ratio.share_of(1000), 900);
        // The float product is 69.99999999999999 and would lose an entry.
        assert_eq!("0.7".parse::<Ratio>().unwrap().share_of(100), 70);
        assert_eq!(
            "0.999999999999".parse::<Ratio>().unwrap().rest_of(usize::MAX),
            usize::MAX / 1_000_000_000_000
        );
    }
}
