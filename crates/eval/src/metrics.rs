//! How good is an answer, to the last digit of the original benchmark?

mod averages;
mod chinese;
mod matching;
mod rouge;
mod similarity;
mod words;

pub use averages::{LengthAverages, category_average, effective_length, length_averages};
pub use chinese::ChineseWords;
pub use rouge::{Overlap, Rouge};
pub use similarity::LineSimilarity;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::python;
use crate::{EvalError, Example};

/// How one answer is compared with its references; the score lies in [0, 1].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// RULER: share of the references that the answer contains.
    StringMatchAll,
    /// RULER's questions: does it contain any reference?
    StringMatchPart,
    /// `LongBench`: F1 of words.
    QaF1,
    /// `LongBench`: F1 of Chinese words.
    QaF1Chinese,
    /// `LongBench`: ROUGE-L F.
    RougeL,
    /// `LongBench`: ROUGE-L F of Chinese words.
    RougeLChinese,
    /// `LongBench`: is the right class named, and how many others?
    Classification,
    /// `LongBench`: share of the numbers that equal the right paragraph's.
    Retrieval,
    /// The same with the Chinese word for paragraph.
    RetrievalChinese,
    /// `LongBench`: share of the numbers that equal the right count.
    Count,
    /// `LongBench`: similarity of one line of code.
    CodeSimilarity,
    /// `LongBench`-v2: is the right letter chosen?
    Choice,
    /// Needle in a haystack: ROUGE-L F, the reference in the place of the hypothesis as kvpress has it. The package raises
    /// on an empty answer, which ends a run there; here that scores 0.
    NeedleRougeL,
}

/// As in a user's file: `string_match_part`.
impl fmt::Display for Metric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// Whose scoring rules: they differ in how an answer is cleaned, and in what counts as choosing a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoringProfile {
    /// The benchmark's own scripts.
    #[default]
    Official,
    /// NVIDIA's kvpress.
    Kvpress,
}

/// Everything that a score depends on besides the answer and its references.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Scoring {
    /// How answers are compared.
    pub metric: Metric,
    /// Whose rules.
    #[serde(default)]
    pub profile: ScoringProfile,
    /// Only the answer's first line counts (four tasks of `LongBench`).
    #[serde(default)]
    pub first_line: bool,
    /// All classes of a classification task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
}

impl Default for Metric {
    /// What a user's own questions are scored with.
    fn default() -> Self {
        Self::StringMatchPart
    }
}

/// What scoring needs beside its rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scorer<'a> {
    /// jieba's words, for Chinese tasks.
    pub chinese: Option<&'a ChineseWords>,
    /// Which `fuzz.ratio`.
    pub line_similarity: LineSimilarity,
}

