//! The tile of outputs on AMX: up to 32 pixels by two vectors.
//!
//! Pixels are the rows of A, in two registers if there are more than 16: four products of a step then share two registers
//! of sources and two of weights, which are as many products as hide each other's latency. Runs have 16 words, and a
//! shorter length where the channels are no whole pair of blocks; the shapes of registers change between them, so full
//! runs come first.

use std::mem::MaybeUninit;

use super::super::{End, Kept, Start, Tile};
use super::{Amx, Needs, ROWS, Tiles, WORDS};
use crate::kernel::elements::rectified;

/// Most pixels of a tile.
pub(in super::super) const MOST_PIXELS: usize = 2 * ROWS;

/// Where the sums of pixel 0 and the first vector lie, and the distances of pixels and of vectors, in elements.
#[derive(Clone, Copy)]
struct Place {
    y: *mut f32,
    pixel: usize,
    vector: usize,
}

/// Sums on their way elsewhere, in the first-level cache: vector by vector, pixel by pixel.
#[repr(C, align(64))]
struct Sums(MaybeUninit<[f32; 2 * MOST_PIXELS * WORDS]>);

/// The extents of a tile: pixels of both parts, and whether there are two vectors.
#[derive(Clone, Copy)]
struct Extents {
    pixels: [usize; 2],
    two: bool,
}

/// Distance in bytes.
const fn bytes(elements: usize) -> usize {
    elements * size_of::<f32>()
}

/// Numbers that are kept in bf16, as sums at `to`.
///
/// # Safety
/// As for [`outputs`]; both lead to vectors of all pixels.
#[inline(always)]
unsafe fn widen<T: Tiles>(tiles: &T, from: Kept, to: Place, count: usize, two: bool) {
    for (v, p) in (0..if two { 2 } else { 1 }).flat_map(|v| (0..count).map(move |p| (v, p))) {
        // SAFETY: by contract.
        unsafe {
            let from = from.y.add(v * from.vector + p * from.pixel);
            tiles.widen(from, to.y.add(v * to.vector + p * to.pixel));
        }
    }
}

/// What the sums are set to, where not to 0: the first row, and the distances of parts, vectors and rows.
type Origin = Option<(*const f32, [usize; 3])>;

/// Where sums that are there begin.
fn there(place: Place, pixels: [usize; 2]) -> Origin {
    Some((place.y.cast_const(), [pixels[0] * place.pixel, place.vector, place.pixel]))
}

/// Sets the sums to what lies at `origin`, or to 0.
///
/// # Safety
/// As for [`outputs`], whose shapes are set.
#[inline(always)]
unsafe fn begin<T: Tiles>(tiles: &mut T, origin: Origin, Extents { pixels, two }: Extents) {
    // SAFETY: by contract.
    unsafe {
        let Some((from, [half, vector, distance])) = origin else {
            tiles.zero::<0>();
            if two {
                tiles.zero::<1>();
            }
            if pixels[1] > 0 {
                tiles.zero::<2>();
                if two {
                    tiles.zero::<3>();
                }
            }
            return;
        };
        tiles.load::<0>(from, bytes(distance));
        if two {
            tiles.load::<1>(from.add(vector), bytes(distance));
        }
        if pixels[1] > 0 {
            tiles.load::<2>(from.add(half), bytes(distance));
            if two {
                tiles.load::<3>(from.add(half + vector), bytes(distance));
            }
        }
    }
}

/// Stores all sums.
///
/// # Safety
/// As for [`outputs`], whose shapes are set.
#[inline(always)]
unsafe fn finish<T: Tiles>(tiles: &mut T, Place { y, pixel, vector }: Place, extents: Extents) {
    let Extents { pixels, two } = extents;
    // SAFETY: by contract.
    unsafe {
        tiles.store::<0>(y, bytes(pixel));
        if two {
            tiles.store::<1>(y.add(vector), bytes(pixel));
        }
        if pixels[1] > 0 {
            let y = y.add(pixels[0] * pixel);
            tiles.store::<2>(y, bytes(pixel));
            if two {
                tiles.store::<3>(y.add(vector), bytes(pixel));
            }
        }
    }
}

