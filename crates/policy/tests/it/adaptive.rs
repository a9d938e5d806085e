//! α that the sequence itself moves, against the definitions written once more as plainly as possible.

use std::collections::{BTreeMap, BTreeSet};

use inertiakv_policy::{AdaptiveReport, Aggregation, Coupling, Method, Policy, PolicyError, Ratio, Shape};

use crate::support::{close, noise, state, step, utility_of};

const LAYERS: usize = 4;
const PROMPT: usize = 90;

/// The best `count` positions; of equals the later one.
fn best(values: &BTreeMap<u32, f64>, count: usize) -> BTreeSet<u32> {
    let mut order: Vec<(u32, f64)> = values.iter().map(|(&position, &value)| (position, value)).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    order.iter().take(count).map(|entry| entry.0).collect()
}

fn disagreement(one: &BTreeSet<u32>, other: &BTreeSet<u32>) -> f64 {
    1.0 - one.intersection(other).count() as f64 / one.union(other).count() as f64
}

fn drift(before: &BTreeMap<u32, f64>, after: &BTreeMap<u32, f64>) -> f64 {
    let both: Vec<u32> = before
        .keys()
        .copied()
        .filter(|position| after.contains_key(position))
        .collect();
    let total = |of: &BTreeMap<u32, f64>| both.iter().map(|position| of[position]).sum::<f64>();
    let (before_total, after_total) = (total(before), total(after));
    let moved = |position: &u32| (before[position] / before_total - after[position] / after_total).abs();
    both.iter().map(moved).sum::<f64>() / 2.0
}

struct Twin {
    policy: Policy,
    budget: usize,
    alpha: f64,
    triggered: bool,
    utility: BTreeMap<u32, f64>,
    noises: Vec<f64>,
    drifts: Vec<f64>,
    triggers: usize,
}

impl Twin {
    fn step(&mut self, newest: u32, mass: &dyn Fn(usize, usize, u32) -> f32) {
        let before = self.utility.clone();
        self.utility.insert(newest, 0.0);
        let alpha = if self.triggered {
            self.alpha.min(0.3)
        } else {
            self.alpha
        };
        let scores: Vec<BTreeMap<u32, f64>> = (0..LAYERS)
            .map(|layer| {
                self.utility
                    .keys()
                    .map(|&position| (position, f64::from(mass(layer, 0, position))))
                    .collect()
            })
            .collect();
        let mean: BTreeMap<u32, f64> = self
            .utility
            .keys()
            .map(|position| {
                (
                    *position,
                    scores.iter().map(|score| score[position]).sum::<f64>() / LAYERS as f64,
                )
            })
            .collect();
        let updates = if self.policy.coupling == Coupling::LayerMean {
            std::slice::from_ref(&mean)
        } else {
            &scores[..]
        };
        for score in updates {
            for (position, m) in &mut self.utility {
                *m = alpha * *m + (1.0 - alpha) * score[position];
            }
        }
        if self.policy.reactive {
            self.triggered = disagreement(&best(&mean, self.budget), &best(&self.utility, self.budget)) > 0.5;
            self.triggers += usize::from(self.triggered);
        }
        if self.utility.len() >= self.budget + self.policy.interval {
            let kept = best(&self.utility, self.budget);
            self.utility.retain(|position, _| kept.contains(position));
        }
        if self.policy.aggregation == Aggregation::Adaptive && self.noises.len() < 10 {
            let tops: Vec<_> = scores.iter().map(|score| best(score, self.budget)).collect();
            let pairs = (0..LAYERS).flat_map(|a| (0..a).map(move |b| (a, b)));
            let noise: f64 = pairs.map(|(a, b)| disagreement(&tops[a], &tops[b])).sum();
            self.noises.push(noise / (LAYERS * (LAYERS - 1) / 2) as f64);
            if self.noises.len() > 1 {
                self.drifts.push(drift(&before, &self.utility));
            }
            if self.noises.len() == 10 {
                self.alpha = self.report().alpha.as_f64();
            }
        }
    }

