//! What one layer says about each entry at one step.

use std::fmt;
use std::str::FromStr;

use crate::error::PolicyError;
use crate::pooling::{self, GroupPooling, HeadPooling, Term};
use crate::text;

/// The scoring function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scorer {
    /// The attention an entry receives (Eq. 1 of the paper).
    Attention,
    /// Attention of each KV head × value norm / mean value norm of that head.
    ValueNorm,
    /// Attention × one number per layer: the entropy of its pooled row / ln of its length.
    Entropy,
    /// Minus the cosine of a key with the mean of the normalised keys (`KeyDiff`).
    KeyDiff,
    /// Minus the norm of the key.
    KeyNorm,
    /// The position: the latest entries stay.
    Recency,
    /// A hash of this seed and the position.
    Random(u64),
    /// The attention that the queries of this many positions after the prompt are expected to pay, weighted by the value
    /// norm (Expected Attention, arXiv 2510.00636). Of the prompt only.
    ExpectedAttention(u32),
    /// The most attention any query pays to an entry while the model repeats the prompt, this many tokens at a time
    /// (`KVzip`, arXiv 2505.23416). Of the prompt only.
    Reconstruction(u32),
    /// A trained bilinear form of query and key, softmaxed over the entries (section 5.1 of the paper).
    Learned,
}

impl Scorer {
    /// Positions that Expected Attention looks ahead, as published.
    pub const FUTURE: u32 = 512;
    /// Tokens that `KVzip` repeats at a time, as published.
    pub const REPEATED: u32 = 2048;

    /// What it has to be shown about every entry.
    #[must_use]
    pub fn features(self) -> Features {
        let none = Features::default();
        match self {
            Scorer::Attention | Scorer::Entropy => Features { mass: true, ..none },
            Scorer::ValueNorm => Features {
                mass: true,
                value_norm: true,
                ..none
            },
            Scorer::KeyDiff => Features {
                key_similarity: true,
                ..none
            },
            Scorer::KeyNorm => Features { key_norm: true, ..none },
            Scorer::Recency | Scorer::Random(_) => none,
            Scorer::ExpectedAttention(_) => Features {
                relevance: true,
                value_norm: true,
                ..none
            },
            Scorer::Reconstruction(_) | Scorer::Learned => Features {
                relevance: true,
                ..none
            },
        }
    }

    pub(crate) fn validate(self) -> Result<(), PolicyError> {
        match self {
            Scorer::ExpectedAttention(future) if !(1..=65536).contains(&future) => {
                Err(text::bad_value("future", &future.to_string()))
            }
            Scorer::Reconstruction(chunk) if !(16..=65536).contains(&chunk) => {
                Err(text::bad_value("chunk", &chunk.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Whether the score is of the prompt alone: it takes its queries, or running it again.
    #[must_use]
    pub fn is_of_prompt(self) -> bool {
        matches!(self, Scorer::ExpectedAttention(_) | Scorer::Reconstruction(_))
    }

    /// Whether the score depends on the position alone, so that no layer has to be observed.
    #[must_use]
    pub fn is_positional(self) -> bool {
        matches!(self, Scorer::Recency | Scorer::Random(_))
    }

    /// Whether scores can be negative.
    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Scorer::KeyDiff | Scorer::KeyNorm)
    }

    /// The scores that one layer gives the entries at `positions` after `queries` queries, as a refresh step computes them
    /// where all heads hold these entries and are pooled by their mean; `group` query heads share a KV head.
    pub fn scores(
        self,
        layer: usize,
        positions: &[u32],
        group: usize,
        queries: usize,
        heads: &[HeadObservation<'_>],
    ) -> Result<Vec<f32>, PolicyError> {
        if self.is_positional() {
            return Ok(positions.iter().map(|&position| self.of_position(position)).collect());
        }
        if queries == 0 {
            return Err(PolicyError::NoQueries { layer });
        }
        for (head, observation) in heads.iter().enumerate() {
            observation.check(self.features(), layer, head, positions.len())?;
        }
        let scoring = Scoring {
            scorer: self,
            pooling: HeadPooling::Mean,
            group,
            queries,
        };
        let mut scores = vec![0.0; positions.len()];
        if scoring.layer(heads, &mut scores) {
            Ok(scores)
        } else {
            let head = first_not_finite(heads);
            Err(PolicyError::NotFinite { layer, head })
        }
    }

    /// The score of a positional scorer; 0 for the others.
    pub(crate) fn of_position(self, position: u32) -> f32 {
        match self {
            Scorer::Recency => position as f32,
            // 24 bits: what a float holds exactly.
            Scorer::Random(seed) => (mixed(seed, position) >> 40) as f32 / (1u32 << 24) as f32,
            _ => 0.0,
        }
    }
}

impl fmt::Display for Scorer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Scorer::Attention => "attention",
            Scorer::ValueNorm => "value-norm",
            Scorer::Entropy => "entropy",
            Scorer::KeyDiff => "key-diff",
            Scorer::KeyNorm => "key-norm",
            Scorer::Recency => "recency",
            Scorer::Random(_) => "random",
            Scorer::ExpectedAttention(_) => "expected-attention",
            Scorer::Reconstruction(_) => "reconstruction",
            Scorer::Learned => "learned",
        })
    }
}

