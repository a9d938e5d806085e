//! stub
use super::matmul::Unit;
pub(super) unsafe fn run(unit: &Unit) {
    // SAFETY: stub.
    unsafe { super::scalar::run(unit) }
}
