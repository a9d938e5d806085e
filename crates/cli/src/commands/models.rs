//! `inertiakv models`: what there is, what is here, fetch it, remove it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use inertiakv::catalog::{self, CatalogError, Entry, PullProgress, PullStage, Store};
use inertiakv::config::ModelConfig;
use inertiakv::{KvType, MemoryPlan, ModelShape, open_model};
use serde::Serialize;

use crate::args::{
    ModelNameArguments, ModelNamesArguments, ModelsArguments, ModelsCommand, OutputArguments, PullArguments,
};
use crate::format::{count, counted, mebibytes, megabytes};
use crate::printer::{Printer, Progress};

/// An entry with its place in the store.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    entry: Entry,
    download_bytes: u64,
    downloaded: bool,
    path: PathBuf,
}

impl Listed {
    fn new(entry: &Entry, store: &Store) -> Self {
        Self {
            entry: *entry,
            download_bytes: entry.download_bytes(),
            downloaded: store.stored(entry).is_some(),
            path: store.file(entry),
        }
    }
}

pub(crate) fn run(arguments: &ModelsArguments, printer: &Printer) -> anyhow::Result<()> {
    let store = Store::open()?;
    match &arguments.command {
        ModelsCommand::List(arguments) => list(&store, arguments, printer),
        ModelsCommand::Info(arguments) => info(&store, arguments, printer),
        ModelsCommand::Pull(arguments) => pull_all(&store, arguments, printer),
        ModelsCommand::Path(arguments) => path(&store, arguments, printer),
        ModelsCommand::Rm(arguments) => remove(&store, arguments, printer),
    }
}

/// Fetches one model with a progress bar; used by `demo` too.
pub(crate) fn pull(store: &Store, name: &str, printer: &Printer) -> Result<PathBuf, CatalogError> {
    watched(name, printer, |progress| store.pull(name, progress))
}

/// Shows the progress of a download.
fn watched(
    name: &str,
    printer: &Printer,
    fetch: impl FnOnce(&mut dyn FnMut(PullProgress)) -> Result<PathBuf, CatalogError>,
) -> Result<PathBuf, CatalogError> {
    let mut shown: Option<(PullStage, Progress)> = None;
    fetch(&mut |now| {
        if shown.as_ref().is_none_or(|(stage, _)| *stage != now.stage) {
            let message = match now.stage {
                PullStage::Downloading => format!("downloading {name}"),
                PullStage::Joining => format!("unpacking {name}"),
                PullStage::Verifying => format!("verifying {name}"),
            };
            // The old bar goes before the new one is drawn.
            shown = None;
            shown = Some((now.stage, printer.byte_bar(now.total, &message)));
        }
        if let Some((_, progress)) = &shown {
            progress.set(now.done);
        }
    })
}

fn list(store: &Store, arguments: &OutputArguments, printer: &Printer) -> anyhow::Result<()> {
    let models: Vec<Listed> = catalog::entries()
        .iter()
        .map(|entry| Listed::new(entry, store))
        .collect();
    if arguments.json {
        return printer.json(&serde_json::json!({ "models": models }));
    }
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|model| {
            let entry = &model.entry;
            vec![
                entry.name.to_owned(),
                entry.family.to_owned(),
                entry.parameters.to_owned(),
                entry.quantisation.to_owned(),
                megabytes(entry.bytes),
                entry.licence.to_owned(),
                if model.downloaded {
                    "yes".to_owned()
                } else {
                    "no".to_owned()
                },
            ]
        })
        .collect();
    let header = ["name", "family", "weights", "type", "size", "licence", "downloaded"];
    printer.table(&header, &rows, &[2, 4])?;
    printer.note(&format!(
        "kept in {}; fetch one with `inertiakv models pull NAME`",
        store.root().display()
    ));
    Ok(())
}

fn info(store: &Store, arguments: &ModelNameArguments, printer: &Printer) -> anyhow::Result<()> {
    let Some(entry) = catalog::entry(&arguments.model) else {
        let path = store.resolve(&arguments.model)?;
        return file_info(&path, arguments.output.json, printer);
    };
    let model = Listed::new(entry, store);
    if arguments.output.json {
        return printer.json(&model);
    }
    let packages: Vec<String> = entry
        .parts
        .iter()
        .map(|part| format!("{}=={}", part.package, part.version))
        .collect();
    let state = if model.downloaded {
        "downloaded"
    } else {
        "not downloaded"
    };
    let lines = [
        ("name", entry.name.to_owned()),
        ("family", entry.family.to_owned()),
        ("weights", format!("{}, {}", entry.parameters, entry.quantisation)),
        ("shape", entry.shape.to_owned()),
        ("licence", entry.licence.to_owned()),
        ("size", counted(entry.bytes as usize, "byte")),
        ("sha256", entry.sha256.to_owned()),
        ("packages", packages.join(" ")),
        ("download", megabytes(model.download_bytes)),
        (
            "also",
            format!("Hugging Face {}, file {}", entry.hub.repository, entry.hub.file),
        ),
        ("file", format!("{} ({state})", model.path.display())),
    ];
    pairs(&lines, printer)
}

