//! Checks and chores: `cargo xtask`.
fn main() {}
