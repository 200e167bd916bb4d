//! A number as it lies in memory: an f32, or a bf16 in half of a word. Plain loops over slices of either compute in f32:
//! what they read is widened in the loop, and what they write is rounded a few vectors at a time.

use std::mem::MaybeUninit;

use super::vectorised::{Vectorised, on};
use super::words::{Narrow, Narrowing, round_vectors, rounded, widen_vectors, widened, with_words};
use crate::isa::{Isa, Precision};

/// A number as it lies in memory. All methods but `on` are `#[inline(always)]`, as what they are given must be.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// How it is kept.
    const PRECISION: Precision;
    /// Most numbers that [`Element::write`] takes.
    const RUN: usize;

    /// The numbers of an array's words.
    ///
    /// # Panics
    /// If the CPU does not have the instructions for them.
    fn of(words: &[f32]) -> &[Self];

    /// The numbers of an array's words, to be changed.
    ///
    /// # Panics
    /// As [`Element::of`].
    fn of_mut(words: &mut [f32]) -> &mut [Self];

    /// The number in f32.
    fn wide(self) -> f32;

    /// `to[i] ← value(i, to[i])`.
    fn write(to: &mut [Self], value: impl Fn(usize, f32) -> f32);

    /// `to ← from`, as many.
    fn widen(from: &[Self], to: &mut [f32]);

    /// `to ← from`, as many, each rounded to nearest, ties to even.
    fn round(from: &[f32], to: &mut [Self]);

    /// Runs loops over such numbers as compiled for `isa`.
    ///
    /// # Panics
    /// If the CPU does not have the tier.
    fn on(isa: Isa, work: impl Vectorised);

    /// Elements of scratch with which [`Element::staged`] and [`Element::changed`] take this many numbers.
    fn scratch(numbers: usize) -> usize;

    /// `work` writes numbers in several steps, all in f32: in their place, or in scratch and then rounded once. What it
    /// finds there has no meaning.
    fn staged(to: &mut [Self], scratch: &mut [f32], work: impl FnOnce(&mut [f32]));

    /// The same, for work that changes the numbers that are there.
    fn changed(to: &mut [Self], scratch: &mut [f32], work: impl FnOnce(&mut [f32]));
}

impl Element for f32 {
    const PRECISION: Precision = Precision::F32;
    const RUN: usize = usize::MAX;

    #[inline(always)]
    fn of(words: &[f32]) -> &[f32] {
        words
    }
    #[inline(always)]
    fn of_mut(words: &mut [f32]) -> &mut [f32] {
        words
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    // By an iterator, what `value` indexes would be checked at each step.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    fn write(to: &mut [f32], value: impl Fn(usize, f32) -> f32) {
        for i in 0..to.len() {
            to[i] = value(i, to[i]);
        }
    }
    #[inline(always)]
    fn widen(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    #[inline(always)]
    fn round(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    fn on(isa: Isa, work: impl Vectorised) {
        on(isa, work);
    }
    fn scratch(_: usize) -> usize {
        0
    }
    fn staged(to: &mut [f32], _: &mut [f32], work: impl FnOnce(&mut [f32])) {
        work(to);
    }
    fn changed(to: &mut [f32], _: &mut [f32], work: impl FnOnce(&mut [f32])) {
        work(to);
    }
}

/// A bf16. Whoever has one has shown that the CPU has the instructions for it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Half(u16);

impl Half {
    fn check() {
        assert!(Isa::Avx512Bf16.is_available(), "words of bf16 on a CPU without them");
    }
}

impl Element for Half {
    const PRECISION: Precision = Precision::Bf16;
    const RUN: usize = 512;

    fn of(words: &[f32]) -> &[Half] {
        Self::check();
        // SAFETY: a word is two halves without padding, every value of which is allowed, and halves need less alignment;
        // on the little-endian machines that have these instructions the lower half comes first.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 2 * words.len()) }
    }
    fn of_mut(words: &mut [f32]) -> &mut [Half] {
        Self::check();
        // SAFETY: as in `of`.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 2 * words.len()) }
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        widened(self.0)
    }
    /// By way of the first-level cache, since no loop is made of the instruction that rounds.
    #[inline(always)]
    fn write(to: &mut [Half], value: impl Fn(usize, f32) -> f32) {
        let mut numbers = [const { MaybeUninit::<f32>::uninit() }; Self::RUN];
        let count = to.len();
        let numbers = &mut numbers[..count];
        for i in 0..count {
            numbers[i].write(value(i, to[i].wide()));
        }
        // SAFETY: all of them have just been written.
        Self::round(unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }, to);
    }
    #[inline(always)]
    fn widen(from: &[Half], to: &mut [f32]) {
        assert!(from.len() == to.len(), "as many numbers");
        // SAFETY: the CPU has the instructions, since there are halves.
        let done = unsafe { widen_vectors(from.as_ptr().cast(), to) };
        for (to, from) in to[done..].iter_mut().zip(&from[done..]) {
            *to = from.wide();
        }
    }
    #[inline(always)]
    fn round(from: &[f32], to: &mut [Half]) {
        assert!(from.len() == to.len(), "as many numbers");
        // SAFETY: as in `widen`.
        let done = unsafe { round_vectors(from, to.as_mut_ptr().cast()) };
        for (to, from) in to[done..].iter_mut().zip(&from[done..]) {
            to.0 = rounded(*from);
        }
    }
    fn on(_: Isa, work: impl Vectorised) {
        with_words(Plain(work));
    }
    fn scratch(numbers: usize) -> usize {
        numbers
    }
    fn staged(to: &mut [Half], scratch: &mut [f32], work: impl FnOnce(&mut [f32])) {
        let numbers = &mut scratch[..to.len()];
        work(numbers);
        with_words(Plain(Rounded { from: numbers, to }));
    }
    fn changed(to: &mut [Half], scratch: &mut [f32], work: impl FnOnce(&mut [f32])) {
        let numbers = &mut scratch[..to.len()];
        with_words(Plain(Widened { from: to, to: numbers }));
        Self::staged(to, numbers, work);
    }
}

/// Plain loops, compiled for the tier of bf16.
struct Plain<W>(W);

impl<W: Vectorised> Narrowing for Plain<W> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        self.0.run();
    }
}

