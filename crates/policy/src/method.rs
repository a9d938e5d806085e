//! Named methods.

use std::fmt;
use std::str::FromStr;

use crate::budget::Budget;
use crate::error::PolicyError;
use crate::policy::Policy;
use crate::preset::Preset;
use crate::text;

/// When a method does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// At the end of the prompt, once; or, with an interval, whenever so much of it has come.
    Prefill,
    /// After every step that comes after the prompt.
    Decode,
}

/// As the value of `at`: `prefill`, `decode`.
impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Stage::Prefill => "prefill",
            Stage::Decode => "decode",
        })
    }
}

impl FromStr for Stage {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        match text {
            "prefill" => Ok(Stage::Prefill),
            "decode" => Ok(Stage::Decode),
            _ => Err(text::bad_value("at", text)),
        }
    }
}

/// A preset at its stage, with its settings: one half of a [`Method`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The name it starts from.
    pub name: Preset,
    /// What it does.
    pub policy: Policy,
}

/// What is done to a cache, as people name and compare it: `inertia`, `inertia:ratio=0.95,refresh=4`,
/// `snapkv:ratio=0.5+inertia`.
///
/// Printing gives presets and the keys that differ from them; parsing that gives the same method.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Method {
    /// How the prompt is compressed; `None`: not at all.
    pub prefill: Option<Rule>,
    /// What is evicted while decoding.
    pub decode: Rule,
}

impl Method {
    /// The method that keeps every entry.
    #[must_use]
    pub fn full() -> Method {
        Preset::Full.into()
    }

    /// Whether entries can ever leave.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.prefill.as_ref().is_some_and(|rule| rule.policy.evicts()) || self.decode.policy.evicts()
    }

    /// The policy whose budget bounds the cache in the end: that of decoding, or of the prompt where decoding evicts
    /// nothing.
    #[must_use]
    pub fn last_policy(&self) -> &Policy {
        match &self.prefill {
            Some(prefill) if !self.decode.policy.evicts() => &prefill.policy,
            _ => &self.decode.policy,
        }
    }

    /// The same method with another budget for [`Method::last_policy`]; `full` stays as it is.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Method {
        let rule = match &mut self.prefill {
            Some(prefill) if !self.decode.policy.evicts() => prefill,
            _ => &mut self.decode,
        };
        rule.policy = rule.policy.clone().with_budget(budget);
        self
    }

    /// Whether the prompt is compressed while it runs, so that a prefill under another method is of no use to this one.
    #[must_use]
    pub fn needs_own_prefill(&self) -> bool {
        let interval = self.prefill.as_ref().map(|rule| rule.policy.interval);
        interval.is_some_and(|interval| interval != Policy::WHOLE_PROMPT)
    }

    /// Whether both stages mean something, alone and together.
    pub fn validate(&self) -> Result<(), PolicyError> {
        self.decode.policy.validate(Stage::Decode)?;
        let Some(prefill) = &self.prefill else { return Ok(()) };
        prefill.policy.validate(Stage::Prefill)?;
        let conflict = |key, reason| Err(PolicyError::Conflict { key, reason });
        if prefill.policy.masked && self.decode.policy.evicts() {
            return conflict("masked", "what decoding evicts would still be in memory; drop masked");
        }
        self.decode.policy.validate_after_prompt()
    }

    /// Names and one-line descriptions of all presets.
    pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
        Preset::ALL.into_iter().map(|preset| (preset.name(), preset.summary()))
    }

    /// Keys of the textual form, each with the values it takes and what it does.
    pub fn keys() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        text::KEYS.iter().map(|key| (key.name, key.expected, key.purpose))
    }
}

/// The preset at the first of its stages.
impl From<Preset> for Method {
    fn from(name: Preset) -> Method {
        let stage = name.stages()[0];
        let rule = Rule {
            name,
            policy: name.policy(stage),
        };
        match stage {
            Stage::Prefill => Method {
                prefill: Some(rule),
                decode: Rule::full(),
            },
            Stage::Decode => Method {
                prefill: None,
                decode: rule,
            },
        }
    }
}

impl Rule {
    /// The rule that evicts nothing while decoding.
    #[must_use]
    pub fn full() -> Rule {
        Rule {
            name: Preset::Full,
            policy: Preset::Full.policy(Stage::Decode),
        }
    }
}