/// The name alone; what a scorer has besides is as published, and 0 for the seed of `random`.
impl FromStr for Scorer {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        match text {
            "attention" => Ok(Scorer::Attention),
            "value-norm" => Ok(Scorer::ValueNorm),
            "entropy" => Ok(Scorer::Entropy),
            "key-diff" => Ok(Scorer::KeyDiff),
            "key-norm" => Ok(Scorer::KeyNorm),
            "recency" => Ok(Scorer::Recency),
            "random" => Ok(Scorer::Random(0)),
            "expected-attention" => Ok(Scorer::ExpectedAttention(Scorer::FUTURE)),
            "reconstruction" => Ok(Scorer::Reconstruction(Scorer::REPEATED)),
            "learned" => Ok(Scorer::Learned),
            _ => Err(text::bad_value("scorer", text)),
        }
    }
}

/// Which numbers a scorer reads; see [`HeadObservation`] for what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "five independent buffers, each filled or not"
)]
pub struct Features {
    /// Softmax mass.
    pub mass: bool,
    /// Value norms.
    pub value_norm: bool,
    /// Key norms.
    pub key_norm: bool,
    /// Cosines with the mean key.
    pub key_similarity: bool,
    /// What the engine computes for the scorer itself.
    pub relevance: bool,
}

impl Features {
    /// What either asks for.
    #[must_use]
    pub fn and(self, other: Features) -> Features {
        Features {
            mass: self.mass || other.mass,
            value_norm: self.value_norm || other.value_norm,
            key_norm: self.key_norm || other.key_norm,
            key_similarity: self.key_similarity || other.key_similarity,
            relevance: self.relevance || other.relevance,
        }
    }

    /// One flag for each of [`HeadObservation::values`].
    pub(crate) fn flags(self) -> [bool; 5] {
        let Features {
            mass,
            value_norm,
            key_norm,
            key_similarity,
            relevance,
        } = self;
        [mass, value_norm, key_norm, key_similarity, relevance]
    }
}

/// One KV head of one layer at one step: every slice has one value per cached row, in row order, or is empty where the
/// scorer does not ask for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadObservation<'a> {
    /// Softmax mass of the last queries of the step: the sum over queries of the sum or maximum over the query group
    /// ([`GroupPooling`]).
    pub mass: &'a [f32],
    /// Euclidean norm of each value.
    pub value_norm: &'a [f32],
    /// Euclidean norm of each key.
    pub key_norm: &'a [f32],
    /// Cosine of each key, rotated as it is cached, with the mean of the normalised keys.
    pub key_similarity: &'a [f32],
    /// What only the engine can compute: the expected attention before its value norm, the greatest attention of the
    /// reconstruction, or this head's share of the learned form times the number of KV heads.
    pub relevance: &'a [f32],
}

impl<'a> HeadObservation<'a> {
    /// Every feature with its name.
    pub(crate) fn values(&self) -> [(&'static str, &'a [f32]); 5] {
        [
            ("mass", self.mass),
            ("value_norm", self.value_norm),
            ("key_norm", self.key_norm),
            ("key_similarity", self.key_similarity),
            ("relevance", self.relevance),
        ]
    }

    /// Whether what is needed has one value for each of `rows` rows.
    pub(crate) fn check(&self, needed: Features, layer: usize, head: usize, rows: usize) -> Result<(), PolicyError> {
        for (needed, (feature, values)) in needed.flags().into_iter().zip(self.values()) {
            if needed && values.len() != rows {
                return Err(PolicyError::RowCount {
                    layer,
                    head,
                    feature,
                    expected: rows,
                    found: values.len(),
                });
            }
        }
        Ok(())
    }
}

