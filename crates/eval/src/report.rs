//! Which tables and figures do results give?
//!
//! One [`View`] for each model in a folder of results; whoever shows them decides how.

use std::collections::BTreeSet;
use std::path::Path;

use crate::EvalError;
use crate::figure::{Figure, Heat, Kind, Lines};
use crate::run::{MethodSummary, Outcome, records, summarise};
use crate::statistics::Bootstrap;
use crate::trace::{TraceLine, TraceStep};
use inertiakv::RunReport;
use inertiakv::policy::{Budget, Method, Policy};
use serde::Deserialize;

/// Bins of depths that are not on a grid.
const DEPTH_BINS: usize = 5;
/// Most columns and rows of a retention map.
const MOST_BINS: usize = 48;

/// One model's results.
#[derive(Debug)]
pub struct View {
    /// Its name.
    pub model: String,
    /// The reference first, then the best.
    pub rows: Vec<Row>,
    /// What is there of: quality over the budget, over memory and over time, tasks, depths, retention.
    pub figures: Vec<Figure>,
    /// Examples and what went wrong there.
    pub failures: Vec<String>,
}

/// A method with what it cost.
#[derive(Debug)]
pub struct Row {
    /// Scores.
    pub summary: MethodSummary,
    /// Means over its examples.
    pub cost: Option<Cost>,
}

/// What a method cost, as means over examples.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Share of the prompt's entries that are kept in the end.
    pub kept: f64,
    /// Bytes of the cache in the end.
    pub kv_bytes: f64,
    /// Of the examples that this method answered by itself, with at least one token after the first.
    pub milliseconds_per_token: Option<f64>,
}

/// What a folder of results says of one unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// How it fared.
    pub outcome: Outcome,
    /// What it cost; `None` where it failed.
    pub report: Option<RunReport>,
    /// Methods that stepped together: above 1 the decode figures of the report are those of all of them.
    pub together: usize,
}

impl Measured {
    /// Everything in a folder of results, which a run may be adding to.
    ///
    /// # Errors
    ///
    /// There are no results, they cannot be read, or a line is no record.
    pub fn read(folder: &Path) -> Result<Vec<Self>, EvalError> {
        /// What a record has beside its outcome.
        #[derive(Deserialize)]
        struct Rest {
            report: Option<RunReport>,
            #[serde(default = "alone")]
            together: usize,
        }
        fn alone() -> usize {
            1
        }
        let records = records::<Rest>(folder)?.into_iter();
        Ok(records
            .map(|(outcome, Rest { report, together })| Self {
                outcome,
                report,
                together,
            })
            .collect())
    }
}

/// One view for each model, with the traces of that model.
///
/// # Errors
///
/// A score is NaN.
pub fn views(records: &[Measured], traces: &[Trace], bootstrap: &Bootstrap) -> Result<Vec<View>, EvalError> {
    let names = records.iter().map(|record| record.outcome.model.as_str());
    let models: BTreeSet<&str> = names.chain(traces.iter().map(|trace| trace.model.as_str())).collect();
    let of_model = |model: &str| view(model, records, traces, bootstrap);
    models.into_iter().map(of_model).collect()
}

/// A rank trace, as it is read from a file.
#[derive(Debug)]
pub struct Trace {
    /// The example, or the file that was read.
    pub name: String,
    /// The model's name.
    pub model: String,
    /// The method in its textual form.
    pub method: String,
    /// In their order.
    pub steps: Vec<TraceStep>,
}

impl Trace {
    /// Puts the lines of a file, or of several, together.
    #[must_use]
    pub fn of(lines: Vec<TraceLine>) -> Vec<Self> {
        let mut traces: Vec<Self> = Vec::new();
        for line in lines {
            let is_same =
                |trace: &&mut Self| trace.name == line.name && trace.model == line.model && trace.method == line.method;
            match traces.iter_mut().find(is_same) {
                Some(trace) => trace.steps.push(line.step),
                None => traces.push(Self {
                    name: line.name,
                    model: line.model,
                    method: line.method,
                    steps: vec![line.step],
                }),
            }
        }
        traces
    }
}

