//! How do parameters follow a gradient? `AdamW` (arXiv 1711.05101) with the gradient's norm bounded.

/// Shares of the past in the two running means.
const BETAS: [f32; 2] = [0.9, 0.999];
const EPSILON: f32 = 1e-8;
/// Part of each parameter that a step takes away, times the learning rate.
const DECAY: f32 = 0.01;
/// Largest Euclidean norm of a gradient; a longer one is shortened to it.
const LONGEST: f64 = 1.0;

/// The state of the optimiser, one number per parameter each.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AdamW {
    /// Running mean of the gradient.
    pub(super) mean: Vec<f32>,
    /// Running mean of its square.
    pub(super) square: Vec<f32>,
}

impl AdamW {
    pub(super) fn new(parameters: usize) -> Self {
        Self {
            mean: vec![0.0; parameters],
            square: vec![0.0; parameters],
        }
    }

    /// One update; `step` counts from 1.
    pub(super) fn update(&mut self, step: usize, rate: f32, parameters: &mut [f32], gradient: &[f32]) {
        let norm = gradient
            .iter()
            .map(|&g| f64::from(g) * f64::from(g))
            .sum::<f64>()
            .sqrt();
        let shorten = if norm > LONGEST { (LONGEST / norm) as f32 } else { 1.0 };
        let [mean_share, square_share] = BETAS;
        let bias = |share: f32| (1.0 - f64::from(share).powf(step as f64)) as f32;
        let (mean_bias, square_bias) = (bias(mean_share), bias(square_share));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((parameter, &gradient), (mean, square)) in parameters.iter_mut().zip(gradient).zip(moments) {
            let gradient = gradient * shorten;
            *mean = mean_share * *mean + (1.0 - mean_share) * gradient;
            *square = square_share * *square + (1.0 - square_share) * gradient * gradient;
            let direction = (*mean / mean_bias) / ((*square / square_bias).sqrt() + EPSILON);
            *parameter -= rate * (direction + DECAY * *parameter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AdamW;

    #[test]
    fn the_first_step_is_the_rate_against_the_sign_and_the_decay() {
        let mut parameters = [1.0, -2.0, 3.0];
        AdamW::new(3).update(1, 0.1, &mut parameters, &[0.5, -0.5, 0.0]);
        for (found, expected) in parameters.iter().zip([0.9 - 0.001, -1.9 + 0.002, 3.0 - 0.003]) {
            assert!((found - expected).abs() < 1e-6, "{parameters:?}");
        }
    }

    #[test]
    fn a_long_gradient_is_shortened() {
        let run = |scale: f32| {
            let mut optimiser = AdamW::new(2);
            optimiser.update(1, 0.1, &mut [0.0; 2], &[3.0 * scale, 4.0 * scale]);
            optimiser.mean
        };
        assert!((run(1.0)[1] - 0.08).abs() < 1e-6);
        assert!((run(100.0)[1] - 0.08).abs() < 1e-6);
        assert!((run(0.1)[1] - 0.04).abs() < 1e-6);
    }

    #[test]
    fn it_finds_the_bottom_of_a_bowl() {
        let mut parameters = [3.0, -5.0];
        let mut optimiser = AdamW::new(2);
        for step in 1..=2000 {
            let gradient = [2.0 * (parameters[0] - 1.0), 20.0 * (parameters[1] + 2.0)];
            optimiser.update(step, 0.02, &mut parameters, &gradient);
        }
        assert!(
            (parameters[0] - 1.0).abs() < 0.05 && (parameters[1] + 2.0).abs() < 0.05,
            "{parameters:?}"
        );
    }
}
