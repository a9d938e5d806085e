//! Does the policy do what the paper and the design say?

mod adaptive;
mod axes;
mod equations;
mod faults;
mod prompt;
mod properties;
mod proposition;
mod ragged;
mod random;
mod support;
mod text;
