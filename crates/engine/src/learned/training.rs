//! How does a scorer learn from a text what its model attends to?
//!
//! Self-distillation: every step runs the model over a window of the text, and at a few of its queries compares in every
//! layer what the scorer says about the entries with the attention they get ([`super::loss`]). All draws of a step follow
//! from the seed and the number of the step, so training that was interrupted goes on as if it had not been.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;

use inertiakv_policy::Scorer;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::optimiser::AdamW;
use super::{LearnedScorer, ScorerError, file};
use crate::Error;
use crate::catalog::hexadecimal;
use crate::correlation::{CorrelationOptions, ScorerCorrelation};
use crate::engine::Engine;
use crate::session::samples::{below, query_positions};

/// Tokens that are held out at least.
const LEAST_HELD_OUT: usize = 64;
/// Windows of the held-out text that are looked at.
const HELD_OUT_WINDOWS: usize = 4;
const HELD_OUT_QUERIES: usize = 16;

/// How to train.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingOptions {
    /// Updates of the parameters.
    pub steps: usize,
    /// The learning rate, at the beginning.
    pub learning_rate: f32,
    /// What becomes of it.
    pub schedule: Schedule,
    /// Tokens of a window.
    pub window: usize,
    /// Queries of a window that are learned from.
    pub queries: usize,
    /// All draws follow from it.
    pub seed: u64,
}

impl Default for TrainingOptions {
    fn default() -> Self {
        Self {
            steps: 500,
            learning_rate: 3e-3,
            schedule: Schedule::Cosine,
            window: 512,
            queries: 8,
            seed: 0,
        }
    }
}

/// What becomes of the learning rate from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// It falls to zero along half a cosine.
    Cosine,
    /// It stays. Training can then be resumed to more steps.
    Constant,
}

impl Schedule {
    fn rate(self, options: &TrainingOptions, done: usize) -> f32 {
        let share = done as f64 / options.steps as f64;
        match self {
            Self::Constant => options.learning_rate,
            Self::Cosine => {
                (f64::from(options.learning_rate) * 0.5 * (1.0 + (std::f64::consts::PI * share).cos())) as f32
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Cosine => "cosine",
            Self::Constant => "constant",
        })
    }
}

impl FromStr for Schedule {
    type Err = ScorerError;

    fn from_str(text: &str) -> Result<Self, ScorerError> {
        match text {
            "cosine" => Ok(Self::Cosine),
            "constant" => Ok(Self::Constant),
            _ => Err(option("the schedule", text, "cosine or constant")),
        }
    }
}

/// How a scorer was trained, and how far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingRecord {
    /// Steps it was to take.
    pub steps: usize,
    /// The learning rate, at the beginning.
    pub learning_rate: f32,
    /// What became of it: `cosine` or `constant`.
    pub schedule: String,
    /// Tokens of a window.
    pub window: usize,
    /// Queries of a window that were learned from.
    pub queries: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// SHA-256 of the text, as tokens.
    pub text: String,
    /// [`ModelInfo::fingerprint`](crate::ModelInfo::fingerprint) of the model.
    pub model: String,
    /// Element type of the cache that was learned from.
    pub kv_type: String,
    /// The mean loss of every step taken.
    pub losses: Vec<f32>,
}

impl TrainingRecord {
    fn new(options: &TrainingOptions, engine: &Engine, tokens: &[u32]) -> Self {
        let mut hash = Sha256::new();
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        Self {
            steps: options.steps,
            learning_rate: options.learning_rate,
            schedule: options.schedule.to_string(),
            window: options.window,
            queries: options.queries,
            seed: options.seed,
            text: hexadecimal(&hash.finalize()),
            model: engine.info().fingerprint,
            kv_type: engine.kv_pool().config().kv_type.to_string(),
            losses: Vec::new(),
        }
    }

