//! `inertiakv run`: answer a prompt.

use inertiakv::FinishReason;

use super::{RunRecord, stream_answer, summary};
use crate::args::RunArguments;
use crate::failure::Interrupted;
use crate::format::counted;
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::{model, prompt, settings};

pub(crate) fn run(arguments: &RunArguments, printer: &Printer) -> anyhow::Result<()> {
    let method = settings::method(&arguments.method.method, &arguments.method.budget)?;
    let options = settings::generation(&arguments.generation)?;
    interrupt::listen(printer.clone());
    let (engine, prompt) = prompt::prepare(&arguments.prompt, printer)?;
    model::warn_of_small_budget(&method, prompt.prefill.len(), printer);

    let stoppable = Stoppable::begin();
    let mut session = engine.session(&method)?;
    let progress = printer.bar(prompt.prefill.len() as u64, "prefill");
    session.prefill(&prompt.prefill, &mut |done, total| {
        progress.show(done, total);
        stoppable.flow()
    })?;
    drop(progress);

    let json = arguments.output.json;
    let question = prompt.question.as_deref();
    let (report, generation) = stream_answer(&mut session, question, &options, &stoppable, printer, json)?;
    drop(stoppable);
    let finish_reason = generation.finish_reason;
    if json {
        printer.json(&RunRecord::new(report.clone(), generation))?;
    } else {
        printer.line("")?;
    }
    model::warn_of_no_eviction(&method, &report, printer);
    if finish_reason == FinishReason::Context {
        printer.warn(&format!(
            "the answer ended because the context of {} is full",
            counted(engine.context(), "token")
        ));
    }
    if !json {
        printer.note(&summary(&report, session.position()));
    }
    match finish_reason {
        FinishReason::Cancelled => Err(Interrupted.into()),
        _ => Ok(()),
    }
}
