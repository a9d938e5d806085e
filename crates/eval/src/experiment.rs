//! Which table or figure of the paper is run, and what comes out?
//!
//! An experiment is a TOML file: what it shows, what it needs, a study with its settings, and the paper's own numbers. A
//! study is one of a few kinds, each with one runner; items of the same kind differ in data alone. The files of
//! `experiments/` are built in ([`Experiment::built_in`]), and any other file of the same form runs as well.

mod items;
mod lab;
mod quality;
mod rankings;
mod sessions;
mod simulation;
mod table;

pub use items::BUILT_IN;
pub use lab::{Data, Lab, Named, Origin};
pub use quality::{Entry, Plot, Quality, Show};
pub use rankings::{Anatomy, Pairs, Retention, Sensitivity, Traces};
pub use sessions::Sessions;
pub use simulation::Proposition;
pub use table::{Cell, Source, Table, TableRow};

use std::path::Path;

use inertiakv::policy::{Aggregation, Method, Policy, Ratio, Scorer};
use inertiakv::{BenchOptions, BenchRow, CorrelationOptions};
use serde::{Deserialize, Serialize};

use crate::figure::{Figure, of_bench};
use crate::{EvalError, file};

/// One table, figure or study.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it is of the paper, or ours.
    pub title: String,
    /// What it shows.
    pub shows: String,
    /// What it takes to run as the paper ran it.
    pub needs: String,
    /// What is done.
    pub study: Study,
    /// The paper's numbers.
    #[serde(default)]
    pub paper: Vec<PaperRow>,
}

/// A row of the paper, in the columns of the study.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperRow {
    /// The model.
    #[serde(default)]
    pub model: String,
    /// The row's name.
    pub row: String,
    /// A number or a text for each column.
    pub values: Vec<Cell>,
}

/// What is done, and with which settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Study {
    /// Scores of methods on benchmarks.
    Quality(Quality),
    /// Decode speed and where its time goes.
    Speed(Speed),
    /// Measures of rankings while examples are answered.
    Traces(Traces),
    /// Which entries scorers keep, by their scores of single steps and smoothed.
    Retention(Retention),
    /// Two tokens at the border of the budget.
    Pairs(Pairs),
    /// Which measures of a ranking go with a sensitivity to α.
    Sensitivity(Sensitivity),
    /// How many examples smoothing changes at all.
    Anatomy(Anatomy),
    /// What is still known when the question changes.
    Sessions(Sessions),
    /// How scorers rank entries against attention.
    Correlation(Correlations),
    /// A simulation of Proposition 1.
    Proposition(Proposition),
    /// What methods are made of.
    Mechanisms(Mechanisms),
}

/// Decode speed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    /// Tokens of the prefill.
    pub contexts: Vec<usize>,
    /// Methods, in their textual form; speedups are against the first that scores every step.
    pub methods: Vec<String>,
    /// Steps to time in each round.
    pub tokens: usize,
    /// Rounds, of which the median counts.
    pub rounds: usize,
    /// Which of the bench figures is this item's, as its file begins; all where none is named.
    #[serde(default)]
    pub figure: String,
}

/// Correlation of scorers with attention.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correlations {
    /// Names of scorers.
    pub scorers: Vec<String>,
    /// Queries looked at.
    pub queries: usize,
    /// Tokens of the text, which is generated prose with needles.
    pub tokens: usize,
}

/// What methods are made of.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mechanisms {
    /// Header and method of each column.
    pub columns: Vec<(String, String)>,
}

/// What an experiment came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Findings {
    /// Tables, usually one.
    pub tables: Vec<Table>,
    /// Plots of it.
    pub figures: Vec<Figure>,
}

impl Experiment {
    /// Reads a TOML text.
    ///
    /// # Errors
    ///
    /// What is wrong where.
    pub fn parse(text: &str) -> Result<Self, EvalError> {
        toml::from_str(text).map_err(|error| EvalError::Setting(error.to_string()))
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or what is wrong where.
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        Self::parse(&file::text(path)?).map_err(|error| EvalError::Setting(format!("{}: {error}", path.display())))
    }