/// Only on the way to an error: pooling has lost which head it was.
pub(crate) fn first_not_finite(heads: &[HeadObservation<'_>]) -> usize {
    let finite = |head: &HeadObservation<'_>| head.values().into_iter().all(|(_, values)| pooling::all_finite(values));
    heads.iter().position(|head| !finite(head)).unwrap_or(0)
}

/// How the raw numbers of a step become scores.
#[derive(Clone, Copy)]
pub(crate) struct Scoring {
    pub(crate) scorer: Scorer,
    pub(crate) pooling: HeadPooling,
    /// Query heads per KV head.
    pub(crate) group: usize,
    /// Queries summed in the mass.
    pub(crate) queries: usize,
}

impl Scoring {
    /// The score of a layer's entries over all heads; false where one is NaN or infinite.
    pub(crate) fn layer(self, heads: &[HeadObservation<'_>], out: &mut [f32]) -> bool {
        let terms: Vec<Term<'_>> = heads.iter().map(|head| self.term(head)).collect();
        let finite = pooling::pool(self.pooling, &terms, out);
        self.weigh(out);
        finite
    }

    /// The score of one head's entries; false where one is NaN or infinite.
    pub(crate) fn head(self, head: &HeadObservation<'_>, out: &mut [f32]) -> bool {
        let finite = self.head_alone(head, out);
        self.weigh(out);
        finite
    }

    fn term<'a>(self, head: &HeadObservation<'a>) -> Term<'a> {
        // A mass summed over the group is divided by it; a largest one is not.
        let members = match self.pooling.group_pooling() {
            GroupPooling::Sum => self.group,
            GroupPooling::Max => 1,
        };
        let per_query = 1.0 / (members * self.queries) as f32;
        match self.scorer {
            Scorer::ValueNorm => {
                let mean = pooling::sum(head.value_norm) / head.value_norm.len().max(1) as f64;
                let relative = if mean == 0.0 { 0.0 } else { (1.0 / mean) as f32 };
                Term {
                    first: head.mass,
                    second: Some(head.value_norm),
                    factor: per_query * relative,
                }
            }
            Scorer::ExpectedAttention(_) => Term {
                first: head.relevance,
                second: Some(head.value_norm),
                factor: 1.0,
            },
            Scorer::Reconstruction(_) | Scorer::Learned => Term {
                first: head.relevance,
                second: None,
                factor: 1.0,
            },
            Scorer::KeyDiff => Term {
                first: head.key_similarity,
                second: None,
                factor: -1.0,
            },
            Scorer::KeyNorm => Term {
                first: head.key_norm,
                second: None,
                factor: -1.0,
            },
            _ => Term {
                first: head.mass,
                second: None,
                factor: per_query,
            },
        }
    }

    /// One of several heads whose scores are pooled afterwards.
    pub(crate) fn head_alone(self, head: &HeadObservation<'_>, out: &mut [f32]) -> bool {
        pooling::single(self.term(head), out)
    }

    pub(crate) fn weigh(self, score: &mut [f32]) {
        match self.scorer {
            Scorer::Entropy => {
                let weight = normalised_entropy(score);
                for value in score.iter_mut() {
                    *value *= weight;
                }
            }
            Scorer::Learned => softmax(score),
            _ => {}
        }
    }
}

/// Makes probabilities of scores, as the learned form is trained to give; what is not finite stays so.
fn softmax(score: &mut [f32]) {
    let largest = score.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for value in score.iter_mut() {
        *value = (*value - largest).exp();
    }
    let scale = (1.0 / pooling::sum(score)) as f32;
    for value in score.iter_mut() {
        *value *= scale;
    }
}

/// Entropy of the values taken as a distribution, divided by that of a uniform one; 1 where there is but one value.
fn normalised_entropy(values: &[f32]) -> f32 {
    let total = pooling::sum(values);
    if values.len() < 2 || total <= 0.0 {
        return 1.0;
    }
    let weighted: f64 = values
        .iter()
        .filter(|&&value| value > 0.0)
        .map(|&value| f64::from(value) * f64::from(value.ln()))
        .sum();
    let entropy = total.ln() - weighted / total;
    (entropy / (values.len() as f64).ln()).clamp(0.0, 1.0) as f32
}

