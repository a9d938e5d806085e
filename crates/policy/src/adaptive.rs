//! Which α suits this sequence? Two ways to ask, both of which the paper reports as negative results (Appendix H):
//! measuring noise and drift at the start almost always gives a large α, and a disagreement of rankings does not say
//! in which direction α should go.
//!
//! The paper says what is measured and when; the formulas here are ours, after its Proposition 1 and Eq. 5.

use crate::aggregation::Aggregation;
use crate::agreement::jaccard;
use crate::policy::Policy;
use crate::ratio::Ratio;

/// What [`Aggregation::Adaptive`] measured at its first ten scorings with more than B entries held, and what it chose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveReport {
    /// Noise σ: 1 − Jaccard of two layers' top-B sets at one step, in the mean over pairs of scored layers and over the
    /// ten steps; 0 where one layer alone is scored.
    pub sigma: f64,
    /// Drift δ: half the L1 distance between the normalised utilities after one of the ten steps and after the one
    /// before it, over the entries held after both, in the mean over the nine pairs.
    pub delta: f64,
    /// The candidate of least risk `2σ²(1 − α)/(1 + α) + (δα/(1 − α))²`; of equals the largest.
    pub alpha: Ratio,
}

/// Candidates for α, ascending.
const CANDIDATES: [Ratio; 6] = [
    Ratio::ZERO,
    Ratio::percent(30),
    Ratio::percent(60),
    Ratio::percent(80),
    Ratio::percent(90),
    Ratio::percent(95),
];

/// Scorings that are measured before α is chosen.
const WARM_UP: usize = 10;

/// Disagreement above which a step makes the next scoring react.
const TRIGGER: f64 = 0.5;

/// One bit for each row of a ranking.
pub(crate) type RowSet = Vec<u64>;

/// α of one sequence, and what moves it.
#[derive(Debug, Clone)]
pub(crate) struct Adaptation {
    alpha: Ratio,
    warm_up: Option<WarmUp>,
    report: Option<AdaptiveReport>,
    /// Whether disagreement lowers α.
    reactive: bool,
    /// Whether it does so at the next scoring.
    triggered: bool,
}

#[derive(Debug, Clone, Default)]
struct WarmUp {
    scorings: usize,
    /// Sums over the scorings so far.
    sigma: f64,
    delta: f64,
    /// What each layer of this step put among its best B.
    tops: Vec<RowSet>,
    /// Positions, ascending, and their utilities after the scoring before.
    previous: Vec<(u32, f32)>,
}

impl Adaptation {
    /// The largest α of a scoring that reacts.
    pub(crate) const REACTION: Ratio = Ratio::percent(30);

    /// `None` where α is what the policy says.
    pub(crate) fn of(policy: &Policy) -> Option<Adaptation> {
        let adaptive = policy.aggregation == Aggregation::Adaptive;
        (adaptive || policy.reactive).then(|| Adaptation {
            alpha: policy.aggregation.alpha().unwrap_or(Policy::ALPHA),
            warm_up: adaptive.then(WarmUp::default),
            report: None,
            reactive: policy.reactive,
            triggered: false,
        })
    }

    pub(crate) fn report(&self) -> Option<AdaptiveReport> {
        self.report
    }

    /// α of the step under way.
    pub(crate) fn alpha(&self) -> Ratio {
        let lowered = self.triggered && self.alpha.as_f64() > Self::REACTION.as_f64();
        if lowered { Self::REACTION } else { self.alpha }
    }

    /// Whether the top-B sets of layers are wanted.
    pub(crate) fn is_measuring(&self) -> bool {
        self.warm_up.is_some()
    }

    /// Whether the top-B sets of a step's mean score and of its utility are wanted.
    pub(crate) fn is_reactive(&self) -> bool {
        self.reactive
    }

    /// Takes the top-B set of one layer.
    pub(crate) fn see_layer(&mut self, top: RowSet) {
        if let Some(warm_up) = &mut self.warm_up {
            warm_up.tops.push(top);
        }
    }

    /// Takes the top-B sets of a step by its mean score and by the utility after it.
    pub(crate) fn see_step(&mut self, by_score: &[u64], by_utility: &[u64]) {
        self.triggered = disagreement(by_score, by_utility) > TRIGGER;
    }