fn view(model: &str, records: &[Measured], traces: &[Trace], bootstrap: &Bootstrap) -> Result<View, EvalError> {
    let records: Vec<&Measured> = records.iter().filter(|record| record.outcome.model == model).collect();
    let mut methods: Vec<String> = Vec::new();
    for record in &records {
        if !methods.contains(&record.outcome.method) {
            methods.push(record.outcome.method.clone());
        }
    }
    methods.sort_by_key(|method| *method != Method::full().to_string());
    let summaries = summarise(records.iter().map(|record| &record.outcome), &methods, bootstrap)?;
    let mut rows: Vec<Row> = summaries
        .into_iter()
        .map(|summary| Row {
            cost: cost(&records, &summary.method),
            summary,
        })
        .collect();
    if let Some(others) = rows.get_mut(1..) {
        others.sort_by(|a, b| b.summary.mean.unwrap_or(0.0).total_cmp(&a.summary.mean.unwrap_or(0.0)));
    }
    let slug = slug(model);
    let mut figures: Vec<Figure> = [
        budget_curves(model, &rows),
        scatter(
            model,
            &rows,
            "KV cache in MiB at the end of an answer",
            "memory",
            |cost| Some(cost.kv_bytes / f64::from(1 << 20)),
        ),
        scatter(model, &rows, "milliseconds per decoded token", "time", |cost| {
            cost.milliseconds_per_token
        }),
        tasks(model, &rows),
    ]
    .into_iter()
    .flatten()
    .collect();
    let order: Vec<String> = rows.iter().map(|row| row.summary.method.clone()).collect();
    figures.extend(depths(model, &records, &order));
    figures.extend(traces.iter().filter(|trace| trace.model == model).filter_map(retention));
    for figure in &mut figures {
        figure.name = format!("{slug}-{}", figure.name);
    }
    let failures = records.iter().filter_map(|record| {
        let error = record.outcome.error.as_ref()?;
        Some(format!(
            "{} under {}: {error}",
            record.outcome.id, record.outcome.method
        ))
    });
    Ok(View {
        model: model.to_owned(),
        rows,
        figures,
        failures: failures.collect(),
    })
}

/// A name that every file system takes.
pub(crate) fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    name.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}

fn cost(records: &[&Measured], method: &str) -> Option<Cost> {
    let own: Vec<(&RunReport, usize)> = records
        .iter()
        .filter(|record| record.outcome.method == method)
        .filter_map(|record| Some((record.report.as_ref()?, record.together)))
        .collect();
    let mean = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let of = |value: &dyn Fn(&RunReport) -> f64| mean(own.iter().map(|(report, _)| value(report)).collect());
    // Steps shared with other methods say nothing of this one.
    let alone = own.iter().filter(|(_, together)| *together == 1);
    let speeds = alone.map(|(report, _)| report.decode_tokens_per_second);
    Some(Cost {
        kept: of(&|report| match report.budget {
            Some(budget) => (budget as f64 / report.prompt_tokens.max(1) as f64).min(1.0),
            None => 1.0,
        })?,
        kv_bytes: of(&|report| report.kv_bytes as f64)?,
        milliseconds_per_token: mean(speeds.filter(|speed| *speed > 0.0).map(|speed| 1e3 / speed).collect()),
    })
}

/// The method without its budget: methods that differ in nothing else are one line.
pub(crate) fn family(method: &str) -> String {
    let without = |method: Method| method.with_budget(Budget::Ratio(Policy::RATIO)).to_string();
    method.parse().map_or_else(|_| method.to_owned(), without)
}

/// Rows of the same family, in the order of the rows.
fn families(rows: &[Row], point: impl Fn(&Row) -> Option<(f64, f64)>) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let Some(point) = point(row) else { continue };
        let family = family(&row.summary.method);
        match series.iter_mut().find(|(name, _)| *name == family) {
            Some((_, points)) => points.push(point),
            None => series.push((family, vec![point])),
        }
    }
    for (_, points) in &mut series {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series
}

fn budget_curves(model: &str, rows: &[Row]) -> Option<Figure> {
    let series = families(rows, |row| Some((100.0 * row.cost.as_ref()?.kept, row.summary.mean?)));
    (!series.is_empty()).then(|| Figure {
        name: "quality-budget".to_owned(),
        title: format!("{model}: quality over the KV budget"),
        unit: "mean score in percent".to_owned(),
        kind: Kind::Lines(Lines {
            axis: "entries kept, in percent of the prompt".to_owned(),
            logarithmic: false,
            series,
        }),
    })
}

fn scatter(model: &str, rows: &[Row], axis: &str, what: &str, cost: impl Fn(&Cost) -> Option<f64>) -> Option<Figure> {
    let series = families(rows, |row| {
        Some((cost(row.cost.as_ref()?).filter(|cost| *cost > 0.0)?, row.summary.mean?))
    });
    (!series.is_empty()).then(|| Figure {
        name: format!("quality-{what}"),
        title: format!("{model}: quality and {what}"),
        unit: "mean score in percent".to_owned(),
        kind: Kind::Lines(Lines {
            axis: axis.to_owned(),
            logarithmic: true,
            series,
        }),
    })
}