    fn report(&self) -> AdaptiveReport {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (sigma, delta) = (mean(&self.noises), mean(&self.drifts));
        let risk =
            |alpha: f64| 2.0 * sigma.powi(2) * (1.0 - alpha) / (1.0 + alpha) + (delta * alpha / (1.0 - alpha)).powi(2);
        let candidates = ["0.95", "0.9", "0.8", "0.6", "0.3", "0"];
        let alpha = candidates
            .into_iter()
            .min_by(|a, b| risk(a.parse().unwrap()).total_cmp(&risk(b.parse().unwrap())))
            .unwrap();
        AdaptiveReport {
            sigma,
            delta,
            alpha: alpha.parse().unwrap(),
        }
    }
}

/// Scores with a lasting part and one that changes at every step, `change` of the whole.
fn changing(t: u64, change: f32) -> impl Fn(usize, usize, u32) -> f32 {
    move |layer, _, position| {
        let lasting = noise(1, [position as usize, 0, 0, 0]);
        let passing = noise(2 + t, [layer, position as usize, 0, 0]);
        ((1.0 - change) * lasting + change * passing).powi(6)
    }
}

#[test]
fn noise_drift_and_reactions_are_as_defined() {
    let mut alphas = BTreeSet::new();
    let mut triggers = 0;
    for (text, change) in [
        ("inertia-adaptive:tokens=30", 0.1),
        ("inertia-adaptive:tokens=30", 0.5),
        ("inertia-adaptive:tokens=30", 1.0),
        ("inertia-adaptive:tokens=30,coupling=layer-mean", 0.02),
        (
            "inertia-adaptive:tokens=30,coupling=layer-mean,reactive=true,interval=20",
            1.0,
        ),
        ("inertia-reactive:tokens=5,interval=95", 0.3),
        ("inertia-reactive:tokens=5,interval=10", 1.0),
        (
            "inertia-reactive:tokens=5,interval=95,coupling=layer-mean,alpha=0.9",
            1.0,
        ),
    ] {
        let mut state = state(text, &Shape::uniform(LAYERS, 1, 1), PROMPT);
        let mut twin = Twin {
            policy: state.policy().clone(),
            budget: state.budget().unwrap(),
            alpha: state.policy().aggregation.alpha().map_or(0.8, Ratio::as_f64),
            triggered: false,
            utility: (0..PROMPT as u32).map(|position| (position, 0.0)).collect(),
            noises: Vec::new(),
            drifts: Vec::new(),
            triggers: 0,
        };
        for t in 1..=25u64 {
            assert_eq!(
                state.adaptive().is_some(),
                text.contains("adaptive") && t > 10,
                "{text}, step {t}"
            );
            let mass = changing(t, change);
            let newest = state.seen_tokens() as u32;
            step(&mut state, 1, &mass);
            twin.step(newest, &mass);
            let expected: Vec<u32> = twin.utility.keys().copied().collect();
            assert_eq!(state.retained(0, 0), expected, "{text}, step {t}");
            for (&position, &m) in &twin.utility {
                close(utility_of(&state, 0, 0, position), m as f32);
            }
        }
        if let Some(found) = state.adaptive() {
            let expected = twin.report();
            assert!(
                (found.sigma - expected.sigma).abs() < 1e-9,
                "{text}: {found:?} is not {expected:?}"
            );
            assert!(
                (found.delta - expected.delta).abs() < 1e-6,
                "{text}: {found:?} is not {expected:?}"
            );
            assert_eq!(found.alpha, expected.alpha, "{text}: {found:?}");
            alphas.insert(found.alpha.to_string());
        }
        triggers += twin.triggers;
    }
    assert!(alphas.len() > 1, "α was always {alphas:?}");
    assert!(triggers > 5, "too few reactions to test: {triggers}");
}

