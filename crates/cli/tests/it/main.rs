//! The command as a person or a script sees it: one binary, one module per concern.

mod demo;
mod eval;
mod help;
#[cfg(unix)]
mod interrupt;
mod methods;
mod models;
mod pipes;
mod readme;
mod scorers;
mod serve;
mod support;
mod tiny;
mod usage;
