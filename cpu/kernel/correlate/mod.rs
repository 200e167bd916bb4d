//! Correlation on register tiles, the arithmetic of convolution and of both its gradients.
//!
//! Everything is a sum over *sources*: the values of one input channel seen through one tap of the kernel. Source `k`
//! of pixel `p` lies at `x[offset(k) + p · PIXEL]`.
//!
//! - [`Tile`]: `y[p][o] (+)= Σ_k x[offset(k) + p · PIXEL] · w[k][o]` for a few pixels in a row and one or two vectors
//!   of `o`, all sums in registers. The convolution itself, and ∇A with the weights turned round.
//! - [`WeightTile`]: `dw[k][o] (+)= Σ_p x[offset(k) + p] · dy[p][o]` for a few sources over a block of pixels.
//! - [`planes::PlaneTile`]: the same where the pixels of a source are neighbours.
//!
//! Where products are of bf16, an element of `x`, `w` and `dy` is a word: two sources side by side in a [`Tile`], two
//! pixels side by side in a [`WeightTile`], whose products go into one sum. The geometry is the same.
//!
//! Each element is one chain of fused multiply-adds in an order that depends on the layer's shape alone.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod planes;
#[cfg(target_arch = "x86_64")]
mod tile;
pub(crate) mod unfold;
#[cfg(target_arch = "x86_64")]
mod weight;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::{Isa, Numerics, Precision, Vectors};

/// Sources that lie side by side: channels of one block through one tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Place of the first, seen from pixel 0.
    pub offset: u32,
    /// How many.
    pub len: u32,
    /// Which source of the packed weights is the first.
    pub first: u32,
}

/// What the sums start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// 0.
    Zero,
    /// A value for each output channel.
    Bias(*const f32),
    /// What is there.
    There,
    /// What an array of numbers that are kept as those that were multiplied holds.
    Kept(Kept),
}

/// Places in an array of numbers that are kept as those that were multiplied, such as a blob in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Output of pixel 0, first vector.
    pub y: *mut f32,
    /// Words between pixels.
    pub pixel: usize,
    /// Words between vectors.
    pub vector: usize,
}

/// Where the sums go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Where they may have started from.
    There,
    /// To an array of numbers that are kept as those that were multiplied.
    Kept(Kept),
}

/// Distances of two pixels, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Apart {
    /// In the source.
    pub x: usize,
    /// In the sums.
    pub y: usize,
    /// In the array of numbers that are kept.
    pub kept: usize,
}

/// One register tile of outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    /// The sources.
    pub runs: &'a [Run],
    /// Where pixel 0 of the tile begins.
    pub x: *const f32,
    /// Distance of pixels in `x`: that of the kernel's [`Pixel`], but any for tiles of AMX.
    pub x_pixel: usize,
    /// Weights: those of source 0; source by source, a whole tile's width each.
    pub w: *const f32,
    /// Sums of pixel 0, first vector; nothing is read or written there if `start` and `end` are elsewhere.
    pub y: *mut f32,
    /// Distance of pixels in the sums.
    pub y_pixel: usize,
    /// Distance of vectors in the sums.
    pub y_vector: usize,
    /// For tiles of AMX, of an even number of pixels that are two rows of an image: where their second half lies, seen from the
    /// first.
    pub below: Option<Apart>,
    /// What the sums start from.
    pub start: Start,
    /// Where they go.
    pub end: End,
    /// Whether a ReLU goes over the sums.
    pub relu: bool,
    /// If the backward of a ReLU goes over them, its values: where and as the sums end, those of pixel 0 and the first vector.
    pub sign: Option<*const f32>,
    /// What is to be in the second-level cache when the tile is done: with each run so many cache lines, one after the other.
    pub ahead: *const f32,
    /// None if there is nothing.
    pub ahead_lines: usize,
}

impl Tile<'_> {
    /// Makes it the one that begins `pixels` pixels further, of which neighbours are so far apart. What is asked for ahead stays.
    #[inline(always)]
    pub fn go_on(&mut self, pixels: usize, apart: Apart) {
        let by = Apart { x: pixels * apart.x, y: pixels * apart.y, kept: pixels * apart.kept };
        self.x = self.x.wrapping_add(by.x);
        self.y = self.y.wrapping_add(by.y);
        if let Start::Kept(kept) = &mut self.start {
            kept.y = kept.y.wrapping_add(by.kept);
        }
        if let End::Kept(kept) = &mut self.end {
            kept.y = kept.y.wrapping_add(by.kept);
        }
        self.sign = self.sign.map(|sign| sign.wrapping_add(by.kept));
    }
}

/// One register tile of a weight's gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightTile<'a> {
    /// Places of the sources, seen from pixel (0, 0); as many as the tile is high.
    pub offsets: &'a [u32],
    /// Where pixel (0, 0) of the block begins.
    pub x: *const f32,
    /// Distance of rows of pixels in `x`.
    pub x_row: usize,
    /// Gradient of pixel (0, 0), first vector; pixels of a row lie a vector apart.
    pub dy: *const f32,
    /// Distance of rows of pixels in `dy`.
    pub dy_row: usize,
    /// Distance of vectors in `dy`.
    pub dy_vector: usize,
    /// Rows and columns of the block.
    pub pixels: [usize; 2],
    /// Sums: those of source 0; vectors lie side by side.
    pub dw: *mut f32,
    /// Distance of sources in the sums.
    pub dw_source: usize,
    /// Whether the sums are added to what is there.
    pub add: bool,
    /// What is to be in a cache when the tile is done: a vector for each pixel of a row, one after the other. Where pixels
    /// lie one element apart it is the second-level cache and a cache line, and of a single column of them a line for each row.
    pub ahead: *const f32,
    /// Distance of rows of it.
    pub ahead_row: usize,
}