    /// Whether training under `self` can go on under `now`.
    fn check_resumed(&self, now: &Self) -> Result<(), ScorerError> {
        let keeps_its_rate = now.schedule == Schedule::Constant.to_string();
        let steps = |record: &Self| if keeps_its_rate { 0 } else { record.steps };
        for (what, before, now) in [
            ("schedule", self.schedule.clone(), now.schedule.clone()),
            ("number of steps", steps(self).to_string(), steps(now).to_string()),
            (
                "learning rate",
                self.learning_rate.to_string(),
                now.learning_rate.to_string(),
            ),
            ("window", self.window.to_string(), now.window.to_string()),
            ("number of queries", self.queries.to_string(), now.queries.to_string()),
            ("seed", self.seed.to_string(), now.seed.to_string()),
            ("text", self.text.clone(), now.text.clone()),
            ("model", self.model.clone(), now.model.clone()),
            ("cache type", self.kv_type.clone(), now.kv_type.clone()),
        ] {
            if before != now {
                return Err(ScorerError::Resumed { what, before, now });
            }
        }
        Ok(())
    }
}

/// A scorer being trained.
pub struct Training {
    engine: Engine,
    options: TrainingOptions,
    /// What is trained on, and the last tenth of the text, which is not.
    text: Vec<u32>,
    held_out: Vec<u32>,
    scorer: LearnedScorer,
    optimiser: AdamW,
}

impl Training {
    /// Training on a text from the beginning.
    ///
    /// # Errors
    /// If an option is out of range, or the text too short for one window and what is held out.
    pub fn new(engine: &Engine, tokens: &[u32], options: &TrainingOptions) -> Result<Self, Error> {
        check(options, engine)?;
        let held_out = (tokens.len() / 10).max(LEAST_HELD_OUT);
        let Some(trained_on) = tokens
            .len()
            .checked_sub(held_out)
            .filter(|&rest| rest >= options.window)
        else {
            let needed = options.window + LEAST_HELD_OUT.max((options.window - 1) / 9);
            return Err(ScorerError::TextTooShort {
                tokens: tokens.len(),
                needed,
            }
            .into());
        };
        let (text, held_out) = tokens.split_at(trained_on);
        let record = TrainingRecord::new(options, engine, tokens);
        let mut random = ChaCha8Rng::seed_from_u64(options.seed);
        let scorer = LearnedScorer::untrained(engine.name(), engine.config(), record, &mut random);
        Ok(Self {
            engine: engine.clone(),
            options: options.clone(),
            text: text.to_vec(),
            held_out: held_out.to_vec(),
            optimiser: AdamW::new(scorer.parameters()),
            scorer,
        })
    }

    /// Training that goes on where the file of [`Training::save`] ends, to the same end as if it had never stopped.
    ///
    /// # Errors
    /// Those of [`Training::new`]; if the file cannot be read or is of another model; if text or options are not those it
    /// began with. Under a constant learning rate the number of steps may be another.
    pub fn resume(engine: &Engine, tokens: &[u32], options: &TrainingOptions, path: &Path) -> Result<Self, Error> {
        let mut training = Self::new(engine, tokens, options)?;
        let (scorer, optimiser) = file::load(path)?;
        scorer.check(engine.config())?;
        let optimiser = optimiser.ok_or_else(|| ScorerError::NotResumable { path: path.to_owned() })?;
        scorer.training.check_resumed(&training.scorer.training)?;
        training.optimiser = optimiser;
        training.scorer.parameters = scorer.parameters;
        training.scorer.training.losses = scorer.training.losses;
        Ok(training)
    }

    /// Steps taken.
    #[must_use]
    pub fn steps_done(&self) -> usize {
        self.scorer.training.losses.len()
    }

