//! `inertiakv report`: a folder of results as one page.

use std::fs;
use std::path::Path;

use anyhow::Context;
use inertiakv_eval::EvalError;
use inertiakv_eval::figure::Figure;
use inertiakv_eval::report::{Measured, Trace, views};
use inertiakv_eval::statistics::Bootstrap;
use inertiakv_eval::trace::TraceLine;

use crate::args::ReportArguments;
use crate::failure::usage;
use crate::figures;
use crate::format::counted;
use crate::printer::Printer;
use crate::report::html;

pub(crate) fn run(arguments: &ReportArguments, printer: &Printer) -> anyhow::Result<()> {
    let folder = &arguments.folder;
    let traces = traces(folder)?;
    let records = match Measured::read(folder) {
        // Traces alone make a page too.
        Err(EvalError::Results { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound && !traces.is_empty() =>
        {
            Vec::new()
        }
        records => records?,
    };
    if records.is_empty() && traces.is_empty() {
        return Err(usage(format!(
            "{} has no results yet; run `inertiakv eval … -o {}` first",
            folder.display(),
            folder.display()
        )));
    }
    let progress = printer.spinner("report");
    let views = views(&records, &traces, &Bootstrap::default())?;
    let name = folder.canonicalize().unwrap_or_else(|_| folder.clone());
    let name = name
        .file_name()
        .map_or_else(|| "results".to_owned(), |name| name.to_string_lossy().into_owned());
    let page = html(&name, &views)?;
    drop(progress);
    let path = &arguments.output_file;
    fs::write(path, page).with_context(|| format!("cannot write {}; choose another with -o", path.display()))?;
    printer.line(&format!(
        "wrote {} ({} of {})",
        path.display(),
        counted(records.len(), "result"),
        counted(views.len(), "model")
    ))?;
    let figures: Vec<Figure> = views.into_iter().flat_map(|view| view.figures).collect();
    match &arguments.figures {
        Some(folder) => figures::write_all(folder, &figures, printer),
        None => Ok(()),
    }
}

/// The traces in a folder, by file: each file ending in `trace.jsonl`.
fn traces(folder: &Path) -> anyhow::Result<Vec<Trace>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| path.to_string_lossy().ends_with("trace.jsonl"));
    paths.sort();
    let mut lines = Vec::new();
    for path in &paths {
        lines.extend(TraceLine::read(path)?);
    }
    Ok(Trace::of(lines))
}
