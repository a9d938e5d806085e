//! What do rankings do while examples are answered?

use std::ops::ControlFlow;

use inertiakv::policy::Method;
use inertiakv::{Error, GenerateOptions, Generator};
use serde::Deserialize;

use super::lab::{Lab, Named};
use super::table::{Cell, Source, Table, TableRow};
use super::{Findings, method};
use crate::figure::{Figure, Heat, Kind, of_pair};
use crate::metrics::Scorer;
use crate::report::{Trace, retention};
use crate::run::Prompt;
use crate::statistics::{self, mean_of_defined, pearson};
use crate::trace::{
    Positions, RankTrace, Shadows, TraceMeasures, TraceSummary, boundary_pair, churn, jaccard, rank_trace, raw, running,
};
use crate::{EvalError, Example};

/// Measures of rankings, one row per benchmark and method (the paper's Table 13).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// What is answered.
    pub benchmarks: Vec<Named>,
    /// Label and method of each row.
    pub methods: Vec<(String, String)>,
}

/// Which entries scorers keep (the paper's Figure 1).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// What is answered.
    pub benchmark: Named,
    /// Label and method of each scorer under the same rule; the first is the reference.
    pub methods: Vec<(String, String)>,
    /// Decode steps to look at.
    pub steps: usize,
}

/// Two tokens at the border of the budget (the paper's Figure 4).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairs {
    /// What is answered.
    pub benchmark: Named,
    /// The methods, each with a pair of its own.
    pub methods: Vec<String>,
    /// Decode steps to look at.
    pub steps: usize,
}

/// Which measures of a ranking go with a sensitivity to α (the paper's Appendix I).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// What is answered.
    pub benchmarks: Vec<Named>,
    /// Less smoothing.
    pub low: String,
    /// More smoothing.
    pub high: String,
    /// The method whose ranking is measured.
    pub watched: String,
}

/// How many examples smoothing changes at all (the paper's Appendix I).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anatomy {
    /// What is answered.
    pub benchmarks: Vec<Named>,
    /// The rules, the least smoothing first.
    pub rules: Vec<String>,
}

/// What is taken of a trace.
type Measure = fn(&TraceMeasures) -> Option<f64>;

/// An example's trace and score.
fn traced(
    lab: &mut Lab<'_>,
    example: &Example,
    method: &Method,
    place: (usize, usize),
) -> Result<(RankTrace, f64), EvalError> {
    let prompt = Prompt::new(lab.engine, example, lab.engine.context())?;
    let options = GenerateOptions {
        max_tokens: example.max_new_tokens,
        ..GenerateOptions::default()
    };
    let progress = &mut *lab.progress;
    let trace = rank_trace(
        lab.engine,
        &prompt.context,
        &prompt.question,
        method,
        &options,
        &mut |_, _| progress(&example.id, place.0, place.1),
    )?;
    let score = Scorer::default().score(&example.scoring, &trace.text, &example.answers)?;
    Ok((trace, score))
}

/// The examples of each benchmark; what is missing becomes a note.
fn examples(
    lab: &Lab<'_>,
    benchmarks: &[Named],
    notes: &mut Vec<String>,
) -> Result<Vec<(String, Vec<Example>)>, EvalError> {
    let mut all = Vec::new();
    for benchmark in benchmarks {
        match benchmark.examples(lab)? {
            Ok(examples) => all.push((benchmark.name.clone(), examples)),
            Err(missing) => notes.push(format!("{} was not run: it needs {missing}.", benchmark.name)),
        }
    }
    Ok(all)
}

fn row(lab: &Lab<'_>, label: String, cells: Vec<Cell>) -> TableRow {
    TableRow {
        model: lab.engine.name().to_owned(),
        source: Source::Run,
        label,
        cells,
    }
}

fn headers(headers: &[&str]) -> Vec<String> {
    headers.iter().map(|header| (*header).to_owned()).collect()
}

