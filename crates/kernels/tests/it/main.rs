//! Integration tests of the kernels, in one binary.

mod attention;
mod cache;
mod expected;
mod linear;
mod reconstruct;
mod support;
