//! `inertiakv train-scorer`: train a scorer on a text.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use inertiakv::{ScorerCorrelation, Summary, Training, TrainingOptions};
use serde::Serialize;

use super::correlation_cell;
use crate::args::TrainScorerArguments;
use crate::failure::{Interrupted, usage};
use crate::format::counted;
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::{input, model, settings};

/// Losses of at most this many steps make the mean at either end of a training.
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
        return Err(there_already(output));
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
        // Better to know now that it cannot be written, or that another training has begun to.
        match File::create_new(output) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(there_already(output)),
            // What is not there can at least not be taken for a scorer.
            _ => untrained.save(output).inspect_err(|_| drop(fs::remove_file(output)))?,
        }
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
    printer.note(&format!(
        "{}: {}, {}, loss {}",
        output.display(),
        counted(scorer.parameters(), "parameter"),
        counted(losses.len(), "step"),
        change(losses)
    ));
    Ok(())
}

/// The loss at the beginning and at the end, of which neither has a step of the other.
fn change(losses: &[f32]) -> String {
    let steps = ENDS.min(losses.len() / 2).max(1);
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / steps as f32;
    match losses {
        [] => "–".to_owned(),
        [only] => format!("{only:.4}"),
        losses => format!(
            "{:.4} → {:.4} (means of the first and the last {})",
            mean(&losses[..steps]),
            mean(&losses[losses.len() - steps..]),
            counted(steps, "step")
        ),
    }
}

fn there_already(output: &Path) -> anyhow::Error {
    let advice = if output.is_file() {
        "; add --resume to go on with it, or write to another file"
    } else {
        " and is no file; name one that a scorer can be written to"
    };
    usage(format!("`{}` is there already{advice}", output.display()))
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

#[cfg(test)]
mod tests {
    use super::change;

    #[test]
    fn the_ends_of_a_training_share_no_step() {
        assert_eq!(change(&[]), "–");
        assert_eq!(change(&[0.5]), "0.5000");
        assert_eq!(
            change(&[4.0, 9.0, 1.0]),
            "4.0000 → 1.0000 (means of the first and the last 1 step)"
        );
        let losses: Vec<f32> = (0..60_u8).rev().map(f32::from).collect();
        assert_eq!(
            change(&losses),
            "49.5000 → 9.5000 (means of the first and the last 20 steps)"
        );
        assert_eq!(
            change(&losses[..20]),
            "54.5000 → 44.5000 (means of the first and the last 10 steps)"
        );
    }
}
