//! How scores become the running utility.

use std::fmt;

use crate::ratio::Ratio;

/// The rule that folds a score s into the utility m (Eq. 2 to 4 of the paper).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aggregation {
    /// `m = s` (Eq. 2).
    SingleStep,
    /// `m = m + s` (Eq. 3).
    Cumulative,
    /// `m = αm + (1 − α)s` (Eq. 4).
    Ema(Ratio),
    /// The moving average with an α that the sequence itself gives: 0.8 for the first ten scorings at which more than B
    /// entries are held, then what [`AdaptiveReport`](crate::AdaptiveReport) says. A negative result of the paper (Appendix H).
    Adaptive,
    /// The mean of the last this many scores, each as it was when it was computed: the observation window of `SnapKV`
    /// while decoding.
    Mean(usize),
}

impl Aggregation {
    /// The smoothing coefficient α, where the rule has one of its own.
    #[must_use]
    pub fn alpha(self) -> Option<Ratio> {
        match self {
            Aggregation::Ema(alpha) => Some(alpha),
            _ => None,
        }
    }

    pub(crate) fn update(self, utility: &mut [f32], score: &[f32]) {
        self.update_repeatedly(utility, score, 1);
    }

    /// The same score folded in `times` times, in closed form: what `times` layers do that all score alike.
    pub(crate) fn update_repeatedly(self, utility: &mut [f32], score: &[f32], times: usize) {
        match self {
            Aggregation::Mean(_) => unreachable!("the ranking folds a mean"),
            Aggregation::SingleStep => utility.copy_from_slice(score),
            Aggregation::Cumulative => {
                let times = times as f32;
                for (m, &s) in utility.iter_mut().zip(score) {
                    // A sum without end stays a number that ranks.
                    *m = (*m + times * s).clamp(f32::MIN, f32::MAX);
                }
            }
            Aggregation::Adaptive => unreachable!("the state puts in the α it has come to"),
            Aggregation::Ema(alpha) => {
                let keep = alpha.as_f64().powi(times as i32);
                let (keep, admit) = (keep as f32, (1.0 - keep) as f32);
                for (m, &s) in utility.iter_mut().zip(score) {
                    *m = keep * *m + admit * s;
                }
            }
        }
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Aggregation::SingleStep => "single-step",
            Aggregation::Cumulative => "cumulative",
            Aggregation::Ema(_) => "ema",
            Aggregation::Adaptive => "adaptive",
            Aggregation::Mean(scores) => return write!(formatter, "mean{scores}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_finite() {
        let mut utility = [f32::MAX, f32::MIN];
        Aggregation::Cumulative.update(&mut utility, &[f32::MAX, f32::MIN]);
        assert!(utility.iter().all(|m| m.is_finite()));
    }

    #[test]
    fn closed_form_equals_repetition() {
        for rule in [
            Aggregation::SingleStep,
            Aggregation::Cumulative,
            Aggregation::Ema(Ratio::percent(80)),
        ] {
            let score = [0.25, -1.0, 3.0];
            let (mut repeated, mut closed) = ([1.0f32, 2.0, 0.0], [1.0f32, 2.0, 0.0]);
            for _ in 0..7 {
                rule.update(&mut repeated, &score);
            }
            rule.update_repeatedly(&mut closed, &score, 7);
            for (a, b) in repeated.iter().zip(closed) {
                assert!((a - b).abs() < 1e-5, "{rule}: {a} and {b}");
            }
        }
    }
}
