//! The register tiles in bf16 on AMX: [`outputs`] of up to 32 pixels by two vectors, [`gradient`]s of up to 16 sources by
//! two vectors, and those of up to 32 sources that lie in [`planes`]. All sums of a call stay in tile registers.
//!
//! A register holds up to 16 rows of 16 words. A product of two adds `A · B` to a third: rows of A by words, words by
//! vectors of B, two numbers a word. The sources and the packed weights of the formats of AVX-512 BF16 lie in memory as
//! outputs want them: the rows of A are pixels. Of a gradient they are sources, which lie side by side, so its A is turned
//! round on the way.
//!
//! The algorithms stand on [`Tiles`], which the instructions implement and, in tests, a model of them in plain Rust. With the
//! feature `emulated-amx` whole programs run on that model where they are asked to and the CPU has no tiles.
//!
//! The shapes of registers are a thread's state. They outlive a call, so that the next one of the same shapes need not set
//! them: that costs as much as a dozen products. Nothing else in a thread of this program uses tiles.

#[cfg(feature = "emulated-amx")]
mod emulated;
mod gradient;
#[cfg(any(test, feature = "emulated-amx"))]
mod model;
mod outputs;
mod planes;
mod unfold;

use std::arch::asm;
use std::cell::Cell;
use std::mem::MaybeUninit;

pub(super) use gradient::{MOST_SOURCES, amxbf16_sources};
pub(super) use outputs::{MOST_PIXELS, amxbf16_pixels};
pub(super) use planes::{amxbf16_fill, amxbf16_planes};
pub(super) use unfold::amxbf16_unfold;

use crate::isa::Isa;
use crate::kernel::simd::{Avx512Bf16, Avx512f, Simd};
use crate::kernel::words::Narrow;

/// Rows of a register, and words of one of its rows.
const ROWS: usize = 16;
const WORDS: usize = 16;

/// The shapes of all registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each register.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// What the registers of a call are for; a part that is not used has the length 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Sums of two parts of the pixels by two vectors in 0 to 3, sources of both parts in 4 and 5, weights of both vectors in
    /// 6 and 7.
    Outputs { pixels: [u8; 2], words: u8 },
    /// Sums of sources by two vectors in 0 and 1; sources and gradients of both vectors in 4, 6 and 7 for full runs of
    /// pixels, in 2, 3 and 5 for short ones.
    Gradient { sources: u8, short: u8 },
}

impl Needs {
    fn shapes(self) -> Shapes {
        let (row_bytes, rows) = ([0; 16], [0; 16]);
        let mut shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
        let mut set = |registers: &[usize], rows: u8, words: u8| {
            for register in registers.iter().filter(|_| rows > 0 && words > 0) {
                shapes.rows[*register] = rows;
                shapes.row_bytes[*register] = u16::from(words) * size_of::<f32>() as u16;
            }
        };
        const FULL: u8 = WORDS as u8;
        match self {
            Self::Outputs { pixels, words } => {
                set(&[0, 1], pixels[0], FULL);
                set(&[2, 3], pixels[1], FULL);
                set(&[4], pixels[0], words);
                set(&[5], pixels[1], words);
                set(&[6, 7], words, FULL);
            }
            Self::Gradient { sources, short } => {
                set(&[0, 1, 4], sources, FULL);
                set(&[6, 7], FULL, FULL);
                set(&[2], sources, short);
                set(&[3, 5], short, FULL);
            }
        }
        shapes
    }
}

/// Tile registers, numbered from 0 to 7, and what the algorithms need of vectors; distances are in bytes.
///
/// # Safety
/// Every method needs a CPU and a process that have the instructions. Registers are used in the shapes that were set, and
/// pointers lead to as many rows, `distance` apart.
trait Tiles {
    /// Sets the shapes of all registers. What they held is lost if that changes any.
    unsafe fn configure(&mut self, needs: Needs);
    /// Sets a register to 0.
    unsafe fn zero<const T: usize>(&mut self);
    /// Loads the rows of a register, which need not be aligned.
    unsafe fn load<const T: usize>(&mut self, from: *const f32, distance: usize);
    /// Adds the product of A, in rows of words, and B, in rows of words that each hold two numbers of one column, to C.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Stores the rows of a register.
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, distance: usize);
    /// Keeps what stores registers awake, by a store of this one: to be called every [`crate::machine::AMX_AWAKE_RUNS`] runs of
    /// products that nothing else stores between.
    ///
    /// # Safety
    /// As for [`Self::store`], of a register of at most [`WORDS`] words.
    #[inline(always)]
    unsafe fn stay_awake<const T: usize>(&mut self) {
        let mut nowhere = Nowhere(MaybeUninit::uninit());
        // SAFETY: by contract; there is room for a whole register.
        unsafe { self.store::<T>(nowhere.0.as_mut_ptr().cast(), WORDS * size_of::<f32>()) }
    }
    /// Asks for the line of an address, which need not exist, to be in the first-level cache.
    fn ask(&self, address: *const f32);
    /// The same for the second-level cache.
    fn ask_far(&self, address: *const f32);
    /// Takes a vector of sums to where they end: through a ReLU, through the backward of a ReLU, whose values are at `sign`, and rounded to
    /// bf16, half as many words. The values are kept as the sums are.
    unsafe fn leave<const RELU: bool, const SIGN: bool, const KEPT: bool>(
        &self,
        from: *const f32,
        sign: *const f32,
        to: *mut f32,
    );
    /// The numbers of half a vector of words.
    unsafe fn widen(&self, from: *const f32, to: *mut f32);
    /// Turns `rows` rows of `columns` words round: word r of row c at `to` is word c of row r at `from`. Rows lie [`WORDS`]
    /// words apart at `to`, which is a whole line of the cache, and all [`ROWS`] are written, with anything where nothing was.
    unsafe fn transpose(&self, from: *const f32, distance: usize, extents: [usize; 2], to: *mut f32);
}

