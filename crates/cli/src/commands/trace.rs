//! `inertiakv trace`: how steady is a ranking, step by step?

use std::fs::{self, File};
use std::io;
use std::path::Path;

use anyhow::Context;
use inertiakv::policy::Method;
use inertiakv::{Engine, GenerateOptions};
use inertiakv_eval::EvalError;
use inertiakv_eval::figure::{Figure, Kind, Lines, of_pair};
use inertiakv_eval::grid::{Benchmark, Grid, RulerExamples};
use inertiakv_eval::report::{Trace, retention};
use inertiakv_eval::run;
use inertiakv_eval::trace::{
    Pair, RankTrace, TraceLine, TraceMeasures, TraceStep, TraceSummary, boundary_pair, rank_trace,
};
use serde::Serialize;

use crate::args::{PromptArguments, TraceArguments};
use crate::failure::usage;
use crate::figures;
use crate::format::{count, counted};
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::prompt::{self, Prompt};
use crate::{model, settings};

/// Most steps that the table shows.
const MOST_ROWS: usize = 24;
/// Steps of the two tokens, as in the paper's Figure 4.
const PAIR_STEPS: usize = 16;

/// The result as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Record<'a> {
    model: &'a str,
    method: &'a str,
    prompt_tokens: usize,
    text: &'a str,
    summary: &'a TraceSummary,
    steps: &'a [TraceStep],
}

pub(crate) fn run(arguments: &TraceArguments, printer: &Printer) -> anyhow::Result<()> {
    interrupt::listen(printer.clone());
    let (engine, prompt) = match &arguments.example {
        Some(example) => of_example(example, &arguments.prompt, printer)?,
        None => prompt::prepare(&arguments.prompt, printer)?,
    };
    let method = settings::method(&arguments.method.method, &arguments.method.budget)?;
    engine.check_method(&method)?;
    // Before the work, not after.
    if let Some(folder) = &arguments.figures {
        figures::make_folder(folder)?;
    }
    if let Some(path) = &arguments.output_file {
        try_to_write(path).with_context(|| cannot_write(path))?;
    }
    model::warn_of_small_budget(&method, prompt.prefill.len(), printer);
    let options = GenerateOptions {
        max_tokens: arguments.max_tokens,
        ignore_end: arguments.ignore_end,
        ..GenerateOptions::default()
    };
    let question = prompt.question.as_deref().unwrap_or_default();
    let stoppable = Stoppable::begin();
    let progress = printer.bar(0, "trace");
    let trace = rank_trace(
        &engine,
        &prompt.prefill,
        question,
        &method,
        &options,
        &mut |done, total| {
            progress.show(done, total);
            stoppable.flow()
        },
    )?;
    let pair = match &arguments.figures {
        Some(_) => boundary_pair(&engine, &prompt.prefill, question, &method, PAIR_STEPS)?,
        None => None,
    };
    drop(progress);
    let summary = TraceSummary::of(std::slice::from_ref(&trace));
    let name = name(arguments);
    if let Some(path) = &arguments.output_file {
        write(path, &name, engine.name(), &trace)?;
        printer.note(&format!(
            "wrote {} to {}",
            counted(trace.steps.len(), "step"),
            path.display()
        ));
    }
    if arguments.output.json {
        printer.json(&Record {
            model: engine.name(),
            method: &trace.method,
            prompt_tokens: trace.prompt_tokens,
            text: &trace.text,
            summary: &summary,
            steps: &trace.steps,
        })?;
    } else {
        show(&trace, &summary, printer)?;
    }
    match &arguments.figures {
        Some(folder) => {
            let figures = drawn(&name, engine.name(), &method, trace, pair.as_ref());
            figures::write_all(folder, &figures, printer)
        }
        None => Ok(()),
    }
}

/// A generated example by its name, in tokens.
fn of_example(name: &str, arguments: &PromptArguments, printer: &Printer) -> anyhow::Result<(Engine, Prompt)> {
    let parts: Vec<&str> = name.split('/').collect();
    let [task, length, index] = parts.as_slice() else {
        return Err(usage(format!(
            "`{name}` is no example; write TASK/LENGTH/NUMBER, such as vt/2048/0"
        )));
    };
    let number = |text: &str| {
        text.parse::<usize>()
            .map_err(|_| usage(format!("`{text}` in `{name}` is no number")))
    };
    let (length, index) = (number(length)?, number(index)?);
    let task = task.parse().map_err(|error: EvalError| usage(error.to_string()))?;
    let options = settings::engine_options(&arguments.model, Some(&arguments.context));
    let engine = model::open(&arguments.model.model, &options, printer)?;
    let grid = Grid {
        samples: Some(index + 1),
        ..Grid::of(vec![Benchmark::Ruler(RulerExamples {
            tasks: vec![task],
            lengths: vec![length],
            ..RulerExamples::default()
        })])
    };
    let example = grid
        .examples(&engine)?
        .pop()
        .ok_or_else(|| usage(format!("there is no example `{name}`")))?;
    let tokens = run::Prompt::new(&engine, &example, engine.context())?;
    let prompt = Prompt {
        prefill: tokens.context,
        question: Some(tokens.question),
    };
    Ok((engine, prompt))
}

