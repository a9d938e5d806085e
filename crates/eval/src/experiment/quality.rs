//! What do methods score on benchmarks, as rows and columns?
//!
//! Rows and columns are entries that each settle a part of a cell: the method, keys added to it, the benchmark, a task,
//! what is compared, and what is shown. A column's method goes before a row's.

use std::collections::BTreeMap;

use inertiakv::RunReport;
use inertiakv::policy::Method;
use serde::Deserialize;

use super::lab::{Answers, Lab, Named};
use super::table::{Cell, Source, Table, TableRow};
use super::{Findings, method};
use crate::EvalError;
use crate::figure::{Figure, Kind, Lines};
use crate::report::{self, Measured};
use crate::statistics::{Bootstrap, Interval};

/// Scores of methods on benchmarks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// What a row is.
    pub corner: String,
    /// What is answered.
    pub benchmarks: Vec<Named>,
    /// From left to right.
    pub columns: Vec<Entry>,
    /// From top to bottom.
    pub rows: Vec<Entry>,
    /// Plots of it.
    #[serde(default)]
    pub plots: Vec<Plot>,
}

/// A row or a column.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Entry {
    /// Its header.
    pub label: String,
    /// The method in its textual form.
    pub method: Option<String>,
    /// Keys that are added to the cell's method, except to `full`: `ratio=0.75`.
    pub with: String,
    /// A benchmark by its name; none stands for the first.
    pub benchmark: Option<String>,
    /// A row for every task of the benchmark, and this one for all.
    pub each_task: bool,
    /// The method that the cell's is compared with; keys are added to it too.
    pub minus: Option<String>,
    /// What is shown.
    pub show: Show,
}

/// What a cell shows of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// The mean over tasks, or its difference to another method.
    #[default]
    Score,
    /// The bounds of the difference alone.
    Bounds,
    /// Entries per head in the end.
    Retained,
    /// Tokens decoded per second.
    DecodeSpeed,
    /// Seconds of prefill, compression included.
    PrefillSeconds,
}

/// A plot of a table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Plot {
    /// One line per row over a number for each column; one plot for each benchmark.
    Lines {
        /// Name of the files.
        name: String,
        /// What the numbers are.
        axis: String,
        /// The numbers; a column without one is left out.
        x: Vec<f64>,
        /// Divides every line by its greatest value.
        #[serde(default)]
        normalised: bool,
    },
    /// One bar per row, of one column.
    Bars {
        /// Name of the files.
        name: String,
        /// Header of the column.
        column: String,
    },
    /// One point per row; rows of one method, whatever its budget, are joined.
    Points {
        /// Name of the files.
        name: String,
        /// Header of the column across.
        x: String,
        /// Header of the column upwards.
        y: String,
    },
    /// Length × depth for every method, where examples have both.
    Depths,
}

/// A line of a plot.
type Series = (String, Vec<(f64, f64)>);

/// A benchmark's answers, or what is missing.
type Answered = Result<Answers, String>;

/// A cell's method, and the one it is compared with.
struct Asked {
    method: Method,
    minus: Option<Method>,
    show: Show,
}

impl Quality {
    /// Whether every cell has a method and every benchmark exists.
    ///
    /// # Errors
    ///
    /// What does not fit.
    pub fn check(&self) -> Result<(), EvalError> {
        for row in &self.rows {
            self.benchmark(row)?;
            for column in &self.columns {
                asked(row, column)?;
            }
        }
        Ok(())
    }

