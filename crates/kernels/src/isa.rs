//! Which instruction set do the kernels use on this machine?

use std::fmt;
use std::sync::OnceLock;

/// An instruction set that kernels are written for, from the plainest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Portable Rust, the reference for every other set.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Isa {
    /// Best set of this machine, found once. `INERTIAKV_ISA=scalar|avx2|avx512` lowers it.
    #[must_use]
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let best = Self::available().into_iter().max().unwrap_or(Self::Scalar);
            let cap = match std::env::var("INERTIAKV_ISA").as_deref() {
                Ok("scalar") => Self::Scalar,
                Ok("avx2") => Self::Avx2,
                _ => Self::Avx512,
            };
            best.min(cap)
        })
    }

    /// Every set that this machine can run, in ascending order.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut sets = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if avx2 {
                sets.push(Self::Avx2);
            }
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                sets.push(Self::Avx512);
            }
        }
        sets
    }
}

/// Compiles a function of plain loops for every instruction set and calls the best one. An `unsafe fn` is called with
/// the set to use, which the machine must have, before its arguments. Without fused multiply-add, all sets agree to the
/// last bit.
macro_rules! vectorised {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        fn $name($($argument: $type),*) {
            $crate::isa::vectorised! { unsafe fn with_set($($argument: $type),*) $body }
            // SAFETY: `Isa::detect` found the set on this machine.
            unsafe { with_set($crate::isa::Isa::detect(), $($argument),*) }
        }
    };
    ($(#[$doc:meta])* unsafe fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        unsafe fn $name(isa: $crate::isa::Isa, $($argument: $type),*) {
            #[inline(always)]
            fn body($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) { body($($argument),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($argument: $type),*) { body($($argument),*) }
                match isa {
                    $crate::isa::Isa::Scalar => {}
                    // SAFETY: the machine has the set, by the caller.
                    $crate::isa::Isa::Avx2 => return unsafe { avx2($($argument),*) },
                    // SAFETY: as above.
                    $crate::isa::Isa::Avx512 => return unsafe { avx512($($argument),*) },
                }
            }
            body($($argument),*);
        }
    };
}
pub(crate) use vectorised;

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Isa;

    #[test]
    fn detected_set_is_available() {
        assert!(Isa::available().contains(&Isa::detect()));
    }
}
