//! The tile of outputs on AMX: up to 32 pixels by two vectors.
//!
//! Pixels are the rows of A, in two registers if there are more than 16: four products of a step then share two registers
//! of sources and two of weights, which are as many products as hide each other's latency. Narrow rows of an image come by
//! twos, so that weights serve both. Runs have 16 words, and a shorter length where the channels are no whole pair of
//! blocks; the shapes of registers change between them, so full runs come first.
//!
//! A tile sees all sources at once, so that its sums go to memory once. Its weights are then more than the first-level cache
//! holds: 2 KiB a run, for which four products leave 64 cycles. They come from the second level line by line between the
//! products of the run before, and so do the sources that no earlier run of the tile saw: some 43 lines on average in
//! a kernel of 3x3.

use std::mem::MaybeUninit;

use super::super::{End, Kept, Start, Tile};
use super::{Needs, ROWS, Tiles, WORDS, registers};
use crate::kernel::elements::rectified;
use crate::kernel::words::widened;

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

/// Vector by vector, pixel by pixel: the place of a vector of numbers in two arrays, in elements.
#[inline(always)]
fn each_vector(
    Extents { pixels, two }: Extents,
    places: [Place; 2],
) -> impl Iterator<Item = (*mut f32, *mut f32)> {
    let parts = move |v| [0, 1].into_iter().map(move |part| (v, part));
    let pixels = move |(v, part): (usize, usize)| (0..pixels[part]).map(move |p| (v, part, p));
    (0..if two { 2 } else { 1 }).flat_map(parts).flat_map(pixels).map(move |(v, part, p)| {
        let at = |to: Place| to.y.wrapping_add(v * to.vector + part * to.second + p * to.pixel);
        (at(places[0]), at(places[1]))
    })
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

/// Quarters of what a run asks for ahead: one behind each of its products.
const ASKED: usize = 4;

/// What the tile reads next: asked for in quarters, so that the requests of a run are under way one after the other.
#[derive(Clone, Copy)]
struct Ahead {
    weights: *const f32,
    /// Lines of the weights of a quarter.
    lines: usize,
    /// Sources of both parts, and pixels of each part.
    sources: [*const f32; 2],
    pixels: [usize; 2],
}

impl Ahead {
    /// What the run behind run `i` reads. Behind the last comes the first again, of the next tile, whose sources are unknown.
    #[inline(always)]
    fn of(t: &Tile<'_>, i: usize, second: usize, Extents { pixels, two }: Extents) -> Self {
        let (run, next) = (&t.runs[i], t.runs.get(i + 1));
        let width = if two { 2 * WORDS } else { WORDS };
        let weights = t.w.wrapping_add(next.unwrap_or(&t.runs[0]).first as usize * width);
        let lines = width / ASKED;
        let Some(next) = next else {
            return Self { weights, lines, sources: [t.x; 2], pixels: [0; 2] };
        };
        // A tap that is a few pixels further on, or back, sees most of what this one sees.
        let distance = next.offset.abs_diff(run.offset) as usize;
        // Without a division where pixels are as near as can be, which is nearly everywhere.
        let new = if t.x_pixel == WORDS { distance.div_ceil(WORDS) } else { distance.div_ceil(t.x_pixel) };
        let new = pixels.map(|count| count.min(new));
        let first = t.x.wrapping_add(next.offset as usize);
        let seen = |part: usize| if next.offset > run.offset { pixels[part] - new[part] } else { 0 };
        let source = |part: usize| first.wrapping_add(part * second + seen(part) * t.x_pixel);
        Self { weights, lines, sources: [source(0), source(1)], pixels: new }
    }

    /// Asks for a quarter.
    #[inline(always)]
    fn ask<T: Tiles>(&self, tiles: &T, pixel: usize, quarter: usize) {
        for line in 0..self.lines {
            tiles.ask(self.weights.wrapping_add((quarter * self.lines + line) * WORDS));
        }
        // One half of the quarters for each part.
        let (part, half) = (quarter / 2, quarter % 2);
        let count = self.pixels[part];
        for p in count * half / 2..count * (half + 1) / 2 {
            tiles.ask(self.sources[part].wrapping_add(p * pixel));
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
    let second = t.below.map_or(pixels[0] * pixel, |below| below.x);
    for (i, run) in t.runs.iter().enumerate().filter(|(_, run)| run.len as usize == words) {
        let ahead = Ahead::of(t, i, second, extents);
        // SAFETY: by contract.
        unsafe {
            let x = t.x.add(run.offset as usize);
            let w = t.w.add(run.first as usize * width);
            tiles.load::<6>(w, bytes(width));
            tiles.load::<4>(x, bytes(pixel));
            tiles.dot::<0, 4, 6>();
            ahead.ask(tiles, pixel, 0);
            if two {
                tiles.load::<7>(w.add(WORDS), bytes(width));
                tiles.dot::<1, 4, 7>();
            }
            ahead.ask(tiles, pixel, 1);
            if pixels[1] > 0 {
                tiles.load::<5>(x.add(second), bytes(pixel));
                tiles.dot::<2, 5, 6>();
            }
            ahead.ask(tiles, pixel, 2);
            if pixels[1] > 0 && two {
                tiles.dot::<3, 5, 7>();
            }
            ahead.ask(tiles, pixel, 3);
            for line in i * t.ahead_lines..(i + 1) * t.ahead_lines {
                tiles.ask_far(t.ahead.wrapping_add(line * WORDS));
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
    let pixels = match (t.below, pixels) {
        (None, ..=ROWS) => [pixels, 0],
        _ => [pixels.div_ceil(2), pixels / 2],
    };
    let extents = Extents { pixels, two };
    let short = t.runs.iter().map(|run| run.len as usize).find(|len| *len != WORDS).unwrap_or(0);
    let full = short == 0 || t.runs.iter().any(|run| run.len as usize == WORDS);
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
                for (from, to) in each_vector(extents, [Place::kept(kept, t, pixels), to]) {
                    tiles.widen(from, to);
                }
                there(to)
            }
        };
        for words in [if full { WORDS } else { 0 }, short].into_iter().filter(|words| *words > 0) {
            tiles.configure(Needs::Outputs { pixels: pixels.map(|p| p as u8), words: words as u8 });
            begin(tiles, origin, extents);
            multiply(tiles, t, words, extents);
            finish(tiles, place, extents);
            origin = there(place);
        }
        if t.relu {
            each_vector(extents, [place; 2]).for_each(|(y, _)| rectify(y));
        }
        if let Some(sign) = t.sign {
            let_pass(t, [place, Place::sign(sign, t, pixels)], extents);
        }
        if let End::Kept(kept) = t.end {
            for (from, to) in each_vector(extents, [place, Place::kept(kept, t, pixels)]) {
                tiles.round(from, to);
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

/// Lets the sums at the first place pass for which a ReLU's values at the second are above 0, and makes the others 0.
///
/// # Safety
/// The sums and the values of the tile lie there.
#[inline(always)]
unsafe fn let_pass(t: &Tile<'_>, places: [Place; 2], extents: Extents) {
    for (y, sign) in each_vector(extents, places) {
        // SAFETY: by contract.
        unsafe {
            let y = &mut *y.cast::<[f32; WORDS]>();
            match t.end {
                End::There => pass(y, |i| (*sign.cast::<[f32; WORDS]>())[i]),
                End::Kept(_) => pass(y, |i| widened((*sign.cast::<[u16; WORDS]>())[i])),
            }
        }
    }
}

#[inline(always)]
fn pass(y: &mut [f32; WORDS], sign: impl Fn(usize) -> f32) {
    for (i, y) in y.iter_mut().enumerate() {
        *y = if sign(i) > 0.0 { *y } else { 0.0 };
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
