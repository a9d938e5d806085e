//! How far are scores from the attention they should rank as?
//!
//! Mean squared error and `λ` times the Kullback-Leibler divergence, with `λ = 0.1` and `τ = 1.0` (the paper, section
//! 5.1). What the paper leaves open is ours: both are of the probabilities `p = softmax(score / τ)` against the mean
//! attention `a` of the query heads, and the divergence is `KL(a ‖ p)`.

const LAMBDA: f64 = 0.1;
/// Temperature.
const TAU: f64 = 1.0;

/// The loss, in nats as far as it is a divergence. `scores` become its derivatives with respect to each of them.
/// `attention` adds up to 1.
pub(super) fn loss(scores: &mut [f32], attention: &[f32]) -> f32 {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let logit = |score: f32| f64::from(score - largest) / TAU;
    let log_sum = scores.iter().map(|&score| logit(score).exp()).sum::<f64>().ln();
    let entries = scores.len() as f64;
    let (mut error, mut divergence, mut mean) = (0.0, 0.0, 0.0);
    for (&score, &attention) in scores.iter().zip(attention) {
        let attention = f64::from(attention);
        let log_probability = logit(score) - log_sum;
        let probability = log_probability.exp();
        let difference = probability - attention;
        error += difference * difference / entries;
        if attention > 0.0 {
            divergence += attention * (attention.ln() - log_probability);
        }
        mean += probability * 2.0 * difference / entries;
    }
    for (score, &attention) in scores.iter_mut().zip(attention) {
        let probability = (logit(*score) - log_sum).exp();
        let difference = probability - f64::from(attention);
        let of_error = probability * (2.0 * difference / entries - mean);
        *score = ((of_error + LAMBDA * difference) / TAU) as f32;
    }
    (error + LAMBDA * divergence) as f32
}

#[cfg(test)]
mod tests {
    use super::loss;

    const ATTENTION: [f32; 5] = [0.5, 0.25, 0.125, 0.125, 0.0];

    #[test]
    fn the_right_scores_cost_nothing() {
        let mut scores: Vec<f32> = ATTENTION[..4].iter().map(|share| share.ln() + 3.0).collect();
        let found = loss(&mut scores, &ATTENTION[..4]);
        assert!(found.abs() < 1e-6, "{found}");
        assert!(scores.iter().all(|derivative| derivative.abs() < 1e-6), "{scores:?}");
    }

    #[test]
    fn equal_scores_cost_what_the_formula_says() {
        let found = f64::from(loss(&mut [7.0; 5], &ATTENTION));
        let error = (0.09 + 0.0025 + 2.0 * 0.075 * 0.075 + 0.04) / 5.0;
        let divergence = 5.0_f64.ln() - 0.5 * 2.0_f64.ln() - 0.25 * 4.0_f64.ln() - 0.25 * 8.0_f64.ln();
        assert!((found - error - 0.1 * divergence).abs() < 1e-6, "{found}");
    }

    #[test]
    fn derivatives_are_those_of_finite_differences() {
        let scores = [0.3, -1.2, 2.0, 0.0, -0.4];
        let mut derivatives = scores;
        loss(&mut derivatives, &ATTENTION);
        for entry in 0..scores.len() {
            let at = |change: f32| {
                let mut scores = scores;
                scores[entry] += change;
                f64::from(loss(&mut scores, &ATTENTION))
            };
            let slope = (at(0.01) - at(-0.01)) / 0.02;
            let found = f64::from(derivatives[entry]);
            assert!((found - slope).abs() < 1e-4, "{entry}: {found} is not {slope}");
        }
        assert!(derivatives.iter().any(|derivative| derivative.abs() > 0.01));
    }
}
