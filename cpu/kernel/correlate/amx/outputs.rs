//! The tile of outputs on AMX: up to 32 pixels by two vectors.
//!
//! Pixels are the rows of A, in two registers if there are more than 16: four products of a step then share two registers
//! of sources and two of weights, which are as many products as hide each other's latency. Narrow rows of an image come by
//! twos, so that weights serve both. Runs have 16 words, and a shorter length where the channels are no whole pair of
//! blocks; the shapes of registers change between them, so full runs come first.
//!
//! A tile sees all sources at once, so that its sums go to memory once. Its weights are then more than the first-level cache
//! holds: 2 KiB a run, for which four products leave 64 cycles. The CPU itself begins loads so far ahead that they come from the
//! second level in time; asking for them cost a twentieth more than it saved (Granite Rapids). What stores registers falls asleep
//! while nothing is stored, so long tiles store one now and then ([`AMX_AWAKE_RUNS`]).

use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::{End, Kept, Start, Tile};
use super::{Needs, ROWS, Tiles, WORDS, registers};
use crate::machine::{AMX_AWAKE_RUNS, AMX_FEW_RUNS};

/// Most pixels of a tile.
pub(in super::super) const MOST_PIXELS: usize = 2 * ROWS;

/// Where the sums of pixel 0 and the first vector lie, and the distances of pixels, of vectors and of the second part of
/// the pixels, in elements.
#[derive(Clone, Copy)]
struct Place {
    y: *mut f32,
    pixel: usize,
    vector: usize,
    second: usize,
}

impl Place {
    /// An array of numbers that are kept.
    #[inline(always)]
    fn kept(kept: Kept, t: &Tile<'_>, pixels: [usize; 2]) -> Self {
        let second = t.below.map_or(pixels[0] * kept.pixel, |below| below.kept);
        Self { y: kept.y, pixel: kept.pixel, vector: kept.vector, second }
    }

    /// The sums where the tile has them.
    #[inline(always)]
    fn sums(t: &Tile<'_>, pixels: [usize; 2]) -> Self {
        let second = t.below.map_or(pixels[0] * t.y_pixel, |below| below.y);
        Self { y: t.y, pixel: t.y_pixel, vector: t.y_vector, second }
    }

    /// A ReLU's values, which lie as what the sums end in.
    #[inline(always)]
    fn sign(sign: *const f32, t: &Tile<'_>, pixels: [usize; 2]) -> Self {
        let lies = match t.end {
            End::There => Self::sums(t, pixels),
            End::Kept(kept) => Self::kept(kept, t, pixels),
        };
        Self { y: sign.cast_mut(), ..lies }
    }

