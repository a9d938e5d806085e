//! The command as a person or a script sees it: one binary, one module per concern.

#[path = "../../../server/tests/it/browser.rs"]
mod browser;
mod demo;
mod eval;
mod help;
#[cfg(unix)]
mod interrupt;
mod methods;
mod models;
mod paper;
mod pipes;
mod readme;
mod report;
mod scorers;
mod serve;
mod support;
mod tiny;
mod usage;
