//! How a vector of numbers lies in memory: as f32 or rounded to bf16. Kernels that read and write through [`Stored`]
//! serve both; places and distances are in words of 32 bits, [`Stored::LEN`] of which hold a vector.

use std::marker::PhantomData;

use super::simd::Simd;
use super::vectorised::{Explicit, with_vectors};
use super::words::{LANES, Narrow, Narrowing, with_words};
use crate::isa::{Isa, Precision};

/// How a vector of numbers lies in memory.
///
/// # Safety
/// Every method needs a CPU that has the instructions, and [`Stored::LEN`] words behind the pointer.
pub(crate) trait Stored<S: Simd> {
    /// Words of a vector.
    const LEN: usize;
    unsafe fn load(from: *const f32) -> S::Vector;
    unsafe fn store(to: *mut f32, value: S::Vector);
}

/// As f32.
pub(crate) struct AsF32;
/// As bf16: to nearest, ties to even.
pub(crate) struct AsBf16<N>(PhantomData<N>);

impl<S: Simd> Stored<S> for AsF32 {
    const LEN: usize = S::LANES;
    #[inline(always)]
    unsafe fn load(from: *const f32) -> S::Vector {
        // SAFETY: by contract.
        unsafe { S::load(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: S::Vector) {
        // SAFETY: by contract.
        unsafe { S::store(to, value) }
    }
}

impl<N: Narrow> Stored<N::Registers> for AsBf16<N> {
    const LEN: usize = LANES / 2;
    #[inline(always)]
    unsafe fn load(from: *const f32) -> <N::Registers as Simd>::Vector {
        // SAFETY: by contract.
        unsafe { N::widen(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: <N::Registers as Simd>::Vector) {
        // SAFETY: by contract.
        unsafe { N::narrow(value, to) }
    }
}

/// Where a piece of work reads and writes that no slice can be made of, since other threads have what lies between.
#[derive(Clone, Copy)]
pub(crate) struct Origin(*mut f32);

impl Origin {
    /// # Safety
    /// What the work that gets it says that it reads and writes from here on lies in one array, and while it runs nobody else
    /// touches what it writes, or writes what it reads.
    pub unsafe fn new(first: *mut f32) -> Self {
        Self(first)
    }

    /// The first number.
    pub fn first(self) -> *mut f32 {
        self.0
    }
}

/// A piece of work on vectors that lie in either way. `run` must be `#[inline(always)]`, as must be what it calls.
pub(crate) trait OnStored {
    /// Does the work.
    ///
    /// # Safety
    /// The CPU has the instructions of `S` and of `E`.
    unsafe fn run<S: Simd, E: Stored<S>>(self);
}

/// Runs `work` with the vectors of `isa` on arrays of numbers of `precision`.
///
/// # Panics
/// If the CPU does not have the tier, or the tier has no vectors or not this precision.
pub(crate) fn with_stored(isa: Isa, precision: Precision, work: impl OnStored) {
    struct Plain<W>(W);
    impl<W: OnStored> Explicit for Plain<W> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: by contract.
            unsafe { self.0.run::<S, AsF32>() }
        }
    }
    struct Rounded<W>(W);
    impl<W: OnStored> Narrowing for Rounded<W> {
        #[inline(always)]
        unsafe fn run<N: Narrow>(self) {
            // SAFETY: by contract.
            unsafe { self.0.run::<N::Registers, AsBf16<N>>() }
        }
    }
    match precision {
        Precision::F32 => with_vectors(isa, Plain(work)),
        Precision::Bf16 => with_words(Rounded(work)),
    }
}
