//! Which synthetic examples of a given length test what a cache still knows?
//!
//! The thirteen tasks of RULER, generated for any length and any tokenizer. An example depends on the seed, the task, the
//! length and its index, and on nothing else: samples can be made in any order and on any machine. The rules are those of
//! the official generator or ours ([`RulerProfile`]); the words are ours or read from a checkout ([`Wording`]); random
//! numbers, word lists and prose are always ours, so no profile gives the official samples.
//!
//! ```
//! use inertiakv_eval::ruler::{Ruler, RulerProfile, RulerTask};
//!
//! let ruler = Ruler::new(RulerProfile::Own, 42);
//! let tokens = |text: &str| text.split_whitespace().count(); // the model's tokenizer
//! let fitted = ruler.fit(RulerTask::NiahMultikey1, 2048, 0, &tokens)?;
//! let example = fitted.example(0, &tokens)?;
//! assert!(tokens(&example.prompt()) + example.max_new_tokens <= 2048);
//! assert!(example.context.contains(&example.answers[0]));
//! # Ok::<(), inertiakv_eval::EvalError>(())
//! ```

mod fit;
mod frequencies;
mod haystack;
mod needles;
mod profile;
mod questions;
mod variables;
mod wording;
mod words;

pub use haystack::Prose;
pub use profile::RulerProfile;
pub use questions::QuestionSet;
pub use wording::Wording;
pub(crate) use wording::fill;
pub use words::WordLists;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::dice::Dice;
use crate::metrics::{Metric, Scoring, ScoringProfile};
use crate::{Chat, EvalError, Example};
use needles::{Haystack, Kind, NeedleTask};
use wording::Parts;

/// A task, by its official name; `facts_1` and `facts_2` stand in for the two question tasks and are not official.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names are those of the benchmark, which explains them
pub enum RulerTask {
    NiahSingle1,
    NiahSingle2,
    NiahSingle3,
    NiahMultikey1,
    NiahMultikey2,
    NiahMultikey3,
    NiahMultivalue,
    NiahMultiquery,
    Vt,
    Cwe,
    Fwe,
    Qa1,
    Qa2,
    Facts1,
    Facts2,
}

/// Tasks that share a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Needles,
    Variables,
    CommonWords,
    CodedWords,
    Questions,
}

/// Lengths below this get smaller steps and shorter lists.
const SHORT: usize = 4096;

/// What examples are made of.
#[derive(Clone)]
pub struct Ruler {
    profile: RulerProfile,
    seed: u64,
    wording: Wording,
    words: WordLists,
    prose: Cow<'static, Prose>,
    squad: Option<QuestionSet>,
    hotpotqa: Option<QuestionSet>,
}

/// How much haystack a task takes at a length.
#[derive(Debug)]
pub struct FittedTask<'a> {
    ruler: &'a Ruler,
    task: RulerTask,
    length: usize,
    /// Most tokens of a prompt.
    budget: usize,
    units: usize,
    tokens_per_unit: f64,
    /// Noise lines of the solved example of variable tracking.
    example_units: usize,
}

/// A sample before it is put into words.
#[derive(Debug, Default)]
struct Draft {
    /// What stands before the prompt: a solved example.
    front: String,
    context: String,
    slots: Vec<(&'static str, String)>,
    one_answer: bool,
    answers: Vec<String>,
    /// Where the answer lies in the context, in percent.
    depth: Option<f64>,
}

impl Draft {
    fn slots(&self) -> Vec<(&str, &str)> {
        self.slots.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
}

impl Ruler {
    /// Everything built in: our wording, words, prose and facts.
    #[must_use]
    pub fn new(profile: RulerProfile, seed: u64) -> Self {
        Self {
            profile,
            seed,
            wording: Wording::own(),
            words: WordLists::built_in(),
            prose: Cow::Borrowed(Prose::generated()),
            squad: None,
            hotpotqa: None,
        }
    }

    /// Other prompt texts.
    #[must_use]
    pub fn with_wording(self, wording: Wording) -> Self {
        Self { wording, ..self }
    }

    /// Other words for keys and lists.
    #[must_use]
    pub fn with_words(self, words: WordLists) -> Self {
        Self { words, ..self }
    }

    /// Another haystack.
    #[must_use]
    pub fn with_prose(self, prose: Prose) -> Self {
        Self {
            prose: Cow::Owned(prose),
            ..self
        }
    }

    /// `SQuAD`, for `qa_1`.
    #[must_use]
    pub fn with_squad(self, questions: QuestionSet) -> Self {
        Self {
            squad: Some(questions),
            ..self
        }
    }

