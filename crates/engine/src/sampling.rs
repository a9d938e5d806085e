//! Which token comes next?
//!
//! The filters run in llama.cpp's order: repetition penalty, top-k, top-p, min-p, temperature.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::Error;

/// How many of the latest tokens the repetition penalty looks at.
pub(crate) const REPETITION_WINDOW: usize = 64;

/// How the next token is drawn. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token and ignores `top_k`, `top_p`, `min_p` and `seed`.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of the latest 64 tokens of the session, those of the prompt
    /// included; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Same seed, same logits: same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks every range, so that a wrong value is an error and not an odd answer.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |name, value: f32, range| Err(Error::Sampling { name, value, range });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return wrong("temperature", self.temperature, "a finite number of at least 0");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top_p", self.top_p, "above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("min_p", self.min_p, "from 0 to 1");
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return wrong("repetition_penalty", self.repetition_penalty, "a finite number above 0");
        }
        Ok(())
    }
}

/// Draws tokens with one seeded stream of random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler at the start of its seed's stream.
    pub fn new(sampling: Sampling) -> Result<Self, Error> {
        sampling.validate()?;
        let random = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self {
            sampling,
            random,
            candidates: Vec::new(),
        })
    }

    /// The next token for `logits` (one per vocabulary entry) after `history`.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> u32 {
        let penalty = (self.sampling.repetition_penalty - 1.0).abs() >= f32::EPSILON;
        if self.sampling.temperature == 0.0 && !penalty {
            return most_likely(logits.iter().copied().zip(0..));
        }
        self.candidates.clear();
        self.candidates
            .extend(logits.iter().zip(0..).map(|(&logit, token)| (logit, token)));
        if penalty {
            self.penalise(history);
        }
        if self.sampling.temperature == 0.0 {
            return most_likely(self.candidates.iter().copied());
        }
        self.filter();
        self.draw()
    }

    fn penalise(&mut self, history: &[u32]) {
        let penalty = self.sampling.repetition_penalty;
        let mut recent = history[history.len().saturating_sub(REPETITION_WINDOW)..].to_vec();
        recent.sort_unstable();
        recent.dedup();
        for token in recent {
            if let Some((logit, _)) = self.candidates.get_mut(token as usize) {
                *logit = if *logit > 0.0 {
                    *logit / penalty
                } else {
                    *logit * penalty
                };
            }
        }
    }

    /// Leaves the candidates that top-k, top-p and min-p allow, the most likely one first.
    fn filter(&mut self) {
        let Sampling {
            top_k, top_p, min_p, ..
        } = self.sampling;
        if (top_k == 0 || top_k >= self.candidates.len()) && top_p >= 1.0 && min_p <= 0.0 {
            // All are allowed, and the rest needs no order: sorting a whole vocabulary costs more than drawing from it.
            let first = most_likely(self.candidates.iter().copied()) as usize;
            if first < self.candidates.len() {
                self.candidates.swap(0, first);
            }
            return;
        }
        let descending = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        let keep = match top_k {
            0 => self.candidates.len(),
            top_k => top_k.min(self.candidates.len()),
        };
        if keep < self.candidates.len() {
            self.candidates.select_nth_unstable_by(keep, descending);
            self.candidates.truncate(keep);
        }
        self.candidates.sort_unstable_by(descending);
        let weights = weights(&self.candidates, 1.0);
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let mut allowed = weights.len();
        for (index, weight) in weights.iter().enumerate() {
            if index > 0 && *weight < f64::from(min_p) {
                allowed = index;
                break;
            }
            sum += weight;
            if sum >= f64::from(top_p) * total {
                allowed = index + 1;
                break;
            }
        }
        self.candidates.truncate(allowed);
    }

    fn draw(&mut self) -> u32 {
        let weights = weights(&self.candidates, self.sampling.temperature);
        // 53 random bits make a uniform number in [0, 1).
        let uniform = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let mut rest = uniform * weights.iter().sum::<f64>();
        for (weight, (_, token)) in weights.iter().zip(&self.candidates) {
            rest -= weight;
            if rest < 0.0 {
                return *token;
            }
        }
        // Rounding left a sliver: the most likely candidate owns it.
        self.candidates.first().map_or(0, |(_, token)| *token)
    }
}

/// `exp((logit - first logit) / temperature)` of candidates whose first is the most likely.
fn weights(candidates: &[(f32, u32)], temperature: f32) -> Vec<f64> {
    let first = candidates.first().map_or(0.0, |(logit, _)| *logit);
    candidates
        .iter()
        .map(|(logit, _)| f64::from((logit - first) / temperature).exp())
        .collect()
}

