//! How does a command get its engine, and what does it warn about before it runs?

use inertiakv::catalog::Store;
use inertiakv::policy::Method;
use inertiakv::{Engine, EngineOptions, Error, RunReport};

use crate::failure::usage;
use crate::format::{count, counted};
use crate::printer::Printer;
use crate::settings::SMALL_BUDGET;

/// Loads the model that `-m` names. Nothing is fetched: a name that is not downloaded is an error that says how.
pub(crate) fn open(model: &str, options: &EngineOptions, printer: &Printer) -> anyhow::Result<Engine> {
    let path = Store::open()?.resolve(model)?;
    let progress = printer.spinner(&format!("loading {model}"));
    let engine = Engine::open(&path, options).map_err(|error| match error {
        // The file is fine, what was asked of it is not.
        Error::ContextOption { .. } | Error::Threads { .. } | Error::NothingToQuantise { .. } => {
            usage(error.to_string())
        }
        Error::Scorer(error) => error.into(),
        error => anyhow::Error::new(error).context(format!("cannot load `{}`", path.display())),
    })?;
    drop(progress);
    if let Some(scorer) = engine.scorer().filter(|scorer| scorer.model() != engine.name()) {
        printer.warn(&format!(
            "the scorer was trained on `{}`, and this is `{}`; unless both are the same model its ranking means nothing",
            scorer.model(),
            engine.name()
        ));
    }
    let shape = engine.info().shape;
    if let Some(window) = shape.window {
        printer.note(&format!(
            "{} of {} have a window of {}: they hold what it needs, are not evicted from, and do not count in what is retained",
            count(shape.windowed_layers),
            counted(shape.layers, "layer"),
            counted(window, "entry")
        ));
    }
    tracing::info!(path = %path.display(), threads = engine.threads(), context = engine.context(), "model loaded");
    Ok(engine)
}

/// Warns of a budget that ruins answers, before time is spent on it.
pub(crate) fn warn_of_small_budget(method: &Method, prompt_tokens: usize, printer: &Printer) {
    if let Some(budget) = method.last_policy().budget.entries(prompt_tokens, prompt_tokens)
        && budget < SMALL_BUDGET.min(prompt_tokens)
    {
        printer.warn(&format!(
            "the budget of `{method}` is {budget} of {}; below {SMALL_BUDGET} answers suffer badly. Keep more, for example --budget 128",
            counted(prompt_tokens, "entry")
        ));
    }
}

/// Warns where a method that should evict never had to.
pub(crate) fn warn_of_no_eviction(method: &Method, report: &RunReport, printer: &Printer) {
    if let Some(budget) = report.budget
        && method.evicts()
        && report.evictions + report.masked == 0
    {
        let why = if report.steps == 0 {
            "the answer ended before the first decode step, after which it would have".to_owned()
        } else {
            format!(
                "the {} never exceeded the budget of {}",
                counted(report.peak_entries, "entry"),
                count(budget)
            )
        };
        printer.warn(&format!("`{method}` evicted nothing: {why}"));
    }
}