struct Rounded<'a> {
    from: &'a [f32],
    to: &'a mut [Half],
}

impl Vectorised for Rounded<'_> {
    #[inline(always)]
    fn run(self) {
        Half::round(self.from, self.to);
    }
}

struct Widened<'a> {
    from: &'a [Half],
    to: &'a mut [f32],
}

impl Vectorised for Widened<'_> {
    #[inline(always)]
    fn run(self) {
        Half::widen(self.from, self.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::words::halves_of;

    /// Numbers of many sizes, some of them halfway between two of bf16, and what no number is.
    fn numbers(count: usize) -> Vec<f32> {
        let special = [
            f32::NAN,
            f32::INFINITY,
            -f32::MAX,
            f32::MIN_POSITIVE / 2.0,
            -0.0,
            1.0 + 1.0 / 256.0,
            1.0 + 3.0 / 256.0,
        ];
        let other = |i: usize| (i as f32 - 7.3) * 1.37f32.powi((i % 40) as i32 - 20);
        (0..count).map(|i| if i % 5 == 3 { special[i / 5 % special.len()] } else { other(i) }).collect()
    }

    fn same(found: &[f32], expected: &[f32], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (at, (f, e)) in found.iter().zip(expected).enumerate() {
            assert!(
                f.to_bits() == e.to_bits() || (f.is_nan() && e.is_nan()),
                "at {at}: {f:e}, not {e:e}: {what}"
            );
        }
    }

    fn wide(words: &[f32]) -> Vec<f32> {
        words.iter().flat_map(|word| halves_of(*word)).map(widened).collect()
    }

    /// `y ← 3 y − x`, in one pass.
    struct Pass<'a, E> {
        x: &'a [E],
        y: &'a mut [E],
    }

    impl<E: Element> Vectorised for Pass<'_, E> {
        #[inline(always)]
        fn run(self) {
            let x = self.x;
            E::write(self.y, |i, y| 3.0 * y - x[i].wide());
        }
    }

    #[test]
    fn halves_are_computed_in_f32_and_rounded_once() {
        if !Isa::Avx512Bf16.is_available() {
            println!("skipped: numbers in bf16: this CPU does not have avx512bf16");
            return;
        }
        for words in [0, 1, 7, 8, 9, 16, 24, 40, 255, 256] {
            let (mut x, mut y) = (vec![0.0; words], vec![0.0; words]);
            Half::round(&numbers(2 * words), Half::of_mut(&mut x));
            let stored: Vec<f32> = numbers(2 * words).iter().map(|v| widened(rounded(*v))).collect();
            same(&wide(&x), &stored, "rounded");
            let mut back = vec![0.0; 2 * words];
            Half::widen(Half::of(&x), &mut back);
            same(&back, &stored, "widened");

            let reversed: Vec<f32> = numbers(2 * words).into_iter().rev().collect();
            Half::round(&reversed, Half::of_mut(&mut y));
            let start = wide(&y);
            let keep = |number: f32| widened(rounded(number));
            let expected: Vec<f32> = start.iter().zip(&stored).map(|(y, x)| keep(3.0 * y - x)).collect();
            Half::on(Isa::Avx512Bf16, Pass { x: Half::of(&x), y: Half::of_mut(&mut y) });
            same(&wide(&y), &expected, "a pass");

            // A step between that bf16 would round, and numbers that were there or were not.
            let mut scratch = vec![f32::NAN; Half::scratch(2 * words)];
            Half::staged(Half::of_mut(&mut y), &mut scratch, |numbers| {
                numbers.copy_from_slice(&stored);
                numbers.iter_mut().for_each(|v| *v += 1.0 / 512.0);
                numbers.iter_mut().for_each(|v| *v *= 3.0);
            });
            let staged: Vec<f32> = stored.iter().map(|v| keep((v + 1.0 / 512.0) * 3.0)).collect();
            same(&wide(&y), &staged, "staged");
            Half::changed(Half::of_mut(&mut y), &mut scratch, |numbers| {
                numbers.iter_mut().for_each(|v| *v /= 3.0);
            });
            let changed: Vec<f32> = staged.iter().map(|v| keep(v / 3.0)).collect();
            same(&wide(&y), &changed, "changed");
        }
    }
}
