//! The instructions where a CPU has them, and else their [`Model`]: so that tests of whole layers and nets go through this
//! tier on a CPU without tiles.

use std::cell::RefCell;

use super::model::Model;
use super::{Amx, Needs, Tiles};

/// The registers of this thread.
pub(super) enum Registers {
    /// Those of the CPU.
    Real(Amx),
    /// Those of the thread's model.
    Emulated,
}

/// Those that the process uses.
#[inline(always)]
pub(super) fn registers() -> Registers {
    if crate::isa::tiles_are_emulated() { Registers::Emulated } else { Registers::Real(Amx) }
}

thread_local! {
    static MODEL: RefCell<Model> = RefCell::default();
}

/// The same method of either.
macro_rules! either {
    ($registers:expr, $tiles:ident, $call:expr) => {
        match $registers {
            // SAFETY: by the contract of the trait, which is that of both.
            Registers::Real($tiles) => unsafe { $call },
            Registers::Emulated => MODEL.with_borrow_mut(|$tiles| {
                // SAFETY: as above.
                unsafe { $call }
            }),
        }
    };
}

impl Tiles for Registers {
    #[inline(always)]
    unsafe fn configure(&mut self, needs: Needs) {
        either!(self, tiles, tiles.configure(needs));
    }
    #[inline(always)]
    unsafe fn zero<const T: usize>(&mut self) {
        either!(self, tiles, tiles.zero::<T>());
    }
    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const f32, distance: usize) {
        either!(self, tiles, tiles.load::<T>(from, distance));
    }
    #[inline(always)]
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        either!(self, tiles, tiles.dot::<C, A, B>());
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, distance: usize) {
        either!(self, tiles, tiles.store::<T>(to, distance));
    }
    #[inline(always)]
    fn ask(&self, address: *const f32) {
        Amx.ask(address);
    }
    #[inline(always)]
    fn ask_far(&self, address: *const f32) {
        Amx.ask_far(address);
    }
    #[inline(always)]
    unsafe fn leave<const RELU: bool, const SIGN: bool, const KEPT: bool>(
        &self,
        from: *const f32,
        sign: *const f32,
        to: *mut f32,
    ) {
        // SAFETY: vectors of AVX-512 BF16, which a CPU has that emulates tiles.
        unsafe { Amx.leave::<RELU, SIGN, KEPT>(from, sign, to) }
    }
    #[inline(always)]
    unsafe fn widen(&self, from: *const f32, to: *mut f32) {
        // SAFETY: as above.
        unsafe { Amx.widen(from, to) }
    }
    #[inline(always)]
    unsafe fn transpose(&self, from: *const f32, distance: usize, extents: [usize; 2], to: *mut f32) {
        // SAFETY: as above.
        unsafe { Amx.transpose(from, distance, extents, to) }
    }
}
