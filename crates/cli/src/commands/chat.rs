//! `inertiakv chat`: converse, with bounded memory.

use std::ops::ControlFlow;

use anyhow::bail;
use inertiakv::policy::Method;
use inertiakv::{Engine, Error, FinishReason, GenerateOptions, Session};
use serde::Serialize;

use super::{RunRecord, stream_answer, summary};
use crate::args::ChatArguments;
use crate::format::{count, counted, mebibytes, percent, rate};
use crate::input::Lines;
use crate::interrupt::{self, Stoppable};
use crate::printer::Printer;
use crate::prompt::Conversation;
use crate::{model, settings};

const HELP: &str = "\
/stats  what the cache holds and how fast it goes
/reset  forget the conversation
/quit   leave (so does Ctrl-D)
Ctrl-C stops an answer";

/// A turn as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Turn {
    /// Number of the turn in the conversation, from 1.
    turn: usize,
    #[serde(flatten)]
    record: RunRecord,
}

/// A message that did not become a turn, as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Refusal<'a> {
    /// Number of the turn that it would have been.
    turn: usize,
    error: &'a str,
}

pub(crate) fn run(arguments: &ChatArguments, printer: &Printer) -> anyhow::Result<()> {
    let method = settings::method(&arguments.method.method, &arguments.method.budget)?;
    let options = settings::answers(&arguments.sampling)?;
    let engine_options = settings::engine_options(&arguments.model, Some(&arguments.context));
    interrupt::listen(printer.clone());
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
        answered: false,
        refused: false,
    };
    printer.note(&format!(
        "{} under {}; /help lists commands",
        arguments.model.model, chat.method
    ));
    let mut lines = Lines::new();
    loop {
        printer.ask("> ");
        let Some(line) = lines.next()? else {
            // Whoever sits at a terminal has seen why.
            if chat.refused && !chat.answered {
                bail!("no message was answered");
            }
            return Ok(());
        };
        match String::from_utf8(line) {
            Ok(line) => {
                if chat.take(line.trim())?.is_break() {
                    return Ok(());
                }
            }
            Err(_) => chat.refuse("that line is not UTF-8 text and was left out; write it again")?,
        }
    }
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
    /// Whether any message became a turn, and whether any did not.
    answered: bool,
    refused: bool,
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
            return self.refuse(&self.no_room(tokens.len()));
        }
        if self.session.position() == 0 {
            model::warn_of_small_budget(&self.method, tokens.len(), self.printer);
        }
        let stoppable = Stoppable::begin();
        if !self.read(&tokens, &stoppable)? {
            return self.refuse("that message was not read to its end and was left out; the conversation is as before");
        }
        let answered = stream_answer(
            &mut self.session,
            None,
            &self.options,
            &stoppable,
            self.printer,
            self.json,
        );
        drop(stoppable);
        let (report, generation) = answered?;
        let finish_reason = generation.finish_reason;
        self.answered = true;
        self.conversation.push(text, &generation.text);
        if self.json {
            self.printer.json_line(&Turn {
                turn: self.conversation.turns(),
                record: RunRecord::new(report, generation),
            })?;
        } else {
            self.printer.line("")?;
            tracing::info!("{}", summary(&report, self.session.position()));
        }
        if finish_reason == FinishReason::Context {
            self.printer.warn(&format!(
                "the answer ended because the context of {} is full; evicted ones count too. /reset starts a new conversation",
                counted(self.engine.context(), "token")
            ));
        }
        Ok(())
    }

    /// Reads a message; says whether it was read, or else leaves the session as it was.
    fn read(&mut self, tokens: &[u32], stoppable: &Stoppable) -> anyhow::Result<bool> {
        let before = self.session.fork(&self.method)?;
        let progress = self.printer.bar(tokens.len() as u64, "reading");
        let mut watch = |done, total| {
            progress.show(done, total);
            stoppable.flow()
        };
        let read = if self.session.position() == 0 {
            self.session.prefill(tokens, &mut watch)
        } else {
            self.session.follow_up(tokens, &mut watch).map(drop)
        };
        match read {
            Ok(()) => Ok(true),
            Err(Error::Cancelled) => {
                self.session = before;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Why a message of so many tokens has no place in the conversation any more.
    fn no_room(&self, tokens: usize) -> String {
        let (said, context) = (self.session.position(), count(self.engine.context()));
        let tokens = counted(tokens, "token");
        if said == 0 {
            return format!(
                "this message has {tokens}, which leaves no room for an answer in the context of {context}; shorten it"
            );
        }
        format!(
            "this message of {tokens} does not fit any more: {} of the model's context of {context} are used up, evicted ones included. /reset starts a new conversation",
            counted(said, "token")
        )
    }

    /// Says why a message is left out of the conversation.
    fn refuse(&mut self, error: &str) -> anyhow::Result<()> {
        self.refused = true;
        if !self.json {
            self.printer.warn(error);
            return Ok(());
        }
        self.printer.json_line(&Refusal {
            turn: self.conversation.turns() + 1,
            error,
        })
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
                "turns     {}, {} of {} of context",
                self.conversation.turns(),
                count(seen),
                counted(self.engine.context(), "token")
            ),
            format!(
                "cache     {} ({} of what was said), at most {}",
                counted(report.retained, "entry"),
                percent(kept),
                count(report.peak_entries)
            ),
            format!(
                "memory    {}, at most {}",
                mebibytes(report.kv_bytes),
                mebibytes(report.kv_bytes_peak)
            ),
            format!(
                "evicted   {} in {}",
                counted(report.evictions, "entry"),
                counted(report.steps, "step")
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
