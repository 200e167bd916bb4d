//! Words of two bf16, made from f32: what products of bf16 work on. A word is kept as the f32 with the same 32 bits, so
//! that arrays, workspaces and offsets are those of f32 kernels; the number that comes first is in the lower half.
//!
//! Rounding is to nearest, ties to even. What is below the smallest normal number becomes 0, as the products themselves
//! take it.

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{round_vectors, widen_vectors, with_words};

use super::simd::{Product, Simd};

/// Runs `work` on a CPU without the instructions.
///
/// # Panics
/// Always: bf16 is refused where a CPU has none.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn with_words(work: impl Narrowing) {
    drop(work);
    panic!("words of bf16 on a CPU without them");
}

/// Without the instructions there are no vectors of halves.
///
/// # Safety
/// As with the instructions.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn round_vectors(_from: &[f32], _to: *mut u16) -> usize {
    0
}

/// Without the instructions there are no vectors of halves.
///
/// # Safety
/// As with the instructions.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn widen_vectors(_from: *const u16, _to: &mut [f32]) -> usize {
    0
}

/// Numbers and words of a vector.
pub(crate) const LANES: usize = 16;

/// A vector of zeros, for what lies outside of an array.
pub(crate) const ZEROS: [f32; LANES] = [0.0; LANES];

/// What turns vectors of f32 into words.
///
/// # Safety
/// Every method needs a CPU that has the instructions, [`LANES`] numbers behind each of `a` and `b`, and room for as many
/// words at `to`; nothing needs to be aligned.
pub(crate) trait Narrow {
    /// The registers of numbers.
    type Registers: Simd;
    /// How words are multiplied.
    type Products: Product<Registers = Self::Registers>;
    /// Neighbours share a word: those of `a` first, then those of `b`.
    unsafe fn neighbours(a: *const f32, b: *const f32, to: *mut f32);
    /// Each number of `a` shares a word with that of `b` in the same place.
    unsafe fn pairs(a: *const f32, b: *const f32, to: *mut f32);
    /// The same of registers.
    unsafe fn words(a: Numbers<Self>, b: Numbers<Self>, to: *mut f32);
    /// The same of numbers that are rounded already: half a vector of words of each.
    unsafe fn pairs_of_words(a: *const f32, b: *const f32, to: *mut f32);
    /// The numbers of half a vector of words, whose neighbours shared a word.
    unsafe fn widen(from: *const f32) -> Numbers<Self>;
    /// Neighbours of a vector share a word: half as many words.
    unsafe fn narrow(value: Numbers<Self>, to: *mut f32);
    /// The same of `a` and, behind it, of `b`.
    unsafe fn behind(a: Numbers<Self>, b: Numbers<Self>, to: *mut f32);
    /// Each number becomes the first of a word whose second is 0.
    unsafe fn first(value: Numbers<Self>, to: *mut f32);
    /// Each number becomes the second of a word that is there and has none.
    unsafe fn second(value: Numbers<Self>, to: *mut f32);
}

/// A register of what becomes words.
pub(crate) type Numbers<N> = <<N as Narrow>::Registers as Simd>::Vector;

/// A piece of work that makes words. `run` must be `#[inline(always)]`, as must be what it calls.
pub(crate) trait Narrowing {
    /// Does the work.
    ///
    /// # Safety
    /// The CPU has the instructions of `N`.
    unsafe fn run<N: Narrow>(self);
}

/// The bits of the bf16 that is nearest to `value`.
pub(crate) fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // Quiet, whatever is cut off.
        return (bits >> 16) as u16 | 0x40;
    }
    if value.abs() < f32::MIN_POSITIVE {
        return (bits >> 16) as u16 & 0x8000;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The word of two numbers.
pub(crate) fn word(first: f32, second: f32) -> f32 {
    f32::from_bits(u32::from(rounded(first)) | u32::from(rounded(second)) << 16)
}

/// The number whose bf16 has these bits.
pub(crate) fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The halves of a word, in the order of the numbers.
pub(crate) fn halves_of(word: f32) -> [u16; 2] {
    let bits = word.to_bits();
    [bits as u16, (bits >> 16) as u16]
}

/// The halves of words, in the order of the numbers.
#[cfg(test)]
pub(crate) fn halves(words: &mut [f32]) -> &mut [u16] {
    // SAFETY: a word is two halves without padding, every value of which is allowed, and halves need less alignment; on
    // the little-endian machines that have these kernels the lower half comes first.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 2 * words.len()) }
}

/// Neighbours of `from` share a word; an odd last number shares one with 0.
pub(crate) struct Neighbours<'a> {
    /// The numbers.
    pub from: &'a [f32],
    /// Half as many words.
    pub to: &'a mut [f32],
}

impl Narrowing for Neighbours<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        let Self { from, to } = self;
        assert!(from.len().div_ceil(2) <= to.len(), "no room for all words");
        let whole = from.len() / (2 * LANES);
        for i in 0..whole {
            // SAFETY: the CPU has the instructions by contract; two whole vectors lie in `from`, and `to` has room.
            unsafe {
                let a = from.as_ptr().add(2 * LANES * i);
                N::neighbours(a, a.add(LANES), to.as_mut_ptr().add(LANES * i));
            }
        }
        let rest = &from[2 * LANES * whole..];
        for (i, pair) in rest.chunks(2).enumerate() {
            to[LANES * whole + i] = word(pair[0], pair.get(1).copied().unwrap_or(0.0));
        }
    }
}

/// Neighbours that shared a word, as numbers.
pub(crate) struct Widened<'a> {
    /// The words.
    pub from: &'a [f32],
    /// Twice as many numbers.
    pub to: &'a mut [f32],
}

impl Narrowing for Widened<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        let Self { from, to } = self;
        assert!(to.len() == 2 * from.len(), "two numbers a word");
        let (vectors, rest) = from.as_chunks::<{ LANES / 2 }>();
        for (i, words) in vectors.iter().enumerate() {
            // SAFETY: the CPU has the instructions by contract; half a vector of words becomes a vector of numbers, and
            // there are twice as many.
            unsafe {
                let numbers = N::widen(words.as_ptr());
                N::Registers::store(to.as_mut_ptr().add(LANES * i), numbers);
            }
        }
        for (word, to) in rest.iter().zip(to[LANES * vectors.len()..].chunks_exact_mut(2)) {
            to.copy_from_slice(&halves_of(*word).map(widened));
        }
    }
}

/// Numbers of `a` and of `b` in the same place share a word; those that `b` lacks are 0.
pub(crate) struct Pairs<'a> {
    /// The first of each word.
    pub a: &'a [f32],
    /// The second of each word: as many as `a` or none.
    pub b: &'a [f32],
    /// As many words.
    pub to: &'a mut [f32],
}

impl Narrowing for Pairs<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        let Self { a, b, to } = self;
        assert!(to.len() >= a.len() && (b.is_empty() || b.len() == a.len()), "pairs of other lengths");
        let whole = a.len() / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            // SAFETY: the CPU has the instructions by contract; a whole vector lies in each array from `i` on.
            unsafe {
                let second = if b.is_empty() { ZEROS.as_ptr() } else { b.as_ptr().add(i) };
                N::pairs(a.as_ptr().add(i), second, to.as_mut_ptr().add(i));
            }
        }
        for i in whole..a.len() {
            to[i] = word(a[i], b.get(i).copied().unwrap_or(0.0));
        }
    }
}

#[cfg(test)]
mod tests;
