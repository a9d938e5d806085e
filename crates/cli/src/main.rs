//! How does a person use it? The `inertiakv` command.
//!
//! Arguments ([`args`]) become plain settings ([`settings`]), a command gets them and a [`printer::Printer`], which is
//! the only place that writes to the terminal. Exit codes: 0 done, 1 failed, 2 used wrongly, 130 stopped
//! by Ctrl-C.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod failure;
mod figures;
mod format;
mod input;
mod interrupt;
mod log;
mod model;
mod printer;
mod prompt;
mod report;
mod settings;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use printer::Printer;

fn main() -> ExitCode {
    // Wrong usage ends here, with clap's message and exit code 2.
    let arguments = Arguments::parse();
    let printer = Printer::new();
    log::start(arguments.verbose, printer.clone());
    let result = match &arguments.command {
        Command::Demo(arguments) => commands::demo::run(arguments, &printer),
        Command::Run(arguments) => commands::run::run(arguments, &printer),
        Command::Compare(arguments) => commands::compare::run(arguments, &printer),
        Command::Chat(arguments) => commands::chat::run(arguments, &printer),
        Command::Perplexity(arguments) => commands::perplexity::run(arguments, &printer),
        Command::Bench(arguments) => commands::bench::run(arguments, &printer),
        Command::Eval(arguments) => commands::eval::run(arguments, &printer),
        Command::Paper(arguments) => commands::paper::run(arguments, &printer),
        Command::Report(arguments) => commands::report::run(arguments, &printer),
        Command::Trace(arguments) => commands::trace::run(arguments, &printer),
        Command::Correlate(arguments) => commands::correlate::run(arguments, &printer),
        Command::TrainScorer(arguments) => commands::train_scorer::run(arguments, &printer),
        Command::Methods(arguments) => commands::methods::run(arguments, &printer),
        Command::Serve(arguments) => commands::serve::run(arguments, &printer),
        Command::Models(arguments) => commands::models::run(arguments, &printer),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has gone (`inertiakv … | head`): nobody is left to tell.
        Err(error) if failure::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if failure::is_interruption(&error) => {
            printer.note("interrupted");
            ExitCode::from(interrupt::EXIT_CODE)
        }
        Err(error) => {
            printer.error(&format!("{error:#}"));
            ExitCode::from(if failure::is_usage(&error) { 2 } else { 1 })
        }
    }
}
