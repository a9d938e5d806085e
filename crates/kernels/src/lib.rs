//! How are the numbers stored and computed?
//!
//! The KV cache ([`cache`]), attention over it ([`attention`]), quantised linear layers ([`linear`]) and the small
//! operations between them ([`ops`]). This crate knows slices and shapes; it knows nothing of models, files or
//! eviction policies. All SIMD and all `unsafe` of the workspace live here: one file per instruction set beside a
//! scalar reference, chosen at run time ([`isa`]).

pub mod attention;
pub mod cache;
pub mod isa;
pub mod limits;
pub mod linear;
pub mod mapped;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod ops;
pub mod threads;
