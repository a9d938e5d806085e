//! How does anything reach the terminal? Only through here.
//!
//! Results go to standard output, everything about them (progress, summaries, warnings, errors) to standard error, so
//! that a pipe or a file gets the result alone. Colours and progress bars appear on terminals only.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use comfy_table::Table;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

mod table;

/// Writes results and talks to the user.
#[derive(Clone)]
pub(crate) struct Printer {
    /// Whether standard error may have colours.
    colour: bool,
    /// Whether standard error is a terminal, where progress can be drawn.
    terminal: bool,
}

/// Whether the user's environment allows colours.
fn colours_wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[expect(
    clippy::unused_self,
    reason = "whoever prints needs a printer in hand, also where it has no settings to obey"
)]
impl Printer {
    pub(crate) fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        Self {
            colour: terminal && colours_wanted(),
            terminal,
        }
    }

    /// A line of the result.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")
    }

    /// A piece of streamed text, shown at once.
    pub(crate) fn piece(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// The result as JSON, indented.
    pub(crate) fn json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        let text = serde_json::to_string_pretty(value)?;
        writeln!(out, "{text}")?;
        Ok(())
    }

    /// One of several results as a line of JSON.
    pub(crate) fn json_line(&self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string(value)?;
        self.piece(&format!("{text}\n"))?;
        Ok(())
    }

    /// The result as a table; the columns listed in `numbers` are right-aligned. A terminal that is too narrow for its
    /// longest words gets the rows one below the other.
    pub(crate) fn table(&self, header: &[&str], rows: &[Vec<String>], numbers: &[usize]) -> io::Result<()> {
        let width = Table::new().width().filter(|_| io::stdout().is_terminal());
        table::lines(header, rows, numbers, width.map(usize::from))
            .iter()
            .try_for_each(|line| self.line(line))
    }

    /// Something about the result that is not part of it.
    pub(crate) fn note(&self, text: &str) {
        self.say(&self.paint("2", text));
    }

    /// Something the user should know before trusting the result.
    pub(crate) fn warn(&self, text: &str) {
        self.say(&format!("{} {text}", self.warning_label()));
    }

    /// Why there is no result.
    pub(crate) fn error(&self, text: &str) {
        self.say(&format!("{} {text}", self.error_label()));
    }

    /// What a warning begins with.
    pub(crate) fn warning_label(&self) -> String {
        self.paint("1;33", "warning:")
    }

    /// What an error begins with.
    pub(crate) fn error_label(&self) -> String {
        self.paint("1;31", "error:")
    }

    /// What takes a drawn progress out of the way of a line on standard error; it is drawn again below.
    pub(crate) fn over_progress(&self) -> &'static str {
        if self.terminal { "\r\x1b[K" } else { "" }
    }

    /// Whether standard error may have colours.
    pub(crate) fn has_colour(&self) -> bool {
        self.colour
    }

    /// Ends the line that a terminal shows now, such as a prompt or a bar with `^C` after it.
    pub(crate) fn end_line(&self) {
        if self.terminal {
            self.say("");
        }
    }

    /// Asks for a line of input; nothing where no one sits at a terminal.
    pub(crate) fn ask(&self, prompt: &str) {
        if self.terminal && io::stdin().is_terminal() {
            let _ = write!(io::stderr(), "{}", self.paint("1;36", prompt));
        }
    }

    /// A bar over `total` bytes.
    pub(crate) fn byte_bar(&self, total: u64, message: &str) -> Progress {
        self.progress(
            Some(total),
            message,
            "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {eta}",
        )
    }

    /// A bar over `total` items.
    pub(crate) fn bar(&self, total: u64, message: &str) -> Progress {
        self.progress(Some(total), message, "{msg} {bar:30} {pos}/{len} {eta}")
    }

    /// A sign of life for something of unknown length.
    pub(crate) fn spinner(&self, message: &str) -> Progress {
        let progress = self.progress(None, message, "{spinner} {msg}");
        progress.bar.enable_steady_tick(Duration::from_millis(100));
        progress
    }

    fn progress(&self, total: Option<u64>, message: &str, template: &str) -> Progress {
        let target = if self.terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total, target);
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━━ ");
        bar.set_style(style);
        bar.set_message(message.to_owned());
        Progress { bar }
    }

    /// Writes a line to standard error. That it cannot be written is no reason to lose the result.
    fn say(&self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Something running, drawn until it is dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// How far it is.
    pub(crate) fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// One more is done.
    pub(crate) fn advance(&self) {
        self.bar.inc(1);
    }

    /// What it is doing.
    pub(crate) fn message(&self, message: String) {
        self.bar.set_message(message);
    }

    /// A callback for the engine's prefill.
    pub(crate) fn watch(&self) -> impl FnMut(usize, usize) -> ControlFlow<()> + '_ {
        |done, total| {
            self.show(done, total);
            ControlFlow::Continue(())
        }
    }

    /// How much of how much is done.
    pub(crate) fn show(&self, done: usize, total: usize) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
