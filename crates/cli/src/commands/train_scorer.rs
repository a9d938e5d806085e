//! `inertiakv train-scorer`: train a scorer on a text.

use inertiakv::{ScorerCorrelation, Summary, Training, TrainingOptions};
use serde::Serialize;

use super::correlation_cell;
use crate::args::TrainScorerArguments;
use crate::failure::{Interrupted, usage};
use crate::format::counted;
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::{input, model, settings};

/// Losses of this many steps make the mean at either end of a training.
const ENDS: usize = 20;

#[derive(Debug, Serialize)]
struct Record {
    model: String,
    output: String,
    parameters: usize,
    steps: usize,
    seed: u64,
    losses: Vec<f32>,
    held_out: HeldOut,
}

#[derive(Debug, Serialize)]
struct HeldOut {
    before: ScorerCorrelation,
    after: ScorerCorrelation,
}

pub(crate) fn run(arguments: &TrainScorerArguments, printer: &Printer) -> anyhow::Result<()> {
    let output = &arguments.output;
    if arguments.model.scorer.is_some() {
        return Err(usage(
            "--scorer is for commands that use a trained scorer; to go on with one, name it with --output and add --resume",
        ));
    }
    if !arguments.resume && output.exists() {
        return Err(usage(format!(
            "`{}` is there already; add --resume to go on with it, or write to another file",
            output.display()
        )));
    }
    let text = input::long_text(&arguments.file)?;
    let engine = model::open(
        &arguments.model.model,
        &settings::engine_options(&arguments.model, None),
        printer,
    )?;
    let tokens = engine.tokenizer().encode(&text, false);
    let options = TrainingOptions {
        steps: arguments.steps,
        learning_rate: arguments.lr,
        schedule: arguments.schedule,
        window: arguments.window,
        queries: arguments.queries,
        seed: arguments.seed,
    };
    interrupt::listen(printer.clone());
    let stoppable = Stoppable::begin();
    let mut flow = || stoppable.flow();

    let untrained = Training::new(&engine, &tokens, &options)?;
    let mut training = if arguments.resume {
        Training::resume(&engine, &tokens, &options, output)?
    } else {
        // Better to know now that it cannot be written.
        untrained.save(output)?;
        Training::new(&engine, &tokens, &options)?
    };
    let progress = printer.spinner("ranking the held-out text before");
    let before = untrained.held_out(&mut flow)?;
    drop(progress);
    train(&mut training, arguments, &stoppable, printer)?;
    let progress = printer.spinner("ranking the held-out text after");
    let after = training.held_out(&mut flow)?;
    drop(progress);

    let scorer = training.scorer();
    let losses = &scorer.training().losses;
    if arguments.json {
        return printer.json(&Record {
            model: engine.name().to_owned(),
            output: output.display().to_string(),
            parameters: scorer.parameters(),
            steps: losses.len(),
            seed: arguments.seed,
            losses: losses.clone(),
            held_out: HeldOut { before, after },
        });
    }
    show(&before, &after, printer)?;
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len().max(1) as f32;
    printer.note(&format!(
        "{}: {}, {}, loss {:.4} → {:.4} (mean of {ENDS})",
        output.display(),
        counted(scorer.parameters(), "parameter"),
        counted(losses.len(), "step"),
        mean(&losses[..ENDS.min(losses.len())]),
        mean(&losses[losses.len().saturating_sub(ENDS)..]),
    ));
    Ok(())
}

/// Takes the steps that are left. Where Ctrl-C stops that, what was learned is kept.
fn train(
    training: &mut Training,
    arguments: &TrainScorerArguments,
    stoppable: &Stoppable,
    printer: &Printer,
) -> anyhow::Result<()> {
    let output = &arguments.output;
    let progress = printer.bar(arguments.steps as u64, "training");
    while !training.is_done() {
        progress.set(training.steps_done() as u64);
        match training.step(&mut || stoppable.flow()) {
            Ok(loss) => progress.message(format!("training, loss {loss:.4}")),
            Err(inertiakv::Error::Cancelled) => {
                training.save(output)?;
                drop(progress);
                printer.note(&format!(
                    "{} after {} of {}; add --resume to go on",
                    output.display(),
                    counted(training.steps_done(), "step"),
                    arguments.steps
                ));
                return Err(Interrupted.into());
            }
            Err(error) => return Err(error.into()),
        }
        if training.is_done() || training.steps_done().is_multiple_of(arguments.save_every) {
            training.save(output)?;
        }
    }
    Ok(())
}

fn show(before: &ScorerCorrelation, after: &ScorerCorrelation, printer: &Printer) -> anyhow::Result<()> {
    let columns = [&before.spearman, &after.spearman, &before.jaccard, &after.jaccard];
    let row = |name: String, value: &dyn Fn(&Summary) -> Option<f64>| {
        let cells = columns.iter().map(|column| correlation_cell(value(column)));
        std::iter::once(name).chain(cells).collect::<Vec<String>>()
    };
    let layers = 0..after.spearman.layers.len();
    let mut rows: Vec<Vec<String>> = layers
        .map(|layer| row(layer.to_string(), &|column| column.layers[layer]))
        .collect();
    rows.push(row("mean".to_owned(), &|column| column.mean));
    let header = ["held out: layer", "Spearman before", "after", "Jaccard before", "after"];
    printer.table(&header, &rows, &[1, 2, 3, 4])?;
    Ok(())
}
