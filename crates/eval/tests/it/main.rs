//! Does the harness agree with the original scripts, and does it refuse what it cannot read?

mod load;
mod metrics;
mod ruler;
mod statistics;
mod support;
