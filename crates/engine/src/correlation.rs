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
        // Layers with a window are not shown.
        let last = (0..layers).rfind(|&layer| self.config().window(layer).is_none());
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
                done.set(done.get() + usize::from(Some(look.layer) == last));
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
        let options = self.options;
        self.read(look);
        let attention = self.scores(Scorer::Attention, look)?;
        let entries = attention.len();
        let best = options.budget.entries(entries, entries).unwrap_or(entries);
        for (index, &scorer) in options.scorers.iter().enumerate() {
            let scores = self.scores(scorer, look)?;
            let sums = &mut self.sums[index][look.layer];
            sums.spearman.add(spearman(&scores, &attention));
            sums.jaccard.add(top_jaccard(&scores, &attention, best));
        }
        Ok(())
    }

    /// Reads from the cache what any of the scorers asks for.
    fn read(&mut self, look: &Look<'_>) {
        let scorers = self.options.scorers.iter();
        let wanted = scorers.fold(Features::default(), |wanted, scorer| wanted.and(scorer.features()));
        self.features.read(look.cache, look.layer, wanted);
    }

    /// What a scorer says of the entries of a layer that has been read.
    fn scores(&mut self, scorer: Scorer, look: &Look<'_>) -> Result<Vec<f32>, Error> {
        let Self { engine, features, .. } = self;
        match scorer {
            Scorer::Learned => {
                let learned = engine.learned(&scorer)?;
                learned.relevance(look.cache, look.layer, look.query, &mut features.relevance);
            }
            Scorer::ExpectedAttention(future) => {
                let next = look.position + 1;
                let positions = next..next + future as usize;
                let out = &mut features.relevance;
                engine.expected_attention(look.cache, look.layer, look.statistics, positions, 0, out);
            }
            _ => {}
        }
        // Nothing has left, so rows are positions.
        let positions: Vec<u32> = (0..=look.position as u32).collect();
        let heads = features.observations(Some(look.mass));
        Ok(scorer.scores(look.layer, &positions, engine.config().group(), 1, &heads)?)
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
    use std::ops::ControlFlow;

    use inertiakv_policy::Scorer;

    use super::{CorrelationOptions, EntryFeatures, Mean, Study, Summary};
    use crate::testing::TinyModel;
    use crate::{Engine, EngineOptions, Training, TrainingOptions};

    #[test]
    fn scores_are_those_by_which_a_step_evicts() {
        let go_on = || ControlFlow::Continue(());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        TinyModel::default().write(&path).unwrap();
        let engine = Engine::open(&path, &EngineOptions::default()).unwrap();
        let tokens: Vec<u32> = (0..400_u32).map(|i| i * i % 241).collect();
        let training = Training::new(
            &engine,
            &tokens,
            &TrainingOptions {
                window: 64,
                ..TrainingOptions::default()
            },
        );
        let engine = engine.with_scorer(training.unwrap().scorer().clone()).unwrap();
        let mut options = CorrelationOptions::default();
        options.scorers.retain(|scorer| !scorer.is_of_prompt());
        options.scorers.push(Scorer::Learned);
        let mut study = Study {
            engine: &engine,
            options: &options,
            features: EntryFeatures::default(),
            sums: Vec::new(),
        };
        // The last part is one token, as the step is, so that every bit is the same.
        let mut scores = Vec::new();
        let mut show = |look: &super::Look<'_>| {
            study.read(look);
            for &scorer in &options.scorers {
                if look.position == 99 {
                    scores.push((scorer, look.layer, study.scores(scorer, look)?));
                }
            }
            Ok(())
        };
        engine
            .look(&tokens[..100], &[98, 99], false, &mut { go_on }, &mut show)
            .unwrap();
        assert_eq!(scores.len(), 2 * 8);
        for (scorer, layer, scores) in scores {
            let method = format!("inertia:scorer={scorer},aggregation=single-step,coupling=per-layer,tokens=10");
            let mut session = engine.session(&method.parse().unwrap()).unwrap();
            session.prefill(&tokens[..99], &mut |_, _| go_on()).unwrap();
            session.step(&tokens[99..100]).unwrap();
            let mut best: Vec<u32> = (0..100).collect();
            best.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(b.cmp(&a)));
            best.truncate(10);
            best.sort_unstable();
            assert_eq!(
                session.policy().unwrap().retained(layer, 0),
                best,
                "{scorer}, layer {layer}"
            );
        }
    }

    #[test]
    fn what_is_not_defined_is_left_out() {
        let mut mean = Mean::default();
        assert_eq!(mean.value(), None);
        for value in [Some(1.0), None, Some(2.0)] {
            mean.add(value);
        }
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