fn tasks(model: &str, rows: &[Row]) -> Option<Figure> {
    let columns: Vec<String> = rows.first()?.summary.tasks.keys().cloned().collect();
    let values = |row: &Row| {
        columns
            .iter()
            .map(|task| row.summary.tasks.get(task).copied())
            .collect()
    };
    (!columns.is_empty()).then(|| Figure {
        name: "tasks".to_owned(),
        title: format!("{model}: every task"),
        unit: "score in percent".to_owned(),
        kind: Kind::Heat(Heat {
            rows: rows.iter().map(|row| row.summary.method.clone()).collect(),
            values: rows.iter().map(values).collect(),
            range: (0.0, 100.0),
            columns: columns.clone(),
        }),
    })
}

/// Where the answer lies: length × depth for every method where examples are a grid of both (the needle test), and methods
/// × depth, in bins, where they are not (tasks of RULER that hide one thing).
fn depths(model: &str, records: &[&Measured], methods: &[String]) -> Vec<Figure> {
    let (grid, scattered): (Vec<&&Measured>, Vec<&&Measured>) = records
        .iter()
        .filter(|record| depth(record).is_some())
        .partition(|record| record.outcome.task == "niah");
    let mut figures: Vec<Figure> = methods
        .iter()
        .filter_map(|method| grid_map(model, &grid, method))
        .collect();
    figures.extend(depth_map(model, &scattered, methods));
    figures
}

fn depth(record: &Measured) -> Option<f64> {
    record.outcome.labels.get("depth")?.parse().ok()
}

/// Mean score in percent of those records that are asked for.
fn mean_score<'a>(records: impl Iterator<Item = &'a Measured>) -> Option<f64> {
    let scores: Vec<f64> = records.map(|record| record.outcome.score.unwrap_or(0.0)).collect();
    (!scores.is_empty()).then(|| 100.0 * scores.iter().sum::<f64>() / scores.len() as f64)
}

fn grid_map(model: &str, records: &[&&Measured], method: &str) -> Option<Figure> {
    let own: Vec<(usize, f64, &Measured)> = records
        .iter()
        .filter(|record| record.outcome.method == method)
        .filter_map(|record| {
            let length = record.outcome.labels.get("length")?.parse().ok()?;
            Some((length, depth(record)?, **record))
        })
        .collect();
    let lengths: BTreeSet<usize> = own.iter().map(|(length, ..)| *length).collect();
    let mut depths: Vec<f64> = own.iter().map(|(_, depth, _)| *depth).collect();
    depths.sort_by(f64::total_cmp);
    depths.dedup();
    let value = |length: usize, depth: f64| {
        let cell = own.iter().filter(|(l, d, _)| *l == length && *d == depth);
        mean_score(cell.map(|(.., record)| *record))
    };
    (!own.is_empty()).then(|| Figure {
        name: format!("depth-{}", slug(method)),
        title: format!("{model}, {method}: depth × length of the prompt"),
        unit: "score in percent".to_owned(),
        kind: Kind::Heat(Heat {
            rows: depths.iter().map(|depth| format!("{depth} %")).collect(),
            columns: lengths.iter().map(usize::to_string).collect(),
            values: depths
                .iter()
                .map(|&depth| lengths.iter().map(|&length| value(length, depth)).collect())
                .collect(),
            range: (0.0, 100.0),
        }),
    })
}

fn depth_map(model: &str, records: &[&&Measured], methods: &[String]) -> Option<Figure> {
    let width = 100.0 / DEPTH_BINS as f64;
    let is_in = |record: &Measured, bin: usize| {
        depth(record).is_some_and(|depth| ((depth / width) as usize).min(DEPTH_BINS - 1) == bin)
    };
    let value = |method: &str, bin: usize| {
        let cell = records.iter().map(|record| **record);
        mean_score(cell.filter(|record| record.outcome.method == method && is_in(record, bin)))
    };
    let row = |method: &String| (0..DEPTH_BINS).map(|bin| value(method, bin)).collect();
    let bounds = |bin: usize| format!("{:.0}–{:.0} %", bin as f64 * width, (bin + 1) as f64 * width);
    (!records.is_empty()).then(|| Figure {
        name: "depth".to_owned(),
        title: format!("{model}: where in the prompt the answer lies"),
        unit: "score in percent".to_owned(),
        kind: Kind::Heat(Heat {
            rows: methods.to_vec(),
            columns: (0..DEPTH_BINS).map(bounds).collect(),
            values: methods.iter().map(row).collect(),
            range: (0.0, 100.0),
        }),
    })
}

