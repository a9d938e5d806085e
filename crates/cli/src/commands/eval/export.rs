//! How do results leave their folder?

use inertiakv_eval::export;
use inertiakv_eval::run::merge;

use crate::args::{ExportArguments, MergeArguments};
use crate::format::counted;
use crate::printer::Printer;

pub(super) fn merged(arguments: &MergeArguments, printer: &Printer) -> anyhow::Result<()> {
    let merged = merge(&arguments.folders, &arguments.folder.output_folder)?;
    if arguments.output.json {
        return printer.json(&merged);
    }
    printer.line(&format!(
        "{}: {} added, {} in several folders",
        arguments.folder.output_folder.display(),
        counted(merged.added, "unit"),
        merged.repeated
    ))?;
    Ok(())
}

pub(super) fn export(arguments: &ExportArguments, printer: &Printer) -> anyhow::Result<()> {
    if let Some(file) = &arguments.parquet {
        let rows = export::parquet(&arguments.folder, file)?;
        printer.line(&format!("{}: {}", file.display(), counted(rows, "row")))?;
    }
    if let Some(into) = &arguments.kvpress {
        let (made, left_out) = export::kvpress(&arguments.folder, into)?;
        for folder in made {
            printer.line(&folder.display().to_string())?;
        }
        if left_out > 0 {
            printer.warn(&format!(
                "{} left out: only RULER, LongBench, LongBench-E, LongBench-v2 and the needle grid have a place in kvpress's \
                 layout",
                counted(left_out, "unit")
            ));
        }
    }
    Ok(())
}