    /// A built-in experiment by its name, such as `table4`.
    ///
    /// # Errors
    ///
    /// There is none of this name.
    pub fn built_in(name: &str) -> Result<Self, EvalError> {
        let found = BUILT_IN.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| {
            let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            EvalError::Setting(format!(
                "there is no experiment `{name}`; known ones: {}, or give the path of a TOML file",
                known.join(", ")
            ))
        })?;
        Self::parse(text)
    }

    /// Whether it runs without a model.
    #[must_use]
    pub fn is_without_model(&self) -> bool {
        matches!(self.study, Study::Proposition(_) | Study::Mechanisms(_))
    }

    /// What runs without a model.
    ///
    /// # Errors
    ///
    /// A method is none, or the study needs a model.
    pub fn run_without_model(&self) -> Result<Findings, EvalError> {
        let table = match &self.study {
            Study::Proposition(proposition) => proposition.table(&self.title),
            Study::Mechanisms(mechanisms) => mechanisms.table(&self.title)?,
            _ => return Err(EvalError::Setting(format!("`{}` needs a model", self.title))),
        };
        Ok(self.with_paper(Findings {
            tables: vec![table],
            figures: Vec::new(),
        }))
    }

    /// Runs it with the lab's model, data and scale. What has been answered before, in the lab's folder, is not run again.
    ///
    /// # Errors
    ///
    /// A method or setting cannot be, data is missing, or the engine fails.
    pub fn run(&self, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let title = format!("{} ({})", self.title, lab.engine.name());
        let findings = match &self.study {
            Study::Quality(study) => study.run(&title, lab)?,
            Study::Speed(study) => study.run(&title, lab)?,
            Study::Traces(study) => study.run(&title, lab)?,
            Study::Retention(study) => study.run(&title, lab)?,
            Study::Pairs(study) => study.run(&title, lab)?,
            Study::Sensitivity(study) => study.run(&title, lab)?,
            Study::Anatomy(study) => study.run(&title, lab)?,
            Study::Sessions(study) => study.run(&title, lab)?,
            Study::Correlation(study) => study.run(&title, lab)?,
            Study::Proposition(_) | Study::Mechanisms(_) => return self.run_without_model(),
        };
        Ok(self.with_paper(findings))
    }

    /// The paper's rows below ours, in the first table.
    fn with_paper(&self, mut findings: Findings) -> Findings {
        if let Some(table) = findings.tables.first_mut() {
            table.rows.extend(self.paper.iter().map(|row| TableRow {
                model: row.model.clone(),
                source: Source::Paper,
                label: row.row.clone(),
                cells: row.values.clone(),
            }));
        }
        findings
    }
}

/// A method in its textual form.
pub(crate) fn method(text: &str) -> Result<Method, EvalError> {
    text.parse()
        .map_err(|error| EvalError::Setting(format!("`{text}` is no method: {error}")))
}

impl Speed {
    fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let methods: Vec<Method> = self.methods.iter().map(|text| method(text)).collect::<Result<_, _>>()?;
        let options = BenchOptions {
            contexts: lab.lengths(&self.contexts),
            methods,
            tokens: self.tokens,
            rounds: lab.samples.unwrap_or(self.rounds),
            sequences: 1,
        };
        let rows = lab
            .engine
            .bench(&options, &mut |now| (lab.progress)("bench", now.done, now.total))?;
        let figures = of_bench(lab.engine.name(), &rows)
            .into_iter()
            .filter(|figure| figure.name.starts_with(&self.figure));
        Ok(Findings {
            figures: figures.collect(),
            tables: vec![Self::table(title, lab.engine.name(), &rows)],
        })
    }

    fn table(title: &str, model: &str, rows: &[BenchRow]) -> Table {
        let base = |context: usize| {
            let of_context =
                |row: &&BenchRow| row.context == context && row.method.split(':').next() == Some("inertia");
            rows.iter().find(of_context).map(|row| row.decode_tokens_per_second)
        };
        let line = |row: &BenchRow| TableRow {
            model: model.to_owned(),
            source: Source::Run,
            label: format!("{}, {}", row.context, row.method),
            cells: vec![
                Cell::plain(row.context as f64 / row.prefill_tokens_per_second, 2),
                Cell::plain(row.decode_tokens_per_second, 1),
                Cell::of(base(row.context).map(|base| row.decode_tokens_per_second / base), 2),
                Cell::plain(100.0 * row.share.matmul, 1),
                Cell::plain(100.0 * row.share.attention, 1),
                Cell::plain(100.0 * row.share.scoring, 1),
                Cell::plain(100.0 * row.share.eviction, 1),
                Cell::plain(row.retained as f64, 0),
                Cell::plain(row.kv_bytes as f64 / f64::from(1 << 20), 1),
            ],
        };
        Table {
            title: title.to_owned(),
            corner: "context, method".to_owned(),
            columns: [
                "prefill s",
                "decode tok/s",
                "× inertia",
                "matmul %",
                "attention %",
                "scoring %",
                "eviction %",
                "retained",
                "KV MiB",
            ]
            .map(str::to_owned)
            .to_vec(),
            rows: rows.iter().map(line).collect(),
            notes: vec![
                "Here scores cost one addition per probability of the attention kernel, so a refresh saves less than in an \
                 implementation that rebuilds them; attention includes these additions."
                    .to_owned(),
            ],
        }
    }
}

