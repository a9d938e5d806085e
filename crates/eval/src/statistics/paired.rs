//! How do two methods differ on the same examples?

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::distribution::{mean, refuse_nan};
use crate::EvalError;

/// Score of `a` minus score of `b` for every example, in the order of the identifiers. A failed example (`None`) counts 0.
///
/// # Errors
///
/// An example has been run with only one of the two.
pub fn differences(
    a: &BTreeMap<String, Option<f64>>,
    b: &BTreeMap<String, Option<f64>>,
) -> Result<Vec<f64>, EvalError> {
    if let Some(id) = a
        .keys()
        .find(|id| !b.contains_key(*id))
        .or_else(|| b.keys().find(|id| !a.contains_key(*id)))
    {
        return Err(EvalError::Unpaired { id: id.clone() });
    }
    let pairs = a.values().zip(b.values());
    Ok(pairs.map(|(a, b)| a.unwrap_or(0.0) - b.unwrap_or(0.0)).collect())
}

/// How often one method is better, equal and worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcomes {
    /// Differences above zero.
    pub wins: usize,
    /// Differences of zero.
    pub ties: usize,
    /// Differences below zero.
    pub losses: usize,
}

impl Outcomes {
    /// Counts differences.
    #[must_use]
    pub fn of(differences: &[f64]) -> Self {
        let count = |wanted: Ordering| {
            differences
                .iter()
                .filter(|d| d.partial_cmp(&&0.0) == Some(wanted))
                .count()
        };
        Self {
            wins: count(Ordering::Greater),
            ties: count(Ordering::Equal),
            losses: count(Ordering::Less),
        }
    }
}

/// How examples respond to more smoothing (the paper's Appendix I).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Anatomy {
    /// All examples.
    pub examples: usize,
    /// The same score under every rule.
    pub invariant: usize,
    /// Better under the least smoothing than under the most: adaptation lag.
    pub adaptation_lag: usize,
    /// Better under the most smoothing than under the least: stability helps.
    pub stability_help: usize,
}

impl Anatomy {
    /// Compares scores of the same examples under several rules, the least smoothing first. Examples that are neither
    /// invariant nor counted as lag or help differ only in between.
    ///
    /// # Panics
    ///
    /// The rules were run on different numbers of examples.
    #[must_use]
    pub fn of(rules: &[&[f64]]) -> Self {
        let (Some(least), Some(most)) = (rules.first(), rules.last()) else {
            return Self::default();
        };
        assert!(
            rules.iter().all(|scores| scores.len() == least.len()),
            "every rule scores the same examples"
        );
        let between_ends = Outcomes::of(&most.iter().zip(*least).map(|(m, l)| m - l).collect::<Vec<_>>());
        let is_invariant = |example: &usize| rules.iter().all(|scores| scores[*example] == least[*example]);
        Self {
            examples: least.len(),
            invariant: (0..least.len()).filter(is_invariant).count(),
            adaptation_lag: between_ends.losses,
            stability_help: between_ends.wins,
        }
    }

    /// Share of the examples that no rule changes; `None` without examples.
    #[must_use]
    pub fn invariance(&self) -> Option<f64> {
        (self.examples > 0).then(|| self.invariant as f64 / self.examples as f64)
    }
}

/// A paired t-test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TTest {
    /// The statistic; infinite if all differences are equal and not zero.
    pub t: f64,
    /// Degrees of freedom, n - 1.
    pub degrees: usize,
    /// Two-sided probability.
    pub p: f64,
}

impl TTest {
    /// Tests whether the mean of the differences is zero; `None` for fewer than two. Equal differences give p = 1 if they
    /// are zero and p = 0 otherwise.
    ///
    /// # Errors
    ///
    /// A difference is NaN.
    pub fn of(differences: &[f64]) -> Result<Option<Self>, EvalError> {
        refuse_nan(differences)?;
        let n = differences.len();
        if n < 2 {
            return Ok(None);
        }
        let degrees = n - 1;
        let mean = mean(differences);
        if differences.iter().all(|d| *d == differences[0]) {
            let zero = differences[0] == 0.0;
            let t = if zero { 0.0 } else { f64::INFINITY.copysign(mean) };
            return Ok(Some(Self {
                t,
                degrees,
                p: f64::from(u8::from(zero)),
            }));
        }
        let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / degrees as f64;
        let t = mean / (variance / n as f64).sqrt();
        let df = degrees as f64;
        Ok(Some(Self {
            t,
            degrees,
            p: incomplete_beta(df / 2.0, 0.5, df / (df + t * t)),
        }))
    }
}

