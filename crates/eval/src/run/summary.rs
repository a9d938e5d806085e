//! How do methods compare over all examples?

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::results::Outcome;
use crate::EvalError;
use crate::metrics::{LengthAverages, category_average, effective_length, length_averages};
use crate::statistics::{
    Anatomy, Bootstrap, Interval, Outcomes, TTest, Unit, differences, holm, mean_of_defined, refuse_nan,
};

/// One method over all tasks.
#[derive(Debug, Clone, Serialize)]
pub struct MethodSummary {
    /// Its textual form.
    pub method: String,
    /// Mean score in percent of every task that all methods have run.
    pub tasks: BTreeMap<String, f64>,
    /// Mean of the tasks' means, in percent; `None` where the methods have no example in common.
    pub mean: Option<f64>,
    /// RULER's averages over lengths, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_length: Option<ByLength>,
    /// `LongBench`'s average over categories, where there are categories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_category: Option<ByCategory>,
    /// Examples that all methods have run, failed ones included.
    pub examples: usize,
    /// Examples that this method has run, those that others have not included.
    pub ran: usize,
    /// Examples that failed, which count 0.
    pub failed: usize,
    /// Difference to the reference in points, with its paired bootstrap interval over examples within tasks; `None` for
    /// the reference.
    pub difference: Option<Interval>,
    /// The same of every task alone.
    pub task_differences: BTreeMap<String, Interval>,
    /// A paired t-test over all examples, in which every example counts the same; `None` for the reference, and for fewer
    /// than two examples. Scores are bounded and often tied, so trust the interval first.
    pub t_test: Option<TTest>,
    /// Its probability adjusted for the number of methods that are compared with the reference (Holm).
    pub p_holm: Option<f64>,
    /// Examples that are better, the same and worse than with the reference.
    pub outcomes: Option<Outcomes>,
}

/// Scores in percent by length. Field names are the keys of the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ByLength {
    /// Mean of the tasks' means at each length.
    pub lengths: BTreeMap<usize, f64>,
    /// Their averages.
    #[serde(flatten)]
    pub averages: LengthAverages,
    /// RULER's effective length, if any length has that score.
    pub effective_length: Option<usize>,
}

/// Scores in percent by category. Field names are the keys of the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ByCategory {
    /// Mean of the tasks' means in each category.
    pub categories: BTreeMap<String, f64>,
    /// Mean of the categories' means.
    pub average: f64,
}

/// All methods over the examples that every one of them has run; the first of `methods` is the reference.
///
/// A task is what the benchmark calls so, and its `length` label where it has one.
///
/// # Errors
///
/// A score is NaN.
pub fn summarise<'a>(
    outcomes: impl IntoIterator<Item = &'a Outcome>,
    methods: &[String],
    bootstrap: &Bootstrap,
) -> Result<Vec<MethodSummary>, EvalError> {
    let outcomes: Vec<&Outcome> = outcomes.into_iter().collect();
    let mut scores = scores_of(outcomes.iter().copied(), methods);
    let ran = |scores: &Scores<'_>, method: &String| {
        let of_tasks = scores.values().filter_map(|of_methods| of_methods.get(method.as_str()));
        of_tasks.map(BTreeMap::len).sum()
    };
    let ran: Vec<usize> = methods.iter().map(|method| ran(&scores, method)).collect();
    keep_common(&mut scores, methods);
    let summaries = methods
        .iter()
        .map(|method| summary_of(method, &scores, &methods[0], bootstrap));
    let mut summaries = summaries.collect::<Result<Vec<_>, _>>()?;
    let lengths = labelled(&outcomes, |outcome| outcome.labels.get("length")?.parse().ok());
    let categories = labelled(&outcomes, |outcome| outcome.labels.get("category").cloned());
    for (summary, ran) in summaries.iter_mut().zip(ran) {
        summary.ran = ran;
        summary.by_length = by_length(means(&summary.tasks, &lengths));
        summary.by_category = by_category(means(&summary.tasks, &categories));
    }
    let tests = summaries.iter().filter_map(|summary| summary.t_test);
    let adjusted = holm(&tests.map(|test| test.p).collect::<Vec<_>>());
    let tested = summaries.iter_mut().filter(|summary| summary.t_test.is_some());
    for (summary, p) in tested.zip(adjusted) {
        summary.p_holm = Some(p);
    }
    Ok(summaries)
}

