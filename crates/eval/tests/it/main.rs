//! Does the harness agree with the original scripts, does it refuse what it cannot read, and does a run lose nothing?

mod experiment;
mod load;
mod metrics;
mod ruler;
mod run;
mod statistics;
mod support;
mod trace;
