//! Do the bounds of Proposition 1 hold, and how far from them is what happens?

use serde::{Deserialize, Serialize};

use super::table::{Cell, Source, Table, TableRow};
use crate::dice::Dice;

/// The idealised process of Proposition 1: two tokens, scores independent over steps and tokens, no insertion, no eviction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposition {
    /// Smoothing strengths.
    pub alphas: Vec<f64>,
    /// Difference of the two mean scores.
    pub gap: f64,
    /// Standard deviation of a score.
    pub deviation: f64,
    /// Steps of a run, enough to forget the start.
    pub steps: usize,
    /// Runs per α.
    pub runs: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// What came out under one α.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Simulated {
    pub(crate) mean: f64,
    pub(crate) variance: f64,
    pub(crate) misranked: f64,
}

impl Proposition {
    pub(super) fn table(&self, title: &str) -> Table {
        let rows = self.alphas.iter().map(|&alpha| {
            let found = self.simulate(alpha);
            let variance = 2.0 * (1.0 - alpha) / (1.0 + alpha) * self.deviation.powi(2);
            TableRow {
                model: "simulation".to_owned(),
                source: Source::Run,
                label: format!("α = {alpha}"),
                cells: vec![
                    Cell::plain(found.mean, 4),
                    Cell::plain(self.gap, 4),
                    Cell::plain(found.variance, 4),
                    Cell::plain(variance, 4),
                    Cell::plain(found.misranked, 4),
                    Cell::plain((variance / self.gap.powi(2)).min(1.0), 4),
                ],
            }
        });
        Table {
            title: title.to_owned(),
            corner: "α".to_owned(),
            columns: [
                "mean gap",
                "its limit",
                "variance of the gap",
                "bound of the variance",
                "misranked",
                "bound of misranking",
            ]
            .map(str::to_owned)
            .to_vec(),
            rows: rows.collect(),
            notes: vec![format!(
                "{} runs of {} steps for each α; scores differ by {} in the mean and have a standard deviation of {}.",
                self.runs, self.steps, self.gap, self.deviation
            )],
        }
    }

    pub(crate) fn simulate(&self, alpha: f64) -> Simulated {
        let mut dice = Dice::new(self.seed, &format!("proposition/{alpha}"));
        // A fair coin: the variance is the deviation squared, no score is nearer to its mean.
        let mut score = |mean: f64| {
            if dice.bits() & 1 == 0 {
                mean + self.deviation
            } else {
                mean - self.deviation
            }
        };
        let gaps: Vec<f64> = (0..self.runs)
            .map(|_| {
                let (mut better, mut worse) = (0.0, 0.0);
                for _ in 0..self.steps {
                    better = alpha * better + (1.0 - alpha) * score(self.gap);
                    worse = alpha * worse + (1.0 - alpha) * score(0.0);
                }
                better - worse
            })
            .collect();
        let count = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / count;
        Simulated {
            mean,
            variance: gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count,
            misranked: gaps.iter().filter(|gap| **gap < 0.0).count() as f64 / count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Proposition;

    #[test]
    fn the_bounds_hold_and_smoothing_helps() {
        let proposition = Proposition {
            alphas: Vec::new(),
            gap: 0.5,
            deviation: 1.0,
            steps: 200,
            runs: 2000,
            seed: 1,
        };
        let found = [0.0, 0.8, 0.95].map(|alpha| (alpha, proposition.simulate(alpha)));
        for (alpha, found) in found {
            let bound = 2.0 * (1.0 - alpha) / (1.0 + alpha);
            // A tenth is more than six standard errors of a variance over 2000 runs.
            assert!(found.variance < bound * 1.1, "{alpha}: {found:?}");
            assert!(
                found.variance > bound * 0.85,
                "the bound is met with equality: {alpha}: {found:?}"
            );
            assert!(found.misranked <= bound / 0.25, "{alpha}: {found:?}");
            assert!((found.mean - 0.5).abs() < 0.15, "{alpha}: {found:?}");
        }
        assert!(found[2].1.misranked < found[1].1.misranked && found[1].1.misranked < found[0].1.misranked);
    }
}
