//! How transformed values are stored: in f32, or rounded to bf16 in the words that products read.

use std::marker::PhantomData;

use crate::isa::Isa;
use crate::kernel::simd::Simd;
use crate::kernel::stored::{AsBf16, AsF32, Stored};
use crate::kernel::vectorised::{Explicit, with_vectors};
use crate::kernel::words::{Narrow, Narrowing, with_words};

/// How transformed values are stored, tile by tile in a row: in bf16 if the planes that they come from are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// A vector of f32 for each tile.
    Numbers,
    /// In bf16: half a vector of words for each tile, in the half of a vector where the row begins.
    Channels,
    /// In bf16: a vector of words for each pair of tiles. The second of a pair must come after the first.
    Tiles,
}

/// Of what two values can be stored together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Together {
    Nothing,
    /// Neighbouring tiles, the first of an even number.
    Tiles,
    /// Planes whose rows are the halves of vectors.
    Planes,
}

/// One of [`Store`], known when kernels are compiled.
pub(super) trait Put<S: Simd> {
    /// Of what two values can be stored together.
    const TOGETHER: Together;
    /// Elements up to the end of tile `count - 1` of a row.
    fn room(count: usize) -> usize;
    /// Stores the value of a tile.
    ///
    /// # Safety
    /// The CPU has the instructions of `S` and of `Self`; the row has room.
    unsafe fn put(row: *mut f32, tile: usize, value: S::Vector);
    /// Stores the value of a tile and that which can be stored with it.
    ///
    /// # Safety
    /// As [`Put::put`], for both; there is something that can be stored together.
    unsafe fn put_pair(row: *mut f32, tile: usize, pair: [S::Vector; 2]);
}

pub(super) struct Numbers;
pub(super) struct Channels<N>(PhantomData<N>);
pub(super) struct Tiles<N>(PhantomData<N>);

impl<S: Simd> Put<S> for Numbers {
    const TOGETHER: Together = Together::Nothing;
    fn room(count: usize) -> usize {
        count * S::LANES
    }
    #[inline(always)]
    unsafe fn put(row: *mut f32, tile: usize, value: S::Vector) {
        // SAFETY: by contract.
        unsafe { S::store(row.add(tile * S::LANES), value) }
    }
    #[inline(always)]
    unsafe fn put_pair(row: *mut f32, tile: usize, [value, _]: [S::Vector; 2]) {
        // SAFETY: by contract.
        unsafe { <Self as Put<S>>::put(row, tile, value) }
    }
}

impl<N: Narrow> Put<N::Registers> for Channels<N> {
    const TOGETHER: Together = Together::Planes;
    fn room(count: usize) -> usize {
        count * N::Registers::LANES - N::Registers::LANES / 2
    }
    #[inline(always)]
    unsafe fn put(row: *mut f32, tile: usize, value: <N::Registers as Simd>::Vector) {
        // SAFETY: by contract.
        unsafe { N::narrow(value, row.add(tile * N::Registers::LANES)) }
    }
    #[inline(always)]
    unsafe fn put_pair(row: *mut f32, tile: usize, [value, next]: [<N::Registers as Simd>::Vector; 2]) {
        // SAFETY: by contract.
        unsafe { N::behind(value, next, row.add(tile * N::Registers::LANES)) }
    }
}

impl<N: Narrow> Put<N::Registers> for Tiles<N> {
    const TOGETHER: Together = Together::Tiles;
    fn room(count: usize) -> usize {
        count.div_ceil(2) * N::Registers::LANES
    }
    #[inline(always)]
    unsafe fn put(row: *mut f32, tile: usize, value: <N::Registers as Simd>::Vector) {
        // SAFETY: by contract.
        unsafe {
            let to = row.add(tile / 2 * N::Registers::LANES);
            if tile.is_multiple_of(2) { N::first(value, to) } else { N::second(value, to) }
        }
    }
    #[inline(always)]
    unsafe fn put_pair(row: *mut f32, tile: usize, [value, next]: [<N::Registers as Simd>::Vector; 2]) {
        // SAFETY: by contract.
        unsafe { N::words(value, next, row.add(tile / 2 * N::Registers::LANES)) }
    }
}

/// What is transformed and stored in one of several ways.
pub(super) trait Transform {
    /// # Safety
    /// The CPU has the instructions of `S`, of `E` and of `P`.
    unsafe fn transform<S: Simd, E: Stored<S>, P: Put<S>>(self);
}

/// Transforms planes on a tier and stores what comes out, both in bf16 or both in f32.
pub(super) fn transform(isa: Isa, store: Store, work: impl Transform) {
    struct Plain<T>(T);
    impl<T: Transform> Explicit for Plain<T> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: by contract.
            unsafe { self.0.transform::<S, AsF32, Numbers>() }
        }
    }
    struct InChannels<T>(T);
    impl<T: Transform> Narrowing for InChannels<T> {
        #[inline(always)]
        unsafe fn run<N: Narrow>(self) {
            // SAFETY: by contract.
            unsafe { self.0.transform::<N::Registers, AsBf16<N>, Channels<N>>() }
        }
    }
    struct InTiles<T>(T);
    impl<T: Transform> Narrowing for InTiles<T> {
        #[inline(always)]
        unsafe fn run<N: Narrow>(self) {
            // SAFETY: by contract.
            unsafe { self.0.transform::<N::Registers, AsBf16<N>, Tiles<N>>() }
        }
    }
    match store {
        Store::Numbers => with_vectors(isa, Plain(work)),
        Store::Channels => with_words(InChannels(work)),
        Store::Tiles => with_words(InTiles(work)),
    }
}