/// How examples respond to several rules, the least smoothing first, over the examples that all of them have run: by task,
/// and over `all`. A failed example counts 0.
///
/// # Errors
///
/// A score is NaN.
pub fn anatomies<'a>(
    outcomes: impl IntoIterator<Item = &'a Outcome>,
    rules: &[String],
) -> Result<BTreeMap<String, Anatomy>, EvalError> {
    let mut all: Vec<Vec<f64>> = rules.iter().map(|_| Vec::new()).collect();
    let mut anatomies = BTreeMap::new();
    let mut common = scores_of(outcomes, rules);
    keep_common(&mut common, rules);
    for (task, of_methods) in &common {
        let scores = |rule: &String| {
            of_methods[rule.as_str()]
                .values()
                .map(|score| score.unwrap_or(0.0))
                .collect()
        };
        let of_task: Vec<Vec<f64>> = rules.iter().map(scores).collect();
        for (all, own) in all.iter_mut().zip(&of_task) {
            refuse_nan(own)?;
            all.extend(own);
        }
        anatomies.insert(task.clone(), anatomy(&of_task));
    }
    anatomies.insert("all".to_owned(), anatomy(&all));
    Ok(anatomies)
}

fn anatomy(rules: &[Vec<f64>]) -> Anatomy {
    Anatomy::of(&rules.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// What a label says of each task, for those that have it.
fn labelled<T>(outcomes: &[&Outcome], label: impl Fn(&Outcome) -> Option<T>) -> BTreeMap<String, T> {
    let labelled = |&outcome: &&Outcome| Some((task_of(outcome), label(outcome)?));
    outcomes.iter().filter_map(labelled).collect()
}

/// Mean of the tasks' means under each label.
fn means<T: Ord + Clone>(tasks: &BTreeMap<String, f64>, labels: &BTreeMap<String, T>) -> BTreeMap<T, f64> {
    let mut groups: BTreeMap<T, Vec<f64>> = BTreeMap::new();
    for (task, &score) in tasks {
        if let Some(label) = labels.get(task) {
            groups.entry(label.clone()).or_default().push(score);
        }
    }
    let mean = |(label, scores): (T, Vec<f64>)| Some((label, mean_of_defined(scores.into_iter().map(Some))?));
    groups.into_iter().filter_map(mean).collect()
}

fn by_length(lengths: BTreeMap<usize, f64>) -> Option<ByLength> {
    let scores: Vec<f64> = lengths.values().copied().collect();
    Some(ByLength {
        averages: length_averages(&scores).filter(|_| scores.len() > 1)?,
        effective_length: effective_length(&lengths),
        lengths,
    })
}

fn by_category(categories: BTreeMap<String, f64>) -> Option<ByCategory> {
    let scores = categories.iter().map(|(category, &score)| (category.as_str(), score));
    Some(ByCategory {
        average: category_average(scores)?,
        categories,
    })
}

/// A task at two lengths, or in two bins, is two tasks.
fn task_of(outcome: &Outcome) -> String {
    let group = outcome.labels.get("length").or_else(|| outcome.labels.get("bin"));
    match group {
        Some(group) => format!("{} {group}", outcome.task),
        None => outcome.task.clone(),
    }
}

/// Per task and method the score of every example.
fn scores_of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>, methods: &[String]) -> Scores<'a> {
    let mut scores: Scores<'_> = BTreeMap::new();
    for outcome in outcomes {
        if methods.contains(&outcome.method) {
            let of_method = scores
                .entry(task_of(outcome))
                .or_default()
                .entry(&outcome.method)
                .or_default();
            of_method.insert(outcome.id.clone(), outcome.score);
        }
    }
    scores
}

/// Leaves the examples that all methods have run.
fn keep_common(scores: &mut Scores<'_>, methods: &[String]) {
    for of_methods in scores.values_mut() {
        let common = |id: &String| {
            methods
                .iter()
                .all(|m| of_methods.get(m.as_str()).is_some_and(|s| s.contains_key(id)))
        };
        let ids: BTreeSet<String> = of_methods
            .values()
            .flat_map(|s| s.keys())
            .filter(|id| common(id))
            .cloned()
            .collect();
        for of_method in of_methods.values_mut() {
            of_method.retain(|id, _| ids.contains(id));
        }
    }
    scores.retain(|_, of_methods| of_methods.values().any(|s| !s.is_empty()));
}

type Scores<'a> = BTreeMap<String, BTreeMap<&'a str, BTreeMap<String, Option<f64>>>>;

