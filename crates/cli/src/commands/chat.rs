//! `inertiakv chat`: converse, with bounded memory.

use std::io::{self, BufRead};
use std::ops::ControlFlow;

use anyhow::Context;
use inertiakv::policy::Method;
use inertiakv::{Engine, FinishReason, GenerateOptions, Session};

use super::{RunRecord, stream_answer, summary};
use crate::args::ChatArguments;
use crate::format::{count, mebibytes, percent, rate};
use crate::printer::Printer;
use crate::prompt::Conversation;
use crate::{model, settings};

const HELP: &str = "\
/stats  what the cache holds and how fast it goes
/reset  forget the conversation
/quit   leave (so does Ctrl-D)";

pub(crate) fn run(arguments: &ChatArguments, printer: &Printer) -> anyhow::Result<()> {
    let method = settings::method(&arguments.method, &arguments.budget)?;
    let options = settings::generation(&arguments.sampling, false)?;
    let engine_options = settings::engine_options(&arguments.model, Some(&arguments.context));
    let engine = model::open(&arguments.model.model, &engine_options, printer)?;
    let mut chat = Chat {
        printer,
        options,
        json: arguments.json,
        system: arguments.system.clone(),
        conversation: Conversation::new(arguments.system.as_deref()),
        session: engine.session(&method)?,
        method,
        engine,
    };
    printer.note(&format!(
        "{} under {}; /help lists commands",
        arguments.model.model, chat.method
    ));
    printer.ask("> ");
    for line in io::stdin().lock().split(b'\n') {
        match String::from_utf8(line.context("cannot read what you wrote")?) {
            Ok(line) => {
                if chat.take(line.trim())?.is_break() {
                    break;
                }
            }
            Err(_) => printer.warn("that line is not UTF-8 text and was left out; write it again"),
        }
        printer.ask("> ");
    }
    Ok(())
}

struct Chat<'a> {
    printer: &'a Printer,
    engine: Engine,
    method: Method,
    options: GenerateOptions,
    json: bool,
    system: Option<String>,
    conversation: Conversation,
    session: Session,
}

impl Chat<'_> {
    /// Does what a line asks for.
    fn take(&mut self, line: &str) -> anyhow::Result<ControlFlow<()>> {
        match line {
            "" => {}
            "/quit" | "/exit" => return Ok(ControlFlow::Break(())),
            "/help" => self.printer.note(HELP),
            "/stats" => self.stats()?,
            "/reset" => {
                self.reset()?;
                self.printer.note("the conversation starts anew");
            }
            unknown if unknown.starts_with('/') => {
                self.printer
                    .warn(&format!("`{unknown}` is no command; /help lists them"));
            }
            text => self.turn(text)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    fn reset(&mut self) -> anyhow::Result<()> {
        self.session = self.engine.session(&self.method)?;
        self.conversation = Conversation::new(self.system.as_deref());
        Ok(())
    }

    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        let tokens = self.conversation.next_turn(&self.engine, text)?;
        // The last generated token may still have to run, and the answer needs room for one.
        if self.session.position() + tokens.len() + 2 > self.engine.context() {
            self.printer.warn(&format!(
                "this message does not fit any more: the conversation is {} tokens long and the message {}, but the model's context is {}. /reset starts a new conversation",
                count(self.session.position()),
                count(tokens.len()),
                count(self.engine.context())
            ));
            return Ok(());
        }
        if self.session.position() == 0 {
            let progress = self.printer.bar(tokens.len() as u64, "reading");
            self.session.prefill(&tokens, &mut progress.watch())?;
        } else {
            let _progress = (tokens.len() > 64).then(|| self.printer.spinner("reading"));
            self.session.follow_up(&tokens, &mut |_, _| ControlFlow::Continue(()))?;
        }
        let json = self.json;
        let (report, generation) = stream_answer(&mut self.session, None, &self.options, self.printer, json)?;
        self.conversation.push(text, &generation.text);
        if generation.finish_reason == FinishReason::Context {
            self.printer.warn(&format!(
                "the answer ended because the context of {} tokens is full; /reset starts a new conversation",
                count(self.engine.context())
            ));
        }
        if json {
            return self.printer.json_line(&RunRecord::new(report, generation));
        }
        self.printer.line("")?;
        tracing::info!("{}", summary(&report, self.session.position()));
        Ok(())
    }

    fn stats(&self) -> anyhow::Result<()> {
        let report = self.session.report();
        if self.json {
            return self.printer.json_line(&report);
        }
        let seen = self.session.position();
        let kept = report.retained as f64 / seen.max(1) as f64;
        let lines = [
            format!("method    {}", report.method),
            format!(
                "turns     {}, {} of {} tokens of context",
                self.conversation.turns(),
                count(seen),
                count(self.engine.context())
            ),
            format!(
                "cache     {} entries ({} of what was said), at most {}",
                count(report.retained),
                percent(kept),
                count(report.peak_entries)
            ),
            format!(
                "memory    {}, at most {}",
                mebibytes(report.kv_bytes),
                mebibytes(report.kv_bytes_peak)
            ),
            format!(
                "evicted   {} entries in {} steps",
                count(report.evictions),
                count(report.steps)
            ),
            format!(
                "speed     {}, {} of it scoring",
                rate(report.decode_tokens_per_second),
                percent(report.scoring_share)
            ),
        ];
        self.printer.line(&lines.join("\n"))?;
        Ok(())
    }
}
