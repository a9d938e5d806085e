//! Which instruction set do the kernels use on this machine?

use std::fmt;
use std::sync::OnceLock;

/// No instruction set of this machine is called so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("INERTIAKV_ISA is `{name}`, but this machine has {available}; choose one of those, or unset it for the best")]
pub struct UnknownIsa {
    /// What the variable says.
    pub name: String,
    /// What it could say.
    pub available: String,
}

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable Rust, the reference for every other set.
    Scalar,
    /// ARM (`aarch64`) with NEON and its dot products of bytes (`FEAT_DotProd`). Processors without them, such as
    /// Cortex-A53 and A72, use [`Scalar`](Self::Scalar).
    Neon,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Isa {
    /// All sets, those of one architecture from the plainest to the widest.
    const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// Best set of this machine, found once. `INERTIAKV_ISA=scalar|neon|avx2|avx512` chooses another one that it has; any
    /// other name counts for nothing here, so check it before ([`Isa::chosen`]).
    #[must_use]
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| Self::chosen().unwrap_or_else(|_| Self::best(&Self::available())))
    }

    /// The set that `INERTIAKV_ISA` names, or the best of this machine if it names none.
    ///
    /// # Errors
    /// If it names one that this machine does not have.
    pub fn chosen() -> Result<Self, UnknownIsa> {
        Self::choose(&Self::available(), &std::env::var("INERTIAKV_ISA").unwrap_or_default())
    }

    fn choose(available: &[Self], name: &str) -> Result<Self, UnknownIsa> {
        if name.is_empty() {
            return Ok(Self::best(available));
        }
        let named = available.iter().find(|set| set.name() == name);
        named.copied().ok_or_else(|| UnknownIsa {
            name: name.to_owned(),
            available: available.iter().map(|set| set.name()).collect::<Vec<_>>().join(", "),
        })
    }

    fn best(available: &[Self]) -> Self {
        available.last().copied().unwrap_or(Self::Scalar)
    }

    /// Every set that this machine can run, the best one last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|set| set.is_available()).collect()
    }

    /// Whether this machine can run the set.
    pub(crate) fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => {
                std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            // Those of other architectures.
            _ => false,
        }
    }

    /// As `INERTIAKV_ISA` and reports spell it.
    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Compiles a function of plain loops for every instruction set and calls the best one. An `unsafe fn` is called with
/// the set to use, which the machine must have, before its arguments. Without fused multiply-add, all sets agree to the
/// last bit. NEON belongs to every `aarch64`, so there the plain compilation uses it.
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
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $type),*) { body($($argument),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($argument: $type),*) { body($($argument),*) }
            match isa {
                // SAFETY: the machine has the set, by the caller.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => unsafe { avx512($($argument),*) },
                _ => body($($argument),*),
            }
        }
    };
}
pub(crate) use vectorised;

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Isa;

    #[test]
    fn detected_set_is_available() {
        assert!(Isa::available().contains(&Isa::detect()));
        assert_eq!(Isa::available()[0], Isa::Scalar);
    }

    #[test]
    fn only_a_set_that_the_machine_has_is_chosen_by_name() {
        for (available, best) in [
            (&[Isa::Scalar][..], Isa::Scalar),
            (&[Isa::Scalar, Isa::Neon], Isa::Neon),
            (&[Isa::Scalar, Isa::Avx2], Isa::Avx2),
            (&[Isa::Scalar, Isa::Avx2, Isa::Avx512], Isa::Avx512),
        ] {
            for set in Isa::ALL {
                let chosen = Isa::choose(available, &set.to_string());
                assert_eq!(chosen.ok(), available.contains(&set).then_some(set));
            }
            assert_eq!(Isa::choose(available, ""), Ok(best));
            let message = Isa::choose(available, "sse").unwrap_err().to_string();
            assert!(available.iter().all(|set| message.contains(set.name())), "{message}");
        }
    }
}