    /// Takes what is held, in row order, when a step that scored has evicted.
    pub(crate) fn finish_step(&mut self, positions: &[u32], utility: &[f32]) {
        let Some(warm_up) = &mut self.warm_up else { return };
        if warm_up.tops.is_empty() {
            return;
        }
        warm_up.measure(positions, utility);
        if warm_up.scorings == WARM_UP {
            let sigma = warm_up.sigma / WARM_UP as f64;
            let delta = warm_up.delta / (WARM_UP - 1) as f64;
            self.alpha = least_risk(sigma, delta);
            self.report = Some(AdaptiveReport {
                sigma,
                delta,
                alpha: self.alpha,
            });
            self.warm_up = None;
        }
    }
}

impl WarmUp {
    fn measure(&mut self, positions: &[u32], utility: &[f32]) {
        let pairs = self.tops.len() * (self.tops.len() - 1) / 2;
        let later = |first: usize| self.tops[first + 1..].iter().map(move |other| (first, other));
        let noise: f64 = (0..self.tops.len())
            .flat_map(later)
            .map(|(first, other)| disagreement(&self.tops[first], other))
            .sum();
        self.sigma += noise / pairs.max(1) as f64;
        self.tops.clear();
        let mut held: Vec<(u32, f32)> = positions.iter().copied().zip(utility.iter().copied()).collect();
        held.sort_unstable_by_key(|&(position, _)| position);
        // Before the first scoring there is nothing to have moved from.
        self.delta += drift(&self.previous, &held);
        self.previous = held;
        self.scorings += 1;
    }
}

/// 1 − Jaccard of two sets of rows.
fn disagreement(one: &[u64], other: &[u64]) -> f64 {
    1.0 - jaccard(one, other)
}

/// Half the L1 distance of the utilities of the positions in both lists, each made to sum to 1.
fn drift(before: &[(u32, f32)], after: &[(u32, f32)]) -> f64 {
    let mut before = before.iter().copied().peekable();
    let in_both = |&(position, utility): &(u32, f32)| {
        while before.next_if(|entry| entry.0 < position).is_some() {}
        let entry = before.next_if(|entry| entry.0 == position)?;
        Some((f64::from(entry.1), f64::from(utility)))
    };
    let pairs: Vec<(f64, f64)> = after.iter().filter_map(in_both).collect();
    let sums = pairs
        .iter()
        .fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
    if sums.0 <= 0.0 || sums.1 <= 0.0 {
        return 0.0;
    }
    pairs
        .iter()
        .map(|pair| (pair.0 / sums.0 - pair.1 / sums.1).abs())
        .sum::<f64>()
        / 2.0
}

/// The candidate with the least of the boundary error, by the variance of Proposition 1, and the lag error together.
fn least_risk(sigma: f64, delta: f64) -> Ratio {
    let risk =
        |alpha: f64| 2.0 * sigma * sigma * (1.0 - alpha) / (1.0 + alpha) + (delta * alpha / (1.0 - alpha)).powi(2);
    let mut best = (f64::INFINITY, Policy::ALPHA);
    for alpha in CANDIDATES {
        let risk = risk(alpha.as_f64());
        if risk <= best.0 {
            best = (risk, alpha);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_is_between_noise_and_drift() {
        for (sigma, delta, alpha) in [
            // What the paper measured.
            (0.07, 0.0003, 95),
            (0.07, 0.001, 90),
            (0.07, 0.004, 80),
            (0.07, 0.02, 60),
            (0.07, 0.1, 30),
            (0.0, 0.1, 0),
            (0.5, 0.0, 95),
            // All risks are 0.
            (0.0, 0.0, 95),
        ] {
            assert_eq!(
                least_risk(sigma, delta),
                Ratio::percent(alpha),
                "σ = {sigma}, δ = {delta}"
            );
        }
    }

    #[test]
    fn sets_disagree_by_what_only_one_has() {
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
        close(disagreement(&[0b0111, 1], &[0b1110, 1]), 2.0 / 5.0);
        close(disagreement(&[0b11], &[0b11]), 0.0);
        close(disagreement(&[0b01], &[0b10]), 1.0);
        close(disagreement(&[0], &[0]), 0.0);
    }

    #[test]
    fn drift_is_over_entries_held_after_both_steps() {
        let before = [(0, 1.0), (2, 5.0), (3, 3.0)];
        // Without 2 and 4 the shares are 1/4, 3/4 and 3/4, 1/4.
        assert!((drift(&before, &[(0, 6.0), (3, 2.0), (4, 9.0)]) - 0.5).abs() < 1e-12);
        // A common factor is no drift.
        assert!(drift(&before, &before.map(|(position, utility)| (position, 4.0 * utility))).abs() < 1e-12);
        assert!(drift(&before, &[(7, 1.0)]).abs() < 1e-12);
        assert!(drift(&before, &[(0, 0.0), (3, 0.0)]).abs() < 1e-12);
    }
}
