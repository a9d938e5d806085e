//! How much does a scorer rank entries as attention does?
//!
//! The study of the paper's section 5.1: at some queries of a text every scorer scores the entries of every layer, and is
//! compared with the attention that the query pays to them, as the mean over query heads. Scores are those of a refresh
//! step, from the code that decoding uses.

use std::cell::Cell;
use std::ops::ControlFlow;

use inertiakv_policy::{Budget, Features, Policy, Scorer, spearman, top_jaccard};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use crate::Error;
use crate::engine::Engine;
use crate::learned::ScorerError;
use crate::session::features::EntryFeatures;
use crate::session::samples::{Look, query_positions};

/// What to compare.
#[derive(Clone, Debug)]
pub struct CorrelationOptions {
    /// The scorers; all but those that need more than one query and the entries ([`Scorer::Reconstruction`]).
    pub scorers: Vec<Scorer>,
    /// Queries of each text, drawn from its last three quarters.
    pub queries: usize,
    /// How many of the entries up to a query the top B are.
    pub budget: Budget,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for CorrelationOptions {
    /// Every scorer that can be compared and needs no training; 32 queries, the best 10 %.
    fn default() -> Self {
        Self {
            scorers: vec![
                Scorer::Attention,
                Scorer::ValueNorm,
                Scorer::Entropy,
                Scorer::ExpectedAttention(Scorer::FUTURE),
                Scorer::KeyDiff,
                Scorer::KeyNorm,
                Scorer::Recency,
                Scorer::Random(0),
            ],
            queries: 32,
            budget: Budget::Ratio(Policy::RATIO),
            seed: 0,
        }
    }
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Correlation {
    /// Queries looked at, over all texts.
    pub queries: usize,
    /// One for each scorer asked for, in that order.
    pub scorers: Vec<ScorerCorrelation>,
}

/// How one scorer agrees with attention.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScorerCorrelation {
    /// Its name.
    pub scorer: String,
    /// Spearman's rank correlation.
    pub spearman: Summary,
    /// Jaccard index of the top B.
    pub jaccard: Summary,
}

/// A measure per layer, each the mean over the queries at which it is defined; `None` where it is at none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Mean over layers.
    pub mean: Option<f64>,
    /// The least of any layer.
    pub min: Option<f64>,
    /// The most of any layer.
    pub max: Option<f64>,
    /// The middle layer, as the paper's layer 15 is of 32.
    pub middle: Option<f64>,
    /// Every layer.
    pub layers: Vec<Option<f64>>,
}

impl Summary {
    fn new(layers: Vec<Option<f64>>) -> Self {
        let defined = || layers.iter().copied().flatten();
        let count = defined().count();
        Self {
            mean: (count > 0).then(|| defined().sum::<f64>() / count as f64),
            min: defined().reduce(f64::min),
            max: defined().reduce(f64::max),
            middle: layers[(layers.len() - 1) / 2],
            layers,
        }
    }
}

