//! `inertiakv perplexity`: how well does a model predict a text?

use std::ops::ControlFlow;

use inertiakv::{Error, Perplexity, PerplexityOptions};
use serde::Serialize;

use crate::args::PerplexityArguments;
use crate::failure::usage;
use crate::format::{count, counted};
use crate::printer::Printer;
use crate::{input, model, settings};

/// The result with what it was measured on.
#[derive(Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    result: Perplexity,
    model: String,
    method: String,
    context: usize,
}

pub(crate) fn run(arguments: &PerplexityArguments, printer: &Printer) -> anyhow::Result<()> {
    let method = match &arguments.method {
        Some(method) => Some(settings::method(method, &arguments.budget)?),
        None if arguments.budget.budget.is_some() => {
            return Err(usage(
                "--budget needs a method to apply to; add for example --method inertia",
            ));
        }
        None => None,
    };
    let text = input::long_text(&arguments.file)?;
    let engine_options = settings::engine_options(&arguments.model, None);
    let engine = model::open(&arguments.model.model, &engine_options, printer)?;
    let tokenizer = engine.tokenizer();
    let tokens = tokenizer.with_bos(tokenizer.encode(&text, false));
    if let Some(method) = &method {
        model::warn_of_small_budget(method, arguments.context / 2, printer);
    }
    let options = PerplexityOptions {
        context: arguments.context,
        chunks: arguments.chunks,
        method: method.clone(),
    };
    let progress = printer.bar(0, "perplexity");
    let measured = engine.perplexity(&tokens, &options, &mut |now| {
        progress.message(format!("perplexity {:.4}", now.perplexity));
        progress.show(now.chunk, now.chunks);
        ControlFlow::Continue(())
    });
    let result = measured.map_err(|error| match error {
        Error::Window { .. } => usage(error.to_string()),
        error => error.into(),
    })?;
    drop(progress);
    let method = method.map_or_else(|| "full".to_owned(), |method| method.to_string());
    if arguments.output.json {
        return printer.json(&Record {
            result,
            model: engine.name().to_owned(),
            method,
            context: arguments.context,
        });
    }
    printer.line(&format!("perplexity {:.4}", result.perplexity))?;
    printer.note(&format!(
        "{method}: nll {:.4} over {}, {} of {}",
        result.nll,
        counted(result.tokens, "token"),
        counted(result.chunks, "window"),
        count(arguments.context)
    ));
    Ok(())
}
