//! How does the log reach the terminal?
//!
//! Warnings of the engine come through `tracing`. A person sees them like the command's own; whoever asks for the log
//! (`-v`, `RUST_LOG`) gets it with times and places.

use std::fmt;
use std::io;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::printer::Printer;

/// Sends the log to stderr. `RUST_LOG` decides what is logged, else the number of `-v`.
pub(crate) fn start(verbose: u8, printer: Printer) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let asked = std::env::var_os("RUST_LOG").is_some_and(|value| !value.is_empty());
    let filter = if asked {
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level))
    } else {
        EnvFilter::new(level)
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(printer.has_colour());
    if asked || verbose > 0 {
        log.init();
    } else {
        log.event_format(Plain { printer }).init();
    }
}

/// One line per event, as the command writes its own warnings.
struct Plain {
    printer: Printer,
}

impl<S, F> FormatEvent<S, F> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, F>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let label = if *event.metadata().level() == Level::ERROR {
            self.printer.error_label()
        } else {
            self.printer.warning_label()
        };
        write!(out, "{}{label} ", self.printer.over_progress())?;
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}
