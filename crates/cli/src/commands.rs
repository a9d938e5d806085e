//! What can it do? One module per command; each takes its arguments and a printer.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod compare;
pub(crate) mod correlate;
pub(crate) mod demo;
pub(crate) mod eval;
pub(crate) mod methods;
pub(crate) mod models;
pub(crate) mod paper;
pub(crate) mod perplexity;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod trace;
pub(crate) mod train_scorer;

use std::ops::ControlFlow;

use inertiakv::policy::{Method, Preset};
use inertiakv::{Error, FinishReason, GenerateOptions, Generation, RunReport, Session};
use serde::Serialize;

use crate::format::{count, counted, mebibytes, percent, rate};
use crate::interrupt::Stoppable;
use crate::printer::Printer;

/// The methods that `demo` and `compare` show side by side.
pub(crate) fn standard_methods() -> Vec<Method> {
    [
        Preset::Full,
        Preset::Inertia,
        Preset::InertiaLazy,
        Preset::ScoreFree,
        Preset::StreamingLlm,
        Preset::Random,
    ]
    .map(Method::from)
    .to_vec()
}

/// A correlation, which may not be defined, in a table.
pub(crate) fn correlation_cell(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

/// A run as it is printed in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct RunRecord {
    #[serde(flatten)]
    pub(crate) report: RunReport,
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) finish_reason: FinishReason,
}

impl RunRecord {
    pub(crate) fn new(report: RunReport, generation: Generation) -> Self {
        Self {
            report,
            text: generation.text,
            tokens: generation.tokens,
            finish_reason: generation.finish_reason,
        }
    }
}

/// Several runs as they are printed in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Runs<R> {
    pub(crate) model: String,
    pub(crate) runs: Vec<R>,
}

/// Asks the question, if there is one, as one step, then generates. While the question runs `on_text` is called with no
/// text, so that it can stop that too; the session is of no further use then.
pub(crate) fn answer(
    session: &mut Session,
    question: Option<&[u32]>,
    options: &GenerateOptions,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<(RunReport, Generation), Error> {
    if let Some(question) = question {
        session.step_watched(question, &mut |_, _| on_text(""))?;
    }
    let generation = session.generate(options, on_text)?;
    Ok((session.report(), generation))
}

/// [`answer`], shown as it comes unless `quiet`. Ctrl-C ends the generation, and so does output that cannot be written.
pub(crate) fn stream_answer(
    session: &mut Session,
    question: Option<&[u32]>,
    options: &GenerateOptions,
    stoppable: &Stoppable,
    printer: &Printer,
    quiet: bool,
) -> anyhow::Result<(RunReport, Generation)> {
    let mut write_error = None;
    let mut show = |piece: &str| match if quiet { Ok(()) } else { printer.piece(piece) } {
        Ok(()) => stoppable.flow(),
        Err(error) => {
            write_error = Some(error);
            ControlFlow::Break(())
        }
    };
    let answered = answer(session, question, options, &mut show);
    match write_error {
        Some(error) => Err(error.into()),
        None => Ok(answered?),
    }
}

/// A run in one line. `seen` counts all tokens that ran, evicted or not.
pub(crate) fn summary(report: &RunReport, seen: usize) -> String {
    let kept = report.retained as f64 / seen.max(1) as f64;
    let budget = match (report.budget, &report.refresh) {
        (Some(budget), Some(refresh)) => format!("budget {}, refresh {refresh}", count(budget)),
        (Some(budget), None) => format!("budget {}", count(budget)),
        _ => "no budget".to_owned(),
    };
    let range = match report.masked {
        0 if report.retained_min == report.retained_max => String::new(),
        0 => format!(
            ", {} to {} per head",
            count(report.retained_min),
            count(report.retained_max)
        ),
        masked => format!(", {} of them hidden", count(masked)),
    };
    format!(
        "{}: kept {} of {} ({}{range}; {budget}) · KV {} → {} · prefill {}, {} · decode {}, scoring {}",
        report.method,
        count(report.retained),
        counted(seen, "entry"),
        percent(kept),
        mebibytes(report.kv_bytes_prefill),
        mebibytes(report.kv_bytes),
        counted(report.prompt_tokens, "token"),
        rate(report.prefill_tokens_per_second),
        rate(report.decode_tokens_per_second),
        percent(report.scoring_share),
    )
}
