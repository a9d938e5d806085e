//! The `inertiakv` command.
fn main() {}