/// The candidate with the largest logit; the first of equals.
fn most_likely(candidates: impl Iterator<Item = (f32, u32)>) -> u32 {
    candidates
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map_or(0, |(_, token)| token)
}

#[cfg(test)]
mod tests {
    use super::{Sampler, Sampling};

    fn draws(sampling: Sampling, logits: &[f32], history: &[u32]) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling).expect("valid");
        (0..2000).map(|_| sampler.sample(logits, history)).collect()
    }

    #[test]
    fn greedy_takes_the_largest_and_the_lower_id_on_a_tie() {
        let mut sampler = Sampler::new(Sampling::default()).expect("valid");
        assert_eq!(sampler.sample(&[0.0, 3.0, 3.0, 1.0], &[]), 1);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0];
        let sampling = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        let drawn = draws(sampling, &logits, &[]);
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (token, &logit) in logits.iter().enumerate() {
            let share = drawn.iter().filter(|&&t| t == token as u32).count() as f64 / drawn.len() as f64;
            assert!((share - f64::from(logit).exp() / total).abs() < 0.04);
        }
    }

    #[test]
    fn filters_bound_the_candidates() {
        let logits = [0.0, 1.0, 2.0, 3.0];
        let hot = Sampling {
            temperature: 5.0,
            ..Sampling::default()
        };
        assert!(
            draws(
                Sampling {
                    top_k: 2,
                    ..hot.clone()
                },
                &logits,
                &[]
            )
            .iter()
            .all(|&t| t >= 2)
        );
        // The most likely token alone has 0.64 of the mass.
        assert!(
            draws(
                Sampling {
                    top_p: 0.6,
                    ..hot.clone()
                },
                &logits,
                &[]
            )
            .iter()
            .all(|&t| t == 3)
        );
        assert!(
            draws(
                Sampling {
                    min_p: 0.3,
                    ..hot.clone()
                },
                &logits,
                &[]
            )
            .iter()
            .all(|&t| t >= 2)
        );
        assert!((0..4).all(|token| draws(hot.clone(), &logits, &[]).contains(&token)));
    }

    #[test]
    fn without_filters_frequencies_are_those_of_filters_that_keep_all() {
        // The most likely one is not the first, where the draw expects it.
        let logits: Vec<f32> = (0..40).map(|token| ((token * 17 % 40) as f32).sqrt()).collect();
        let without = Sampling {
            temperature: 0.7,
            ..Sampling::default()
        };
        let keeping_all = Sampling {
            min_p: 1e-30,
            ..without.clone()
        };
        let share = |sampling: &Sampling, token| {
            let drawn = draws(sampling.clone(), &logits, &[]);
            drawn.iter().filter(|&&other| other == token).count() as f64 / drawn.len() as f64
        };
        for token in 0..40 {
            assert!(
                (share(&without, token) - share(&keeping_all, token)).abs() < 0.04,
                "{token}"
            );
        }
    }

    #[test]
    fn penalty_turns_away_from_repetition() {
        let sampling = Sampling {
            repetition_penalty: 2.0,
            ..Sampling::default()
        };
        assert!(draws(sampling, &[1.0, 1.5, -0.1], &[1, 1]).iter().all(|&t| t == 0));
    }

    #[test]
    fn same_seed_same_tokens() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32).collect();
        let sampling = |seed| Sampling {
            temperature: 0.8,
            seed,
            ..Sampling::default()
        };
        assert_eq!(draws(sampling(7), &logits, &[]), draws(sampling(7), &logits, &[]));
        assert_ne!(draws(sampling(7), &logits, &[]), draws(sampling(8), &logits, &[]));
    }

    #[test]
    fn wrong_ranges_are_refused_by_name() {
        for (sampling, name) in [
            (
                Sampling {
                    temperature: -1.0,
                    ..Sampling::default()
                },
                "temperature",
            ),
            (
                Sampling {
                    top_p: 0.0,
                    ..Sampling::default()
                },
                "top_p",
            ),
            (
                Sampling {
                    min_p: 2.0,
                    ..Sampling::default()
                },
                "min_p",
            ),
            (
                Sampling {
                    repetition_penalty: 0.0,
                    ..Sampling::default()
                },
                "repetition_penalty",
            ),
        ] {
            assert!(Sampler::new(sampling).expect_err("refused").to_string().contains(name));
        }
    }
}
