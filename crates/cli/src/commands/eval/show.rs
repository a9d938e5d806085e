//! What does a folder of results come to?

use std::collections::BTreeMap;

use inertiakv::policy::Method;
use inertiakv_eval::run::{MethodSummary, Outcome, Outcomes, anatomies, summarise};
use inertiakv_eval::statistics::{Anatomy, Bootstrap, Interval};
use serde::Serialize;

use crate::args::EvalShowArguments;
use crate::failure::usage;
use crate::format::{count, counted, percent};
use crate::printer::Printer;

/// How methods compare on one model, as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Summary {
    model: String,
    methods: Vec<MethodSummary>,
    /// How examples respond to smoothing, if that was asked: by task, and `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<BTreeMap<String, Anatomy>>,
}

/// What is asked beside the comparison itself.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Methods, the least smoothing first.
    rules: Vec<String>,
    /// Intervals of every task.
    tasks: bool,
}

/// All that is in a folder.
pub(super) fn folder(arguments: &EvalShowArguments, printer: &Printer) -> anyhow::Result<()> {
    let folder = &arguments.folder;
    let outcomes = Outcomes::read(folder)?;
    let all: Vec<&Outcome> = outcomes.iter().collect();
    if all.is_empty() {
        return Err(usage(format!(
            "{} has no results yet; run `inertiakv eval … -o {}` first",
            folder.display(),
            folder.display()
        )));
    }
    let mut methods = Vec::new();
    for outcome in &all {
        if !methods.contains(&outcome.method) {
            methods.push(outcome.method.clone());
        }
    }
    let texts = |methods: &[Method]| methods.iter().map(ToString::to_string).collect::<Vec<_>>();
    let rules = texts(&arguments.rules);
    let against = arguments.against.to_string();
    let needed: Vec<&String> = rules.iter().chain([&against]).collect();
    // `full` is only the default.
    let missing = needed.into_iter().find(|method| !methods.contains(method));
    if let Some(method) = missing.filter(|method| **method != Method::full().to_string()) {
        return Err(usage(format!(
            "there are no results of `{method}`; there are those of {}",
            methods.join("; ")
        )));
    }
    if rules.len() == 1 {
        return Err(usage("--rules compares two methods or more"));
    }
    methods.sort_by_key(|method| *method != against);
    let wanted = Wanted {
        rules,
        tasks: arguments.tasks,
    };
    show(&all, &methods, &wanted, arguments.output.json, printer)
}

/// One table for each model; the first method is what the others are compared with.
pub(super) fn show(
    outcomes: &[&Outcome],
    methods: &[String],
    wanted: &Wanted,
    json: bool,
    printer: &Printer,
) -> anyhow::Result<()> {
    let mut models: Vec<&str> = outcomes.iter().map(|outcome| outcome.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    let mut summaries = Vec::new();
    for model in models {
        let of_model: Vec<&Outcome> = outcomes
            .iter()
            .copied()
            .filter(|outcome| outcome.model == model)
            .collect();
        let rules = match wanted.rules.as_slice() {
            [] => None,
            rules => Some(anatomies(of_model.iter().copied(), rules)?),
        };
        let results = of_model.len();
        let summary = Summary {
            model: model.to_owned(),
            methods: summarise(of_model, methods, &Bootstrap::default())?,
            rules,
        };
        let ran: usize = summary.methods.iter().map(|method| method.ran).sum();
        let replaced = results.saturating_sub(ran);
        if replaced > 0 {
            printer.warn(&format!(
                "{model}: {} of the same example and method as a later one, from a run with other settings, left out; keep \
                 such runs in folders of their own",
                counted(replaced, "result")
            ));
        }
        summaries.push(summary);
    }
    for left_out in summaries.iter().filter_map(left_out) {
        printer.warn(&left_out);
    }
    if json {
        return printer.json(&summaries);
    }
    for summary in &summaries {
        print(summary, wanted, printer)?;
    }
    printer.note(
        "scores are percent, over the examples that all methods have run; the difference is in points, with its paired \
         bootstrap 95 % interval over examples within tasks; p is that of a paired t-test over examples, in brackets \
         adjusted for the number of methods (Holm)",
    );
    for outcome in outcomes {
        if let Some(error) = &outcome.error {
            printer.warn(&format!("{} under `{}` failed: {error}", outcome.id, outcome.method));
        }
    }
    Ok(())
}

/// What the figures are not over: examples that some methods have run and others have not.
fn left_out(summary: &Summary) -> Option<String> {
    let common = summary.methods.first()?.examples;
    if summary.methods.iter().all(|method| method.ran == common) {
        return None;
    }
    let ran = summary.methods.iter();
    let ran: Vec<String> = ran.map(|m| format!("{} of `{}`", count(m.ran), m.method)).collect();
    let figures = match common {
        0 => "the methods have no example in common, so there are no figures".to_owned(),
        common => format!(
            "figures are over the {} that all methods have run",
            counted(common, "example")
        ),
    };
    Some(format!("{}: {figures}; there are {}", summary.model, ran.join(", ")))
}

fn print(summary: &Summary, wanted: &Wanted, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&summary.model)?;
    let summaries = &summary.methods;
    let tasks: Vec<&String> = summaries
        .first()
        .map(|first| first.tasks.keys().collect())
        .unwrap_or_default();
    let mut header = vec!["method", "mean", "against the first", "win/tie/loss", "p", "failed"];
    header.extend(tasks.iter().map(|task| task.as_str()));
    let rows: Vec<Vec<String>> = summaries.iter().map(|summary| cells(summary, &tasks, wanted)).collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    printer.table(&header, &rows, &numbers)?;
    averages(summaries, printer)?;
    let Some(all) = summary.rules.as_ref().and_then(|rules| rules.get("all")) else {
        return Ok(());
    };
    printer.line(&format!(
        "{} of {} examples are invariant across the {} rules; more smoothing hurts {} (adaptation lag) and helps {} (stability)",
        all.invariance().map_or_else(|| "–".to_owned(), percent),
        count(all.examples),
        wanted.rules.len(),
        count(all.adaptation_lag),
        count(all.stability_help),
    ))?;
    Ok(())
}