fn name(arguments: &TraceArguments) -> String {
    let file = arguments.prompt.input.file.as_ref();
    match (&arguments.example, file) {
        (Some(example), _) => example.clone(),
        (None, Some(file)) => file
            .file_name()
            .map_or_else(|| "-".to_owned(), |name| name.to_string_lossy().into_owned()),
        (None, None) => "prompt".to_owned(),
    }
}

fn write(path: &Path, name: &str, model: &str, trace: &RankTrace) -> anyhow::Result<()> {
    let mut text = String::new();
    for step in &trace.steps {
        text += &serde_json::to_string(&TraceLine {
            name: name.to_owned(),
            model: model.to_owned(),
            method: trace.method.clone(),
            step: step.clone(),
        })?;
        text.push('\n');
    }
    fs::write(path, text).with_context(|| cannot_write(path))
}

/// Leaves everything as it is.
fn try_to_write(path: &Path) -> io::Result<()> {
    let is_new = !path.exists();
    File::options().append(true).create(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}; choose another with -o", path.display())
}

const HEADER: [&str; 13] = [
    "step",
    "scored",
    "entries",
    "B",
    "raw churn",
    "EMA churn",
    "raw/EMA Jaccard",
    "raw top missed",
    "raw top evicted",
    "margin",
    "entropy",
    "rank moved",
    "persistence",
];

fn show(trace: &RankTrace, summary: &TraceSummary, printer: &Printer) -> anyhow::Result<()> {
    let every = trace.steps.len().div_ceil(MOST_ROWS).max(1);
    let mut rows: Vec<Vec<String>> = trace.steps.iter().step_by(every).map(cells).collect();
    let mut means = vec!["mean".to_owned(), String::new(), String::new(), String::new()];
    means.extend(measured(&summary.measures));
    rows.push(means);
    let numbers: Vec<usize> = (1..HEADER.len()).collect();
    printer.table(&HEADER, &rows, &numbers)?;
    if every > 1 {
        printer.note(&format!("every {every}th step; -o FILE and --json have all of them"));
    }
    printer.note("the mean of persistence is its value at the last step");
    Ok(())
}

fn cells(step: &TraceStep) -> Vec<String> {
    let mut cells = vec![
        count(step.step),
        if step.refresh { "yes" } else { "no" }.to_owned(),
        count(step.candidates),
        count(step.budget),
    ];
    cells.extend(measured(&step.measures));
    cells
}

/// The measures in the order of the header.
fn measured(of: &TraceMeasures) -> [String; 9] {
    [
        of.raw_churn,
        of.ema_churn,
        of.raw_ema_jaccard,
        of.raw_top_missed,
        of.raw_top_evicted,
        of.boundary_margin,
        of.score_entropy,
        of.rank_moved,
        of.persistence,
    ]
    .map(measure)
}

/// A measure in a table; `–` where it is undefined.
pub(crate) fn measure(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"))
}

/// What is taken of a step.
type Measure = fn(&TraceMeasures) -> Option<f64>;

fn drawn(name: &str, model: &str, method: &Method, trace: RankTrace, pair: Option<&Pair>) -> Vec<Figure> {
    let over_steps = |name: &str, title: &str, measures: &[(&str, Measure)]| {
        let series = measures.iter().map(|(label, of)| {
            let points = trace
                .steps
                .iter()
                .filter_map(|step| Some((step.step as f64, of(&step.measures)?)));
            ((*label).to_owned(), points.collect())
        });
        Figure {
            name: name.to_owned(),
            title: format!("{model}, {method}: {title}"),
            unit: "share".to_owned(),
            kind: Kind::Lines(Lines {
                axis: "decode step".to_owned(),
                logarithmic: false,
                series: series.collect(),
            }),
        }
    };
    let mut figures = vec![
        over_steps(
            "trace-churn",
            "churn of the top B",
            &[("raw", |of| of.raw_churn), ("EMA", |of| of.ema_churn)],
        ),
        over_steps(
            "trace-agreement",
            "agreement and persistence",
            &[
                ("raw/EMA Jaccard", |of| of.raw_ema_jaccard),
                ("persistence", |of| of.persistence),
                ("raw top missed", |of| of.raw_top_missed),
                ("score entropy", |of| of.score_entropy),
            ],
        ),
    ];
    figures.extend(pair.map(|pair| of_pair("trace-two-tokens", model, pair)));
    figures.extend(retention(&Trace {
        name: name.to_owned(),
        model: model.to_owned(),
        method: trace.method,
        steps: trace.steps,
    }));
    figures
}