    /// `HotpotQA`, for `qa_2`.
    #[must_use]
    pub fn with_hotpotqa(self, questions: QuestionSet) -> Self {
        Self {
            hotpotqa: Some(questions),
            ..self
        }
    }

    /// Finds how much haystack a prompt of `length` tokens holds, of which the answer takes its part and a chat template
    /// `reserved`. `tokens` counts the tokens of a text, without special ones; it is called a handful of times.
    ///
    /// # Errors
    ///
    /// The length is too short for the task, or its questions are not given.
    pub fn fit(
        &self,
        task: RulerTask,
        length: usize,
        reserved: usize,
        tokens: &dyn Fn(&str) -> usize,
    ) -> Result<FittedTask<'_>, EvalError> {
        // The rules of 2024 forget the answer when they fit coded words.
        let forgets_answer = task == RulerTask::Fwe && self.profile.is_legacy();
        let kept_free = reserved + if forgets_answer { 0 } else { task.max_new_tokens() };
        let too_short = |tokens: usize| EvalError::TooShort {
            task,
            length,
            needed: tokens + kept_free,
        };
        let budget = length.saturating_sub(kept_free);
        let example_units = if task == RulerTask::Vt {
            self.fit_example(length, tokens)
        } else {
            0
        };
        let mut fitted = FittedTask {
            ruler: self,
            task,
            length,
            budget,
            units: 0,
            tokens_per_unit: 1.0,
            example_units,
        };
        if task == RulerTask::Fwe && fitted.vocabulary() < frequencies::LEAST_VOCABULARY {
            return Err(too_short(50 * frequencies::LEAST_VOCABULARY));
        }
        let (least, most) = (fitted.least_units(0)?, fitted.most_units());
        let count = |units| fitted.count(&fitted.draft(0, units, "trial"), tokens);
        let units = fit::largest_fitting(least, most, budget, count).map_err(too_short)?;
        fitted.units = units;
        fitted.tokens_per_unit = (budget as f64 / units as f64).max(1.0);
        Ok(fitted)
    }

    /// Noise lines that fill the solved example of variable tracking: 500 tokens, or a quarter of a short prompt.
    fn fit_example(&self, length: usize, tokens: &dyn Fn(&str) -> usize) -> usize {
        const EXAMPLE_TOKENS: usize = 500;
        let budget = if self.profile.has_fixed_order() {
            EXAMPLE_TOKENS
        } else {
            EXAMPLE_TOKENS.min(length / 4)
        };
        let count = |units| tokens(&variables::trial_example(self, units));
        fit::largest_fitting(variables::LEAST_UNITS, EXAMPLE_TOKENS, budget, count).unwrap_or(variables::LEAST_UNITS)
    }

    fn questions(&self, task: RulerTask) -> Result<Option<&QuestionSet>, EvalError> {
        match task {
            RulerTask::Qa1 if self.squad.is_none() => Err(EvalError::NoQuestions {
                task,
                file: "SQuAD 2.0 (dev-v2.0.json)",
            }),
            RulerTask::Qa2 if self.hotpotqa.is_none() => Err(EvalError::NoQuestions {
                task,
                file: "HotpotQA (hotpot_dev_distractor_v1.json)",
            }),
            RulerTask::Qa1 => Ok(self.squad.as_ref()),
            RulerTask::Qa2 => Ok(self.hotpotqa.as_ref()),
            RulerTask::Facts1 => Ok(Some(QuestionSet::facts(false))),
            RulerTask::Facts2 => Ok(Some(QuestionSet::facts(true))),
            _ => Ok(None),
        }
    }

    /// Shuffles by the sample's dice, or in the order that all samples share.
    fn shuffle<T>(&self, items: &mut [T], dice: &mut Dice) {
        if self.profile.has_fixed_order() {
            Dice::new(self.seed, "order").shuffle(items);
        } else {
            dice.shuffle(items);
        }
    }
}

impl FittedTask<'_> {
    /// The example of an index. Question tasks have as many as there are questions, the others any number.
    ///
    /// # Errors
    ///
    /// There is no such question, or not even the least haystack fits.
    pub fn example(&self, index: usize, tokens: &dyn Fn(&str) -> usize) -> Result<Example, EvalError> {
        if let Some(questions) = self
            .ruler
            .questions(self.task)?
            .filter(|questions| index >= questions.len())
        {
            return Err(EvalError::NoSuchQuestion {
                task: self.task,
                index,
                available: questions.len(),
            });
        }
        let least = self.least_units(index)?;
        let mut units = self.units.max(least);
        loop {
            let draft = self.draft(index, units, &index.to_string());
            let count = self.count(&draft, tokens);
            if count <= self.budget {
                return Ok(self.worded(index, draft));
            }
            if units == least {
                let needed = count + self.length - self.budget;
                return Err(EvalError::TooShort {
                    task: self.task,
                    length: self.length,
                    needed,
                });
            }
            units = units.saturating_sub(self.step(count - self.budget)).max(least);
        }
    }

