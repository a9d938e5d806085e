//! By how much do positions turn queries and keys?

use inertiakv_kernels::ops::RopeStyle;

/// How positions are stretched for contexts longer than the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions are used as they are.
    None,
    /// Positions are divided by this factor, which is at least 1.
    Linear(f32),
    /// Pairs that turn slowly are stretched, fast ones are not (`YaRN`, arXiv 2309.00071).
    Yarn(Yarn),
}

/// The numbers of `YaRN`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How much longer the context became; at least 1.
    pub factor: f32,
    /// Context that the model was trained on.
    pub original_context: usize,
    /// Pairs that turn at least so often over the original context are not stretched.
    pub beta_fast: f32,
    /// Pairs that turn at most so often are stretched in full.
    pub beta_slow: f32,
    /// What queries and keys are multiplied by; dot products by its square.
    pub attention_factor: f32,
}

impl Yarn {
    /// The published factor of queries and keys for a stretch.
    pub(crate) fn published_attention_factor(factor: f32) -> f32 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }

    /// How much of the stretch pair `pair` of `dimensions / 2` takes, from 0 to 1.
    fn share(&self, pair: usize, dimensions: usize, base: f32) -> f64 {
        let dimensions = dimensions as f64;
        // The pair, as a real number, that turns so often over the original context.
        let pair_turning = |turns: f32| {
            let angle = self.original_context as f64 / (f64::from(turns) * 2.0 * std::f64::consts::PI);
            dimensions * angle.ln() / (2.0 * f64::from(base).ln())
        };
        let first = pair_turning(self.beta_fast).floor().max(0.0);
        let last = pair_turning(self.beta_slow).ceil().min(dimensions - 1.0);
        let width = if first == last { 0.001 } else { last - first };
        ((pair as f64 - first) / width).clamp(0.0, 1.0)
    }
}

/// Rotary position embedding: element pair `i` of a head turns by
/// `position / scaling * base^(-2i / dimensions) / frequency_factors[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub base: f32,
    /// How many elements of each head are rotated, from the first; even, at most the head's size.
    pub dimensions: usize,
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Stretching of positions.
    pub scaling: RopeScaling,
    /// Divisor of each pair's frequency, `dimensions / 2` positive numbers, from tensor `rope_freqs.weight` (Llama 3.1
    /// and later: without it long contexts fall apart).
    pub frequency_factors: Option<Vec<f32>>,
}

impl Rope {
    /// Radians per position of each rotated pair.
    #[must_use]
    pub fn frequencies(&self) -> Vec<f64> {
        (0..self.dimensions / 2)
            .map(|pair| {
                let exponent = -2.0 * pair as f64 / self.dimensions as f64;
                let factor = self
                    .frequency_factors
                    .as_ref()
                    .map_or(1.0, |factors| f64::from(factors[pair]));
                let frequency = f64::from(self.base).powf(exponent) / factor;
                match self.scaling {
                    RopeScaling::None => frequency,
                    RopeScaling::Linear(factor) => frequency / f64::from(factor),
                    RopeScaling::Yarn(yarn) => {
                        let share = yarn.share(pair, self.dimensions, self.base);
                        frequency * (1.0 - share) + frequency / f64::from(yarn.factor) * share
                    }
                }
            })
            .collect()
    }

    /// What dot products of queries and keys are multiplied by.
    pub(super) fn product_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor * yarn.attention_factor,
            RopeScaling::None | RopeScaling::Linear(_) => 1.0,
        }
    }
}

/// The divisors of Llama 3.1: pairs whose wavelength is above `original_context / low` are stretched by `factor`, those
/// below `original_context / high` are not, and what lies between goes over smoothly.
pub(crate) fn llama3_factors(
    base: f32,
    dimensions: usize,
    factor: f64,
    [low, high]: [f64; 2],
    original_context: usize,
) -> Vec<f32> {
    (0..dimensions / 2)
        .map(|pair| {
            let frequency = f64::from(base).powf(-2.0 * pair as f64 / dimensions as f64);
            let turns = original_context as f64 * frequency / (2.0 * std::f64::consts::PI);
            let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Rope, RopeScaling, RopeStyle, Yarn, llama3_factors};

    #[test]
    fn yarn_stretches_slow_pairs_only() {
        let mut rope = Rope {
            base: 10_000.0,
            dimensions: 64,
            style: RopeStyle::HalfSplit,
            scaling: RopeScaling::None,
            frequency_factors: None,
        };
        let plain = rope.frequencies();
        rope.scaling = RopeScaling::Yarn(Yarn {
            factor: 4.0,
            original_context: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
        });
        let stretched = rope.frequencies();
        assert_eq!(stretched[0], plain[0]);
        assert!((stretched[31] * 4.0 / plain[31] - 1.0).abs() < 1e-12);
        let ratios: Vec<f64> = plain.iter().zip(&stretched).map(|(plain, new)| plain / new).collect();
        assert!(ratios.is_sorted());
    }

    #[test]
    fn the_factors_of_llama_3_go_from_one_to_the_stretch() {
        let factors = llama3_factors(500_000.0, 128, 8.0, [1.0, 4.0], 8192);
        assert_eq!((factors.len(), factors[0], factors[63]), (64, 1.0, 8.0));
        assert!(factors.is_sorted());
        assert!(factors.iter().any(|&factor| factor > 1.0 && factor < 8.0));
    }
}
