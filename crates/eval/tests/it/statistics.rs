//! Do statistics agree with `SciPy` and `NumPy`? `statistics.json` comes from `make_statistics.py` beside it.

use inertiakv_eval::statistics::{Bootstrap, TTest, Unit, pearson, quantile, spearman};
use inertiakv_eval::trace::{Ranking, Ties, agreement, step_churn};
use serde::Deserialize;

use crate::support::golden;

#[derive(Deserialize)]
struct Golden {
    t_tests: Vec<TTestCase>,
    correlations: Vec<Correlation>,
    bootstraps: Vec<BootstrapCase>,
    entropies: Vec<Entropy>,
    quantiles: Vec<Quantiles>,
    top_sets: Vec<TopSets>,
}

#[derive(Deserialize)]
struct TTestCase {
    differences: Vec<f64>,
    t: f64,
    p: f64,
}

#[derive(Deserialize)]
struct Correlation {
    x: Vec<f64>,
    y: Vec<f64>,
    spearman: f64,
    pearson: f64,
}

#[derive(Deserialize)]
struct BootstrapCase {
    tasks: Vec<Vec<f64>>,
    mean: f64,
    low: f64,
    high: f64,
    sd: f64,
}

#[derive(Deserialize)]
struct Entropy {
    scores: Vec<f32>,
    entropy: f64,
}

#[derive(Deserialize)]
struct Quantiles {
    values: Vec<f64>,
    quantiles: [f64; 7],
}

#[derive(Deserialize)]
struct TopSets {
    budget: usize,
    raw: Vec<Vec<f32>>,
    ema: Vec<Vec<f32>>,
    jaccard: Vec<f64>,
    raw_churn: Vec<f64>,
    ema_churn: Vec<f64>,
    spearman: Vec<f64>,
}

/// Equal to ten digits, small numbers included.
fn assert_near(ours: f64, theirs: f64) {
    assert!(
        (ours - theirs).abs() <= 1e-10 * theirs.abs().max(1e-300),
        "{ours} is not {theirs}"
    );
}

fn ranking(scores: &[f32]) -> Ranking {
    Ranking::new((0..).zip(scores.iter().copied()), Ties::Earlier).unwrap()
}

#[test]
fn t_tests() {
    for case in golden::<Golden>("statistics.json").t_tests {
        let test = TTest::of(&case.differences).unwrap().unwrap();
        assert_near(test.t, case.t);
        assert_near(test.p, case.p);
    }
}

#[test]
fn correlations() {
    for case in golden::<Golden>("statistics.json").correlations {
        assert_near(spearman(&case.x, &case.y).unwrap(), case.spearman);
        assert_near(pearson(&case.x, &case.y).unwrap(), case.pearson);
    }
}

#[test]
fn bootstrap_bounds() {
    for case in golden::<Golden>("statistics.json").bootstraps {
        let tasks: Vec<Vec<Unit>> = case
            .tasks
            .iter()
            .map(|task| task.iter().copied().map(Unit::from).collect())
            .collect();
        let interval = Bootstrap::default().interval(&tasks).unwrap().unwrap();
        assert_near(interval.mean, case.mean);
        // Other draws: a bound of 10,000 resamples is known to about 0.03 standard deviations.
        let (low, high) = interval.bounds.unwrap();
        assert!((low - case.low).abs() < 0.12 * case.sd, "{low} is not {}", case.low);
        assert!((high - case.high).abs() < 0.12 * case.sd, "{high} is not {}", case.high);
    }
}

#[test]
fn quantiles_and_entropies() {
    let golden: Golden = golden("statistics.json");
    for case in golden.quantiles {
        for (share, theirs) in [0.0, 0.025, 0.25, 0.5, 0.75, 0.975, 1.0]
            .into_iter()
            .zip(case.quantiles)
        {
            assert_near(quantile(&case.values, share), theirs);
        }
    }
    for case in golden.entropies {
        assert_near(ranking(&case.scores).entropy().unwrap(), case.entropy);
    }
}

#[test]
fn churn_and_agreement_of_top_sets() {
    for case in golden::<Golden>("statistics.json").top_sets {
        let raw: Vec<Ranking> = case.raw.iter().map(|scores| ranking(scores)).collect();
        let ema: Vec<Ranking> = case.ema.iter().map(|scores| ranking(scores)).collect();
        for (step, (raw, ema)) in raw.iter().zip(&ema).enumerate() {
            assert_eq!(agreement(raw, ema, case.budget), Some(case.jaccard[step]));
            assert_near(raw.spearman(ema).unwrap().unwrap(), case.spearman[step]);
        }
        let churn = |rankings: &[Ranking]| -> Vec<f64> {
            rankings
                .windows(2)
                .map(|pair| step_churn(&pair[0], &pair[1], case.budget).unwrap())
                .collect()
        };
        assert_eq!(churn(&raw), case.raw_churn);
        assert_eq!(churn(&ema), case.ema_churn);
    }
}
