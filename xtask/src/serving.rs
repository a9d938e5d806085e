//! A server under load: `cargo xtask load`, `gap` and `soak` start `inertiakv serve` and talk HTTP to it.

mod client;
mod gap;
mod load;
mod options;
mod process;
mod soak;

pub(crate) use gap::run as gap;
pub(crate) use load::run as load;
pub(crate) use soak::run as soak;
