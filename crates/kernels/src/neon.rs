//! What NEON can do and stable Rust has no name for.

use std::arch::aarch64::{int8x16_t, int32x4_t};
use std::arch::asm;

/// Adds to each of four sums the product of its four bytes of `a` with the four bytes of `b` at `LANE`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn sdot<const LANE: i32>(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    const { assert!(0 <= LANE && LANE < 4, "a register has four times four bytes") };
    let mut out = sum;
    // SAFETY: computes with registers alone, and the caller has the instruction.
    unsafe {
        asm!(
            "sdot {out:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            out = inlateout(vreg) out,
            a = in(vreg) a,
            b = in(vreg) b,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}
