//! Tiles of a weight's gradient over planes: two of up to 16 sources by two vectors.
//!
//! Sources are the rows of A as they lie, 16 pairs of pixels its words: four products share two registers of sources and
//! two of gradients, so all loads of a step hide behind its products.

use std::mem::MaybeUninit;

use super::super::planes::{AHEAD, PLANES, PlaneTile, STEP};
use super::{Needs, ROWS, Tiles, WORDS, registers};
use crate::kernel::simd::{Avx512Bf16, turn};
use crate::kernel::words::{LANES, Narrow, ZEROS};
use crate::machine::AMX_AWAKE_RUNS;

impl PlaneTile {
    /// Sources whose next sums each step asks for.
    #[inline(always)]
    fn asked_for_in_a_step(&self) -> usize {
        if self.next[0].is_null() { 0 } else { (2 * ROWS).div_ceil(self.steps.max(1)) }
    }

    /// Asks for the next sums of a source.
    #[inline(always)]
    fn ask<T: Tiles>(&self, tiles: &T, source: usize) {
        let (part, of_part) = (source / ROWS, source % ROWS);
        if part < 2 && of_part < self.sources[part] {
            let sums = self.next[part].wrapping_add(of_part * self.dw_source);
            tiles.ask(sums);
            tiles.ask(sums.wrapping_add(WORDS));
        }
    }
}

/// Sets the sums to what is there, or to 0.
///
/// # Safety
/// As for [`planes`], whose shapes are set.
#[inline(always)]
unsafe fn begin<T: Tiles>(tiles: &mut T, t: &PlaneTile) {
    let (dw, both) = (t.dw_source * size_of::<f32>(), t.sources[1] > 0);
    // SAFETY: by contract.
    unsafe {
        if t.add {
            tiles.load::<0>(t.dw[0], dw);
            if t.two {
                tiles.load::<1>(t.dw[0].add(WORDS), dw);
            }
            if both {
                tiles.load::<2>(t.dw[1], dw);
            }
            if both && t.two {
                tiles.load::<3>(t.dw[1].add(WORDS), dw);
            }
        } else {
            tiles.zero::<0>();
            if t.two {
                tiles.zero::<1>();
            }
            if both {
                tiles.zero::<2>();
            }
            if both && t.two {
                tiles.zero::<3>();
            }
        }
    }
}

/// Computes the tiles.
///
/// # Safety
/// The CPU and the process have what `tiles` needs; all pointers of `t` lead to what its fields say.
#[inline(always)]
unsafe fn planes<T: Tiles, const ASKS: bool>(tiles: &mut T, t: &PlaneTile) {
    let [x, dy] = [t.distance * size_of::<u16>(), WORDS * size_of::<f32>()];
    let dw = t.dw_source * size_of::<f32>();
    let both = t.sources[1] > 0;
    // SAFETY: by contract; shapes are those of the tiles.
    unsafe {
        tiles.configure(Needs::Outputs { pixels: t.sources.map(|s| s as u8), words: WORDS as u8 });
        begin(tiles, t);
        let asked = t.asked_for_in_a_step();
        let ahead = t.ahead.unwrap_or([std::ptr::null(); AHEAD]);
        for step in 0..t.steps {
            for source in step * asked..(step + 1) * asked {
                t.ask(tiles, source);
            }
            let at = |x: *const u16| x.wrapping_add(2 * step * STEP).cast::<f32>();
            if ASKS {
                tiles.ask_far(at(ahead[0]));
                tiles.ask_far(at(ahead[1]));
                tiles.ask_far(at(ahead[2]));
                tiles.ask_far(at(ahead[3]));
            }
            let gradients = t.dy.add(step * STEP * WORDS);
            tiles.load::<6>(gradients, dy);
            tiles.load::<4>(at(t.x[0]), x);
            tiles.dot::<0, 4, 6>();
            if t.two {
                tiles.load::<7>(gradients.add(t.dy_vector), dy);
                tiles.dot::<1, 4, 7>();
            }
            if both {
                tiles.load::<5>(at(t.x[1]), x);
                tiles.dot::<2, 5, 6>();
                if t.two {
                    tiles.dot::<3, 5, 7>();
                }
            }
            if step % AMX_AWAKE_RUNS == AMX_AWAKE_RUNS - 1 {
                tiles.stay_awake::<4>();
            }
        }
        tiles.store::<0>(t.dw[0], dw);
        if t.two {
            tiles.store::<1>(t.dw[0].add(WORDS), dw);
        }
        if both {
            tiles.store::<2>(t.dw[1], dw);
        }
        if both && t.two {
            tiles.store::<3>(t.dw[1].add(WORDS), dw);
        }
    }
}

/// The tiles, by the instructions.
///
/// # Safety
/// The tier is available; the rest as for [`PlaneTile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) unsafe fn amxbf16_planes(t: &PlaneTile) {
    // SAFETY: by contract.
    unsafe {
        match t.ahead {
            Some(_) => planes::<_, true>(&mut registers(), t),
            None => planes::<_, false>(&mut registers(), t),
        }
    }
}

/// A square of words on its way round.
#[repr(C, align(64))]
struct Square(MaybeUninit<[f32; STEP * WORDS]>);