    pub(super) fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let mut notes = Vec::new();
        let runnable = self.runnable(lab, &mut notes)?;
        let apart = self.columns.iter().any(|column| column.show == Show::DecodeSpeed);
        let mut answered: BTreeMap<&str, Answered> = BTreeMap::new();
        for benchmark in &self.benchmarks {
            let methods = &runnable[benchmark.name.as_str()];
            if methods.is_empty() {
                continue;
            }
            let answers = match benchmark.examples(lab)? {
                Ok(examples) => Ok(lab.answer(&examples, methods, apart)?),
                Err(missing) => {
                    notes.push(format!("{} was not run: it needs {missing}.", benchmark.name));
                    Err(missing)
                }
            };
            if let Ok(answers) = &answers {
                notes.push(format!(
                    "{}: {} examples, {} tasks; brackets are bootstrap 95 % intervals over examples within tasks{}.",
                    benchmark.name,
                    answers.groups.len(),
                    answers.tasks().len(),
                    match answers.failed() {
                        0 => String::new(),
                        failed => format!("; {failed} answers failed and count 0"),
                    }
                ));
            }
            answered.insert(&benchmark.name, answers);
        }
        let mut rows = Vec::new();
        for row in &self.rows {
            let benchmark = self.benchmark(row)?;
            let Some(Ok(answers)) = answered.get(benchmark.name.as_str()) else {
                rows.push(self.row(lab, row, None, row.label.clone(), benchmark, None)?);
                continue;
            };
            if row.each_task {
                for task in answers.tasks() {
                    rows.push(self.row(lab, row, Some(task), task.to_owned(), benchmark, Some(answers))?);
                }
            }
            rows.push(self.row(lab, row, None, row.label.clone(), benchmark, Some(answers))?);
        }
        let table = Table {
            title: title.to_owned(),
            corner: self.corner.clone(),
            columns: self.columns.iter().map(|column| column.label.clone()).collect(),
            rows,
            notes,
        };
        let records: Vec<Measured> = answered
            .into_values()
            .flatten()
            .flat_map(|answers| answers.records.into_values().flatten().flatten())
            .collect();
        let mut figures = Vec::new();
        for plot in &self.plots {
            figures.extend(self.plot(plot, title, &table, &records, lab.engine.name())?);
        }
        Ok(Findings {
            tables: vec![table],
            figures,
        })
    }

    /// The methods that the cells of each benchmark ask for and the model can run.
    fn runnable(&self, lab: &Lab<'_>, notes: &mut Vec<String>) -> Result<BTreeMap<&str, Vec<Method>>, EvalError> {
        let mut all: BTreeMap<&str, Vec<Method>> = BTreeMap::new();
        for benchmark in &self.benchmarks {
            all.entry(&benchmark.name).or_default();
        }
        for row in &self.rows {
            let methods = all.entry(&self.benchmark(row)?.name).or_default();
            for column in &self.columns {
                let asked = asked(row, column)?;
                for method in [Some(asked.method), asked.minus].into_iter().flatten() {
                    if methods.contains(&method) {
                        continue;
                    }
                    if let Err(error) = lab.engine.check_method(&method) {
                        let note = format!("`{method}` was not run: {error}.");
                        if !notes.contains(&note) {
                            notes.push(note);
                        }
                        continue;
                    }
                    methods.push(method);
                }
            }
        }
        Ok(all)
    }

    fn benchmark(&self, row: &Entry) -> Result<&Named, EvalError> {
        let found = match &row.benchmark {
            None => self.benchmarks.first(),
            Some(name) => self.benchmarks.iter().find(|benchmark| benchmark.name == *name),
        };
        found.ok_or_else(|| EvalError::Setting(format!("the row `{}` names no benchmark that is there", row.label)))
    }

    fn row(
        &self,
        lab: &Lab<'_>,
        row: &Entry,
        task: Option<&str>,
        label: String,
        benchmark: &Named,
        answers: Option<&Answers>,
    ) -> Result<TableRow, EvalError> {
        let mut cells = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            cells.push(match answers {
                Some(answers) => cell(&asked(row, column)?, task, benchmark, answers)?,
                None => Cell::Nothing,
            });
        }
        Ok(TableRow {
            model: lab.engine.name().to_owned(),
            source: Source::Run,
            label,
            cells,
        })
    }

    fn plot(
        &self,
        plot: &Plot,
        title: &str,
        table: &Table,
        records: &[Measured],
        model: &str,
    ) -> Result<Vec<Figure>, EvalError> {
        let column = |header: &str| {
            let place = table.columns.iter().position(|column| column == header);
            place.ok_or_else(|| EvalError::Setting(format!("a plot names the column `{header}`, which is not there")))
        };
        let value = |row: &TableRow, column: usize| row.cells.get(column).and_then(Cell::value);
        Ok(match plot {
            Plot::Lines {
                name,
                axis,
                x,
                normalised,
            } => {
                let lines = |entry: &Entry, row: &TableRow| {
                    let mut points: Vec<(f64, f64)> = x
                        .iter()
                        .enumerate()
                        .filter_map(|(column, &x)| Some((x, value(row, column)?)))
                        .collect();
                    points.sort_by(|a, b| a.0.total_cmp(&b.0));
                    let greatest = points.iter().map(|point| point.1).fold(0.0, f64::max);
                    if *normalised && greatest > 0.0 {
                        for point in &mut points {
                            point.1 /= greatest;
                        }
                    }
                    (entry.label.clone(), points)
                };
                self.per_benchmark(table, *normalised, lines)
                    .into_iter()
                    .map(|(benchmark, series)| Figure {
                        name: named(name, benchmark.as_deref()),
                        title: title_of(title, benchmark.as_deref()),
                        unit: if *normalised { "share of the best" } else { "score" }.to_owned(),
                        kind: Kind::Lines(Lines {
                            axis: axis.clone(),
                            logarithmic: false,
                            series,
                        }),
                    })
                    .collect()
            }
            Plot::Bars { name, column: header } => {
                let column = column(header)?;
                let bars = table
                    .rows
                    .iter()
                    .filter_map(|row| Some((row.label.clone(), vec![value(row, column)?])));
                vec![Figure {
                    name: name.clone(),
                    title: title.to_owned(),
                    unit: header.clone(),
                    kind: Kind::Bars {
                        parts: vec![header.clone()],
                        bars: bars.collect(),
                    },
                }]
            }
            Plot::Points { name, x, y } => {
                let (across, up) = (column(x)?, column(y)?);
                let mut series: Vec<Series> = Vec::new();
                for (entry, row) in self.rows.iter().zip(&table.rows) {
                    let Some(point) = value(row, across).zip(value(row, up)) else {
                        continue;
                    };
                    let family = entry
                        .method
                        .as_deref()
                        .map_or_else(|| row.label.clone(), report::family);
                    match series.iter_mut().find(|(name, _)| *name == family) {
                        Some((_, points)) => points.push(point),
                        None => series.push((family, vec![point])),
                    }
                }
                vec![Figure {
                    name: name.clone(),
                    title: title.to_owned(),
                    unit: y.clone(),
                    kind: Kind::Lines(Lines {
                        axis: x.clone(),
                        logarithmic: true,
                        series,
                    }),
                }]
            }
            Plot::Depths => {
                let views = report::views(records, &[], &Bootstrap::default())?;
                let figures = views
                    .into_iter()
                    .filter(|view| view.model == model)
                    .flat_map(|view| view.figures);
                figures.filter(|figure| figure.name.contains("-depth-")).collect()
            }
        })
    }

    /// Lines of every benchmark's rows; all together where `together` or there is one benchmark.
    fn per_benchmark(
        &self,
        table: &Table,
        together: bool,
        line: impl Fn(&Entry, &TableRow) -> Series,
    ) -> Vec<(Option<String>, Vec<Series>)> {
        let mut all: Vec<(Option<String>, Vec<_>)> = Vec::new();
        for (entry, row) in self.rows.iter().zip(&table.rows) {
            let benchmark = entry.benchmark.clone().filter(|_| !together);
            let line = line(entry, row);
            if line.1.is_empty() {
                continue;
            }
            match all.iter_mut().find(|(name, _)| *name == benchmark) {
                Some((_, lines)) => lines.push(line),
                None => all.push((benchmark, vec![line])),
            }
        }
        all
    }
}