fn summary_of(
    method: &str,
    scores: &Scores<'_>,
    reference: &str,
    bootstrap: &Bootstrap,
) -> Result<MethodSummary, EvalError> {
    let mut tasks = BTreeMap::new();
    let (mut examples, mut failed) = (0, 0);
    let mut units = Vec::new();
    let mut all = Vec::new();
    let mut task_differences = BTreeMap::new();
    let is_reference = method == reference;
    for (task, of_methods) in scores {
        let own = &of_methods[method];
        let sum: f64 = own.values().map(|score| score.unwrap_or(0.0)).sum();
        tasks.insert(task.clone(), 100.0 * sum / own.len() as f64);
        examples += own.len();
        failed += own.values().filter(|score| score.is_none()).count();
        let paired: Vec<f64> = differences(own, &of_methods[reference])?;
        units.push(
            paired
                .iter()
                .map(|difference| Unit::from(100.0 * difference))
                .collect::<Vec<_>>(),
        );
        all.extend(paired);
        if !is_reference && let Some(interval) = bootstrap.interval(&units[units.len() - 1..])? {
            task_differences.insert(task.clone(), interval);
        }
    }
    Ok(MethodSummary {
        method: method.to_owned(),
        mean: (!tasks.is_empty()).then(|| tasks.values().sum::<f64>() / tasks.len() as f64),
        tasks,
        by_length: None,
        by_category: None,
        examples,
        ran: 0,
        failed,
        difference: if is_reference {
            None
        } else {
            bootstrap.interval(&units)?
        },
        task_differences,
        t_test: if is_reference { None } else { TTest::of(&all)? },
        p_holm: None,
        outcomes: (!is_reference).then(|| Outcomes::of(&all)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(method: &str, id: &str, score: Option<f64>) -> Outcome {
        Outcome {
            key: format!("{method}/{id}"),
            model: "m".to_owned(),
            id: id.to_owned(),
            task: "t".to_owned(),
            labels: BTreeMap::from([("length".to_owned(), "512".to_owned())]),
            method: method.to_owned(),
            score,
            error: score.is_none().then(|| "failed".to_owned()),
        }
    }

    #[test]
    fn averages_are_over_lengths_and_categories() {
        let labelled = |id: &str, task: &str, label: (&str, &str), score| Outcome {
            task: task.to_owned(),
            labels: BTreeMap::from([(label.0.to_owned(), label.1.to_owned())]),
            ..outcome("full", id, Some(score))
        };
        let methods = ["full".to_owned()];
        let summary = |outcomes: &[Outcome]| {
            let found = summarise(outcomes, &methods, &Bootstrap::default());
            found.unwrap().remove(0)
        };
        let ruler = [
            labelled("a", "vt", ("length", "512"), 1.0),
            labelled("b", "cwe", ("length", "512"), 0.8),
            labelled("c", "vt", ("length", "1024"), 0.6),
        ];
        let found = summary(&ruler);
        let by_length = found.by_length.unwrap();
        assert_eq!(by_length.lengths, BTreeMap::from([(512, 90.0), (1024, 60.0)]));
        assert_eq!(
            (by_length.averages.average, by_length.averages.increasing),
            (75.0, 70.0)
        );
        assert_eq!(by_length.effective_length, Some(512));
        assert!(found.by_category.is_none());
        assert!(summary(&ruler[..2]).by_length.is_none(), "one length has no average");

        let long_bench = [
            labelled("a", "qasper", ("category", "single-document QA"), 0.5),
            labelled("b", "narrativeqa", ("category", "single-document QA"), 0.3),
            labelled("c", "lcc", ("category", "code"), 1.0),
        ];
        let found = summary(&long_bench);
        assert_eq!(found.by_category.unwrap().average, 70.0);
        assert!(found.by_length.is_none());
    }

    #[test]
    fn only_examples_that_all_methods_have_run_count() {
        let outcomes = [
            outcome("full", "a", Some(1.0)),
            outcome("full", "b", Some(0.5)),
            outcome("full", "c", Some(0.0)),
            outcome("x", "a", Some(0.5)),
            outcome("x", "b", None),
        ];
        let methods = ["full".to_owned(), "x".to_owned()];
        let found = summarise(&outcomes, &methods, &Bootstrap::default()).unwrap();
        assert_eq!(found[0].tasks, BTreeMap::from([("t 512".to_owned(), 75.0)]));
        assert_eq!((found[1].mean, found[1].failed, found[1].examples), (Some(25.0), 1, 2));
        assert_eq!((found[0].examples, found[0].ran, found[1].ran), (2, 3, 2));
        assert_eq!(found[1].difference.as_ref().unwrap().mean, -50.0);
        assert_eq!(found[1].outcomes.unwrap().losses, 2);
        assert!(found[0].difference.is_none());
        let apart = [outcome("full", "a", Some(1.0)), outcome("x", "b", Some(1.0))];
        let found = summarise(&apart, &methods, &Bootstrap::default()).unwrap();
        assert!(
            found
                .iter()
                .all(|summary| summary.mean.is_none() && summary.difference.is_none() && summary.ran == 1)
        );
    }
}