// The finaliser of SplitMix64 over seed and position.
fn mixed(seed: u64, position: u32) -> u64 {
    let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(position) + 1));
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(scorer: Scorer, group: usize, queries: usize, heads: &[HeadObservation<'_>], rows: usize) -> Vec<f32> {
        let mut out = vec![0.0; rows];
        let scoring = Scoring {
            scorer,
            pooling: HeadPooling::Mean,
            group,
            queries,
        };
        assert!(scoring.layer(heads, &mut out));
        out
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    fn two_heads() -> [HeadObservation<'static>; 2] {
        [&[2.0, 1.0, 3.0], &[0.0, 6.0, 0.0]].map(|mass| HeadObservation {
            mass,
            ..Default::default()
        })
    }

    #[test]
    fn attention_is_the_mean_over_query_heads_and_queries() {
        let heads = two_heads();
        close(
            &score(Scorer::Attention, 3, 2, &heads, 3),
            &[2.0 / 12.0, 7.0 / 12.0, 3.0 / 12.0],
        );
    }

    #[test]
    fn value_norm_weighs_each_head_by_its_own_mean() {
        let heads = [
            HeadObservation {
                mass: &[0.5, 0.5],
                value_norm: &[1.0, 3.0],
                ..Default::default()
            },
            HeadObservation {
                mass: &[0.5, 0.5],
                value_norm: &[30.0, 10.0],
                ..Default::default()
            },
        ];
        close(&score(Scorer::ValueNorm, 1, 1, &heads, 2), &[0.5, 0.5]);
        let zero = [HeadObservation {
            mass: &[0.5, 0.5],
            value_norm: &[0.0, 0.0],
            ..Default::default()
        }];
        close(&score(Scorer::ValueNorm, 1, 1, &zero, 2), &[0.0, 0.0]);
    }

    #[test]
    fn entropy_is_one_for_a_uniform_row_and_zero_for_a_point() {
        let uniform = [HeadObservation {
            mass: &[0.25; 4],
            ..Default::default()
        }];
        close(&score(Scorer::Entropy, 1, 1, &uniform, 4), &[0.25; 4]);
        let point = [HeadObservation {
            mass: &[0.0, 1.0, 0.0, 0.0],
            ..Default::default()
        }];
        close(&score(Scorer::Entropy, 1, 1, &point, 4), &[0.0; 4]);
        let half = [HeadObservation {
            mass: &[0.5, 0.5, 0.0, 0.0],
            ..Default::default()
        }];
        close(&score(Scorer::Entropy, 1, 1, &half, 4), &[0.25, 0.25, 0.0, 0.0]);
        let alone = [HeadObservation {
            mass: &[1.0],
            ..Default::default()
        }];
        close(&score(Scorer::Entropy, 1, 1, &alone, 1), &[1.0]);
    }

    #[test]
    fn keys_score_with_a_minus_sign() {
        let heads = [
            HeadObservation {
                key_norm: &[1.0, 4.0],
                key_similarity: &[0.5, -0.5],
                ..Default::default()
            },
            HeadObservation {
                key_norm: &[3.0, 0.0],
                key_similarity: &[0.5, 0.0],
                ..Default::default()
            },
        ];
        close(&score(Scorer::KeyNorm, 4, 1, &heads, 2), &[-2.0, -2.0]);
        close(&score(Scorer::KeyDiff, 4, 1, &heads, 2), &[-0.5, 0.25]);
    }

    #[test]
    fn scores_alone_are_those_of_a_step() {
        let heads = two_heads();
        let alone = |scorer: Scorer, rows| scorer.scores(7, &[3, 9, 5][..rows], 3, 2, &heads);
        for scorer in [Scorer::Attention, Scorer::Entropy] {
            assert_eq!(alone(scorer, 3).unwrap(), score(scorer, 3, 2, &heads, 3));
        }
        assert_eq!(alone(Scorer::Recency, 3).unwrap(), [3.0, 9.0, 5.0]);
        let missing = alone(Scorer::KeyNorm, 3).unwrap_err();
        assert!(matches!(
            missing,
            PolicyError::RowCount {
                layer: 7,
                feature: "key_norm",
                ..
            }
        ));
        assert!(matches!(alone(Scorer::Attention, 2), Err(PolicyError::RowCount { .. })));
        let broken = [
            heads[0],
            HeadObservation {
                mass: &[0.0, f32::NAN, 0.0],
                ..Default::default()
            },
        ];
        let broken = Scorer::Attention.scores(7, &[0, 1, 2], 1, 1, &broken);
        assert!(matches!(broken, Err(PolicyError::NotFinite { layer: 7, head: 1 })));
        let unasked = Scorer::Attention.scores(7, &[0, 1, 2], 1, 0, &heads);
        assert!(matches!(unasked, Err(PolicyError::NoQueries { layer: 7 })));
    }

    #[test]
    fn positional_scores() {
        assert!(Scorer::Recency.of_position(7) > Scorer::Recency.of_position(6));
        let draws: Vec<f32> = (0..10_000)
            .map(|position| Scorer::Random(3).of_position(position))
            .collect();
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        let mean = draws.iter().sum::<f32>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "mean {mean}");
        assert!((0..9).any(|position| mixed(3, position) != mixed(4, position)));
    }
}
