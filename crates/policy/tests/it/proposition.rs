//! Proposition 1 and Corollary 2 of the paper, by simulation of the idealised process they are about: fixed tokens, one
//! update per step, scores independent over steps and tokens.

use inertiakv_policy::{HeadObservation, PolicyState, Shape};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{method, state};

const RUNS: usize = 4000;

/// Scores of one step: mean `center`, and a deviation of ±`spread` by a fair coin, so of variance `spread²`.
fn draw(random: &mut ChaCha8Rng, center: f64, spread: f64) -> f64 {
    if random.random_bool(0.5) {
        center + spread
    } else {
        center - spread
    }
}

/// The utilities of `means.len()` tokens after `steps` steps under the real state: one layer, no new tokens, no eviction.
fn simulate(template: &PolicyState, random: &mut ChaCha8Rng, means: &[f64], spread: f64, steps: usize) -> Vec<f64> {
    let mut state = template.clone();
    for _ in 0..steps {
        state.begin_step(0);
        let mass: Vec<f32> = means.iter().map(|&mean| draw(random, mean, spread) as f32).collect();
        state
            .observe(
                0,
                1,
                &[HeadObservation {
                    mass: &mass,
                    ..Default::default()
                }],
            )
            .unwrap();
        state.finish_step().unwrap();
    }
    state.utility(0, 0).iter().copied().map(f64::from).collect()
}

struct Gap {
    mean: f64,
    variance: f64,
    misranked: f64,
}

fn gap(alpha: f64, means: [f64; 2], spread: f64, steps: usize) -> Gap {
    let template = state(
        &format!("inertia:alpha={alpha},tokens=1000"),
        &Shape::uniform(1, 1, 1),
        2,
    );
    let mut random = ChaCha8Rng::seed_from_u64((alpha * 1000.0) as u64 + steps as u64);
    let gaps: Vec<f64> = (0..RUNS)
        .map(|_| {
            let utility = simulate(&template, &mut random, &means, spread, steps);
            utility[0] - utility[1]
        })
        .collect();
    let runs = RUNS as f64;
    let mean = gaps.iter().sum::<f64>() / runs;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / runs;
    let misranked = gaps.iter().filter(|&&gap| gap < 0.0).count() as f64 / runs;
    Gap {
        mean,
        variance,
        misranked,
    }
}

/// Steps after which α^T is below a thousandth.
fn settled(alpha: f64) -> usize {
    if alpha == 0.0 {
        1
    } else {
        (0.001f64.ln() / alpha.ln()).ceil() as usize
    }
}

/// Four standard errors of a variance estimated from `RUNS` draws of a nearly normal variable.
fn variance_tolerance(variance: f64) -> f64 {
    4.0 * variance * (2.0 / RUNS as f64).sqrt()
}

#[test]
fn the_variance_of_the_gap_is_bounded() {
    let spread = 0.3;
    for alpha in [0.0, 0.3, 0.6, 0.8, 0.9, 0.95] {
        let bound = 2.0 * (1.0 - alpha) / (1.0 + alpha) * spread * spread;
        for steps in [1, 3, settled(alpha)] {
            let found = gap(alpha, [0.5, 0.4], spread, steps).variance;
            assert!(
                found <= bound + variance_tolerance(bound),
                "α = {alpha}, T = {steps}: {found} > {bound}"
            );
        }
        // In the stationary limit the bound is met, as the draws have exactly that variance.
        let found = gap(alpha, [0.5, 0.4], spread, settled(alpha)).variance;
        assert!(
            (found - bound).abs() <= variance_tolerance(bound),
            "α = {alpha}: {found} is not {bound}"
        );
    }
}

#[test]
fn the_variance_grows_towards_the_bound() {
    // Var = 2 (1 − α)² σ² (1 − α^(2T)) / (1 − α²), the sum in the proof before it is bounded.
    let (alpha, spread) = (0.8f64, 0.3f64);
    for steps in [1, 2, 5, 10] {
        let expected = 2.0 * (1.0 - alpha) / (1.0 + alpha) * spread * spread * (1.0 - alpha.powi(2 * steps as i32));
        let found = gap(alpha, [0.5, 0.4], spread, steps).variance;
        assert!(
            (found - expected).abs() <= variance_tolerance(expected),
            "T = {steps}: {found} is not {expected}"
        );
    }
}