/// Holm's step-down adjustment of several p-values, in their order.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let count = p_values.len();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![0.0; count];
    let mut least: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max(((count - rank) as f64 * p_values[index]).min(1.0));
        adjusted[index] = least;
    }
    adjusted
}

/// The regularised incomplete beta function by its continued fraction (modified Lentz), about 13 digits.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    const MOST_TERMS: usize = 10_000;
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    // The fraction converges fast on the lower side; the other is its complement.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for term in 1..=MOST_TERMS {
        let m = term as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for coefficient in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + coefficient * d);
            c = away_from_zero(1.0 + coefficient / c);
            change = c * d;
            fraction *= change;
        }
        if (change - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    let front = a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b);
    front.exp() * fraction / a
}

/// Logarithm of the gamma function for positive arguments: shifted up, then Stirling's series.
fn ln_gamma(x: f64) -> f64 {
    const SERIES_FROM: f64 = 15.0;
    let (mut x, mut shift) = (x, 0.0);
    while x < SERIES_FROM {
        shift += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    // Bernoulli numbers B2 to B12 over 2k (2k - 1).
    let series = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
        -691.0 / 360_360.0,
    ];
    let correction = series
        .iter()
        .rev()
        .fold(0.0, |sum, coefficient| sum * inverse + coefficient)
        / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + correction - shift
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Anatomy, Outcomes, TTest, differences, holm, ln_gamma};

    #[test]
    fn pairs_match_by_identifier_and_failures_count_zero() {
        let scores = |list: &[(&str, Option<f64>)]| -> BTreeMap<String, Option<f64>> {
            list.iter().map(|(id, score)| ((*id).to_owned(), *score)).collect()
        };
        let a = scores(&[("y", Some(1.0)), ("x", None)]);
        let b = scores(&[("x", Some(0.5)), ("y", Some(0.25))]);
        assert_eq!(differences(&a, &b).unwrap(), [-0.5, 0.75]);
        for (one, other) in [(&a, &scores(&[("x", None)])), (&scores(&[("y", None)]), &b)] {
            let error = differences(one, other).unwrap_err().to_string();
            assert!(error.contains("only one"), "{error}");
        }
    }

    #[test]
    fn smoothing_that_hurts_is_lag_and_that_helps_is_stability() {
        // Three rules, the least smoothing first; one example changes only in between.
        let rules = [
            [1.0, 1.0, 0.0, 0.0, 0.5],
            [1.0, 0.0, 0.0, 1.0, 0.5],
            [1.0, 0.0, 1.0, 0.0, 0.5],
        ];
        let anatomy = Anatomy::of(&rules.each_ref().map(<[f64; 5]>::as_slice));
        assert_eq!(
            anatomy,
            Anatomy {
                examples: 5,
                invariant: 2,
                adaptation_lag: 1,
                stability_help: 1
            }
        );
        assert_eq!(anatomy.invariance(), Some(0.4));
        assert_eq!(Anatomy::of(&[]).invariance(), None);
    }

    #[test]
    fn signed_zeros_tie() {
        assert_eq!(
            Outcomes::of(&[-0.0, 0.0, 0.1, -0.1, 2.0]),
            Outcomes {
                wins: 2,
                ties: 2,
                losses: 1
            }
        );
    }

    #[test]
    fn equal_differences_are_decided_without_a_variance() {
        let test = |list: &[f64]| TTest::of(list).unwrap().map(|test| (test.t, test.p));
        assert_eq!(test(&[0.1; 3]), Some((f64::INFINITY, 0.0)));
        assert_eq!(test(&[-0.1; 3]), Some((f64::NEG_INFINITY, 0.0)));
        assert_eq!(test(&[0.0; 3]), Some((0.0, 1.0)));
        assert_eq!(test(&[0.3]), None);
        assert!(TTest::of(&[f64::NAN, 0.0]).is_err());
    }

    #[test]
    fn holm_never_lowers_and_never_disorders() {
        assert_eq!(holm(&[0.01, 0.04, 0.03, 0.9]), [0.04, 0.09, 0.09, 0.9]);
        assert_eq!(holm(&[0.5, 0.4]), [0.8, 0.8]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn gamma_of_whole_numbers_is_a_factorial() {
        assert!((ln_gamma(11.0) - 3_628_800f64.ln()).abs() < 1e-13);
        assert!((ln_gamma(0.5) - std::f64::consts::PI.ln() / 2.0).abs() < 1e-14);
    }
}