/// What a model file or folder says; the weights are not read.
fn file_info(path: &Path, json: bool, printer: &Printer) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct FileInfo<'a> {
        #[serde(flatten)]
        shape: ModelShape,
        bytes: usize,
        memory: MemoryPlan,
        path: &'a Path,
    }
    let unreadable = || format!("cannot read `{}`", path.display());
    let file = open_model(path).with_context(unreadable)?;
    let config = ModelConfig::from_gguf(&file).with_context(unreadable)?;
    let info = FileInfo {
        shape: ModelShape::from(&config),
        bytes: file.file_bytes(),
        memory: MemoryPlan::new(&config, file.file_bytes(), KvType::default())?,
        path,
    };
    if json {
        return printer.json(&info);
    }
    let shape = info.shape;
    let mut lines = vec![
        ("name", shape.name),
        ("family", shape.family),
        (
            "shape",
            format!(
                "{}, {} on {} of {}, context {}",
                counted(shape.layers, "layer"),
                counted(shape.heads, "query head"),
                counted(shape.kv_heads, "KV head"),
                shape.head_dim,
                count(shape.context)
            ),
        ),
        ("vocabulary", count(shape.vocabulary)),
        ("size", counted(info.bytes, "byte")),
        ("file", path.display().to_string()),
    ];
    if let Some(window) = shape.window {
        let layers = counted(shape.windowed_layers, "layer");
        let window = counted(window, "entry");
        lines.push((
            "window",
            format!("{layers} with a window of {window}, never evicted from"),
        ));
    }
    if shape.experts > 0 {
        let (used, all) = (shape.experts_used, count(shape.experts));
        lines.push(("experts", format!("{used} of {all} for each token")));
    }
    pairs(&lines, printer)?;
    show_plan(&info.memory, printer)
}

fn show_plan(plan: &MemoryPlan, printer: &Printer) -> anyhow::Result<()> {
    let machine = plan.machine_bytes.map_or_else(|| "not known".to_owned(), mebibytes);
    let kv = format!(
        "{} per 1,000 tokens as {}",
        mebibytes(plan.kv_bytes_per_1000_tokens),
        plan.kv_type
    );
    let mut lines = vec![
        ("weights", format!("about {}", mebibytes(plan.weight_bytes))),
        ("kv cache", kv),
        ("machine", machine),
    ];
    if plan.window_bytes > 0 {
        lines.push((
            "windows",
            format!("at most {} while decoding", mebibytes(plan.window_bytes)),
        ));
    }
    let prompt = counted(plan.prompt_tokens, "token");
    lines.push((
        "prompt",
        format!("{prompt} take {} until the first step", mebibytes(plan.prefill_bytes)),
    ));
    pairs(&lines, printer)?;
    let rows: Vec<Vec<String>> = plan
        .budgets
        .iter()
        .map(|budget| {
            vec![
                format!("{} %", budget.kept_percent),
                mebibytes(budget.kv_bytes),
                budget.conversations.map_or_else(|| "-".to_owned(), count),
            ]
        })
        .collect();
    printer.table(&["kept", "kv cache", "conversations that fit"], &rows, &[0, 1, 2])?;
    Ok(())
}

fn pairs(lines: &[(&str, String)], printer: &Printer) -> anyhow::Result<()> {
    let width = lines.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    for (key, value) in lines {
        printer.line(&format!("{key:width$}  {value}"))?;
    }
    Ok(())
}

fn pull_all(store: &Store, arguments: &PullArguments, printer: &Printer) -> anyhow::Result<()> {
    let json = arguments.names.output.json;
    let mut models = Vec::new();
    for name in &arguments.names.models {
        #[cfg(feature = "hub")]
        let path = if arguments.hub {
            watched(name, printer, |progress| store.pull_from_hub(name, progress))?
        } else {
            pull(store, name, printer)?
        };
        #[cfg(not(feature = "hub"))]
        let path = pull(store, name, printer)?;
        if !json {
            printer.line(&path.display().to_string())?;
        }
        models.extend(catalog::entry(name).map(|entry| Listed::new(entry, store)));
    }
    if json {
        printer.json(&serde_json::json!({ "models": models }))?;
    }
    Ok(())
}

fn path(store: &Store, arguments: &ModelNameArguments, printer: &Printer) -> anyhow::Result<()> {
    let path = store.resolve(&arguments.model)?;
    if arguments.output.json {
        return printer.json(&serde_json::json!({ "path": path }));
    }
    printer.line(&path.display().to_string())?;
    Ok(())
}

fn remove(store: &Store, arguments: &ModelNamesArguments, printer: &Printer) -> anyhow::Result<()> {
    let mut paths = Vec::new();
    for name in &arguments.models {
        let removed = store.remove(name)?;
        if !arguments.output.json {
            for path in &removed.leftovers {
                printer.line(&format!("removed {}, left by an interrupted download", path.display()))?;
            }
            if let Some(path) = &removed.model {
                printer.line(&format!("removed {}", path.display()))?;
            }
        }
        paths.extend(removed.leftovers.into_iter().chain(removed.model));
    }
    if arguments.output.json {
        printer.json(&serde_json::json!({ "removed": paths }))?;
    }
    Ok(())
}