    /// Units of haystack: words, lines or documents.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units
    }

    fn draft(&self, index: usize, units: usize, stream: &str) -> Draft {
        let ruler = self.ruler;
        let mut dice = Dice::new(ruler.seed, &format!("{}/{}/{stream}", self.task, self.length));
        match (self.task.needles(), self.task) {
            (Some(needles), _) => needles.draft(ruler, units, &mut dice),
            (None, RulerTask::Vt) => variables::draft(ruler, units, self.example_units, &mut dice),
            (None, RulerTask::Cwe) => frequencies::common_words(ruler, self.length, units, &mut dice),
            (None, RulerTask::Fwe) => frequencies::coded_words(ruler, self.vocabulary(), units, &mut dice),
            (None, _) => match ruler.questions(self.task) {
                Ok(Some(questions)) => questions.draft(ruler, index, units, &mut dice),
                _ => Draft::default(), // cannot be: `least_units` has found them
            },
        }
    }

    /// Tokens that the official rules hold against the budget.
    fn count(&self, draft: &Draft, tokens: &dyn Fn(&str) -> usize) -> usize {
        let mut text = [draft.front.as_str(), &self.parts(draft).text()].concat();
        if self.ruler.profile.is_legacy() && self.task != RulerTask::Fwe {
            text = [text, draft.answers.join(" ")].join(" ");
        }
        tokens(&text)
    }

    fn parts(&self, draft: &Draft) -> Parts {
        self.ruler
            .wording
            .render(self.task.family(), draft.one_answer, &draft.context, &draft.slots())
    }

    fn worded(&self, index: usize, draft: Draft) -> Example {
        let mut parts = self.parts(&draft);
        if self.ruler.profile == RulerProfile::Kvpress {
            // There the space before the answer's beginning ends the question.
            let prefix = parts.answer_prefix.trim_start();
            parts
                .question
                .push_str(&parts.answer_prefix[..parts.answer_prefix.len() - prefix.len()]);
            parts.answer_prefix = prefix.into();
        }
        let mut labels = BTreeMap::from([
            ("length".to_owned(), self.length.to_string()),
            ("profile".to_owned(), self.ruler.profile.name().to_owned()),
            ("wording".to_owned(), self.ruler.wording.name.to_owned()),
        ]);
        labels.extend(draft.depth.map(|depth| ("depth".to_owned(), format!("{depth:.1}"))));
        Example {
            id: format!("{}/{}/{index}", self.task, self.length),
            task: self.task.to_string(),
            context: [draft.front, parts.context].concat(),
            question: parts.question,
            answer_prefix: parts.answer_prefix,
            answers: draft.answers,
            max_new_tokens: self.task.max_new_tokens(),
            scoring: self.task.scoring(if self.ruler.profile == RulerProfile::Kvpress {
                ScoringProfile::Kvpress
            } else {
                ScoringProfile::Official
            }),
            chat: Chat::AnswerPrefixApart,
            truncation: None,
            stop_at_newline: false,
            labels,
        }
    }

    fn vocabulary(&self) -> usize {
        frequencies::vocabulary_size(self.budget)
    }

    fn least_units(&self, index: usize) -> Result<usize, EvalError> {
        let questions = self.ruler.questions(self.task)?;
        Ok(match (self.task.needles(), self.task) {
            (Some(needles), _) => needles.least_units(),
            (None, RulerTask::Vt) => variables::LEAST_UNITS,
            (None, RulerTask::Cwe) => frequencies::COMMON + 1,
            (None, RulerTask::Fwe) => frequencies::LEAST_CODED,
            (None, _) => questions.map_or(1, |questions| questions.least_units(index)),
        })
    }

    fn most_units(&self) -> usize {
        let legacy = self.ruler.profile.is_legacy();
        match self.task {
            RulerTask::Cwe if legacy => self.ruler.words.count(),
            RulerTask::Cwe => self.ruler.words.count_with_compounds(),
            task if legacy && task.needles().is_some_and(|task| task.haystack == Haystack::Essay) => {
                self.ruler.prose.len()
            }
            // No unit takes less than a token or two, so this is never reached.
            _ => self.length.saturating_mul(8),
        }
    }

    /// Units by which a sample with so many tokens too many shrinks.
    fn step(&self, excess: usize) -> usize {
        if !self.ruler.profile.has_fixed_steps() {
            return (excess as f64 / self.tokens_per_unit).ceil() as usize;
        }
        match (self.task.needles(), self.task) {
            (Some(needles), _) => needles.step(self.length),
            (None, RulerTask::Vt) => variables::step(self.length),
            (None, RulerTask::Fwe) => (self.budget / 32).max(1),
            (None, _) => 10,
        }
    }
}

