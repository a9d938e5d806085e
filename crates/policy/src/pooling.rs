//! How the heads of a layer become one score per entry.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::error::PolicyError;
use crate::text;

/// How the query heads of one KV head are pooled where the attention is computed, after the softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupPooling {
    /// The sum over the query group.
    Sum,
    /// The largest of the query group.
    Max,
}

/// How the heads of a layer are pooled into one score. Text: `mean`, `max`, `power2` to `power16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadPooling {
    /// The mean over all query heads (Eq. 1 of the paper).
    Mean,
    /// The largest of all query heads; over a scoring window, of the window's mean of each KV head's largest.
    Max,
    /// The power mean over KV heads of their group means, `(mean xᵖ)^(1/p)`: between the mean (p = 1) and the maximum.
    /// For scores that are never negative (attention, value-norm, entropy).
    Power(u32),
}

impl HeadPooling {
    /// What the attention kernel has to do within a query group.
    #[must_use]
    pub fn group_pooling(self) -> GroupPooling {
        match self {
            HeadPooling::Max => GroupPooling::Max,
            HeadPooling::Mean | HeadPooling::Power(_) => GroupPooling::Sum,
        }
    }

    /// What some heads have come to, 0 for none, with one more. Only a mean is of scores that can be negative.
    pub(crate) fn add(self, pooled: f32, value: f32) -> f32 {
        match self {
            HeadPooling::Mean => pooled + value,
            HeadPooling::Max => pooled.max(value),
            // Powers are taken of what is left of one head's largest value, as those of small probabilities are no floats.
            HeadPooling::Power(exponent) => {
                let (large, small) = if value > pooled {
                    (value, pooled)
                } else {
                    (pooled, value)
                };
                if large <= 0.0 {
                    return 0.0;
                }
                let exponent = exponent as i32;
                large * (1.0 + (small / large).powi(exponent)).powf(1.0 / exponent as f32)
            }
        }
    }

    /// The pooled score of `count` heads.
    pub(crate) fn finish(self, pooled: f32, count: u32) -> f32 {
        match self {
            HeadPooling::Mean => pooled / count as f32,
            HeadPooling::Max => pooled,
            HeadPooling::Power(exponent) => pooled * (count as f32).powf(-1.0 / exponent as f32),
        }
    }

    pub(crate) fn validate(self) -> Result<(), PolicyError> {
        match self {
            HeadPooling::Power(exponent) if !(2..=16).contains(&exponent) => {
                Err(text::bad_value("pool", &self.to_string()))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for HeadPooling {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadPooling::Mean => formatter.write_str("mean"),
            HeadPooling::Max => formatter.write_str("max"),
            HeadPooling::Power(exponent) => write!(formatter, "power{exponent}"),
        }
    }
}

impl FromStr for HeadPooling {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        match text {
            "mean" => Ok(HeadPooling::Mean),
            "max" => Ok(HeadPooling::Max),
            _ => {
                let exponent = text
                    .strip_prefix("power")
                    .and_then(|digits| text::whole32("pool", digits).ok());
                exponent
                    .map(HeadPooling::Power)
                    .ok_or_else(|| text::bad_value("pool", text))
            }
        }
    }
}

/// One head's score before pooling: `first[i] · second[i] · factor`, the second being 1 where there is none.
#[derive(Clone, Copy)]
pub(crate) struct Term<'a> {
    pub(crate) first: &'a [f32],
    pub(crate) second: Option<&'a [f32]>,
    pub(crate) factor: f32,
}

impl<'a> Term<'a> {
    fn rows(self, rows: Range<usize>) -> Term<'a> {
        let first = &self.first[rows.clone()];
        Term {
            first,
            second: self.second.map(|second| &second[rows]),
            ..self
        }
    }

    // One plain loop per form, so that the compiler vectorises each.
    fn fold<T: Copy>(self, out: &mut [T], combine: impl Fn(T, f32) -> T) {
        let factor = self.factor;
        match self.second {
            None => {
                for (accumulated, &first) in out.iter_mut().zip(self.first) {
                    *accumulated = combine(*accumulated, factor * first);
                }
            }
            Some(second) => {
                for ((accumulated, &first), &second) in out.iter_mut().zip(self.first).zip(second) {
                    *accumulated = combine(*accumulated, factor * first * second);
                }
            }
        }
    }
}

/// Rows pooled at a time: the accumulated scores stay in the first-level cache while the heads stream by.
const BLOCK: usize = 2048;