impl Traces {
    pub(super) fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let (mut notes, mut rows, mut figures) = (Vec::new(), Vec::new(), Vec::new());
        for (name, examples) in examples(lab, &self.benchmarks, &mut notes)? {
            for (label, text) in &self.methods {
                let method = method(text)?;
                let (mut traces, mut scores) = (Vec::new(), Vec::new());
                for (index, example) in examples.iter().enumerate() {
                    let (trace, score) = traced(lab, example, &method, (index, examples.len()))?;
                    traces.push(trace);
                    scores.push(score);
                }
                let summary = TraceSummary::of(&traces).measures;
                let accuracy = scores.iter().sum::<f64>() / scores.len().max(1) as f64;
                rows.push(row(
                    lab,
                    format!("{name}, {label}"),
                    vec![
                        Cell::of(summary.raw_churn, 4),
                        Cell::of(summary.ema_churn, 4),
                        Cell::of(summary.raw_ema_jaccard, 4),
                        Cell::of(summary.raw_top_missed, 4),
                        Cell::plain(accuracy, 2),
                        Cell::of(summary.boundary_margin, 4),
                        Cell::of(summary.score_entropy, 4),
                        Cell::of(summary.rank_moved, 4),
                        Cell::of(summary.persistence, 4),
                    ],
                ));
                // The first answer of more than one token stands for all.
                if let Some(trace) = traces.into_iter().find(|trace| trace.steps.len() > 2) {
                    figures.extend(retention(&Trace {
                        name: format!("{name} {label}"),
                        model: lab.engine.name().to_owned(),
                        method: trace.method,
                        steps: trace.steps,
                    }));
                }
            }
            notes.push(format!("{name}: {} examples.", examples.len()));
        }
        notes.push(
            "Top sets of size B over all entries that there would be without eviction; raw is what single-step would rank by. \
             `Raw-Top Evicted` is the share of the raw top set that the method no longer holds."
                .to_owned(),
        );
        let columns = [
            "Raw Churn",
            "EMA Churn",
            "Raw/EMA Jaccard",
            "Raw-Top Evicted",
            "Trace Acc.",
            "Margin",
            "Entropy",
            "Rank moved",
            "Persistence",
        ];
        Ok(Findings {
            tables: vec![Table {
                title: title.to_owned(),
                corner: "Trace Set, rule".to_owned(),
                columns: headers(&columns),
                rows,
                notes,
            }],
            figures,
        })
    }
}

/// Top sets of one step: by single scores and smoothed, for each scorer.
struct TopSets {
    raw: Vec<Positions>,
    smoothed: Vec<Positions>,
}