impl RulerTask {
    /// The thirteen official tasks, in the official order.
    pub const OFFICIAL: [Self; 13] = [
        Self::NiahSingle1,
        Self::NiahSingle2,
        Self::NiahSingle3,
        Self::NiahMultikey1,
        Self::NiahMultikey2,
        Self::NiahMultikey3,
        Self::NiahMultivalue,
        Self::NiahMultiquery,
        Self::Vt,
        Self::Cwe,
        Self::Fwe,
        Self::Qa1,
        Self::Qa2,
    ];

    /// Tasks that need no file.
    pub const BUILT_IN: [Self; 13] = {
        let mut tasks = Self::OFFICIAL;
        tasks[11] = Self::Facts1;
        tasks[12] = Self::Facts2;
        tasks
    };

    /// The name in files and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NiahSingle1 => "niah_single_1",
            Self::NiahSingle2 => "niah_single_2",
            Self::NiahSingle3 => "niah_single_3",
            Self::NiahMultikey1 => "niah_multikey_1",
            Self::NiahMultikey2 => "niah_multikey_2",
            Self::NiahMultikey3 => "niah_multikey_3",
            Self::NiahMultivalue => "niah_multivalue",
            Self::NiahMultiquery => "niah_multiquery",
            Self::Vt => "vt",
            Self::Cwe => "cwe",
            Self::Fwe => "fwe",
            Self::Qa1 => "qa_1",
            Self::Qa2 => "qa_2",
            Self::Facts1 => "facts_1",
            Self::Facts2 => "facts_2",
        }
    }

    /// Most tokens of an answer.
    #[must_use]
    pub fn max_new_tokens(self) -> usize {
        match self.family() {
            Family::Needles => 128,
            Family::Variables => 30,
            Family::CommonWords => 120,
            Family::CodedWords => 50,
            Family::Questions => 32,
        }
    }

    /// How answers are scored.
    #[must_use]
    pub fn scoring(self, profile: ScoringProfile) -> Scoring {
        let metric = match self.family() {
            Family::Questions => Metric::StringMatchPart,
            _ => Metric::StringMatchAll,
        };
        Scoring {
            profile,
            ..Scoring::new(metric)
        }
    }

    pub(crate) fn family(self) -> Family {
        match self {
            Self::Vt => Family::Variables,
            Self::Cwe => Family::CommonWords,
            Self::Fwe => Family::CodedWords,
            Self::Qa1 | Self::Qa2 | Self::Facts1 | Self::Facts2 => Family::Questions,
            _ => Family::Needles,
        }
    }

    fn needles(self) -> Option<NeedleTask> {
        let task = |haystack, keys, values, counts| {
            Some(NeedleTask {
                haystack,
                keys,
                values,
                counts,
            })
        };
        match self {
            Self::NiahSingle1 => task(Haystack::Noise, Kind::Words, Kind::Numbers, (1, 1, 1)),
            Self::NiahSingle2 => task(Haystack::Essay, Kind::Words, Kind::Numbers, (1, 1, 1)),
            Self::NiahSingle3 => task(Haystack::Essay, Kind::Words, Kind::Uuids, (1, 1, 1)),
            Self::NiahMultikey1 => task(Haystack::Essay, Kind::Words, Kind::Numbers, (4, 1, 1)),
            Self::NiahMultikey2 => task(Haystack::Needles, Kind::Words, Kind::Numbers, (1, 1, 1)),
            Self::NiahMultikey3 => task(Haystack::Needles, Kind::Uuids, Kind::Uuids, (1, 1, 1)),
            Self::NiahMultivalue => task(Haystack::Essay, Kind::Words, Kind::Numbers, (1, 4, 1)),
            Self::NiahMultiquery => task(Haystack::Essay, Kind::Words, Kind::Numbers, (4, 1, 4)),
            _ => None,
        }
    }
}

impl fmt::Debug for Ruler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the word lists, texts and questions.
        let mut fields = formatter.debug_struct("Ruler");
        fields
            .field("profile", &self.profile)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for RulerTask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for RulerTask {
    type Err = EvalError;

    fn from_str(name: &str) -> Result<Self, EvalError> {
        let all = || Self::OFFICIAL.into_iter().chain([Self::Facts1, Self::Facts2]);
        all()
            .find(|task| task.name() == name)
            .ok_or_else(|| EvalError::UnknownTask {
                name: name.to_owned(),
                known: all().map(Self::name).collect::<Vec<_>>().join(", "),
            })
    }
}
