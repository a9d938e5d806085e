//! How does a command get its engine, and what does it warn about before it runs?

use std::ops::ControlFlow;

use inertiakv::catalog::Store;
use inertiakv::policy::Method;
use inertiakv::{Engine, EngineOptions, Error, RunReport, Session};

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
        Error::ContextOption { .. } | Error::Threads { .. } => usage(error.to_string()),
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
    tracing::info!(path = %path.display(), threads = engine.threads(), context = engine.context(), "model loaded");
    Ok(engine)
}

/// A session under `method` that has read `prompt`: a fork of `base` where one prefill can serve both.
pub(crate) fn session_of(
    base: &Session,
    method: &Method,
    prompt: &[u32],
    watch: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Session, Error> {
    if !method.needs_own_prefill() {
        return base.fork(method);
    }
    let mut session = base.engine().session(method)?;
    session.prefill(prompt, watch)?;
    Ok(session)
}

/// A session under `full` whose prefill remembers what forks under `methods` will need.
pub(crate) fn base_of(engine: &Engine, methods: &[Method]) -> Result<Session, Error> {
    let mut base = engine.session(&Method::full())?;
    base.remember_for(methods.iter().filter(|method| !method.needs_own_prefill()))?;
    Ok(base)
}

/// Warns of a budget that ruins answers, before time is spent on it.
pub(crate) fn warn_of_small_budget(method: &Method, prompt_tokens: usize, printer: &Printer) {
    if let Some(budget) = method.last_policy().budget.entries(prompt_tokens, prompt_tokens)
        && budget < SMALL_BUDGET
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
        printer.warn(&format!(
            "`{method}` evicted nothing: the {} never exceeded the budget of {}",
            counted(report.peak_entries, "entry"),
            count(budget)
        ));
    }
}
