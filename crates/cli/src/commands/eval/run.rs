//! How is a grid run, and what does the user see meanwhile?

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use inertiakv::{Engine, Error, Method, memory};
use inertiakv_eval::grid::Grid;
use inertiakv_eval::metrics::Scorer;
use inertiakv_eval::run::{self, Estimate, Outcome, Outcomes, Plan, Ran, Results, RunOptions};
use inertiakv_eval::{EvalError, Example};
use serde::Serialize;

use super::show;
use crate::args::PaceArguments;
use crate::failure::Interrupted;
use crate::format::{count, counted, duration, mebibytes, rate};
use crate::interrupt::{self, Stoppable};
use crate::model;
use crate::printer::Printer;

/// What flags say of how a grid is run.
pub(super) struct Ordered<'a> {
    pub(super) pace: &'a PaceArguments,
    pub(super) folder: &'a Path,
    pub(super) json: bool,
}

/// What is left to run on one model, as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Left {
    model: String,
    /// Units in all.
    units: usize,
    /// Units that are there.
    done: usize,
    /// `None` where nothing is left.
    estimate: Option<Estimate>,
}

/// Work above which a run begins with an estimate: about a minute on a slow machine.
const LONG: f64 = 100_000.0;

/// Runs every model of the grid, then shows what came out; with `--dry-run` says what that would take.
pub(super) fn run(grid: &Grid, ordered: &Ordered<'_>, printer: &Printer) -> anyhow::Result<()> {
    let methods = grid.runs();
    let chinese = grid.chinese_words()?;
    let options = RunOptions {
        scorer: Scorer {
            chinese: chinese.as_ref(),
            ..Scorer::default()
        },
        apart: grid.apart || ordered.pace.apart,
    };
    interrupt::listen(printer.clone());
    let mut left = Vec::new();
    let mut keys = HashSet::new();
    let mut ran = Ran::default();
    for name in &grid.models {
        let engine = model::open(name, &grid.engine_options(), printer)?;
        let mut examples = grid.examples(&engine)?;
        if let Some(shard) = ordered.pace.shard {
            examples = shard.of(examples);
        }
        options.scorer.check(&examples)?;
        if ordered.pace.dry_run {
            left.push(dry_run(&engine, &examples, &methods, &options, ordered.folder)?);
        } else {
            let mut results = Results::open(ordered.folder)?;
            let plan = Plan::new(&engine, &examples, &methods, results.outcomes())?;
            keys.extend(plan.keys().iter().cloned());
            let of_model = run_one(&engine, &plan, &options, &mut results, printer)?;
            ran.units += of_model.units;
            ran.failed += of_model.failed;
        }
    }
    if ordered.pace.dry_run {
        return show_left(&left, ordered.json, printer);
    }
    // The folder may hold other runs too.
    let outcomes = Outcomes::read(ordered.folder)?;
    let own: Vec<&Outcome> = outcomes.iter().filter(|outcome| keys.contains(&outcome.key)).collect();
    let methods: Vec<String> = methods.iter().map(ToString::to_string).collect();
    show::show(&own, &methods, &show::Wanted::default(), ordered.json, printer)?;
    match ran {
        Ran { failed: 0, .. } => Ok(()),
        Ran { units, failed } if failed == units => bail!(
            "{} of this run failed; the reasons are in {}, and the same command tries them again",
            if units == 1 {
                "the only unit".to_owned()
            } else {
                format!("all {} units", count(units))
            },
            ordered.folder.join("results.jsonl").display()
        ),
        Ran { units, failed } => {
            printer.warn(&format!(
                "{} of {} units of this run failed and count 0; the same command tries them again",
                count(failed),
                count(units)
            ));
            Ok(())
        }
    }
}