/// Distance of neighbouring pixels in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pixel {
    /// One element: plain planes.
    One,
    /// One vector: blocked channels, or two blocks of them in bf16.
    Vector,
    /// Half a vector: a block of channels in bf16.
    Half,
}

pub(crate) type TileKernel = unsafe fn(&Tile<'_>);
pub(crate) type WeightKernel = unsafe fn(&WeightTile<'_>);

/// The kernels of a tier for one width of tile.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    /// Tiles of 1, 2, … pixels.
    pub tiles: &'static [TileKernel],
    /// Tiles of 1, 2, … sources.
    pub weights: &'static [WeightKernel],
    /// Whether tiles of sources want all that they can have, as those of AMX do, which see blocks of channels.
    pub full: bool,
}

impl Kernels {
    /// The tiles of so many sources: first and number of each. Near-equal, unless they are to be full: 25 sources are 25 steps in fives,
    /// but 28 in sixes and one alone, whose few sums wait for each other.
    pub fn source_tiles(&self, sources: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let most = self.weights.len();
        let parts = sources.div_ceil(most);
        // So many in each, and one more in the first `longer`.
        let (each, longer) = match parts {
            0 => (0, 0),
            _ if self.full => (most, 0),
            _ => (sources / parts, sources % parts),
        };
        let start = move |part: usize| (part * each + part.min(longer)).min(sources);
        (0..parts).map(move |part| (start(part), start(part + 1) - start(part)))
    }
}

/// The kernels for tiles of `vectors` vectors; `None` if the tier has none.
///
/// Calling one is sound if the CPU has the tier (checked here), the pointers lead to what the fields say, and nobody
/// else touches the output meanwhile.
pub(crate) fn kernels(numerics: Numerics, vectors: usize, pixel: Pixel) -> Option<Kernels> {
    numerics.check().ok()?;
    match (numerics.precision, numerics.isa.vectors()) {
        (_, Vectors::None) => None,
        #[cfg(target_arch = "x86_64")]
        (Precision::Bf16, _) if numerics.isa == Isa::AmxBf16 => x86::amxbf16::kernels(vectors, pixel),
        #[cfg(target_arch = "x86_64")]
        (Precision::Bf16, _) => x86::avx512bf16::kernels(vectors, pixel),
        #[cfg(target_arch = "x86_64")]
        (Precision::F32, Vectors::Avx2) => x86::avx2::kernels(vectors, pixel),
        #[cfg(target_arch = "x86_64")]
        (Precision::F32, Vectors::Avx512f) => x86::avx512f::kernels(vectors, pixel),
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe fn nothing(_: &WeightTile<'_>) {}

    #[test]
    fn a_tile_that_goes_on_moves_all_that_pixels_have() {
        let at = |element: usize| std::ptr::null_mut::<f32>().wrapping_add(element);
        let kept = |element: usize| Kept { y: at(element), pixel: 4, vector: 9 };
        let tile = |x: usize, y: usize, number: usize| Tile {
            runs: &[],
            x: at(x),
            x_pixel: 2,
            w: at(7),
            y: at(y),
            y_pixel: 3,
            y_vector: 8,
            below: None,
            start: Start::Kept(kept(number)),
            end: End::Kept(kept(number + 1)),
            relu: true,
            sign: Some(at(number + 2)),
            ahead: at(5),
            ahead_lines: 1,
        };
        let mut moved = tile(100, 200, 300);
        moved.go_on(6, Apart { x: 2, y: 3, kept: 4 });
        assert_eq!(format!("{moved:?}"), format!("{:?}", tile(112, 218, 324)));
        moved.start = Start::Bias(at(1));
        moved.go_on(1, Apart { x: 2, y: 3, kept: 4 });
        assert_eq!(moved.start, Start::Bias(at(1)));
    }

    #[test]
    fn tiles_of_sources_are_near_equal_or_full() {
        let tiles = |sources: usize, full: bool| {
            let kernels = Kernels { tiles: &[], weights: &[nothing as WeightKernel; 6], full };
            kernels.source_tiles(sources).collect::<Vec<_>>()
        };
        assert_eq!(tiles(25, false), [(0, 5), (5, 5), (10, 5), (15, 5), (20, 5)]);
        assert_eq!(tiles(20, false), [(0, 5), (5, 5), (10, 5), (15, 5)]);
        assert_eq!(tiles(13, false), [(0, 5), (5, 4), (9, 4)]);
        assert_eq!(tiles(13, true), [(0, 6), (6, 6), (12, 1)]);
        assert_eq!(tiles(6, false), tiles(6, true));
        assert_eq!(tiles(0, false), []);
    }
}