/// Which positions are held at which step.
#[must_use]
pub fn retention(trace: &Trace) -> Option<Figure> {
    let last = trace.steps.last()?;
    let end = trace.steps.iter().flat_map(|step| &step.retained).max()? + 1;
    let bins = MOST_BINS.min(end as usize);
    let rows = MOST_BINS.min(trace.steps.len());
    let bin = |position: u32| position as usize * bins / end as usize;
    let mut sizes = vec![0.0; bins];
    for position in 0..end {
        sizes[bin(position)] += 1.0;
    }
    let chosen: Vec<&TraceStep> = (0..rows)
        .map(|row| &trace.steps[row * trace.steps.len() / rows])
        .collect();
    let values = |step: &&TraceStep| {
        let mut held = vec![0.0; bins];
        for &position in &step.retained {
            held[bin(position)] += 1.0;
        }
        held.iter()
            .zip(&sizes)
            .map(|(held, size)| Some(100.0 * held / size))
            .collect()
    };
    Some(Figure {
        name: format!("retention-{}", slug(&trace.name)),
        title: format!("{}, {}: what is held ({} steps)", trace.model, trace.method, last.step),
        unit: "entries held in percent, steps down, positions across".to_owned(),
        kind: Kind::Heat(Heat {
            rows: chosen.iter().map(|step| step.step.to_string()).collect(),
            columns: (0..bins).map(|bin| (bin * end as usize / bins).to_string()).collect(),
            values: chosen.iter().map(values).collect(),
            range: (0.0, 100.0),
        }),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Measured, Trace, family, retention, slug, views};
    use crate::figure::{Figure, Kind};
    use crate::run::Outcome;
    use crate::statistics::Bootstrap;
    use crate::trace::TraceStep;

    fn measured(task: &str, id: usize, depth: &str, method: &str, score: f64) -> Measured {
        let labels = [("length", "1000"), ("depth", depth)];
        Measured {
            outcome: Outcome {
                key: format!("{task}{id}{method}"),
                model: "m".to_owned(),
                id: format!("{task}/{id}"),
                task: task.to_owned(),
                labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
                method: method.to_owned(),
                score: Some(score),
                error: None,
            },
            report: None,
            together: 1,
        }
    }

    fn figures(records: &[Measured]) -> BTreeMap<String, Figure> {
        let mut views = views(records, &[], &Bootstrap::default()).unwrap();
        let figures = views.swap_remove(0).figures;
        figures
            .into_iter()
            .map(|figure| (figure.name.clone(), figure))
            .collect()
    }

    #[test]
    fn methods_that_differ_in_their_budget_are_one_family() {
        for text in ["inertia", "inertia:ratio=0.5", "inertia:tokens=512"] {
            assert_eq!(family(text), "inertia");
        }
        assert_eq!(family("inertia:ratio=0.5,alpha=0.5"), "inertia:alpha=0.5");
        assert_eq!(
            (family("full").as_str(), family("no method").as_str()),
            ("full", "no method")
        );
        assert_eq!(slug("a:b=0.5,c/"), "a-b-0.5-c");
    }

    #[test]
    fn the_best_come_first_after_the_reference() {
        let mut records = Vec::new();
        for (method, score) in [("random", 0.0), ("inertia", 1.0), ("full", 0.5)] {
            records.push(measured("vt", 0, "50", method, score));
        }
        let views = views(&records, &[], &Bootstrap::default()).unwrap();
        let order: Vec<&str> = views[0].rows.iter().map(|row| row.summary.method.as_str()).collect();
        assert_eq!(order, ["full", "inertia", "random"]);
    }

    #[test]
    fn a_needle_grid_is_a_map_per_method_and_other_depths_are_bins() {
        let needles = [
            measured("niah", 0, "0", "full", 1.0),
            measured("niah", 1, "100", "full", 0.5),
        ];
        let Kind::Heat(map) = &figures(&needles)["m-depth-full"].kind else {
            panic!()
        };
        assert_eq!(
            (map.rows.as_slice(), map.columns.as_slice()),
            (&["0 %".to_owned(), "100 %".to_owned()][..], &["1000".to_owned()][..])
        );
        assert_eq!(map.values, [[Some(100.0)], [Some(50.0)]]);
        let scattered = [
            measured("niah_single_1", 0, "9.7", "full", 1.0),
            measured("niah_single_1", 1, "12", "full", 0.0),
            measured("niah_single_1", 2, "100", "full", 1.0),
        ];
        let Kind::Heat(map) = &figures(&scattered)["m-depth"].kind else {
            panic!()
        };
        assert_eq!(map.values, [[Some(50.0), None, None, None, Some(100.0)]]);
    }

    #[test]
    fn retention_counts_what_is_held_where() {
        let step = |step, retained: &[u32]| TraceStep {
            step,
            retained: retained.to_vec(),
            ..TraceStep::default()
        };
        let trace = Trace {
            name: "n".to_owned(),
            model: "m".to_owned(),
            method: "inertia".to_owned(),
            steps: vec![step(1, &[0, 3]), step(2, &[3])],
        };
        let Kind::Heat(map) = retention(&trace).unwrap().kind else {
            panic!()
        };
        assert_eq!(
            map.values,
            [[100.0, 0.0, 0.0, 100.0], [0.0, 0.0, 0.0, 100.0]].map(|row| row.map(Some).to_vec())
        );
        assert_eq!(map.rows, ["1", "2"]);
    }
}
