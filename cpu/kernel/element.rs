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
    #[inline(always)]
    fn write(to: &mut [f32], value: impl Fn(usize, f32) -> f32) {
        // Not by an iterator: then what `value` indexes is checked at each step.
        let count = to.len();
        for i in 0..count {
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