impl Correlations {
    fn run(&self, title: &str, lab: &mut Lab<'_>) -> Result<Findings, EvalError> {
        let tokens = lab.lengths(&[self.tokens])[0];
        let prose = crate::ruler::Prose::generated().text();
        let tokenizer = lab.engine.tokenizer();
        let mut text = tokenizer.with_bos(tokenizer.encode(&prose, false));
        text.truncate(tokens.min(lab.engine.context()));
        let mut options = CorrelationOptions {
            queries: lab.samples.unwrap_or(self.queries),
            ..CorrelationOptions::default()
        };
        let known = |name: &str| -> Result<Scorer, EvalError> {
            name.parse()
                .map_err(|error| EvalError::Setting(format!("`{name}` is no scorer: {error}")))
        };
        options.scorers = self.scorers.iter().map(|name| known(name)).collect::<Result<_, _>>()?;
        let mut notes = Vec::new();
        if lab.engine.scorer().is_none() && options.scorers.contains(&Scorer::Learned) {
            options.scorers.retain(|scorer| *scorer != Scorer::Learned);
            notes.push("Not measured: learned, which needs --scorer FILE.".to_owned());
        }
        let found = lab.engine.correlate(&[text], &options, &mut |done, total| {
            (lab.progress)("queries", done, total)
        })?;
        let model = lab.engine.name().to_owned();
        let rows = found.scorers.iter().map(|scorer| TableRow {
            model: model.clone(),
            source: Source::Run,
            label: scorer.scorer.clone(),
            cells: [
                scorer.spearman.middle,
                scorer.jaccard.middle,
                scorer.spearman.mean,
                scorer.jaccard.mean,
            ]
            .map(|value| Cell::of(value, 3))
            .to_vec(),
        });
        Ok(Findings {
            tables: vec![Table {
                title: title.to_owned(),
                corner: "Scorer".to_owned(),
                columns: [
                    "Spearman, middle layer",
                    "Jaccard, middle layer",
                    "Spearman, all layers",
                    "Jaccard, all layers",
                ]
                .map(str::to_owned)
                .to_vec(),
                rows: rows.collect(),
                notes,
            }],
            figures: Vec::new(),
        })
    }
}

impl Mechanisms {
    fn table(&self, title: &str) -> Result<Table, EvalError> {
        let methods: Vec<Method> = self
            .columns
            .iter()
            .map(|(_, text)| method(text))
            .collect::<Result<_, _>>()?;
        let mark = |is: bool| Cell::Text(if is { "✓" } else { "–" }.to_owned());
        let of_policy = |label: &str, policy: &Policy| match label {
            "Query-aware decoding score" => mark(policy.evicts() && policy.scorer.features().mass),
            "Temporal accumulation" => mark(policy.aggregation != Aggregation::SingleStep),
            "Static reserve" => mark(policy.protect.reserve != Ratio::ZERO),
            "First-eviction rescue" => mark(policy.protect.rescue),
            _ => Cell::of(policy.aggregation.alpha().map(Ratio::as_f64), 1),
        };
        let labels = [
            "Query-aware decoding score",
            "Temporal accumulation",
            "Static reserve",
            "First-eviction rescue",
            "Default α",
        ];
        let rows = labels.into_iter().map(|label| TableRow {
            model: "inertiakv".to_owned(),
            source: Source::Run,
            label: label.to_owned(),
            cells: methods
                .iter()
                .map(|method| of_policy(label, &method.decode.policy))
                .collect(),
        });
        Ok(Table {
            title: title.to_owned(),
            corner: "Mechanism".to_owned(),
            columns: self.columns.iter().map(|(label, _)| label.clone()).collect(),
            rows: rows.collect(),
            notes: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BUILT_IN, Experiment, Study};

    #[test]
    fn every_built_in_file_is_sound() {
        for (name, text) in BUILT_IN {
            let experiment = Experiment::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!experiment.shows.is_empty() && !experiment.needs.is_empty(), "{name}");
            if let Study::Quality(study) = &experiment.study {
                study.check().unwrap_or_else(|error| panic!("{name}: {error}"));
                for row in &experiment.paper {
                    assert_eq!(row.values.len(), study.columns.len(), "{name}, {}", row.row);
                }
            }
        }
    }

    #[test]
    fn the_paper_is_complete() {
        let has = |name: &str| BUILT_IN.iter().any(|(known, _)| *known == name);
        assert!((1..=14).all(|number| has(&format!("table{number}"))));
        assert!((1..=11).all(|number| has(&format!("figure{number}"))));
    }

    #[test]
    fn what_needs_no_model_runs() {
        for name in ["table6", "proposition1"] {
            let findings = Experiment::built_in(name).unwrap().run_without_model().unwrap();
            let table = &findings.tables[0];
            assert!(
                table.rows.iter().all(|row| row.cells.len() == table.columns.len()),
                "{name}"
            );
        }
    }

    #[test]
    fn mechanisms_are_those_of_the_paper() {
        let findings = Experiment::built_in("table6").unwrap().run_without_model().unwrap();
        let (ours, paper) = findings.tables[0].rows.split_at(5);
        for (ours, paper) in ours.iter().zip(paper) {
            assert_eq!(ours.label, paper.label);
            let texts = |cells: &[super::Cell]| cells.iter().map(super::Cell::text).collect::<Vec<_>>();
            assert_eq!(texts(&ours.cells), texts(&paper.cells), "{}", ours.label);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| Experiment::parse(text).unwrap_err().to_string();
        assert!(error("titel = 1").contains("titel"));
        let unknown = Experiment::built_in("table99").unwrap_err().to_string();
        assert!(unknown.contains("table14"), "{unknown}");
    }
}