fn named(name: &str, benchmark: Option<&str>) -> String {
    benchmark.map_or_else(
        || name.to_owned(),
        |benchmark| format!("{name}-{}", report::slug(benchmark)),
    )
}

fn title_of(title: &str, benchmark: Option<&str>) -> String {
    benchmark.map_or_else(|| title.to_owned(), |benchmark| format!("{title}, {benchmark}"))
}

fn asked(row: &Entry, column: &Entry) -> Result<Asked, EvalError> {
    let text = column.method.as_ref().or(row.method.as_ref()).ok_or_else(|| {
        EvalError::Setting(format!(
            "neither the row `{}` nor the column `{}` names a method",
            row.label, column.label
        ))
    })?;
    let keys = [row.with.as_str(), &column.with];
    let show = if column.show == Show::default() {
        row.show
    } else {
        column.show
    };
    let minus = column.minus.as_ref().or(row.minus.as_ref());
    if show == Show::Bounds && minus.is_none() {
        return Err(EvalError::Setting(format!(
            "the column `{}` shows bounds of a difference and names nothing to compare with",
            column.label
        )));
    }
    Ok(Asked {
        method: extended(text, &keys)?,
        minus: minus.map(|text| extended(text, &keys)).transpose()?,
        show,
    })
}

/// A method with more keys; `full` has none.
fn extended(text: &str, keys: &[&str]) -> Result<Method, EvalError> {
    let mut text = text.to_owned();
    if method(&text)?.evicts() {
        for keys in keys.iter().filter(|keys| !keys.is_empty()) {
            let last = text.rsplit('+').next().unwrap_or_default();
            text += if last.contains(':') { "," } else { ":" };
            text += keys;
        }
    }
    method(&text)
}