impl Retention {
    pub(super) fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let mut notes = Vec::new();
        let all = examples(lab, std::slice::from_ref(&self.benchmark), &mut notes)?;
        let example = all.first().and_then(|(_, examples)| examples.first());
        let example = example.ok_or_else(|| EvalError::Setting(notes.join(" ")))?;
        let (steps, order, budget) = self.watch(lab, example)?;
        notes.push(format!(
            "One example ({}), {} steps of the full cache's answer, top {budget} of {} entries. Raw is what single-step would \
             rank by; under the sequential coupling that is the last layer.",
            example.id,
            steps.len(),
            order.len()
        ));
        let rows = [("Per step", false), ("EMA", true)].map(|(label, smoothed)| {
            let sets = |step: &TopSets| {
                if smoothed {
                    step.smoothed.clone()
                } else {
                    step.raw.clone()
                }
            };
            let overlaps: Vec<f64> = steps.iter().flat_map(|step| pairwise(&sets(step))).collect();
            let changes: Vec<f64> = steps
                .windows(2)
                .flat_map(|pair| {
                    let (before, after) = (sets(&pair[0]), sets(&pair[1]));
                    before
                        .iter()
                        .zip(&after)
                        .filter_map(|(a, b)| churn(a, b))
                        .collect::<Vec<_>>()
                })
                .collect();
            row(
                lab,
                label.to_owned(),
                vec![
                    Cell::of(mean_of_defined(overlaps.into_iter().map(Some)), 3),
                    Cell::of(mean_of_defined(changes.into_iter().map(Some)), 3),
                ],
            )
        });
        let figures = self.panels(lab.engine.name(), &steps, &order, budget);
        Ok(Findings {
            tables: vec![Table {
                title: title.to_owned(),
                corner: "Scores".to_owned(),
                columns: headers(&["mean pairwise Jaccard", "churn from step to step"]),
                rows: rows.to_vec(),
                notes,
            }],
            figures,
        })
    }

    /// Top sets of every step, all positions by the reference's last running utility, and the budget.
    fn watch(&self, lab: &mut Lab<'_>, example: &Example) -> Result<(Vec<TopSets>, Vec<u32>, usize), EvalError> {
        let methods: Vec<Method> = self
            .methods
            .iter()
            .map(|(_, text)| method(text))
            .collect::<Result<_, _>>()?;
        let watched = methods.iter().map(raw).chain(methods.iter().map(running));
        let watched: Vec<Method> = watched.collect::<Result<_, _>>()?;
        let first = methods
            .first()
            .ok_or_else(|| EvalError::Setting("a retention study needs methods".to_owned()))?;
        let prompt = Prompt::new(lab.engine, example, lab.engine.context())?;
        let mut session = lab.engine.session(&Method::full())?;
        session.prefill(&prompt.context, &mut |_, _| (lab.progress)(&example.id, 0, self.steps))?;
        let mut shadows = Shadows::new(&session, &watched)?;
        session.step(&prompt.question)?;
        shadows.step(&prompt.question)?;
        let length = prompt.context.len();
        let budget = first.decode.policy.budget.entries(length, length).unwrap_or(length);
        let options = GenerateOptions {
            ignore_end: true,
            ..GenerateOptions::default()
        };
        let mut generator = Generator::new(lab.engine, &options)?;
        let mut steps = Vec::new();
        let top = |shadows: &Shadows, index: usize| -> Result<Positions, EvalError> {
            Ok(shadows.rankings(index)?.swap_remove(0).top(budget))
        };
        loop {
            let sets = (0..watched.len()).map(|index| top(&shadows, index));
            let mut raw: Vec<Positions> = sets.collect::<Result<_, _>>()?;
            let smoothed = raw.split_off(methods.len());
            steps.push(TopSets { raw, smoothed });
            if (lab.progress)(&example.id, steps.len(), self.steps) == ControlFlow::Break(()) {
                return Err(Error::Cancelled.into());
            }
            if steps.len() >= self.steps {
                break;
            }
            let Some(draw) = generator.draw(&mut session)? else {
                break;
            };
            session.step(&[])?;
            shadows.step(&[draw.token])?;
        }
        let order = shadows.rankings(methods.len())?.swap_remove(0).order();
        Ok((steps, order, budget))
    }

    /// What each scorer keeps at each step, around the border of the budget; columns from high to low utility.
    fn panels(&self, model: &str, steps: &[TopSets], order: &[u32], budget: usize) -> Vec<Figure> {
        const SHOWN: usize = 48;
        let from = budget.saturating_sub(SHOWN / 2).min(order.len().saturating_sub(SHOWN));
        let shown: Vec<(usize, u32)> = order.iter().copied().enumerate().skip(from).take(SHOWN).collect();
        let panel = |index: usize, smoothed: bool| {
            let sets = |step: &TopSets| {
                if smoothed {
                    step.smoothed[index].clone()
                } else {
                    step.raw[index].clone()
                }
            };
            let values = steps.iter().map(|step| {
                let kept = sets(step);
                let cell = |(_, position): &(usize, u32)| Some(if kept.contains(position) { 100.0 } else { 0.0 });
                shown.iter().map(cell).collect()
            });
            let label = &self.methods[index].0;
            let how = if smoothed { "smoothed" } else { "per step" };
            Figure {
                name: format!("figure1-{}-{}", crate::report::slug(label), crate::report::slug(how)),
                title: format!("{model}: {label}, {how}; the budget ends after rank {budget}"),
                unit: "kept = 100; steps down, rank of the reference across".to_owned(),
                kind: Kind::Heat(Heat {
                    rows: (1..=steps.len()).map(|step| step.to_string()).collect(),
                    columns: shown.iter().map(|(rank, _)| (rank + 1).to_string()).collect(),
                    values: values.collect(),
                    range: (0.0, 100.0),
                }),
            }
        };
        (0..self.methods.len())
            .flat_map(|index| [panel(index, false), panel(index, true)])
            .collect()
    }
}

fn pairwise(sets: &[Positions]) -> Vec<f64> {
    let pairs = (0..sets.len()).flat_map(|a| (a + 1..sets.len()).map(move |b| (a, b)));
    pairs.map(|(a, b)| jaccard(&sets[a], &sets[b])).collect()
}

impl Pairs {
    pub(super) fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let (mut notes, mut rows, mut figures) = (Vec::new(), Vec::new(), Vec::new());
        for (_, examples) in examples(lab, std::slice::from_ref(&self.benchmark), &mut notes)? {
            let Some(example) = examples.first() else { continue };
            let prompt = Prompt::new(lab.engine, example, lab.engine.context())?;
            for (index, text) in self.methods.iter().enumerate() {
                if (lab.progress)(&example.id, index, self.methods.len()).is_break() {
                    return Err(Error::Cancelled.into());
                }
                let pair = boundary_pair(
                    lab.engine,
                    &prompt.context,
                    &prompt.question,
                    &method(text)?,
                    self.steps,
                )?;
                let Some(pair) = pair else {
                    notes.push(format!("`{text}` keeps everything of {}.", example.id));
                    continue;
                };
                rows.push(row(
                    lab,
                    text.clone(),
                    vec![
                        Cell::plain(pair.raw.len() as f64, 0),
                        Cell::plain(pair.raw_flips as f64, 0),
                        Cell::plain(pair.ema_flips as f64, 0),
                    ],
                ));
                let name = format!("figure4-{}", crate::report::slug(text));
                figures.push(of_pair(&name, lab.engine.name(), &pair));
            }
        }
        notes.push(
            "The pair near the border of the budget that single steps confuse most and the running estimate least, on one \
             example; an illustration, no statistic."
                .to_owned(),
        );
        Ok(Findings {
            tables: vec![Table {
                title: title.to_owned(),
                corner: "Method".to_owned(),
                columns: headers(&["steps", "raw flips", "smoothed flips"]),
                rows,
                notes,
            }],
            figures,
        })
    }
}