/// Pools one term per KV head into `out`; false where a result is NaN or infinite.
pub(crate) fn pool(pooling: HeadPooling, terms: &[Term<'_>], out: &mut [f32]) -> bool {
    let mut finite = true;
    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
        let rows = index * BLOCK..index * BLOCK + out.len();
        pool_block(pooling, terms.iter().map(|term| term.rows(rows.clone())), out);
        finite &= all_finite(out);
    }
    finite
}

fn pool_block<'a>(pooling: HeadPooling, terms: impl ExactSizeIterator<Item = Term<'a>>, out: &mut [f32]) {
    let heads = terms.len();
    match pooling {
        HeadPooling::Mean => {
            out.fill(0.0);
            for term in terms {
                term.fold(out, |sum, value| sum + value);
            }
            let scale = 1.0 / heads as f32;
            for value in out.iter_mut() {
                *value *= scale;
            }
        }
        HeadPooling::Max => {
            out.fill(f32::NEG_INFINITY);
            for term in terms {
                // `f32::max` would drop a NaN, and a NaN must be seen.
                term.fold(out, |largest, value| {
                    if value > largest || value.is_nan() {
                        value
                    } else {
                        largest
                    }
                });
            }
        }
        HeadPooling::Power(exponent) => {
            // Doubles, as the sixteenth power of a small probability is no float.
            let mut powers = [0.0f64; BLOCK];
            let powers = &mut powers[..out.len()];
            for term in terms {
                term.fold(powers, |sum, value| sum + f64::from(value).powi(exponent as i32));
            }
            let (scale, root) = (1.0 / heads as f64, 1.0 / f64::from(exponent));
            for (value, power) in out.iter_mut().zip(powers) {
                *value = (scale * *power).powf(root) as f32;
            }
        }
    }
}

/// One head's own score into `out`; false where a result is NaN or infinite.
pub(crate) fn single(term: Term<'_>, out: &mut [f32]) -> bool {
    term.fold(out, |_, value| value);
    all_finite(out)
}

pub(crate) fn all_finite(values: &[f32]) -> bool {
    // No early exit: a branch per value would keep the loop scalar.
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}

/// The sum in double precision, in eight interleaved partial sums.
pub(crate) fn sum(values: &[f32]) -> f64 {
    let mut partial = [0.0f64; 8];
    let (chunks, rest) = values.as_chunks::<8>();
    for chunk in chunks {
        for (sum, &value) in partial.iter_mut().zip(chunk) {
            *sum += f64::from(value);
        }
    }
    partial.iter().sum::<f64>() + rest.iter().map(|&value| f64::from(value)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: HeadPooling, heads: &[&[f32]]) -> Option<Vec<f32>> {
        let mut out = vec![7.0; heads[0].len()];
        let terms: Vec<_> = heads
            .iter()
            .map(|first| Term {
                first,
                second: None,
                factor: 1.0,
            })
            .collect();
        pool(pooling, &terms, &mut out).then_some(out)
    }

    #[test]
    fn pools_heads() {
        let heads: [&[f32]; 2] = [&[0.0, 0.3, 0.5], &[0.4, 0.4, 0.5]];
        for (pooling, expected) in [
            (HeadPooling::Mean, [0.2, 0.35, 0.5]),
            (HeadPooling::Max, [0.4, 0.4, 0.5]),
            (HeadPooling::Power(2), [0.08f32.sqrt(), 0.125f32.sqrt(), 0.5]),
        ] {
            for (found, expected) in pooled(pooling, &heads).unwrap().iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{pooling}");
            }
        }
    }

    #[test]
    fn blocks_make_no_difference() {
        let heads: Vec<Vec<f32>> = (1..4)
            .map(|head| (0..2 * BLOCK + 5).map(|row| (row * head % 97) as f32).collect())
            .collect();
        let heads: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
        let found = pooled(HeadPooling::Max, &heads).unwrap();
        let expected = |row: usize| heads.iter().map(|head| head[row]).fold(0.0, f32::max);
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(row, value)| value.to_bits() == expected(row).to_bits())
        );
    }

    #[test]
    fn small_probabilities_survive_high_powers() {
        let found = pooled(HeadPooling::Power(16), &[&[1e-9], &[1e-9]]).unwrap();
        assert!((found[0] / 1e-9 - 1.0).abs() < 1e-5);
    }

    #[test]
    fn sees_nan_whatever_the_pooling() {
        for pooling in [HeadPooling::Mean, HeadPooling::Max, HeadPooling::Power(2)] {
            for heads in [
                [&[f32::NAN][..], &[0.5]],
                [&[0.5], &[f32::NAN]],
                [&[0.5], &[f32::INFINITY]],
            ] {
                assert_eq!(pooled(pooling, &heads), None, "{pooling}");
            }
        }
    }
}
