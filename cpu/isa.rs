//! Instruction-set tiers, found at run time.

use std::fmt;
use std::str::FromStr;

/// A tier of kernels, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What every CPU has; matrix products by `matrixmultiply`.
    Portable,
    /// AVX2 with FMA: 8 floats a vector.
    Avx2,
    /// AVX-512F alone, which Knights Landing has, too: 16 floats a vector.
    Avx512f,
}

impl Isa {
    /// All tiers, lowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512f];

    /// Whether this CPU has the tier.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            match self {
                Self::Portable => true,
                Self::Avx2 => avx2,
                Self::Avx512f => avx2 && is_x86_feature_detected!("avx512f"),
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
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512f => "avx512f",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|t| t.to_string() == name);
        let known = known.ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            format!("{name:?} is no instruction-set tier; expected one of {}", names.join(", "))
        })?;
        if known.is_available() { Ok(known) } else { Err(format!("this CPU has no {known}")) }
    }
}
