//! Images of few channels for tiers whose registers hold many words of a pixel's sources.

use crate::isa::{Isa, Numerics, Precision};

/// Writes column after column of an even number of rows: neighbouring rows share a word of bf16, half as many words a
/// column as there are rows.
///
/// Sound if each row has so many columns, and the target room for them, both rounded up to whole vectors.
pub(crate) type UnfoldKernel = unsafe fn(rows: &[*const f32], columns: usize, to: *mut f32);

/// The kernel; `None` if the tier has none.
pub(crate) fn unfold_kernel(numerics: Numerics) -> Option<UnfoldKernel> {
    numerics.check().ok()?;
    match (numerics.precision, numerics.isa) {
        #[cfg(target_arch = "x86_64")]
        (Precision::Bf16, Isa::AmxBf16) => Some(super::amx::amxbf16_unfold),
        _ => None,
    }
}
