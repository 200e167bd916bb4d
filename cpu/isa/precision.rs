//! The precision of products and of what is kept between layers.

use std::fmt;
use std::str::FromStr;

use super::Isa;

/// In which precision convolutions and inner products multiply, and blobs in blocks of channels are kept. Sums, weights and
/// their gradients, updates and the arithmetic of all other layers are f32 in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 24 bits of significand.
    #[default]
    F32,
    /// Operands are rounded to 8 bits of significand, to nearest, ties to even; their products are summed up in f32.
    Bf16,
}

impl Precision {
    /// Both.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Numbers in a word of 32 bits, which is what kernels multiply at once.
    pub const fn in_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|precision| precision.to_string() == name);
        known.ok_or_else(|| format!("{name:?} is no precision; expected f32 or bf16"))
    }
}

/// How kernels compute: a tier and a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// The tier.
    pub isa: Isa,
    /// The precision of products.
    pub precision: Precision,
}

impl From<Isa> for Numerics {
    /// f32 on a tier.
    fn from(isa: Isa) -> Self {
        Self { isa, precision: Precision::F32 }
    }
}

impl Numerics {
    /// bf16 on a tier.
    pub fn bf16(isa: Isa) -> Self {
        Self { isa, precision: Precision::Bf16 }
    }

    /// Makes sure that this CPU has the tier, and the tier the precision.
    ///
    /// # Errors
    /// With the reason, if not.
    pub fn check(self) -> Result<(), String> {
        let Self { isa, precision } = self;
        if !isa.is_available() {
            return Err(format!("this CPU has no {isa}"));
        }
        if precision == Precision::F32 || isa.has_bf16() {
            return Ok(());
        }
        let lowest = Isa::Avx512Bf16;
        Err(match lowest.is_available() {
            true => format!("the tier {isa} has no bf16; this CPU has it in {lowest} and above"),
            false => format!(
                "this CPU has no AVX-512 BF16, and no AMX either; its highest tier is {}, which computes in f32 only",
                Isa::detect()
            ),
        })
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.isa, self.precision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("fp16".parse::<Precision>().is_err_and(|reason| reason.contains("f32 or bf16")));
    }

    #[test]
    fn bf16_is_refused_where_a_tier_has_none() {
        for isa in Isa::available() {
            assert_eq!(Numerics::from(isa).check(), Ok(()), "{isa}");
            let checked = Numerics::bf16(isa).check();
            assert_eq!(checked.is_ok(), isa.has_bf16(), "{isa}: {checked:?}");
            let named = |reason: String| reason.to_lowercase().contains("bf16");
            assert!(checked.err().is_none_or(named), "{isa}");
        }
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            assert_eq!(Numerics::bf16(isa).check(), Err(format!("this CPU has no {isa}")));
        }
    }
}