#[test]
fn the_expected_gap_converges() {
    let (means, spread) = ([0.5f64, 0.4], 0.3f64);
    for alpha in [0.3, 0.8, 0.95] {
        for steps in [1, 4, 16, settled(alpha)] {
            let expected = (1.0 - f64::powi(alpha, steps as i32)) * (means[0] - means[1]);
            let found = gap(alpha, means, spread, steps);
            let standard_error = (found.variance / RUNS as f64).sqrt();
            let error = (found.mean - expected).abs();
            assert!(
                error <= 4.0 * standard_error + 1e-6,
                "α = {alpha}, T = {steps}: {} is not {expected}",
                found.mean
            );
        }
    }
}

#[test]
fn misranking_is_bounded_and_falls_with_smoothing() {
    let (means, spread) = ([0.5f64, 0.4], 0.3f64);
    let delta = means[0] - means[1];
    let mut found_misranked = Vec::new();
    let mut informative = 0;
    for alpha in [0.0, 0.6, 0.8, 0.9, 0.95, 0.98] {
        let bound = 2.0 * (1.0 - alpha) * spread * spread / ((1.0 + alpha) * delta * delta);
        let found = gap(alpha, means, spread, settled(alpha)).misranked;
        let tolerance = 4.0 * (0.25 / RUNS as f64).sqrt();
        assert!(found <= bound + tolerance, "α = {alpha}: {found} > {bound}");
        informative += usize::from(bound < 1.0);
        found_misranked.push(found);
    }
    assert!(
        found_misranked.last() < found_misranked.first(),
        "smoothing did not help: {found_misranked:?}"
    );
    assert!(informative >= 2, "the bound was never below 1");
}

#[test]
fn corollary_2_an_increasing_transformation_keeps_the_expected_ranking() {
    // The transformed scorer has means f(s) with f increasing, so the utilities, averaged over runs, rank alike.
    let means = [0.1, 0.2, 0.35, 0.5, 0.8];
    let template = state("inertia:tokens=1000", &Shape::uniform(1, 1, 1), means.len());
    for transform in [
        |mean: f64| mean * mean,
        |mean: f64| mean.sqrt(),
        |mean: f64| 0.25 + mean / 2.0,
    ] {
        let transformed: Vec<f64> = means.iter().map(|&mean| transform(mean)).collect();
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let mut average = vec![0.0; means.len()];
        for _ in 0..500 {
            let utility = simulate(&template, &mut random, &transformed, 0.05, settled(0.8));
            average
                .iter_mut()
                .zip(utility)
                .for_each(|(sum, value)| *sum += value / 500.0);
        }
        assert!(average.windows(2).all(|pair| pair[0] < pair[1]), "{average:?}");
    }
}

#[test]
fn positive_scaling_is_invisible() {
    // A power of two, so that the floats scale exactly too.
    let shape = Shape::uniform(3, 1, 1);
    let policy = method("inertia:tokens=20").decode.policy;
    let (mut plain, mut scaled) = (
        PolicyState::new(&policy, &shape, 80).unwrap(),
        PolicyState::new(&policy, &shape, 80).unwrap(),
    );
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for _ in 0..40 {
        let needs = plain.begin_step(1);
        scaled.begin_step(1);
        for layer in (0..3).filter(|&layer| needs.needs(layer)) {
            let mass: Vec<f32> = (0..plain.rows(layer, 0)).map(|_| random.random::<f32>()).collect();
            let larger: Vec<f32> = mass.iter().map(|value| value * 8.0).collect();
            plain
                .observe(
                    layer,
                    1,
                    &[HeadObservation {
                        mass: &mass,
                        ..Default::default()
                    }],
                )
                .unwrap();
            scaled
                .observe(
                    layer,
                    1,
                    &[HeadObservation {
                        mass: &larger,
                        ..Default::default()
                    }],
                )
                .unwrap();
        }
        assert_eq!(plain.finish_step(), scaled.finish_step());
    }
}