#[test]
fn a_reaction_lasts_one_scoring() {
    // What was best for long gets nothing at step 5, where everything else gets much.
    let before = |_: usize, _: usize, position: u32| if position < 4 { 1.0 } else { 0.0 };
    let turned = |_: usize, _: usize, position: u32| if position < 4 { 0.0 } else { 0.1 };
    let shape = Shape::uniform(2, 1, 1);
    for (text, reacts) in [
        ("inertia:tokens=4,interval=20", false),
        ("inertia-reactive:tokens=4,interval=20", true),
    ] {
        let mut state = state(text, &shape, 8);
        for _ in 0..4 {
            step(&mut state, 1, &before);
        }
        let mut expected = utility_of(&state, 0, 0, 0);
        for alpha in [0.8f32, if reacts { 0.3 } else { 0.8 }, 0.8] {
            let mass = if (alpha - 0.3).abs() < 1e-6 {
                &before as &dyn Fn(_, _, _) -> f32
            } else {
                &turned
            };
            step(&mut state, 1, mass);
            let score = mass(0, 0, 0);
            expected = alpha.powi(2) * expected + (1.0 - alpha.powi(2)) * score;
            close(utility_of(&state, 0, 0, 0), expected);
        }
    }
}

#[test]
fn what_fits_the_budget_says_nothing_about_noise() {
    let shape = Shape::uniform(2, 1, 1);
    let mut state = state("inertia-adaptive:tokens=30", &shape, 20);
    // Steps 11 to 20 are the first that have something to evict.
    for t in 1..=20 {
        assert_eq!(state.adaptive(), None);
        step(&mut state, 1, &changing(t, 1.0));
    }
    assert!(state.adaptive().is_some_and(|report| report.sigma > 0.0));
    // A scoring every other step takes twice as long.
    let mut lazy = crate::support::state("inertia-adaptive:tokens=10,refresh=2", &shape, 20);
    for t in 1..=19 {
        assert_eq!(lazy.adaptive(), None);
        step(&mut lazy, 1, &changing(t, 1.0));
    }
    assert!(lazy.adaptive().is_some());
}

#[test]
fn one_layer_alone_has_no_noise() {
    let mut state = state("inertia-adaptive:tokens=10,layers=1", &Shape::uniform(3, 1, 1), 40);
    for t in 1..=10 {
        step(&mut state, 1, &changing(t, 1.0));
    }
    let report = state.adaptive().unwrap();
    assert!(report.sigma.abs() < 1e-12 && report.delta > 0.0);
    assert_eq!(report.alpha.to_string(), "0");
}

#[test]
fn what_moves_alpha_needs_an_alpha_of_the_model() {
    for (text, conflict) in [
        ("inertia-adaptive:coupling=per-layer", "aggregation"),
        ("inertia-adaptive:coupling=per-head", "aggregation"),
        ("inertia-adaptive:scorer=key-diff", "aggregation"),
        ("inertia-adaptive:scorer=recency", "aggregation"),
        ("inertia-adaptive:refresh=once", "refresh"),
        ("inertia-adaptive:alpha=0.9", "alpha"),
        ("snapkv+inertia-adaptive", "aggregation"),
        ("inertia-reactive:coupling=per-layer", "reactive"),
        ("inertia-reactive:aggregation=cumulative", "reactive"),
        ("inertia-reactive:scorer=random", "reactive"),
        ("inertia-reactive:refresh=once", "refresh"),
        ("inertia-reactive:alpha=0.3", "alpha"),
        ("h2o:reactive=true", "reactive"),
        ("snapkv+inertia-reactive", "reactive"),
        ("tova:reactive=true", "reactive"),
    ] {
        match text.parse::<Method>() {
            Err(PolicyError::Conflict { key, .. }) => assert_eq!(key, conflict, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    for text in [
        "inertia-adaptive:reactive=true",
        "inertia-adaptive:coupling=layer-mean",
        "inertia-reactive:scorer=key-norm",
        "inertia-reactive:alpha=0.31",
        "learned:aggregation=adaptive",
    ] {
        assert_eq!(text.parse::<Method>().unwrap().to_string(), text);
    }
}
