//! `inertiakv paper`: every table and figure of the paper.

use std::fs;
use std::path::Path;

use anyhow::Context;
use inertiakv_eval::experiment::{BUILT_IN, Data, Experiment, Findings, Lab, Source, Table};
use inertiakv_eval::{EvalError, figure::Figure};
use serde::Serialize;

use crate::args::{PaperArguments, PaperCommand, PaperRunArguments};
use crate::failure::Interrupted;
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::{figures, model, settings};

/// An item as it is listed in JSON.
#[derive(Debug, Serialize)]
struct Listed {
    name: &'static str,
    title: String,
    shows: String,
    needs: String,
    needs_model: bool,
}

pub(crate) fn run(arguments: &PaperArguments, printer: &Printer) -> anyhow::Result<()> {
    match &arguments.command {
        PaperCommand::List(output) => list(output.json, printer),
        PaperCommand::Run(arguments) => run_item(arguments, printer),
    }
}

fn list(json: bool, printer: &Printer) -> anyhow::Result<()> {
    let items = BUILT_IN.iter().map(|(name, text)| {
        let experiment = Experiment::parse(text)?;
        Ok(Listed {
            name,
            needs_model: !experiment.is_without_model(),
            title: experiment.title,
            shows: experiment.shows,
            needs: experiment.needs,
        })
    });
    let items: Vec<Listed> = items.collect::<Result<_, EvalError>>()?;
    if json {
        return printer.json(&items);
    }
    for item in items {
        printer.line(&format!("{:<13} {}", item.name, item.title))?;
        printer.line(&format!("{:<13}   {}", "", item.shows))?;
        printer.line(&format!("{:<13}   Needs: {}", "", item.needs))?;
    }
    Ok(())
}

fn run_item(arguments: &PaperRunArguments, printer: &Printer) -> anyhow::Result<()> {
    let (name, experiment) = item(&arguments.item)?;
    let folder = &arguments.output_folder;
    figures::make_folder(folder)?;
    let findings = if experiment.is_without_model() {
        experiment.run_without_model()?
    } else {
        with_model(&experiment, arguments, printer)?
    };
    write(&name, folder, &findings)?;
    if arguments.output.json {
        printer.json(&findings)?;
    } else {
        for table in &findings.tables {
            show(table, printer)?;
        }
    }
    printer.note(&format!("wrote {name}.md, .csv and .json to {}", folder.display()));
    if findings.figures.is_empty() {
        Ok(())
    } else {
        figures::write_all(folder, &own_figures(&name, findings.figures), printer)
    }
}

/// A built-in item, or a file, whose name its results get.
fn item(text: &str) -> anyhow::Result<(String, Experiment)> {
    let path = Path::new(text);
    if path.extension().is_some_and(|extension| extension == "toml") {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        return Ok((name, Experiment::read(path)?));
    }
    Ok((text.to_owned(), Experiment::built_in(text)?))
}

fn with_model(experiment: &Experiment, arguments: &PaperRunArguments, printer: &Printer) -> anyhow::Result<Findings> {
    let options = settings::engine_options(&arguments.model, Some(&arguments.context));
    let engine = model::open(&arguments.model.model, &options, printer)?;
    let mut data = Data::default();
    for (name, path) in &arguments.data {
        data.set(name, path.clone());
    }
    interrupt::listen(printer.clone());
    let stoppable = Stoppable::begin();
    let progress = printer.bar(0, "paper");
    let found = experiment.run(&mut Lab {
        engine: &engine,
        data,
        folder: arguments.output_folder.clone(),
        samples: arguments.samples,
        lengths: arguments.lengths.clone(),
        tasks: arguments.tasks.clone(),
        progress: &mut |what, done, total| {
            progress.message(what.to_owned());
            progress.show(done, total);
            stoppable.flow()
        },
    });
    drop(progress);
    match found {
        Err(EvalError::Engine(inertiakv::Error::Cancelled)) => {
            printer.note("stopped; the same command goes on from the answers that are there");
            Err(Interrupted.into())
        }
        found => Ok(found?),
    }
}

fn write(name: &str, folder: &Path, findings: &Findings) -> anyhow::Result<()> {
    let mut files = vec![(format!("{name}.json"), serde_json::to_string_pretty(findings)? + "\n")];
    let markdown: Vec<String> = findings.tables.iter().map(Table::markdown).collect();
    files.push((format!("{name}.md"), markdown.join("\n")));
    for (index, table) in findings.tables.iter().enumerate() {
        let number = if index == 0 {
            String::new()
        } else {
            format!("-{}", index + 1)
        };
        files.push((format!("{name}{number}.csv"), table.csv()));
    }
    for (file, text) in files {
        let path = folder.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}; choose another with -o", path.display()))?;
    }
    Ok(())
}

fn show(table: &Table, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&table.title)?;
    let (header, rows) = table.texts();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let numbers: Vec<usize> = (2..header.len()).collect();
    printer.table(&header, &rows, &numbers)?;
    for note in &table.notes {
        printer.note(note);
    }
    if table.rows.iter().all(|row| row.source == Source::Paper) {
        printer.warn("nothing was run: give the data that the notes name");
    }
    Ok(())
}

/// Names of figure files begin with the item's.
fn own_figures(name: &str, figures: Vec<Figure>) -> Vec<Figure> {
    let named = |figure: Figure| {
        if figure.name.starts_with(name) {
            figure
        } else {
            Figure {
                name: format!("{name}-{}", figure.name),
                ..figure
            }
        }
    };
    figures.into_iter().map(named).collect()
}