impl Sensitivity {
    pub(super) fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let [low, high, watched] = [&self.low, &self.high, &self.watched].map(|text| method(text));
        let (low, high, watched) = (low?, high?, watched?);
        let (mut notes, mut rows) = (Vec::new(), Vec::new());
        for (name, examples) in examples(lab, &self.benchmarks, &mut notes)? {
            let answers = lab.answer(&examples, &[low.clone(), high.clone()], false)?;
            let pairs = answers.scores(&low).into_iter().zip(answers.scores(&high));
            let differences: Vec<f64> = pairs.map(|(low, high)| high - low).collect();
            let mut seen = Vec::new();
            for (index, example) in examples.iter().enumerate() {
                let (trace, _) = traced(lab, example, &watched, (index, examples.len()))?;
                seen.push(TraceSummary::of(std::slice::from_ref(&trace)).measures);
            }
            let measures: [(&str, Measure); 5] = [
                ("raw/EMA disagreement", |s| {
                    s.raw_ema_jaccard.map(|jaccard| 1.0 - jaccard)
                }),
                ("raw top evicted", |s| s.raw_top_missed),
                ("boundary margin", |s| s.boundary_margin),
                ("score entropy", |s| s.score_entropy),
                ("raw churn", |s| s.raw_churn),
            ];
            for (label, measure) in measures {
                let both = seen.iter().map(measure).zip(&differences);
                let (values, differences): (Vec<f64>, Vec<f64>) = both
                    .filter_map(|(value, difference)| Some((value?, *difference)))
                    .unzip();
                let sensitive: Vec<f64> = differences.iter().map(|d| f64::from(u8::from(*d != 0.0))).collect();
                rows.push(row(
                    lab,
                    format!("{name}, {label}"),
                    vec![
                        Cell::of(pearson(&values, &sensitive), 3),
                        Cell::of(pearson(&values, &differences), 3),
                        Cell::plain(values.len() as f64, 0),
                        Cell::plain(sensitive.iter().sum(), 0),
                    ],
                ));
            }
        }
        notes.push(format!(
            "Sensitive: `{low}` and `{high}` score differently. Measures are means over the steps under `{watched}`. A \
             correlation is not defined where no example is sensitive."
        ));
        Ok(Findings {
            tables: vec![Table {
                title: title.to_owned(),
                corner: "Measure".to_owned(),
                columns: headers(&[
                    "correlation with sensitivity",
                    "correlation with the gain from more smoothing",
                    "examples",
                    "sensitive",
                ]),
                rows,
                notes,
            }],
            figures: Vec::new(),
        })
    }
}

impl Anatomy {
    pub(super) fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let rules: Vec<Method> = self.rules.iter().map(|text| method(text)).collect::<Result<_, _>>()?;
        let (mut notes, mut rows) = (Vec::new(), Vec::new());
        for (name, examples) in examples(lab, &self.benchmarks, &mut notes)? {
            let answers = lab.answer(&examples, &rules, false)?;
            let scores: Vec<Vec<f64>> = rules.iter().map(|rule| answers.scores(rule)).collect();
            let scores: Vec<&[f64]> = scores.iter().map(Vec::as_slice).collect();
            let anatomy = statistics::Anatomy::of(&scores);
            rows.push(row(
                lab,
                name,
                vec![
                    Cell::plain(anatomy.examples as f64, 0),
                    Cell::of(anatomy.invariance().map(|share| 100.0 * share), 1),
                    Cell::plain(anatomy.adaptation_lag as f64, 0),
                    Cell::plain(anatomy.stability_help as f64, 0),
                ],
            ));
        }
        notes.push(format!(
            "Rules, the least smoothing first: {}. Lag: the first is better than the last; help: the last is better.",
            self.rules.join(", ")
        ));
        Ok(Findings {
            tables: vec![Table {
                title: title.to_owned(),
                corner: "Benchmark".to_owned(),
                columns: headers(&["examples", "invariant %", "adaptation lag", "stability help"]),
                rows,
                notes,
            }],
            figures: Vec::new(),
        })
    }
}