impl Engine {
    /// Compares scorers with attention over texts, each of which runs from its beginning. [`Scorer::Learned`] needs an
    /// engine with a scorer ([`Engine::with_scorer`]).
    ///
    /// Expected attention is that of the 512 positions after the query, from the queries up to it; its first entries are
    /// scored like all others.
    ///
    /// `progress(done, queries)` is called after every query; returning `Break` ends with [`Error::Cancelled`].
    pub fn correlate(
        &self,
        texts: &[Vec<u32>],
        options: &CorrelationOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Correlation, Error> {
        for &scorer in &options.scorers {
            self.check_comparable(scorer)?;
        }
        let positions: Vec<Vec<usize>> = texts
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let mut random = ChaCha8Rng::seed_from_u64(options.seed);
                random.set_stream(index as u64);
                query_positions(&mut random, text.len(), options.queries)
            })
            .collect();
        let queries = positions.iter().map(Vec::len).sum();
        let layers = self.config().layers;
        let mut study = Study {
            engine: self,
            options,
            features: EntryFeatures::default(),
            sums: vec![vec![Sums::default(); layers]; options.scorers.len()],
        };
        let statistics = options.scorers.iter().any(|scorer| scorer.is_of_prompt());
        let done = Cell::new(0);
        for (text, positions) in texts.iter().zip(&positions) {
            let mut flow = || progress(done.get(), queries);
            self.look(text, positions, statistics, &mut flow, &mut |look| {
                study.look(look)?;
                done.set(done.get() + usize::from(look.layer + 1 == layers));
                Ok(())
            })?;
        }
        if progress(queries, queries).is_break() {
            return Err(Error::Cancelled);
        }
        let scorers = options.scorers.iter().zip(&study.sums);
        Ok(Correlation {
            queries,
            scorers: scorers
                .map(|(scorer, sums)| ScorerCorrelation {
                    scorer: scorer.to_string(),
                    spearman: Summary::new(sums.iter().map(|sums| sums.spearman.value()).collect()),
                    jaccard: Summary::new(sums.iter().map(|sums| sums.jaccard.value()).collect()),
                })
                .collect(),
        })
    }

    fn check_comparable(&self, scorer: Scorer) -> Result<(), Error> {
        match scorer {
            Scorer::Learned => Ok(self.learned(&scorer).map(|_| ())?),
            Scorer::Reconstruction(_) => Err(ScorerError::NotOfAQuery {
                scorer: scorer.to_string(),
            }
            .into()),
            _ => Ok(()),
        }
    }
}

/// A study under way.
struct Study<'a> {
    engine: &'a Engine,
    options: &'a CorrelationOptions,
    features: EntryFeatures,
    /// Per scorer and layer.
    sums: Vec<Vec<Sums>>,
}

impl Study<'_> {
    fn look(&mut self, look: &Look<'_>) -> Result<(), Error> {
        let Self {
            engine,
            options,
            features,
            sums,
        } = self;
        let (layer, group) = (look.layer, engine.config().group());
        // Nothing has left, so rows are positions.
        let positions: Vec<u32> = (0..=look.position as u32).collect();
        let wanted = [&[Scorer::Attention], options.scorers.as_slice()]
            .concat()
            .into_iter()
            .fold(Features::default(), |wanted, scorer| wanted.and(scorer.features()));
        features.read(look.cache, layer, wanted);
        let scores = |scorer: Scorer, features: &EntryFeatures| {
            scorer.scores(layer, &positions, group, 1, &features.observations(Some(look.mass)))
        };
        let attention = scores(Scorer::Attention, features)?;
        let best = options.budget.entries(positions.len(), positions.len());
        for (&scorer, sums) in options.scorers.iter().zip(sums) {
            match scorer {
                Scorer::Learned => {
                    let learned = engine.learned(&scorer)?;
                    learned.relevance(look.cache, layer, look.query, &mut features.relevance);
                }
                Scorer::ExpectedAttention(future) => {
                    let next = look.position + 1;
                    let positions = next..next + future as usize;
                    let out = &mut features.relevance;
                    engine.expected_attention(look.cache, layer, look.statistics, positions, 0, out);
                }
                _ => {}
            }
            let scores = scores(scorer, features)?;
            sums[layer].spearman.add(spearman(&scores, &attention));
            let best = best.unwrap_or(positions.len());
            sums[layer].jaccard.add(top_jaccard(&scores, &attention, best));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Default)]
struct Sums {
    spearman: Mean,
    jaccard: Mean,
}

/// A mean of what is defined.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::{Mean, Summary};

    #[test]
    fn what_is_not_defined_is_left_out() {
        let mut mean = Mean::default();
        assert_eq!(mean.value(), None);
        [Some(1.0), None, Some(2.0)]
            .into_iter()
            .for_each(|value| mean.add(value));
        assert_eq!(mean.value(), Some(1.5));
    }

    #[test]
    fn summaries() {
        let summary = Summary::new(vec![Some(0.5), None, Some(-0.5), Some(0.3)]);
        assert_eq!(
            (summary.min, summary.max, summary.middle),
            (Some(-0.5), Some(0.5), None)
        );
        assert!((summary.mean.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(Summary::new(vec![None]).mean, None);
        let layers: Vec<Option<f64>> = (0..32).map(|layer| Some(f64::from(layer))).collect();
        assert_eq!(Summary::new(layers).middle, Some(15.0));
    }
}