/// Where a register goes whose numbers nobody wants.
#[repr(C, align(64))]
struct Nowhere(MaybeUninit<[f32; ROWS * WORDS]>);

/// The instructions.
struct Amx;

/// The registers of this thread.
#[cfg(not(feature = "emulated-amx"))]
#[inline(always)]
fn registers() -> Amx {
    Amx
}

#[cfg(feature = "emulated-amx")]
use emulated::registers;

thread_local! {
    /// What the shapes of the thread's registers were set for.
    static SET: Cell<Option<Needs>> = const { Cell::new(None) };
}

impl Tiles for Amx {
    #[inline(always)]
    unsafe fn configure(&mut self, needs: Needs) {
        if SET.get() != Some(needs) {
            // SAFETY: by the trait's contract; 64 bytes are read.
            unsafe {
                asm!("ldtilecfg [{}]", in(reg) &needs.shapes(), options(nostack, readonly, preserves_flags));
            }
            SET.set(Some(needs));
        }
    }
    #[inline(always)]
    unsafe fn zero<const T: usize>(&mut self) {
        // SAFETY: by the trait's contract; no code that the compiler makes uses tile registers.
        unsafe { asm!("tilezero tmm{}", const T, options(nostack, nomem, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const f32, distance: usize) {
        // SAFETY: as above; the rows can be read.
        unsafe {
            asm!("tileloadd tmm{}, [{} + {} * 1]", const T, in(reg) from, in(reg) distance,
                options(nostack, readonly, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: as above.
        unsafe {
            asm!("tdpbf16ps tmm{}, tmm{}, tmm{}", const C, const A, const B,
                options(nostack, nomem, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, distance: usize) {
        // SAFETY: as above; the rows can be written.
        unsafe {
            asm!("tilestored [{} + {} * 1], tmm{}", in(reg) to, in(reg) distance, const T,
                options(nostack, preserves_flags));
        }
    }
    #[inline(always)]
    fn ask(&self, address: *const f32) {
        Avx512f::prefetch(address);
    }
    #[inline(always)]
    fn ask_far(&self, address: *const f32) {
        Avx512f::prefetch_far(address);
    }
    #[inline(always)]
    unsafe fn leave<const RELU: bool, const SIGN: bool, const KEPT: bool>(
        &self,
        from: *const f32,
        sign: *const f32,
        to: *mut f32,
    ) {
        // SAFETY: a CPU with AMX has AVX-512 BF16; a vector lies at `from` and at `sign`, and there is room.
        unsafe {
            let mut sums = Avx512f::load(from);
            if RELU {
                sums = Avx512f::rectified(sums);
            }
            if SIGN {
                let values = if KEPT { Avx512Bf16::widen(sign) } else { Avx512f::load(sign) };
                sums = Avx512f::passed(sums, values);
            }
            if KEPT {
                Avx512Bf16::narrow(sums, to);
            } else {
                Avx512f::store(to, sums);
            }
        }
    }
    #[inline(always)]
    unsafe fn widen(&self, from: *const f32, to: *mut f32) {
        // SAFETY: as above; half a vector of words lies at `from`.
        unsafe { Avx512f::store(to, Avx512Bf16::widen(from)) }
    }
    #[inline(always)]
    unsafe fn transpose(&self, from: *const f32, distance: usize, extents: [usize; 2], to: *mut f32) {
        // SAFETY: a CPU with AMX has AVX-512 F; the rest by the trait's contract.
        unsafe { crate::kernel::simd::turn::sixteen(from, distance, extents, to) }
    }
}

/// Products on all registers that sums can have, `rounds` times; returns the operations done (a multiply-add is two).
///
/// # Panics
/// If the CPU or the process does not have the instructions.
pub(crate) fn products(rounds: usize) -> u64 {
    const CHAINS: usize = 4;
    assert!(Isa::AmxBf16.is_available(), "tiles of AMX on a CPU without them");
    // SAFETY: the tier is available, as asserted; all registers have the same shape.
    unsafe {
        let mut tiles = registers();
        tiles.configure(Needs::Outputs { pixels: [ROWS as u8; 2], words: WORDS as u8 });
        for _ in 0..rounds {
            tiles.dot::<0, 4, 6>();
            tiles.dot::<1, 4, 7>();
            tiles.dot::<2, 5, 6>();
            tiles.dot::<3, 5, 7>();
        }
    }
    // Two numbers a word.
    (2 * CHAINS * ROWS * WORDS * 2 * WORDS * rounds) as u64
}
