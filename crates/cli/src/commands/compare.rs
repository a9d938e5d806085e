//! `inertiakv compare`: the same input under several methods, from one prefill.

use std::ops::ControlFlow;

use inertiakv::policy::Method;
use serde::Serialize;

use super::{RunRecord, Runs, answer, standard_methods};
use crate::args::CompareArguments;
use crate::format::{count, mebibytes, percent, rate};
use crate::printer::Printer;
use crate::{model, prompt, settings};

/// A run beside the run of `full`.
#[derive(Debug, Serialize)]
struct ComparedRun {
    #[serde(flatten)]
    record: RunRecord,
    /// Index of the first generated token that differs from `full`; none if all are the same.
    first_difference: Option<usize>,
    /// Share of token indices at which both runs have the same token, of the longer run.
    agreement: f64,
}

pub(crate) fn run(arguments: &CompareArguments, printer: &Printer) -> anyhow::Result<()> {
    let mut given = [arguments.methods.as_slice(), &arguments.method].concat();
    if given.is_empty() {
        given = standard_methods();
    }
    let methods = settings::methods(&given, &arguments.budget)?;
    let options = settings::generation(&arguments.generation)?;
    let (engine, prompt) = prompt::prepare(&arguments.prompt, printer)?;
    for method in &methods {
        model::warn_of_small_budget(method, prompt.prefill.len(), printer);
    }

    let mut base = engine.session(&Method::full())?;
    base.remember_for(&methods)?;
    let progress = printer.bar(prompt.prefill.len() as u64, "prefill");
    base.prefill(&prompt.prefill, &mut progress.watch())?;
    drop(progress);

    let progress = printer.bar(methods.len() as u64, "");
    let mut runs: Vec<ComparedRun> = Vec::new();
    for (index, method) in methods.iter().enumerate() {
        progress.set(index as u64);
        progress.message(method.to_string());
        let mut session = base.fork_or_prefill(method, &prompt.prefill, &mut |_, _| ControlFlow::Continue(()))?;
        let question = prompt.question.as_deref();
        let (report, generation) = answer(&mut session, question, &options, &mut |_| ControlFlow::Continue(()))?;
        let reference = runs.first().map_or(&generation.tokens, |full| &full.record.tokens);
        let first_difference = first_difference(reference, &generation.tokens);
        let agreement = agreement(reference, &generation.tokens);
        runs.push(ComparedRun {
            record: RunRecord::new(report, generation),
            first_difference,
            agreement,
        });
    }
    drop(progress);
    for (method, run) in methods.iter().zip(&runs) {
        model::warn_of_no_eviction(method, &run.record.report, printer);
    }
    if arguments.output.json {
        let model = engine.name().to_owned();
        return printer.json(&Runs { model, runs });
    }
    show(&runs, printer)
}

fn show(runs: &[ComparedRun], printer: &Printer) -> anyhow::Result<()> {
    for run in runs {
        printer.line(&format!("[{}]", run.record.report.method))?;
        printer.line(run.record.text.trim())?;
        printer.line("")?;
    }
    let header = [
        "method",
        "first difference",
        "agreement",
        "retained",
        "KV",
        "KV peak",
        "decode",
    ];
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let report = &run.record.report;
            vec![
                report.method.clone(),
                run.first_difference
                    .map_or_else(|| "none".to_owned(), |index| index.to_string()),
                percent(run.agreement),
                count(report.retained),
                mebibytes(report.kv_bytes),
                mebibytes(report.kv_bytes_peak),
                rate(report.decode_tokens_per_second),
            ]
        })
        .collect();
    printer.table(&header, &rows, &[1, 2, 3, 4, 5, 6])?;
    Ok(())
}

/// The first index at which one has another token than the other, or none.
fn first_difference(left: &[u32], right: &[u32]) -> Option<usize> {
    let common = left.iter().zip(right).take_while(|(l, r)| l == r).count();
    (common < left.len().max(right.len())).then_some(common)
}

fn agreement(left: &[u32], right: &[u32]) -> f64 {
    let longer = left.len().max(right.len());
    if longer == 0 {
        return 1.0;
    }
    let same = left.iter().zip(right).filter(|(l, r)| l == r).count();
    same as f64 / longer as f64
}

#[cfg(test)]
mod tests {
    use super::{agreement, first_difference};

    #[test]
    fn differences() {
        assert_eq!(first_difference(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(first_difference(&[1, 2, 3], &[1, 4, 3]), Some(1));
        assert_eq!(first_difference(&[1, 2, 3], &[1, 2]), Some(2));
        assert_eq!(first_difference(&[], &[]), None);
        assert!((agreement(&[1, 2, 3, 4], &[1, 9, 3]) - 0.5).abs() < 1e-12);
        assert!((agreement(&[], &[]) - 1.0).abs() < 1e-12);
    }
}