    /// Sums on their way elsewhere.
    #[inline(always)]
    fn between(sums: &mut Sums, pixels: [usize; 2]) -> Self {
        let vector = (pixels[0] + pixels[1]) * WORDS;
        Self { y: sums.0.as_mut_ptr().cast(), pixel: WORDS, vector, second: pixels[0] * WORDS }
    }
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

/// What the sums are set to, where not to 0: the first row, and the distances of parts, vectors and rows.
type Origin = Option<(*const f32, [usize; 3])>;

/// Where sums that are there begin.
fn there(place: Place) -> Origin {
    Some((place.y.cast_const(), [place.second, place.vector, place.pixel]))
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
unsafe fn finish<T: Tiles>(tiles: &mut T, Place { y, pixel, vector, second }: Place, extents: Extents) {
    let Extents { pixels, two } = extents;
    // SAFETY: by contract.
    unsafe {
        tiles.store::<0>(y, bytes(pixel));
        if two {
            tiles.store::<1>(y.add(vector), bytes(pixel));
        }
        if pixels[1] > 0 {
            let y = y.add(second);
            tiles.store::<2>(y, bytes(pixel));
            if two {
                tiles.store::<3>(y.add(vector), bytes(pixel));
            }
        }
    }
}

/// Asks for the lines to which the sums of the next tile of as many pixels leave, since what is written must be read first: tiles of a row
/// follow each other, and so do rows. A tile of many runs hides that anyway, and is slower with it.
#[inline(always)]
fn ask_behind<T: Tiles>(tiles: &T, t: &Tile<'_>, Extents { pixels, two }: Extents) {
    let End::Kept(kept) = t.end else { return };
    if t.runs.len() > AMX_FEW_RUNS {
        return;
    }
    let distance = (pixels[0] + pixels[1]) * kept.pixel;
    for v in 0..if two { 2 } else { 1 } {
        let first = kept.y.wrapping_add(v * kept.vector + distance);
        (0..distance).step_by(WORDS).for_each(|line| tiles.ask_far(first.wrapping_add(line)));
    }
}

/// Adds the products of runs of as many words.
///
/// # Safety
/// As for [`outputs`], whose shapes are set.
#[inline(always)]
unsafe fn multiply<T: Tiles>(tiles: &mut T, t: &Tile<'_>, runs: Range<usize>, extents: Extents) {
    let (Extents { pixels, two }, pixel) = (extents, bytes(t.x_pixel));
    let width = if two { 2 * WORDS } else { WORDS };
    let second = t.below.map_or(pixels[0] * t.x_pixel, |below| below.x);
    // Whoever asks for nothing asks for what is there.
    let (mut ahead, lines) = if t.ahead_lines > 0 { (t.ahead, t.ahead_lines) } else { (t.w, 0) };
    ahead = ahead.wrapping_add(runs.start * lines * WORDS);
    for runs in t.runs[runs].chunks(AMX_AWAKE_RUNS) {
        for run in runs {
            // SAFETY: by contract.
            unsafe {
                let x = t.x.add(run.offset as usize);
                let w = t.w.add(run.first as usize * width);
                tiles.load::<6>(w, bytes(width));
                tiles.load::<4>(x, pixel);
                tiles.dot::<0, 4, 6>();
                if two {
                    tiles.load::<7>(w.add(WORDS), bytes(width));
                    tiles.dot::<1, 4, 7>();
                }
                if pixels[1] > 0 {
                    tiles.load::<5>(x.add(second), pixel);
                    tiles.dot::<2, 5, 6>();
                    if two {
                        tiles.dot::<3, 5, 7>();
                    }
                }
            }
            tiles.ask_far(ahead);
            for line in 1..lines {
                tiles.ask_far(ahead.wrapping_add(line * WORDS));
            }
            ahead = ahead.wrapping_add(lines * WORDS);
        }
        if runs.len() == AMX_AWAKE_RUNS {
            // SAFETY: sources are no wider than a register.
            unsafe { tiles.stay_awake::<4>() }
        }
    }
}

/// Computes a tile of `pixels` pixels by one or two (`two`) vectors.
///
/// # Safety
/// The CPU and the process have what `tiles` needs; all pointers of `t` lead to what its fields say; all runs have 16 words but the last
/// ones, which have one other length.
#[inline(always)]
unsafe fn outputs<T: Tiles>(tiles: &mut T, t: &Tile<'_>, pixels: usize, two: bool) {
    let pixels = match (t.below, pixels) {
        (None, ..=ROWS) => [pixels, 0],
        _ => [pixels.div_ceil(2), pixels / 2],
    };
    let extents = Extents { pixels, two };
    // Of no run at all, sums are what they start from.
    let full = t.runs.partition_point(|run| run.len as usize == WORDS);
    let short = t.runs.get(full).map_or(0, |run| run.len as usize);
    let mut sums = Sums(MaybeUninit::uninit());
    let place = match t.end {
        End::There => Place::sums(t, pixels),
        End::Kept(_) => Place::between(&mut sums, pixels),
    };
    let mut begun = Sums(MaybeUninit::uninit());
    // SAFETY: by contract; shapes are those of the runs.
    unsafe {
        let mut origin = match t.start {
            Start::Zero => None,
            // All rows of a bias come from the same place.
            Start::Bias(bias) => Some((bias, [0, WORDS, 0])),
            Start::There => there(Place::sums(t, pixels)),
            Start::Kept(kept) => {
                let to = Place::between(&mut begun, pixels);
                let from = Place::kept(kept, t, pixels);
                for ([mut y, mut end], pixels) in parts(extents, [from, to]) {
                    for _ in 0..pixels {
                        tiles.widen(y, end);
                        (y, end) = (y.wrapping_add(from.pixel), end.wrapping_add(to.pixel));
                    }
                }
                there(to)
            }
        };
        ask_behind(tiles, t, extents);
        let lengths = [(WORDS, 0..full), (short, full..t.runs.len())];
        let none = t.runs.is_empty();
        for (words, runs) in lengths.into_iter().filter(|(w, runs)| !runs.is_empty() || none && *w == WORDS) {
            tiles.configure(Needs::Outputs { pixels: pixels.map(|p| p as u8), words: words as u8 });
            begin(tiles, origin, extents);
            multiply(tiles, t, runs, extents);
            finish(tiles, place, extents);
            origin = there(place);
        }
        leave(tiles, t, place, extents);
    }
}

/// Where the vectors of each part of each vector begin in several arrays, and how many pixels it has.
#[inline(always)]
fn parts<const N: usize>(
    Extents { pixels, two }: Extents,
    places: [Place; N],
) -> impl Iterator<Item = ([*mut f32; N], usize)> {
    (0..if two { 4 } else { 2 }).map(move |i| {
        let (v, part) = (i / 2, i % 2);
        (places.map(|place| place.y.wrapping_add(v * place.vector + part * place.second)), pixels[part])
    })
}

/// Takes the sums at `from` to where they end, through what goes over them. The instructions on tiles do nothing of it, and the sums are
/// in the first-level cache.
///
/// # Safety
/// As for [`outputs`], whose sums lie at `from`.
#[inline(always)]
unsafe fn leave<T: Tiles>(tiles: &T, t: &Tile<'_>, from: Place, extents: Extents) {
    // SAFETY: by contract.
    unsafe {
        match (t.relu, t.sign.is_some(), t.end) {
            (false, false, End::There) => {}
            (false, false, End::Kept(_)) => leave_by::<T, false, false, true>(tiles, t, from, extents),
            (true, false, End::There) => leave_by::<T, true, false, false>(tiles, t, from, extents),
            (true, false, End::Kept(_)) => leave_by::<T, true, false, true>(tiles, t, from, extents),
            (false, true, End::There) => leave_by::<T, false, true, false>(tiles, t, from, extents),
            (false, true, End::Kept(_)) => leave_by::<T, false, true, true>(tiles, t, from, extents),
            (true, true, End::There) => leave_by::<T, true, true, false>(tiles, t, from, extents),
            (true, true, End::Kept(_)) => leave_by::<T, true, true, true>(tiles, t, from, extents),
        }
    }
}

/// [`leave`], each case a loop of its own.
///
/// # Safety
/// As for [`leave`].
#[inline(always)]
unsafe fn leave_by<T: Tiles, const RELU: bool, const SIGN: bool, const KEPT: bool>(
    tiles: &T,
    t: &Tile<'_>,
    from: Place,
    extents: Extents,
) {
    let to = match t.end {
        End::There => from,
        End::Kept(kept) => Place::kept(kept, t, extents.pixels),
    };
    let sign = t.sign.map_or(to, |sign| Place::sign(sign, t, extents.pixels));
    // No closure does the work: it would not be compiled for the tier, and each instruction would be a call.
    for ([mut y, mut values, mut end], pixels) in parts(extents, [from, sign, to]) {
        for _ in 0..pixels {
            // SAFETY: by contract.
            unsafe { tiles.leave::<RELU, SIGN, KEPT>(y, values, end) }
            y = y.wrapping_add(from.pixel);
            (values, end) = (values.wrapping_add(sign.pixel), end.wrapping_add(to.pixel));
        }
    }
}

/// A tile of `PIXELS` pixels by `VECTORS` vectors, by the instructions.
///
/// # Safety
/// The tier is available; the rest as for [`outputs`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) unsafe fn amxbf16_pixels<const PIXELS: usize, const VECTORS: usize>(t: &Tile<'_>) {
    // SAFETY: by contract.
    unsafe { outputs(&mut registers(), t, PIXELS, VECTORS == 2) }
}

#[cfg(test)]
mod tests;
