//! Weights of 1×1 kernels as words of two neighbouring sources: all of a tile at once, without the steps that taps need.

use crate::kernel::simd::{Simd, Square};
use crate::kernel::words::{LANES, Narrow, Narrowing, Neighbours, Pairs};

/// Sources that are rounded together: what one target has of them is some cache lines, read one after the other.
const TOGETHER: usize = 128;

/// A tile of weights.
pub(super) struct Pointwise<'a> {
    /// From the weight of the tile's first target and source 0 on.
    pub weights: &'a [f32],
    pub sources: usize,
    /// Elements between neighbouring sources, and between neighbouring targets: one of both is 1.
    pub steps: [usize; 2],
    /// Targets of the tile, and how many it has room for; those that it lacks become 0.
    pub lanes: usize,
    pub width: usize,
    /// A row of targets for each word of sources.
    pub packed: &'a mut [f32],
    /// [`Pointwise::scratch`] elements.
    pub scratch: &'a mut [f32],
}

impl Pointwise<'_> {
    /// Elements of scratch for tiles of `width` targets.
    pub fn scratch(sources: usize, width: usize) -> usize {
        (sources.min(TOGETHER).div_ceil(2) * width).max(2 * width)
    }

    /// Targets lie side by side: two rows of them become a row of words.
    ///
    /// # Safety
    /// The CPU has the instructions of `N`.
    #[inline(always)]
    unsafe fn pair<N: Narrow>(self) {
        let Self { weights, sources, steps, lanes, width, packed, scratch } = self;
        let (first, second) = scratch.split_at_mut(width);
        for (word, to) in packed.chunks_exact_mut(width).take(sources.div_ceil(2)).enumerate() {
            let row = |source: usize| {
                if source < sources { &weights[source * steps[0]..][..lanes] } else { &[] }
            };
            let a = filled(row(2 * word), &mut first[..width]);
            let b = filled(row(2 * word + 1), &mut second[..width]);
            // SAFETY: by contract.
            unsafe { Pairs { a, b, to }.run::<N>() }
        }
    }

    /// Sources lie side by side: they are rounded target by target, and their words turned round.
    ///
    /// # Safety
    /// The CPU has the instructions of `N`.
    #[inline(always)]
    unsafe fn turn<N: Narrow>(self) {
        let Self { weights, sources, steps, lanes, width, packed, scratch } = self;
        let mut square = Square([0.0; _]);
        for first in (0..sources).step_by(TOGETHER) {
            let count = TOGETHER.min(sources - first);
            let words = count.div_ceil(2);
            for (lane, to) in scratch.chunks_exact_mut(words).take(lanes).enumerate() {
                let from = &weights[lane * steps[1] + first..][..count];
                // SAFETY: by contract.
                unsafe { Neighbours { from, to }.run::<N>() }
            }
            let rows = &mut packed[first / 2 * width..][..words * width];
            for lane in (0..lanes).step_by(LANES) {
                let lanes = LANES.min(lanes - lane);
                for word in (0..words).step_by(LANES) {
                    let count = LANES.min(words - word);
                    let from = &scratch[lane * words + word..][..(lanes - 1) * words + count];
                    // SAFETY: by contract; the rows of words lie in `from`.
                    unsafe { N::Registers::turn(from.as_ptr(), words, [lanes, count], &mut square) }
                    let rows = rows[word * width..].chunks_exact_mut(width);
                    for (to, row) in rows.zip(square.0.chunks_exact(LANES).take(count)) {
                        to[lane..lane + LANES].copy_from_slice(row);
                    }
                }
            }
        }
    }
}

/// A row that is as long as the buffer, or empty; any other is copied there and filled up with zeros.
fn filled<'a>(row: &'a [f32], buffer: &'a mut [f32]) -> &'a [f32] {
    if row.is_empty() || row.len() == buffer.len() {
        return row;
    }
    let (copy, padding) = buffer.split_at_mut(row.len());
    copy.copy_from_slice(row);
    padding.fill(0.0);
    buffer
}

impl Narrowing for Pointwise<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        // SAFETY: by contract.
        unsafe { if self.steps[1] == 1 { self.pair::<N>() } else { self.turn::<N>() } }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::kernel::words::{with_words, word};

    #[test]
    fn words_are_of_neighbouring_sources() {
        if !crate::isa::Isa::Avx512Bf16.is_available() {
            println!("skipped: weights as words: this CPU does not have avx512bf16");
            return;
        }
        for (sources, lanes, width) in [(1, 1, 16), (7, 5, 16), (48, 32, 32), (300, 20, 32), (257, 32, 32)] {
            for by_target in [false, true] {
                let steps = if by_target { [1, sources + 3] } else { [lanes + 3, 1] };
                let weight = |source: usize, lane: usize| (1 + (source * 37 + lane * 11) % 251) as f32;
                let mut weights = vec![f32::NAN; (sources + 3) * (lanes + 3)];
                for (source, lane) in (0..sources).flat_map(|s| (0..lanes).map(move |l| (s, l))) {
                    weights[source * steps[0] + lane * steps[1]] = weight(source, lane);
                }
                let mut packed = vec![f32::NAN; sources.div_ceil(2) * width];
                let mut scratch = vec![f32::NAN; Pointwise::scratch(sources, width)];
                let (weights, scratch) = (&weights[..], &mut scratch[..]);
                with_words(Pointwise { weights, sources, steps, lanes, width, packed: &mut packed, scratch });
                for (i, found) in packed.iter().enumerate() {
                    let (source, lane) = (2 * (i / width), i % width);
                    let value = |s: usize| if s < sources && lane < lanes { weight(s, lane) } else { 0.0 };
                    let expected = word(value(source), value(source + 1));
                    let what = format!("word {i} of {sources} sources, {lanes} targets, {by_target}");
                    assert_eq!(found.to_bits(), expected.to_bits(), "{what}");
                }
            }
        }
    }
}