/// Copies pixels of a block of channels to planes.
///
/// # Safety
/// The tier is available; the rest as for [`super::super::planes::PlaneKernels::fill`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in super::super) unsafe fn amxbf16_fill(pixels: &[f32], to: *mut u16, distance: usize) {
    const HALF: usize = LANES / 2;
    let (mut pairs, mut turned) = (Square(MaybeUninit::uninit()), Square(MaybeUninit::uninit()));
    let [pairs, turned]: [*mut f32; 2] = [pairs.0.as_mut_ptr().cast(), turned.0.as_mut_ptr().cast()];
    for (step, pixels) in pixels.chunks(STEP * LANES).enumerate() {
        for (i, pair) in pixels.chunks(LANES).enumerate() {
            let second = if pair.len() == LANES { pair[HALF..].as_ptr() } else { ZEROS.as_ptr() };
            // SAFETY: the CPU has the instructions by contract; each has half a vector of words.
            unsafe { Avx512Bf16::pairs_of_words(pair.as_ptr(), second, pairs.add(i * LANES)) }
        }
        let extents = [pixels.len().div_ceil(LANES), WORDS];
        // SAFETY: as many pairs were made; both squares have room, and so have the planes by contract.
        unsafe {
            turn::sixteen(pairs, LANES * size_of::<f32>(), extents, turned);
            for plane in 0..PLANES {
                let to = to.add(plane * distance + 2 * step * STEP);
                std::ptr::copy_nonoverlapping(turned.add(plane * WORDS).cast::<u16>(), to, 2 * STEP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Model, integers};
    use super::*;
    use crate::isa::Isa;
    use crate::kernel::words::halves;

    /// Pixels between sources: odd, so that rows begin anywhere.
    const DISTANCE: usize = 333;

    fn check(kernel: impl Fn(&PlaneTile)) {
        let ((mut x, x_values), (dy, dy_values)) = (integers(2 * PLANES * DISTANCE, 1), integers(4096, 2));
        let x = halves(&mut x).as_ptr();
        for (sources, two, add) in [[16, 16], [16, 3], [5, 0], [1, 16]]
            .into_iter()
            .flat_map(|s| [(false, false), (true, false), (true, true)].map(|(t, a)| (s, t, a)))
        {
            for (steps, first) in [(1, 0), (3, 1), (7, 6)] {
                let (width, dw_source) = (if two { 2 } else { 1 } * WORDS, 2 * WORDS + 3);
                let firsts = [first, PLANES * DISTANCE + first + 1];
                let before = integers(2 * PLANES * dw_source, 3).1;
                let mut dw = before.clone();
                let sums = dw.as_mut_ptr();
                let dy_vector = 2048;
                let dw_ahead = [sums.cast_const(); 2];
                kernel(&PlaneTile {
                    x: firsts.map(|first| x.wrapping_add(first)),
                    sources,
                    distance: DISTANCE,
                    ahead: add.then_some([x; _]),
                    dy: dy.as_ptr(),
                    dy_vector,
                    steps,
                    two,
                    dw: [sums, sums.wrapping_add(PLANES * dw_source)],
                    dw_source,
                    add,
                    next: if add { dw_ahead } else { [std::ptr::null(); 2] },
                });
                let mut expected = before.clone();
                for (i, first) in firsts.into_iter().enumerate() {
                    for (k, o) in (0..sources[i] * width).map(|i| (i / width, i % width)) {
                        let at = (i * PLANES + k) * dw_source + o;
                        let start = if add { before[at] } else { 0.0 };
                        let of = |p: usize| {
                            let gradient = o / WORDS * dy_vector + p / 2 * WORDS + o % WORDS;
                            x_values[first + k * DISTANCE + p] * dy_values[2 * gradient + p % 2]
                        };
                        expected[at] = start + (0..2 * steps * STEP).map(of).sum::<f32>();
                    }
                }
                assert_eq!(dw, expected, "{sources:?}, two vectors {two}, {steps} steps, add {add}");
            }
        }
    }

    #[test]
    fn sums_over_planes_of_the_model() {
        // SAFETY: the model is no CPU; `check` says what its pointers lead to.
        check(|t| unsafe { planes::<_, true>(&mut Model::default(), t) });
    }

    #[test]
    fn sums_over_planes_of_the_instructions() {
        if !Isa::AmxBf16.is_available() {
            println!("skipped: sums over planes: this CPU does not have amxbf16");
            return;
        }
        // SAFETY: the CPU has the tier; `check` says what its pointers lead to.
        check(|t| unsafe { amxbf16_planes(t) });
    }

    #[test]
    fn blocks_become_planes() {
        if !Isa::AmxBf16.is_available() {
            println!("skipped: blocks to planes: this CPU does not have amxbf16");
            return;
        }
        for count in [1, 2, 31, 32, 33, 100] {
            let (mut from, _) = integers(count * LANES / 2, 4);
            let mut to = vec![7u16; PLANES * DISTANCE + 2 * STEP];
            // SAFETY: the CPU has the tier, and whole steps fit behind each plane.
            unsafe { amxbf16_fill(&from, to.as_mut_ptr(), DISTANCE) };
            let from = halves(&mut from);
            for (plane, to) in to.chunks(DISTANCE).take(PLANES).enumerate() {
                for (pixel, to) in to.iter().enumerate() {
                    let written = count.next_multiple_of(2 * STEP);
                    let expected = match pixel {
                        p if p < count => from[p * PLANES + plane],
                        p if p < written => 0,
                        _ => 7,
                    };
                    assert_eq!(*to, expected, "{count} pixels: plane {plane}, pixel {pixel}");
                }
            }
        }
    }
}