/// Adds the products of the runs of `words` words.
///
/// # Safety
/// As for [`outputs`], whose shapes are set.
#[inline(always)]
unsafe fn multiply<T: Tiles>(tiles: &mut T, t: &Tile<'_>, words: usize, extents: Extents) {
    let (Extents { pixels, two }, pixel) = (extents, t.x_pixel);
    let width = if two { 2 * WORDS } else { WORDS };
    for run in t.runs.iter().filter(|run| run.len as usize == words) {
        // SAFETY: by contract.
        unsafe {
            let x = t.x.add(run.offset as usize);
            let w = t.w.add(run.first as usize * width);
            tiles.load::<6>(w, bytes(width));
            tiles.load::<4>(x, bytes(pixel));
            tiles.dot::<0, 4, 6>();
            if two {
                tiles.load::<7>(w.add(WORDS), bytes(width));
                tiles.dot::<1, 4, 7>();
            }
            if pixels[1] > 0 {
                tiles.load::<5>(x.add(pixels[0] * pixel), bytes(pixel));
                tiles.dot::<2, 5, 6>();
                if two {
                    tiles.dot::<3, 5, 7>();
                }
            }
        }
    }
}

/// Computes a tile of `pixels` pixels by one or two (`two`) vectors.
///
/// # Safety
/// The CPU and the process have what `tiles` needs; all pointers of `t` lead to what its fields say; all runs but those of
/// one other length have 16 words.
#[inline(always)]
unsafe fn outputs<T: Tiles>(tiles: &mut T, t: &Tile<'_>, pixels: usize, two: bool) {
    let count = pixels;
    let pixels = if count > ROWS { [count.div_ceil(2), count / 2] } else { [count, 0] };
    let extents = Extents { pixels, two };
    let short = t.runs.iter().map(|run| run.len as usize).find(|len| *len != WORDS).unwrap_or(0);
    let full = short == 0 || t.runs.iter().any(|run| run.len as usize == WORDS);
    let mut sums = Sums(MaybeUninit::uninit());
    let place = match t.end {
        End::There => Place { y: t.y, pixel: t.y_pixel, vector: t.y_vector },
        End::Kept(_) => Place { y: sums.0.as_mut_ptr().cast(), pixel: WORDS, vector: count * WORDS },
    };
    let mut widened = Sums(MaybeUninit::uninit());
    // SAFETY: by contract; shapes are those of the runs.
    unsafe {
        let mut origin = match t.start {
            Start::Zero => None,
            // All rows of a bias come from the same place.
            Start::Bias(bias) => Some((bias, [0, WORDS, 0])),
            Start::There => there(Place { y: t.y, pixel: t.y_pixel, vector: t.y_vector }, pixels),
            Start::Kept(kept) => {
                let to = Place { y: widened.0.as_mut_ptr().cast(), pixel: WORDS, vector: count * WORDS };
                widen(tiles, kept, to, count, two);
                there(to, pixels)
            }
        };
        for words in [if full { WORDS } else { 0 }, short].into_iter().filter(|words| *words > 0) {
            tiles.configure(Needs::Outputs { pixels: pixels.map(|p| p as u8), words: words as u8 });
            begin(tiles, origin, extents);
            multiply(tiles, t, words, extents);
            finish(tiles, place, extents);
            origin = there(place, pixels);
        }
        let Place { y, pixel, vector } = place;
        let each = || (0..if two { 2 } else { 1 }).flat_map(|v| (0..count).map(move |p| (v, p)));
        if t.relu {
            for (v, p) in each() {
                rectify(y.add(v * vector + p * pixel));
            }
        }
        if let End::Kept(Kept { y: to, pixel: to_pixel, vector: to_vector }) = t.end {
            for (v, p) in each() {
                tiles.round(y.add(v * vector + p * pixel), to.add(v * to_vector + p * to_pixel));
            }
        }
    }
}

/// Lets a ReLU go over a vector of sums. The instructions have none, and the sums are in the first-level cache.
///
/// # Safety
/// A vector lies at `y`.
#[inline(always)]
unsafe fn rectify(y: *mut f32) {
    // SAFETY: by contract.
    let y = unsafe { &mut *y.cast::<[f32; WORDS]>() };
    y.iter_mut().for_each(|y| *y = rectified(*y, 0.0));
}

/// A tile of `PIXELS` pixels by `VECTORS` vectors, by the instructions.
///
/// # Safety
/// The tier is available; the rest as for [`outputs`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) unsafe fn amxbf16_pixels<const PIXELS: usize, const VECTORS: usize>(t: &Tile<'_>) {
    // SAFETY: by contract.
    unsafe { outputs(&mut Amx, t, PIXELS, VECTORS == 2) }
}

#[cfg(test)]
mod tests;
