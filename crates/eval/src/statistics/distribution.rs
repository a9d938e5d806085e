//! How are numbers distributed?

use serde::{Deserialize, Serialize};

use crate::EvalError;

/// A quantile with linear interpolation at rank `(n - 1) · share`. The values are sorted and at least one.
///
/// # Panics
///
/// There are no values, or `share` lies outside [0, 1].
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    assert!((0.0..=1.0).contains(&share), "{share} is no share");
    let rank = (sorted.len() - 1) as f64 * share;
    let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    low + (high - low) * rank.fract()
}

/// Mean, quartiles and count of a measure; steps at which it has no value are counted, not averaged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many values there are.
    pub count: usize,
    /// How many were undefined.
    pub excluded: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// First quartile.
    pub lower_quartile: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub upper_quartile: f64,
}

impl Summary {
    /// Summarises a measure; `None` without a single value.
    ///
    /// # Errors
    ///
    /// A value is NaN.
    pub fn of(values: impl IntoIterator<Item = Option<f64>>) -> Result<Option<Self>, EvalError> {
        let (mut present, mut excluded) = (Vec::new(), 0);
        for value in values {
            match value {
                Some(value) => present.push(value),
                None => excluded += 1,
            }
        }
        refuse_nan(&present)?;
        if present.is_empty() {
            return Ok(None);
        }
        let mean = mean(&present);
        present.sort_by(f64::total_cmp);
        Ok(Some(Self {
            count: present.len(),
            excluded,
            mean,
            lower_quartile: quantile(&present, 0.25),
            median: quantile(&present, 0.5),
            upper_quartile: quantile(&present, 0.75),
        }))
    }
}

/// Arithmetic mean; NaN for no values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Arithmetic mean of the values that are there; `None` for none.
pub(crate) fn mean_of_defined(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let defined: Vec<f64> = values.into_iter().flatten().collect();
    (!defined.is_empty()).then(|| mean(&defined))
}

pub(crate) fn refuse_nan(values: &[f64]) -> Result<(), EvalError> {
    match values.iter().position(|value| value.is_nan()) {
        Some(index) => Err(EvalError::NotANumber { index }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Summary, quantile};

    #[test]
    fn undefined_values_are_counted_apart() {
        let summary = Summary::of([Some(3.0), None, Some(1.0)]).unwrap().unwrap();
        assert_eq!(
            (summary.count, summary.excluded, summary.mean, summary.median),
            (2, 1, 2.0, 2.0)
        );
        assert_eq!(Summary::of([None]).unwrap(), None);
        assert!(
            Summary::of([Some(f64::NAN)])
                .unwrap_err()
                .to_string()
                .contains("number 0")
        );
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[7.0], 0.975), 7.0);
        assert_eq!(quantile(&[0.0, 1.0, 2.0], 0.75), 1.5);
        assert_eq!(quantile(&[0.0, 1.0, 2.0], 1.0), 2.0);
    }
}
