//! Between which bounds does a mean difference lie?

use serde::{Deserialize, Serialize};

use super::distribution::{quantile, refuse_nan};
use crate::EvalError;
use crate::dice::Dice;

/// A percentile bootstrap. Its draws depend on the seed and on how many units each task has, so all comparisons over the
/// same examples use the same draws.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// How many resamples are drawn.
    pub resamples: usize,
    /// Share of the resampled means within the bounds.
    pub level: f64,
    /// Seed of the draws (`ChaCha8`).
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self {
            resamples: 10_000,
            level: 0.95,
            seed: 0,
        }
    }
}

/// What is drawn as a whole: one example, or a cell of a grid with all its repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Sum of the unit's differences.
    pub sum: f64,
    /// How many there are.
    pub count: usize,
}

impl From<f64> for Unit {
    fn from(difference: f64) -> Self {
        Self {
            sum: difference,
            count: 1,
        }
    }
}

/// A mean difference and its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Mean of the data; of several tasks the mean of their means.
    pub mean: f64,
    /// Lower and upper bound; none if a task has fewer than two units.
    pub bounds: Option<(f64, f64)>,
}

impl Interval {
    /// Does zero lie outside the closed interval?
    #[must_use]
    pub fn is_significant(&self) -> Option<bool> {
        self.bounds.map(|(low, high)| low > 0.0 || high < 0.0)
    }
}

impl Bootstrap {
    /// The interval of a mean, or for several tasks of the mean of task means; units are drawn within their task.
    ///
    /// `None` without a task, or if a task is empty.
    ///
    /// # Errors
    ///
    /// A difference is NaN.
    ///
    /// # Panics
    ///
    /// There are no resamples, the level lies outside [0, 1], or a unit is empty.
    pub fn interval<T: AsRef<[Unit]>>(&self, tasks: &[T]) -> Result<Option<Interval>, EvalError> {
        assert!(
            self.resamples > 0 && (0.0..=1.0).contains(&self.level),
            "{self:?} is no bootstrap"
        );
        for task in tasks {
            assert!(task.as_ref().iter().all(|unit| unit.count > 0), "a unit is empty");
            refuse_nan(&task.as_ref().iter().map(|unit| unit.sum).collect::<Vec<_>>())?;
        }
        if tasks.is_empty() || tasks.iter().any(|task| task.as_ref().is_empty()) {
            return Ok(None);
        }
        let mean = mean_of_means(tasks, |_, index| index);
        let enough = tasks.iter().all(|task| task.as_ref().len() > 1);
        let bounds = enough.then(|| {
            let mut dice = Dice::new(self.seed, "bootstrap");
            let draw = |_| mean_of_means(tasks, |task, _| dice.below(task.len()));
            let mut means: Vec<f64> = (0..self.resamples).map(draw).collect();
            means.sort_by(f64::total_cmp);
            let tail = (1.0 - self.level) / 2.0;
            (quantile(&means, tail), quantile(&means, 1.0 - tail))
        });
        Ok(Some(Interval { mean, bounds }))
    }
}

/// Mean over the tasks of the mean over as many units as the task has; `choose` says which unit comes at an index.
fn mean_of_means<T: AsRef<[Unit]>>(tasks: &[T], mut choose: impl FnMut(&[Unit], usize) -> usize) -> f64 {
    let mut mean_of_task = |task: &[Unit]| {
        let (mut sum, mut count) = (0.0, 0);
        for index in 0..task.len() {
            let unit = task[choose(task, index)];
            sum += unit.sum;
            count += unit.count;
        }
        sum / count as f64
    };
    tasks.iter().map(|task| mean_of_task(task.as_ref())).sum::<f64>() / tasks.len() as f64
}

#[cfg(test)]
mod tests {
    use super::{Bootstrap, Unit};

    fn units(differences: &[f64]) -> Vec<Unit> {
        differences.iter().copied().map(Unit::from).collect()
    }

    #[test]
    fn two_examples_have_every_mean_between_them() {
        // Means 0, 0.5 and 1 with probability 1/4, 1/2, 1/4.
        let interval = Bootstrap::default().interval(&[units(&[0.0, 1.0])]).unwrap().unwrap();
        assert_eq!((interval.mean, interval.bounds), (0.5, Some((0.0, 1.0))));
        assert_eq!(interval.is_significant(), Some(false));
    }

    #[test]
    fn equal_differences_have_no_width() {
        let interval = Bootstrap::default().interval(&[units(&[0.25; 8])]).unwrap().unwrap();
        assert_eq!(interval.bounds, Some((0.25, 0.25)));
        assert_eq!(interval.is_significant(), Some(true));
    }

    #[test]
    fn one_example_has_no_bounds_and_none_no_mean() {
        let bootstrap = Bootstrap::default();
        let interval = bootstrap.interval(&[units(&[0.5])]).unwrap().unwrap();
        assert_eq!(
            (interval.mean, interval.bounds, interval.is_significant()),
            (0.5, None, None)
        );
        assert_eq!(bootstrap.interval(&[units(&[])]).unwrap(), None);
        assert_eq!(bootstrap.interval::<Vec<Unit>>(&[]).unwrap(), None);
        assert!(
            bootstrap
                .interval(&[units(&[0.0, f64::NAN])])
                .unwrap_err()
                .to_string()
                .contains("number 1")
        );
    }

    #[test]
    fn tasks_weigh_the_same_whatever_their_size() {
        let interval = Bootstrap::default()
            .interval(&[units(&[1.0; 2]), units(&[0.0; 98])])
            .unwrap()
            .unwrap();
        assert_eq!((interval.mean, interval.bounds), (0.5, Some((0.5, 0.5))));
    }

    #[test]
    fn repeats_of_a_cell_stay_together() {
        // Within a cell the repeats cancel, so no resample has another mean.
        let cells = [
            Unit {
                sum: 1.0 - 1.0,
                count: 2,
            },
            Unit {
                sum: 0.5 - 0.5,
                count: 2,
            },
        ];
        assert_eq!(
            Bootstrap::default().interval(&[cells]).unwrap().unwrap().bounds,
            Some((0.0, 0.0))
        );
    }

    #[test]
    fn a_seed_fixes_the_draws() {
        let task = units(&(0..40).map(|n| f64::from(n * n % 7)).collect::<Vec<_>>());
        let of = |seed| {
            Bootstrap {
                seed,
                resamples: 200,
                ..Bootstrap::default()
            }
            .interval(&[&task])
            .unwrap()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