fn cell(asked: &Asked, task: Option<&str>, benchmark: &Named, answers: &Answers) -> Result<Cell, EvalError> {
    let (scale, decimals) = benchmark.scale();
    let scores = answers.scores(&asked.method);
    if scores.is_empty() {
        return Ok(Cell::Nothing);
    }
    let mean_of = |value: &dyn Fn(&RunReport) -> Option<f64>, decimals| {
        let of_task = |record: &&Measured| task.is_none_or(|task| task == record.outcome.task);
        let own = answers.of(&asked.method).filter(of_task);
        let values: Vec<f64> = own.filter_map(|record| value(record.report.as_ref()?)).collect();
        let count = values.len() as f64;
        Cell::of((count > 0.0).then(|| values.iter().sum::<f64>() / count), decimals)
    };
    Ok(match (asked.show, &asked.minus) {
        (Show::Score, None) => {
            let scaled: Vec<f64> = scores.iter().map(|score| scale * score).collect();
            estimate(answers.mean(&scaled, task)?, decimals)
        }
        (Show::Score | Show::Bounds, Some(minus)) => {
            let others = answers.scores(minus);
            let differences: Vec<f64> = scores.iter().zip(&others).map(|(a, b)| scale * (a - b)).collect();
            let interval = answers.mean(&differences, task)?;
            match (asked.show, interval.and_then(|interval| interval.bounds)) {
                (Show::Score, _) => estimate(interval, decimals),
                (_, Some((low, high))) => Cell::Text(format!("[{low:+.decimals$}, {high:+.decimals$}]")),
                (_, None) => Cell::Nothing,
            }
        }
        // `asked` has refused it.
        (Show::Bounds, None) => Cell::Nothing,
        (Show::Retained, _) => mean_of(&|report| Some(report.retained as f64), 0),
        (Show::DecodeSpeed, _) => {
            let alone = answers.of(&asked.method).filter(|record| record.together == 1);
            let speeds = alone.filter_map(|record| record.report.as_ref());
            let speeds: Vec<f64> = speeds
                .map(|report| report.decode_tokens_per_second)
                .filter(|speed| *speed > 0.0)
                .collect();
            let count = speeds.len() as f64;
            Cell::of((count > 0.0).then(|| speeds.iter().sum::<f64>() / count), 1)
        }
        (Show::PrefillSeconds, _) => mean_of(&|report| Some(report.prefill_seconds + report.compression_seconds), 2),
    })
}

fn estimate(interval: Option<Interval>, decimals: usize) -> Cell {
    interval.map_or(Cell::Nothing, |interval| Cell::Estimate {
        value: interval.mean,
        bounds: interval.bounds,
        decimals,
    })
}

#[cfg(test)]
mod tests {
    use super::{Entry, Show, asked, extended};

    fn entry(method: Option<&str>, with: &str) -> Entry {
        Entry {
            label: "e".to_owned(),
            method: method.map(str::to_owned),
            with: with.to_owned(),
            ..Entry::default()
        }
    }

    #[test]
    fn keys_are_added_to_whatever_has_a_budget() {
        let text = |text, keys: &[&str]| extended(text, keys).unwrap().to_string();
        assert_eq!(
            text("inertia", &["ratio=0.75", "alpha=0.5"]),
            "inertia:ratio=0.75,alpha=0.5"
        );
        assert_eq!(
            text("inertia:alpha=0.5", &["", "ratio=0.75"]),
            "inertia:ratio=0.75,alpha=0.5"
        );
        assert_eq!(text("full", &["ratio=0.75"]), "full");
        assert!(
            extended("inertia", &["alpah=1"])
                .unwrap_err()
                .to_string()
                .contains("alpah")
        );
    }

    #[test]
    fn a_column_goes_before_its_row() {
        let cell = asked(&entry(Some("tova"), ""), &entry(Some("full"), "")).unwrap();
        assert_eq!(cell.method.to_string(), "full");
        let cell = asked(&entry(Some("tova"), "ratio=0.5"), &entry(None, "")).unwrap();
        assert_eq!(cell.method.to_string(), "tova:ratio=0.5");
        assert!(asked(&entry(None, ""), &entry(None, "")).is_err());
        let bounds = Entry {
            show: Show::Bounds,
            ..entry(Some("inertia"), "")
        };
        assert!(asked(&entry(None, ""), &bounds).is_err());
    }
}
