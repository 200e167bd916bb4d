//! Instruction-set tiers, found at run time, and the precision in which their kernels multiply.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod precision;

pub use precision::{Numerics, Precision};

use std::sync::OnceLock;

use std::fmt;
use std::str::FromStr;

/// A tier of kernels, lowest first. Each has all that the one before it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What every CPU has; matrix products by `matrixmultiply`.
    Portable,
    /// AVX2 with FMA: 8 floats a vector.
    Avx2,
    /// AVX-512F alone, which Knights Landing has, too: 16 floats a vector.
    Avx512f,
    /// AVX-512 F, CD, BW, DQ and VL: Skylake's servers and later.
    Avx512,
    /// AVX-512 with BF16: products of pairs of bf16, summed up in f32.
    Avx512Bf16,
    /// AMX with BF16: products of tiles of bf16, summed up in f32.
    AmxBf16,
}

/// The vectors with which a tier computes in f32.
///
/// AVX-512 BW, DQ and VL have nothing for f32 that AVX-512F does not have: the tiers from `avx512f` on share their f32
/// kernels, which are compiled once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// What the compiler makes of plain loops.
    None,
    /// 8 floats.
    Avx2,
    /// 16 floats.
    Avx512f,
}

impl Isa {
    /// All tiers, lowest first.
    pub const ALL: [Self; 6] =
        [Self::Portable, Self::Avx2, Self::Avx512f, Self::Avx512, Self::Avx512Bf16, Self::AmxBf16];

    /// Whether this CPU has the tier. Small kernels ask at each call, so the CPU is asked once.
    pub fn is_available(self) -> bool {
        static ANSWERS: OnceLock<[bool; Isa::ALL.len()]> = OnceLock::new();
        ANSWERS.get_or_init(|| Self::ALL.map(Self::is_found))[self as usize]
    }

    fn is_found(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            match self {
                Self::Portable => true,
                Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
                Self::Avx512f => Self::Avx2.is_found() && is_x86_feature_detected!("avx512f"),
                Self::Avx512 => {
                    Self::Avx512f.is_found()
                        && is_x86_feature_detected!("avx512cd")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
                Self::Avx512Bf16 => Self::Avx512.is_found() && is_x86_feature_detected!("avx512bf16"),
                #[cfg(target_os = "linux")]
                Self::AmxBf16 => Self::Avx512Bf16.is_found() && amx::is_available(),
                #[cfg(not(target_os = "linux"))]
                Self::AmxBf16 => false,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }

    /// The highest tier of this CPU.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|t| t.is_available()).unwrap_or(Self::Portable)
    }

    /// The tiers of this CPU, lowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|t| t.is_available())
    }

    /// Whether the tier multiplies in bf16.
    pub fn has_bf16(self) -> bool {
        self >= Self::Avx512Bf16
    }

    /// The lowest tier with the same f32 kernels.
    pub fn of_f32_kernels(self) -> Self {
        self.min(Self::Avx512f)
    }

    /// The vectors of the tier's f32 kernels.
    pub(crate) const fn vectors(self) -> Vectors {
        match self {
            Self::Portable => Vectors::None,
            Self::Avx2 => Vectors::Avx2,
            Self::Avx512f | Self::Avx512 | Self::Avx512Bf16 | Self::AmxBf16 => Vectors::Avx512f,
        }
    }

    /// The names of all tiers, separated by commas.
    pub fn names() -> String {
        Self::ALL.map(|tier| tier.to_string()).join(", ")
    }
}

/// Whether tiles of AMX are a model of them: where tests ask for that on a CPU without tiles.
#[cfg(all(feature = "emulated-amx", target_arch = "x86_64"))]
pub(crate) fn tiles_are_emulated() -> bool {
    #[cfg(target_os = "linux")]
    return amx::are_emulated();
    #[cfg(not(target_os = "linux"))]
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512f => "avx512f",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
            Self::AmxBf16 => "amxbf16",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|t| t.to_string() == name);
        let known = known.ok_or_else(|| {
            format!("{name:?} is no instruction-set tier; expected one of {}", Self::names())
        })?;
        let missing = || format!("this CPU has no {known}; its highest tier is {}", Self::detect());
        known.is_available().then_some(known).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_needs_those_below_it() {
        for pair in Isa::ALL.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].is_available() || !pair[1].is_available(), "{pair:?}");
        }
    }

    #[test]
    fn f32_kernels_are_those_of_the_tier_that_they_are_named_after() {
        for isa in Isa::ALL {
            assert_eq!(isa.vectors(), isa.of_f32_kernels().vectors(), "{isa}");
        }
    }
}