fn run_one(
    engine: &Engine,
    plan: &Plan<'_>,
    options: &RunOptions<'_>,
    results: &mut Results,
    printer: &Printer,
) -> anyhow::Result<Ran> {
    if plan.work() > LONG
        && let Some(estimate) = Estimate::of(engine, plan, options.apart)?
    {
        announce(&estimate, printer);
    }
    let stoppable = Stoppable::begin();
    let progress = printer.bar(0, "eval");
    let start = Instant::now();
    let ran = run::run(engine, plan, options, results, &mut |now| {
        let left = time_left(start.elapsed(), now.share);
        let left = left.map_or_else(String::new, |left| format!(", {} left", duration(left)));
        progress.message(format!("eval, {}{left}", now.example));
        progress.show(now.done, now.total);
        stoppable.flow()
    });
    drop(progress);
    match ran {
        Err(EvalError::Engine(Error::Cancelled)) => {
            printer.note("stopped; the same command goes on from here");
            Err(Interrupted.into())
        }
        ran => Ok(ran?),
    }
}

/// By the work that is done, once there is enough of it to tell.
fn time_left(elapsed: Duration, share: f64) -> Option<f64> {
    (share > 0.0).then(|| elapsed.as_secs_f64() * (1.0 - share) / share)
}

fn dry_run(
    engine: &Engine,
    examples: &[Example],
    methods: &[Method],
    options: &RunOptions<'_>,
    folder: &Path,
) -> anyhow::Result<Left> {
    let there = match Outcomes::read(folder) {
        Err(EvalError::Results { source, .. }) if source.kind() == ErrorKind::NotFound => Outcomes::default(),
        read => read?,
    };
    let plan = Plan::new(engine, examples, methods, &there)?;
    Ok(Left {
        model: engine.name().to_owned(),
        units: plan.units(),
        done: plan.done(),
        estimate: Estimate::of(engine, &plan, options.apart)?,
    })
}

fn show_left(left: &[Left], json: bool, printer: &Printer) -> anyhow::Result<()> {
    if json {
        return printer.json(&left);
    }
    let header = [
        "model",
        "units",
        "done",
        "examples",
        "prompt tokens",
        "time",
        "KV cache",
    ];
    let row = |left: &Left| {
        let of = |text: fn(&Estimate) -> String| left.estimate.as_ref().map_or_else(|| "–".to_owned(), text);
        vec![
            left.model.clone(),
            count(left.units),
            count(left.done),
            of(|estimate| count(estimate.examples)),
            of(|estimate| count(estimate.prompt_tokens)),
            of(|estimate| duration(estimate.seconds())),
            of(|estimate| mebibytes(estimate.kv_bytes)),
        ]
    };
    let rows: Vec<Vec<String>> = left.iter().map(row).collect();
    printer.table(&header, &rows, &[1, 2, 3, 4, 5, 6])?;
    for estimate in left.iter().filter_map(|left| left.estimate.as_ref()) {
        announce(estimate, printer);
    }
    Ok(())
}

/// What is ahead, and what that is known from.
fn announce(estimate: &Estimate, printer: &Printer) {
    if estimate.too_long > 0 {
        printer.warn(&format!(
            "examples that do not fit into the context with their answers, and will fail: {} of {}; leave them out, give them \
             fewer tokens to answer, or use a longer context",
            count(estimate.too_long),
            count(estimate.examples),
        ));
    }
    let probe = &estimate.probe;
    printer.note(&format!(
        "{} under several methods, {} in all: about {} to prefill and at most {} to answer, from a probe of {} (prefill {}, a \
         step of {} {:.0} ms); attention over longer contexts comes on top. KV cache at most {}",
        counted(estimate.examples, "example"),
        counted(estimate.units, "unit"),
        duration(estimate.prefill_seconds),
        duration(estimate.answer_seconds),
        counted(probe.prompt_tokens, "token"),
        rate(probe.prefill_tokens_per_second),
        counted(probe.together, "method"),
        1e3 * probe.step_seconds,
        mebibytes(estimate.kv_bytes),
    ));
    let needed = estimate.resident_bytes.map(|resident| resident + estimate.kv_bytes);
    if let (Some(needed), Some(physical)) = (needed, memory::physical())
        && needed > physical
    {
        printer.warn(&format!(
            "the run may take {} of memory and this machine has {}; take fewer methods at a time (--apart), smaller budgets, \
             shorter lengths or --kv-type q8_0",
            mebibytes(needed),
            mebibytes(physical)
        ));
    }
}
