//! `inertiakv run`: answer a prompt.

use inertiakv::FinishReason;

use super::{RunRecord, stream_answer, summary};
use crate::args::RunArguments;
use crate::format::count;
use crate::printer::Printer;
use crate::prompt::Prompt;
use crate::{input, model, settings};

pub(crate) fn run(arguments: &RunArguments, printer: &Printer) -> anyhow::Result<()> {
    let method = settings::method(&arguments.method.method, &arguments.method.budget)?;
    let options = settings::generation(&arguments.sampling, arguments.ignore_end)?;
    let text = input::text(&arguments.input)?;
    let engine_options = settings::engine_options(&arguments.model, Some(&arguments.context));
    let engine = model::open(&arguments.model.model, &engine_options, printer)?;
    let prompt = Prompt::new(&engine, &arguments.input, &text)?;
    prompt.check_length(&engine)?;
    model::warn_of_small_budget(&method, prompt.prefill.len(), printer);

    let mut session = engine.session(&method)?;
    let progress = printer.bar(prompt.prefill.len() as u64, "prefill");
    session.prefill(&prompt.prefill, &mut progress.watch())?;
    drop(progress);

    let json = arguments.output.json;
    let question = prompt.question.as_deref();
    let (report, generation) = stream_answer(&mut session, question, &options, printer, json)?;
    model::warn_of_no_eviction(&method, &report, printer);
    if generation.finish_reason == FinishReason::Context {
        printer.warn(&format!(
            "the answer ended because the context of {} tokens is full",
            count(engine.context())
        ));
    }
    if json {
        return printer.json(&RunRecord::new(report, generation));
    }
    printer.line("")?;
    printer.note(&summary(&report, session.position()));
    Ok(())
}
