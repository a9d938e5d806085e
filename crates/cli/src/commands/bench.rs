//! `inertiakv bench`: how fast is a model here, and where does the time go?

use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::policy::{Method, Preset};
use inertiakv::{Achieved, BenchOptions, BenchRow, ModelLimits};
use inertiakv_eval::figure::{BENCH_FIGURES, of_bench};
use serde::Serialize;

use crate::args::BenchArguments;
use crate::figures;
use crate::format::{count, counted, mebibytes, percent, speed};
use crate::printer::Printer;
use crate::{model, settings};

/// The result as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Record {
    model: String,
    threads: usize,
    kv_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<ModelLimits>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    measured: BenchRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    achieved: Option<Achieved>,
}

pub(crate) fn run(arguments: &BenchArguments, printer: &Printer) -> anyhow::Result<()> {
    let methods = if arguments.methods.is_empty() {
        [Preset::Inertia, Preset::InertiaLazy, Preset::ScoreFree]
            .map(Method::from)
            .to_vec()
    } else {
        arguments.methods.clone()
    };
    let methods = settings::methods(&methods, &arguments.budget)?;
    let engine_options = settings::engine_options(&arguments.model, None);
    let engine = model::open(&arguments.model.model, &engine_options, printer)?;
    let limits = if arguments.limits {
        let progress = printer.spinner("measuring the machine");
        let limits = engine.limits()?;
        drop(progress);
        Some(limits)
    } else {
        None
    };
    let options = BenchOptions {
        contexts: arguments.contexts.clone(),
        methods,
        tokens: arguments.tokens,
        rounds: arguments.rounds,
        sequences: arguments.sequences,
    };
    // Before minutes of measuring, not after.
    if let Some(folder) = &arguments.figures {
        figures::make_folder(folder)?;
    }
    let progress = printer.bar(0, "bench");
    let rows = engine.bench(&options, &mut |now| {
        progress.message(format!("bench, context {}", count(now.context)));
        progress.show(now.done, now.total);
        ControlFlow::Continue(())
    })?;
    drop(progress);
    let record = Record {
        model: engine.name().to_owned(),
        threads: engine.threads(),
        kv_type: arguments.model.kv_type.to_string(),
        limits,
        rows: rows
            .into_iter()
            .map(|measured| Row {
                achieved: limits.map(|limits| measured.achieved(&limits)),
                measured,
            })
            .collect(),
    };
    if arguments.output.json {
        printer.json(&record)?;
    } else {
        print(&record, arguments, printer)?;
    }
    match &arguments.figures {
        Some(folder) => draw(folder, &record, printer),
        None => Ok(()),
    }
}

fn print(record: &Record, arguments: &BenchArguments, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "{}, {}, {} cache, {} a round, {}, {}",
        record.model,
        counted(record.threads, "thread"),
        record.kv_type,
        counted(arguments.tokens, "token"),
        counted(arguments.rounds, "round"),
        counted(arguments.sequences, "sequence")
    ))?;
    if let Some(limits) = &record.limits {
        printer.line(&format!(
            "limits: reads {:.1} GB/s → decode {} tok/s; {:.0} G byte operations/s → prefill {} tok/s; {:.0} GFLOP/s",
            limits.read_bytes_per_second / 1e9,
            speed(limits.decode_tokens_per_second),
            limits.byte_operations_per_second / 1e9,
            speed(limits.prefill_tokens_per_second),
            limits.float_operations_per_second / 1e9,
        ))?;
    }
    let header = [
        "context",
        "method",
        "prefill",
        "tok/s",
        "decode",
        "tok/s",
        "first step",
        "step",
        "matmul",
        "attention",
        "scoring",
        "eviction",
        "other",
        "retained",
        "KV",
        "peak memory",
    ];
    let rows: Vec<Vec<String>> = record.rows.iter().map(|row| cells(&row.measured)).collect();
    printer.table(&header, &rows, &[0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])?;
    printer.note(
        "tok/s are medians of the rounds, (slowest–fastest) behind them; shares are of the decode time; attention \
         includes adding up the mass that scores are made of; first step: scores the prompt and evicts",
    );
    print_achieved(&record.rows, printer)
}

/// What of the machine's limits was reached, where they were measured.
fn print_achieved(rows: &[Row], printer: &Printer) -> anyhow::Result<()> {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .filter_map(|row| {
            let achieved = row.achieved?;
            let shares = [achieved.prefill, achieved.decode, achieved.matmul, achieved.attention].map(percent);
            let mut cells = vec![count(row.measured.context), row.measured.method.clone()];
            cells.extend(shares);
            Some(cells)
        })
        .collect();
    if cells.is_empty() {
        return Ok(());
    }
    let header = ["context", "method", "prefill", "decode", "matmul", "attention"];
    printer.table(&header, &cells, &[0, 2, 3, 4, 5])?;
    printer.note(
        "shares of the limits: prefill of byte operations, decode and matmul of reading the weights once a step, attention \
         of reading the caches once a step (more than 100% where they stay in the processor's own)",
    );
    Ok(())
}

fn cells(row: &BenchRow) -> Vec<String> {
    let spread = |[least, most]: [f64; 2]| format!("({}–{})", speed(least), speed(most));
    let share = row.share;
    let mut cells = vec![
        count(row.context),
        row.method.clone(),
        speed(row.prefill_tokens_per_second),
        spread(row.prefill_spread),
        speed(row.decode_tokens_per_second),
        spread(row.decode_spread),
        format!("{:.1} ms", row.first_step_milliseconds),
        format!("{:.1} ms", row.step_milliseconds),
    ];
    cells.extend(
        [
            share.matmul,
            share.attention,
            share.scoring,
            share.eviction,
            share.other,
        ]
        .map(percent),
    );
    cells.extend([
        count(row.retained),
        mebibytes(row.kv_bytes),
        row.peak_rss_bytes.map_or_else(|| "?".to_owned(), mebibytes),
    ]);
    cells
}

fn draw(folder: &Path, record: &Record, printer: &Printer) -> anyhow::Result<()> {
    let rows: Vec<BenchRow> = record.rows.iter().map(|row| row.measured.clone()).collect();
    let drawn = of_bench(&record.model, &rows);
    figures::write_all(folder, &drawn, printer)?;
    if drawn.len() < BENCH_FIGURES {
        printer
            .warn("Figure 10 needs `inertia`, and `inertia-lazy` or `score-free`, among the methods; it was not drawn");
    }
    Ok(())
}
