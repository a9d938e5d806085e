//! Which units are there to run, and which of them are open?

use inertiakv::catalog::hexadecimal;
use inertiakv::{Engine, LearnedScorer, Method, policy};
use sha2::{Digest, Sha256};

use super::results::Outcomes;
use crate::{EvalError, Example};

/// All units of a run, and the open ones among them.
#[derive(Debug)]
pub struct Plan<'a> {
    keys: Vec<String>,
    open: Vec<Open<'a>>,
}

/// What is open of one example.
#[derive(Debug)]
pub struct Open<'a> {
    /// The example.
    pub example: &'a Example,
    /// Its open methods, each with the key of the unit.
    pub methods: Vec<(&'a Method, String)>,
}

impl<'a> Plan<'a> {
    /// Compares what is asked for with what is there.
    ///
    /// # Errors
    ///
    /// The model cannot run a method.
    pub fn new(
        engine: &Engine,
        examples: &'a [Example],
        methods: &'a [Method],
        there: &Outcomes,
    ) -> Result<Self, EvalError> {
        for method in methods {
            engine.check_method(method)?;
        }
        let mut keys = Vec::with_capacity(examples.len() * methods.len());
        let mut open = Vec::new();
        for example in examples {
            let mut of_example = Vec::new();
            for method in methods {
                let key = key(engine, method, example);
                if !there.has(&key) {
                    of_example.push((method, key.clone()));
                }
                keys.push(key);
            }
            if !of_example.is_empty() {
                open.push(Open {
                    example,
                    methods: of_example,
                });
            }
        }
        Ok(Self { keys, open })
    }

    /// All units.
    #[must_use]
    pub fn units(&self) -> usize {
        self.keys.len()
    }

    /// Units that are there already.
    #[must_use]
    pub fn done(&self) -> usize {
        self.units() - self.open.iter().map(|open| open.methods.len()).sum::<usize>()
    }

    /// What is left, example by example.
    #[must_use]
    pub fn open(&self) -> &[Open<'a>] {
        &self.open
    }

    /// The work that is left, as [`Open::work`] counts.
    #[must_use]
    pub fn work(&self) -> f64 {
        self.open.iter().map(Open::work).sum()
    }

    /// The keys of all units, examples outside.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.keys
    }
}

impl Open<'_> {
    /// How much work it is, relative to others: the bytes of the prompt, and for a token of the answer about as much as for
    /// a hundred bytes of it.
    #[must_use]
    pub fn work(&self) -> f64 {
        self.example.context.len() as f64 + 100.0 * self.example.max_new_tokens as f64
    }
}

/// What identifies a unit: everything that its answer depends on. The number of threads is not among it, nor who steps
/// together with whom.
fn key(engine: &Engine, method: &Method, example: &Example) -> String {
    let rules = method.prefill.iter().chain([&method.decode]);
    let is_learned = rules
        .into_iter()
        .any(|rule| rule.policy.scorer == policy::Scorer::Learned);
    let unit = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": engine.name(),
        "fingerprint": engine.info().fingerprint,
        "kv_type": engine.kv_pool().config().kv_type.to_string(),
        "context": engine.context(),
        "scorer": engine.scorer().filter(|_| is_learned).map(LearnedScorer::training),
        "method": method.to_string(),
        "example": example,
    });
    hexadecimal(&Sha256::digest(unit.to_string())[..16])
}
