//! `inertiakv correlate`: how much does each scorer rank entries as attention does?

use inertiakv::policy::{Budget, Scorer};
use inertiakv::{CorrelationOptions, ScorerCorrelation, Summary};
use serde::Serialize;

use super::correlation_cell;
use crate::args::CorrelateArguments;
use crate::format::{count, counted};
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::{input, model, settings};

/// The result with what it was measured on.
#[derive(Debug, Serialize)]
struct Record {
    model: String,
    tokens: usize,
    queries: usize,
    compression_ratio: Option<f64>,
    budget: Option<usize>,
    seed: u64,
    scorers: Vec<ScorerCorrelation>,
}

pub(crate) fn run(arguments: &CorrelateArguments, printer: &Printer) -> anyhow::Result<()> {
    let text = input::long_text(&arguments.file)?;
    let engine = model::open(
        &arguments.model.model,
        &settings::engine_options(&arguments.model, None),
        printer,
    )?;
    let tokenizer = engine.tokenizer();
    let mut tokens = tokenizer.with_bos(tokenizer.encode(&text, false));
    tokens.truncate(arguments.tokens.min(engine.context()));
    let mut options = CorrelationOptions {
        queries: arguments.queries,
        budget: arguments.budget,
        seed: arguments.seed,
        ..CorrelationOptions::default()
    };
    if engine.scorer().is_some() {
        options.scorers.push(Scorer::Learned);
    }
    let (length, texts) = (tokens.len(), [tokens]);
    interrupt::listen(printer.clone());
    let stoppable = Stoppable::begin();
    let progress = printer.bar(0, "queries");
    let correlation = engine.correlate(&texts, &options, &mut |done, all| {
        progress.show(done, all);
        stoppable.flow()
    })?;
    drop(progress);
    if arguments.output.json {
        let (compression_ratio, budget) = match arguments.budget {
            Budget::Ratio(ratio) => (Some(ratio.as_f64()), None),
            other => (None, other.entries(length, length)),
        };
        return printer.json(&Record {
            model: engine.name().to_owned(),
            tokens: length,
            queries: correlation.queries,
            compression_ratio,
            budget,
            seed: arguments.seed,
            scorers: correlation.scorers,
        });
    }
    show(&correlation.scorers, printer)?;
    printer.note(&format!(
        "{}: {} of {}, layers 0 to {}",
        engine.name(),
        counted(correlation.queries, "query"),
        counted(length, "token"),
        count(engine.config().layers - 1)
    ));
    Ok(())
}

fn show(scorers: &[ScorerCorrelation], printer: &Printer) -> anyhow::Result<()> {
    let layers = scorers.first().map_or(1, |scorer| scorer.spearman.layers.len());
    let middle = format!("layer {}", (layers - 1) / 2);
    let header = [
        "scorer", "Spearman", "least", "most", &middle, "Jaccard", "least", "most", &middle,
    ];
    let cells = |summary: &Summary| [summary.mean, summary.min, summary.max, summary.middle].map(correlation_cell);
    let rows: Vec<Vec<String>> = scorers
        .iter()
        .map(|scorer| {
            let cells = [cells(&scorer.spearman), cells(&scorer.jaccard)];
            std::iter::once(scorer.scorer.clone())
                .chain(cells.into_iter().flatten())
                .collect()
        })
        .collect();
    printer.table(&header, &rows, &[1, 2, 3, 4, 5, 6, 7, 8])?;
    Ok(())
}