    /// Whether all steps are taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.steps_done() >= self.options.steps
    }

    /// The scorer as it is now.
    #[must_use]
    pub fn scorer(&self) -> &LearnedScorer {
        &self.scorer
    }

    /// Takes one step and returns its loss, the mean over queries and layers. `flow` is asked between the queries whether
    /// to go on; a step that it breaks off ends with [`Error::Cancelled`] and has changed nothing.
    pub fn step(&mut self, flow: &mut dyn FnMut() -> ControlFlow<()>) -> Result<f32, Error> {
        let step = self.steps_done() + 1;
        let TrainingOptions { window, queries, .. } = self.options;
        let mut random = ChaCha8Rng::seed_from_u64(self.options.seed);
        random.set_stream(step as u64);
        let first = below(&mut random, self.text.len() - window + 1);
        let positions = query_positions(&mut random, window, queries);
        let tokens = self.engine.window(&self.text[first..first + window]);

        let mut gradient = vec![0.0; self.scorer.parameters()];
        let (mut total, mut looks) = (0.0, 0);
        let scorer = &self.scorer;
        self.engine.look(&tokens, &positions, false, flow, &mut |look| {
            total += f64::from(scorer.learn(look.cache, look.layer, look.query, look.mass, &mut gradient));
            looks += 1;
            Ok(())
        })?;
        let share = 1.0 / looks as f32;
        for number in &mut gradient {
            *number *= share;
        }
        let loss = (total / f64::from(looks)) as f32;
        if !loss.is_finite() || !gradient.iter().all(|number| number.is_finite()) {
            return Err(ScorerError::Diverged { step }.into());
        }
        let rate = self.options.schedule.rate(&self.options, step - 1);
        let parameters = &mut self.scorer.parameters;
        self.optimiser.update(step, rate, parameters, &gradient);
        self.scorer.training.losses.push(loss);
        Ok(loss)
    }

    /// How well the scorer, as it is now, ranks the entries of the held-out text, by the attention there.
    pub fn held_out(&self, flow: &mut dyn FnMut() -> ControlFlow<()>) -> Result<ScorerCorrelation, Error> {
        let windows: Vec<Vec<u32>> = self
            .held_out
            .chunks(self.options.window)
            .filter(|window| window.len() >= LEAST_HELD_OUT)
            .take(HELD_OUT_WINDOWS)
            .map(|window| self.engine.window(window))
            .collect();
        let options = CorrelationOptions {
            scorers: vec![Scorer::Learned],
            queries: HELD_OUT_QUERIES,
            ..CorrelationOptions::default()
        };
        let engine = self.engine.clone().with_scorer(self.scorer.clone())?;
        let mut correlation = engine.correlate(&windows, &options, &mut |_, _| flow())?;
        Ok(correlation.scorers.remove(0))
    }

    /// Writes the scorer, with what it takes to resume its training. A file that is there is replaced only when the new
    /// one is complete.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        Ok(file::save(path, &self.scorer, Some(&self.optimiser))?)
    }
}

fn check(options: &TrainingOptions, engine: &Engine) -> Result<(), ScorerError> {
    let at_least_one = |name, value: usize| match value {
        0 => Err(option(name, "0", "at least 1")),
        _ => Ok(()),
    };
    at_least_one("the number of steps", options.steps)?;
    at_least_one("the number of queries", options.queries)?;
    let (window, most) = (options.window, engine.context());
    if !(LEAST_HELD_OUT..=most).contains(&window) {
        let range = format!("{LEAST_HELD_OUT} to the context of {most}");
        return Err(option("the window", &window.to_string(), &range));
    }
    let rate = options.learning_rate;
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(option(
            "the learning rate",
            &rate.to_string(),
            "more than 0 and at most 1",
        ));
    }
    Ok(())
}

fn option(name: &'static str, value: &str, range: &str) -> ScorerError {
    ScorerError::Option {
        name,
        value: value.to_owned(),
        range: range.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Schedule, TrainingOptions};

    #[test]
    fn rates_fall_along_a_cosine_or_stay() {
        let options = TrainingOptions {
            steps: 10,
            learning_rate: 0.5,
            ..TrainingOptions::default()
        };
        let rates = |schedule: Schedule| [0, 5, 10].map(|done| schedule.rate(&options, done));
        assert_eq!(rates(Schedule::Constant), [0.5; 3]);
        let [first, middle, last] = rates(Schedule::Cosine);
        assert!(first == 0.5 && (middle - 0.25).abs() < 1e-6 && last.abs() < 1e-6);
        for schedule in [Schedule::Cosine, Schedule::Constant] {
            assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        }
        assert!("linear".parse::<Schedule>().is_err());
    }
}