impl Scorer<'_> {
    /// Scores one answer: the best over the references, or for RULER their share.
    ///
    /// # Errors
    ///
    /// The references cannot be scored with this metric (none at all, a classification without classes, no paragraph
    /// number), or a Chinese task is scored without [`ChineseWords`].
    pub fn score(&self, scoring: &Scoring, prediction: &str, references: &[String]) -> Result<f64, EvalError> {
        if references.is_empty() {
            return Err(EvalError::Reference {
                metric: scoring.metric,
                what: "there is no right answer to compare with; give at least one".into(),
            });
        }
        let answer = scoring.cleaned(prediction);
        if scoring.metric == Metric::StringMatchAll {
            return Ok(matching::share_contained(&answer, references));
        }
        references.iter().try_fold(0.0, |best: f64, reference| {
            Ok(best.max(self.against(scoring, &answer, reference)?))
        })
    }

    /// Refuses before a long run what could not be scored after it.
    ///
    /// # Errors
    ///
    /// An example's task is Chinese, and there are no [`ChineseWords`].
    pub fn check(&self, examples: &[Example]) -> Result<(), EvalError> {
        for example in examples {
            if let Err(error @ EvalError::NoChineseWords { .. }) = self.score(&example.scoring, "", &example.answers) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn against(&self, scoring: &Scoring, answer: &str, reference: &str) -> Result<f64, EvalError> {
        let metric = scoring.metric;
        let bad = |what: &str| EvalError::Reference {
            metric,
            what: what.into(),
        };
        let chinese = || self.chinese.ok_or(EvalError::NoChineseWords { metric });
        let retrieval = |label: &str| {
            let gold = matching::labelled_number(reference, label);
            gold.ok_or_else(|| {
                bad(&format!(
                    "`{reference}` has no number after `{label}`; correct the example's answers"
                ))
            })
        };
        Ok(match metric {
            Metric::StringMatchAll | Metric::StringMatchPart => {
                matching::share_contained(answer, std::slice::from_ref(&reference.to_owned()))
            }
            Metric::QaF1 => words::qa_f1(answer, reference),
            Metric::QaF1Chinese => chinese()?.qa_f1(answer, reference),
            Metric::RougeL => rouge::rouge_l_f(answer, reference),
            Metric::RougeLChinese => {
                let chinese = chinese()?;
                rouge::rouge_l_f(&chinese.spaced(answer), &chinese.spaced(reference))
            }
            Metric::Classification if scoring.classes.is_empty() => {
                return Err(bad("the task's classes are not given; list them all as `classes`"));
            }
            Metric::Classification => matching::classification(answer, reference, &scoring.classes),
            Metric::Retrieval => matching::number(answer, retrieval("Paragraph ")?),
            Metric::RetrievalChinese => matching::number(answer, retrieval("段落")?),
            Metric::Count => matching::number(answer, reference),
            Metric::CodeSimilarity => similarity::code_similarity(answer, reference, self.line_similarity),
            Metric::Choice => f64::from(u8::from(match scoring.profile {
                ScoringProfile::Official => chosen_letter(answer).is_some_and(|letter| reference == letter.to_string()),
                ScoringProfile::Kvpress => matching::names_letter(answer, reference),
            })),
            Metric::NeedleRougeL => rouge::rouge_l_f(python::strip(reference), python::strip(answer)),
        })
    }
}

impl Scoring {
    /// Scoring by a metric, with the official rules.
    #[must_use]
    pub fn new(metric: Metric) -> Self {
        Self {
            metric,
            ..Self::default()
        }
    }

    /// What of an answer is compared: cleaned of control characters, its first line, or all of it.
    #[must_use]
    pub fn cleaned(&self, prediction: &str) -> String {
        match (self.metric, self.profile) {
            (Metric::StringMatchAll | Metric::StringMatchPart, profile) => without_control(prediction, profile),
            (Metric::Choice | Metric::NeedleRougeL, _) => prediction.to_owned(),
            (_, ScoringProfile::Kvpress) => {
                let answer = python::strip_start(prediction);
                python::strip_start(if self.first_line { first_line(answer) } else { answer }).to_owned()
            }
            (_, ScoringProfile::Official) if self.first_line => {
                first_line(prediction.trim_start_matches('\n')).to_owned()
            }
            (_, ScoringProfile::Official) => prediction.to_owned(),
        }
    }
}

/// The letter that a `LongBench`-v2 answer chooses, by the official rule.
#[must_use]
pub fn chosen_letter(response: &str) -> Option<char> {
    matching::chosen_letter(response)
}

/// A task's score in percent with two decimals, as RULER and `LongBench` print it; `None` without answers.
///
/// The two scripts multiply by 100 before and after dividing, which can differ in the last bit and so in a tie.
#[must_use]
pub fn task_percent(metric: Metric, scores: &[f64]) -> Option<f64> {
    let sum: f64 = scores.iter().sum();
    let count = scores.len() as f64;
    let percent = match metric {
        Metric::StringMatchAll | Metric::StringMatchPart => sum / count * 100.0,
        _ => 100.0 * sum / count,
    };
    (!scores.is_empty()).then(|| python::round(percent, 2))
}

/// The score of one length bin of `LongBench`-E, in percent with two decimals; numpy adds and rounds there.
#[must_use]
pub fn bin_percent(scores: &[f64]) -> Option<f64> {
    (!scores.is_empty()).then(|| python::numpy_round(100.0 * python::numpy_mean(scores), 2))
}

/// Accuracy in percent with one decimal, as `LongBench`-v2 prints it; `None` without answers.
#[must_use]
pub fn choice_percent(scores: &[f64]) -> Option<f64> {
    let sum: f64 = scores.iter().sum();
    (!scores.is_empty()).then(|| python::round(100.0 * sum / scores.len() as f64, 1))
}

/// RULER turns control characters into newlines, kvpress deletes them.
fn without_control(prediction: &str, profile: ScoringProfile) -> String {
    let is_control = |c: char| c < ' ';
    let cleaned: String = match profile {
        ScoringProfile::Official => python::strip(prediction).replace(is_control, "\n"),
        ScoringProfile::Kvpress => python::strip(prediction).replace(is_control, ""),
    };
    python::strip(&cleaned).to_owned()
}

fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Metric, Scorer, Scoring, ScoringProfile, bin_percent, task_percent};

    fn refs(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_cannot_be_scored_says_why() {
        let scorer = Scorer::default();
        let error = |metric, references: &[&str]| {
            scorer
                .score(&Scoring::new(metric), "x", &refs(references))
                .unwrap_err()
                .to_string()
        };
        assert!(error(Metric::QaF1, &[]).contains("`qa_f1`: there is no right answer"));
        assert!(error(Metric::Classification, &["x"]).contains("classes"));
        assert!(error(Metric::Retrieval, &["7"]).contains("`Paragraph `"));
        assert!(error(Metric::QaF1Chinese, &["x"]).contains("jieba"));
    }

    #[test]
    fn kvpress_strips_before_and_after_the_first_line() {
        let mut scoring = Scoring {
            first_line: true,
            ..Scoring::new(Metric::QaF1)
        };
        assert_eq!(scoring.cleaned("\n \u{1c}Paris\nx"), " \u{1c}Paris");
        scoring.profile = ScoringProfile::Kvpress;
        assert_eq!(scoring.cleaned("\n \u{1c}Paris\nx"), "Paris");
    }

    #[test]
    fn rounding_is_that_of_each_script() {
        assert_eq!(task_percent(Metric::QaF1, &[]), None);
        assert_eq!(
            task_percent(Metric::StringMatchAll, &[1.0, 0.0, 1.0 / 3.0]),
            Some(44.44)
        );
        assert_eq!(bin_percent(&[0.333_35]), Some(33.34)); // numpy meets the tie at 3333.5
        assert_eq!(task_percent(Metric::QaF1, &[0.333_35]), Some(33.34));
    }

    #[test]
    fn a_needle_is_the_hypothesis() {
        let scorer = Scorer::default();
        let needle = Scoring::new(Metric::NeedleRougeL);
        assert_eq!(scorer.score(&needle, "", &refs(&["x"])).unwrap(), 0.0);
        let [a, b] = [
            "sat a sat \n cat cat on a ran",
            "a \n ran mat. mat. cat a the dog on big a",
        ];
        let reversed = scorer.score(&Scoring::new(Metric::RougeL), b, &refs(&[a])).unwrap();
        assert_eq!(scorer.score(&needle, a, &refs(&[b])).unwrap(), reversed);
    }
}
