//! A server under load: `cargo xtask load` and `cargo xtask soak` start `inertiakv serve` and talk HTTP to it.

mod client;
mod load;
mod options;
mod process;
mod soak;

pub(crate) use load::run as load;
pub(crate) use soak::run as soak;