/// The numbers that the benchmarks publish beside the mean: RULER's over lengths, `LongBench`'s over categories.
fn averages(summaries: &[MethodSummary], printer: &Printer) -> anyhow::Result<()> {
    for columns in [lengths, categories] {
        let rows: Vec<(&str, Vec<(String, String)>)> = (summaries.iter())
            .filter_map(|summary| Some((summary.method.as_str(), columns(summary)?)))
            .collect();
        let Some((_, first)) = rows.first() else { continue };
        let header = ["method"]
            .into_iter()
            .chain(first.iter().map(|(name, _)| name.as_str()));
        let header: Vec<&str> = header.collect();
        let numbers: Vec<usize> = (1..header.len()).collect();
        let cells = rows.iter().map(|(method, cells)| {
            let cells = cells.iter().map(|(_, cell)| cell.clone());
            [(*method).to_owned()].into_iter().chain(cells).collect()
        });
        printer.line("")?;
        printer.table(&header, &cells.collect::<Vec<_>>(), &numbers)?;
    }
    Ok(())
}

fn lengths(summary: &MethodSummary) -> Option<Vec<(String, String)>> {
    let found = summary.by_length.as_ref()?;
    let mut columns: Vec<(String, String)> = (found.lengths.iter())
        .map(|(&length, score)| (count(length), format!("{score:.1}")))
        .collect();
    let averages = found.averages;
    for (name, score) in [
        ("average", averages.average),
        ("weighted to long", averages.increasing),
        ("weighted to short", averages.decreasing),
    ] {
        columns.push((name.to_owned(), format!("{score:.1}")));
    }
    let effective = found.effective_length.map_or_else(|| "–".to_owned(), count);
    columns.push(("effective length".to_owned(), effective));
    Some(columns)
}

fn categories(summary: &MethodSummary) -> Option<Vec<(String, String)>> {
    let found = summary.by_category.as_ref()?;
    let average = ("mean of categories", found.average);
    let categories = found.categories.iter().map(|(name, &score)| (name.as_str(), score));
    let column = |(name, score): (&str, f64)| (name.to_owned(), format!("{score:.1}"));
    Some(categories.chain([average]).map(column).collect())
}

fn cells(summary: &MethodSummary, tasks: &[&String], wanted: &Wanted) -> Vec<String> {
    let nothing = || "–".to_owned();
    let test = summary
        .t_test
        .as_ref()
        .map_or_else(nothing, |test| match summary.p_holm {
            Some(holm) => format!("{:.3} ({holm:.3})", test.p),
            None => format!("{:.3}", test.p),
        });
    let outcomes = summary
        .outcomes
        .map_or_else(nothing, |o| format!("{}/{}/{}", o.wins, o.ties, o.losses));
    let mut cells = vec![
        summary.method.clone(),
        summary.mean.map_or_else(nothing, |mean| format!("{mean:.1}")),
        summary.difference.as_ref().map_or_else(nothing, interval),
        outcomes,
        test,
        summary.failed.to_string(),
    ];
    cells.extend(tasks.iter().map(|task| {
        let mean = format!("{:.0}", summary.tasks[*task]);
        match summary.task_differences.get(*task).filter(|_| wanted.tasks) {
            Some(difference) => format!("{mean}, {}", interval(difference)),
            None => mean,
        }
    }));
    cells
}

fn interval(interval: &Interval) -> String {
    match interval.bounds {
        Some((low, high)) => format!("{:+.1} ({low:+.1} to {high:+.1})", interval.mean),
        None => format!("{:+.1}", interval.mean),
    }
}
