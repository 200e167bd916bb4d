//! A weight's gradient over plain planes of bf16, for tiers whose products take two pixels of one channel at once.
//!
//! A plane has the pixels of one channel side by side, so what a tap sees of a run of pixels is a run of the plane, wherever
//! it begins: one copy of a source serves all taps and all targets.

use crate::isa::{Isa, Numerics, Precision};

/// Most sources of each of the two tiles of a [`PlaneTile`].
pub(crate) const PLANES: usize = 16;

/// Pairs of pixels of a step.
pub(crate) const STEP: usize = 16;

/// Runs of pixels that a tile asks for.
pub(crate) const AHEAD: usize = 4;

/// Two tiles of a weight's gradient: `dw[k][o] (+)= Σ_p x[k][p] · dy[p][o]` for up to 16 sources each and one or two
/// vectors of o, over a run of pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaneTile {
    /// Pixel 0 of the first source of each tile.
    pub x: [*const u16; 2],
    /// Sources of each tile; the second may have none.
    pub sources: [usize; 2],
    /// Pixels between sources.
    pub distance: usize,
    /// Gradients of pixels 0 and 1: a vector of words for each pair of pixels.
    pub dy: *const f32,
    /// Distance of vectors in `dy`.
    pub dy_vector: usize,
    /// Steps of [`STEP`] pairs of pixels.
    pub steps: usize,
    /// Runs of pixels that later tiles read, as long as this one's, if they are to be asked for: each step asks for a piece of each.
    pub ahead: Option<[*const u16; AHEAD]>,
    /// Whether there are two vectors.
    pub two: bool,
    /// Sums of the first source of each tile; vectors lie side by side.
    pub dw: [*mut f32; 2],
    /// Distance of sources in the sums.
    pub dw_source: usize,
    /// Whether the sums are added to what is there.
    pub add: bool,
    /// The sums of the next tiles, as many and as far apart: asked for meanwhile. Null if there are none.
    pub next: [*const f32; 2],
}

/// What a tier has for planes.
#[derive(Clone, Copy)]
pub(crate) struct PlaneKernels {
    /// Computes tiles.
    ///
    /// Sound if all pointers lead to what the fields say, and nobody else touches the sums.
    pub tile: unsafe fn(&PlaneTile),
    /// Copies pixels of a block of [`PLANES`] channels in bf16 to planes, `distance` pixels apart. Whole steps are written:
    /// behind the last pixel of each plane up to 31 zeros.
    ///
    /// Sound if there is room for them.
    pub fill: unsafe fn(pixels: &[f32], to: *mut u16, distance: usize),
}

/// The kernels; `None` if the tier has none.
pub(crate) fn plane_kernels(numerics: Numerics) -> Option<PlaneKernels> {
    numerics.check().ok()?;
    match (numerics.precision, numerics.isa) {
        #[cfg(target_arch = "x86_64")]
        (Precision::Bf16, Isa::AmxBf16) => {
            Some(PlaneKernels { tile: super::amx::amxbf16_planes, fill: super::amx::amxbf16_fill })
        }
        _ => None,
    }
}
