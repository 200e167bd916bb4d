//! The tile of outputs in bf16 on AMX: up to 16 pixels by two vectors, all sums in two tile registers.
//!
//! A run of sources is a product of matrices: pixels × words of the strip, whose rows lie a pixel apart, and words ×
//! outputs of the packed weights. Both lie in memory as the instructions want them, in the formats of AVX-512 BF16. A full
//! run has 16 words; a shorter one ends each tap where the channels are no whole pair of blocks, so both shapes have
//! registers of their own.
//!
//! The algorithm stands on [`Tiles`], which the instructions implement and, in tests, a model of them in plain Rust.
//!
//! Shapes are a thread's state. Each call sets and releases them: so no state outlives a call, no other code of the thread
//! meets it, and a system that switches threads saves no tiles between calls. That is one load of 64 bytes beside some
//! twenty products of 16 cycles.

use std::arch::asm;

use super::{End, Start, Tile};
use crate::isa::Isa;
use crate::kernel::elements::rectified;
use crate::kernel::words::word;

/// Rows of a register, and words of one of its rows.
pub(super) const ROWS: usize = 16;
const WORDS: usize = 16;

/// The registers: sums of both vectors, then source and weights of both vectors for full runs, then for short ones.
const SUMS: [usize; 2] = [0, 1];
const FULL: [usize; 3] = [2, 3, 4];
const SHORT: [usize; 3] = [5, 6, 7];

/// The shapes of all registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each register.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// For `pixels` pixels, and short runs of `short` words; 0 if there are none.
    fn new(pixels: usize, short: usize) -> Self {
        let (row_bytes, rows) = ([0; 16], [0; 16]);
        let mut shapes = Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
        let mut set = |register: usize, rows: usize, words: usize| {
            shapes.rows[register] = rows as u8;
            shapes.row_bytes[register] = (words * size_of::<f32>()) as u16;
        };
        SUMS.into_iter().for_each(|register| set(register, pixels, WORDS));
        for ([source, first, second], words) in [(FULL, WORDS), (SHORT, short)] {
            if words > 0 {
                set(source, pixels, words);
                set(first, words, WORDS);
                set(second, words, WORDS);
            }
        }
        shapes
    }
}

/// Tile registers. Registers are numbered from 0 to 7; distances are in bytes.
///
/// # Safety
/// Every method needs a CPU and a process that have the instructions. Registers are used in the shapes that were set, and
/// pointers lead to as many rows, `distance` apart.
pub(super) trait Tiles {
    /// Sets the shapes of all registers.
    unsafe fn configure(&mut self, shapes: &Shapes);
    /// Gives all registers up.
    unsafe fn release(&mut self);
    /// Sets a register to 0.
    unsafe fn zero<const T: usize>(&mut self);
    /// Loads the rows of a register.
    unsafe fn load<const T: usize>(&mut self, from: *const f32, distance: usize);
    /// Adds the product of A, in rows of words, and B, in rows of words that each hold two numbers of one column, to C.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Stores the rows of a register.
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, distance: usize);
}

/// The instructions.
struct Amx;

impl Tiles for Amx {
    #[inline(always)]
    unsafe fn configure(&mut self, shapes: &Shapes) {
        // SAFETY: by the trait's contract; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, readonly, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: by the trait's contract.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
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
}

/// Sets the sums to what they start from.
///
/// # Safety
/// As for [`outputs`], whose shapes are set.
#[inline(always)]
unsafe fn begin<T: Tiles>(tiles: &mut T, t: &Tile<'_>, two: bool) {
    let distance = t.y_pixel * size_of::<f32>();
    // SAFETY: by contract.
    unsafe {
        match t.start {
            Start::Zero => {
                tiles.zero::<0>();
                if two {
                    tiles.zero::<1>();
                }
            }
            Start::Bias(bias) => {
                // All rows from the same place.
                tiles.load::<0>(bias, 0);
                if two {
                    tiles.load::<1>(bias.add(WORDS), 0);
                }
            }
            Start::There => {
                tiles.load::<0>(t.y, distance);
                if two {
                    tiles.load::<1>(t.y.add(t.y_vector), distance);
                }
            }
        }
    }
}

/// Computes a tile of `pixels` pixels, `pixel` elements apart, by one or two (`two`) vectors.
///
/// # Safety
/// The CPU and the process have what `tiles` needs; all pointers of `t` lead to what its fields say; all runs but those of
/// one other length have 16 words.
#[inline(always)]
unsafe fn outputs<T: Tiles>(tiles: &mut T, t: &Tile<'_>, pixels: usize, two: bool, pixel: usize) {
    let bytes = |elements: usize| elements * size_of::<f32>();
    let width = if two { 2 * WORDS } else { WORDS };
    let short = t.runs.iter().map(|run| run.len as usize).find(|len| *len != WORDS).unwrap_or(0);
    // SAFETY: by contract; shapes are those of the runs.
    unsafe {
        tiles.configure(&Shapes::new(pixels, short));
        begin(tiles, t, two);
        for run in t.runs {
            let x = t.x.add(run.offset as usize);
            let w = t.w.add(run.first as usize * width);
            if run.len as usize == WORDS {
                tiles.load::<2>(x, bytes(pixel));
                tiles.load::<3>(w, bytes(width));
                tiles.dot::<0, 2, 3>();
                if two {
                    tiles.load::<4>(w.add(WORDS), bytes(width));
                    tiles.dot::<1, 2, 4>();
                }
            } else {
                debug_assert_eq!(run.len as usize, short, "short runs of two lengths");
                tiles.load::<5>(x, bytes(pixel));
                tiles.load::<6>(w, bytes(width));
                tiles.dot::<0, 5, 6>();
                if two {
                    tiles.load::<7>(w.add(WORDS), bytes(width));
                    tiles.dot::<1, 5, 7>();
                }
            }
        }
        let mut sums = Sums([[0.0; WORDS]; 2 * ROWS]);
        let (y, distances) = match t.end {
            End::There => (t.y, [t.y_pixel, t.y_vector]),
            End::Kept { .. } => (sums.0.as_mut_ptr().cast::<f32>(), [WORDS, ROWS * WORDS]),
        };
        tiles.store::<0>(y, bytes(distances[0]));
        if two {
            tiles.store::<1>(y.add(distances[1]), bytes(distances[0]));
        }
        tiles.release();
        let each = || (0..if two { 2 } else { 1 }).flat_map(|v| (0..pixels).map(move |p| (v, p)));
        if t.relu {
            for (v, p) in each() {
                rectify(y.add(v * distances[1] + p * distances[0]));
            }
        }
        if let End::Kept { y, pixel, vector } = t.end {
            for (v, p) in each() {
                round(&sums.0[v * ROWS + p], y.add(v * vector + p * pixel));
            }
        }
    }
}

/// Sums on their way to bf16, in the first-level cache: vector by vector, pixel by pixel.
#[repr(C, align(64))]
struct Sums([[f32; WORDS]; 2 * ROWS]);

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

/// Rounds a vector of sums.
///
/// # Safety
/// There is room for half as many words at `to`.
#[inline(always)]
unsafe fn round(sums: &[f32; WORDS], to: *mut f32) {
    // SAFETY: by contract.
    let to = unsafe { &mut *to.cast::<[f32; WORDS / 2]>() };
    for (pair, to) in sums.as_chunks::<2>().0.iter().zip(to) {
        *to = word(pair[0], pair[1]);
    }
}

/// A tile of `PIXELS` pixels by `VECTORS` vectors, by the instructions.
///
/// # Safety
/// The tier is available; the rest as for [`outputs`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn amxbf16<const PIXELS: usize, const VECTORS: usize>(t: &Tile<'_>) {
    // SAFETY: by contract.
    unsafe { outputs(&mut Amx, t, PIXELS, VECTORS == 2, WORDS) }
}

/// Products on all registers that sums can have, `rounds` times; returns the operations done (a multiply-add is two).
///
/// # Panics
/// If the CPU or the process does not have the instructions.
pub(crate) fn products(rounds: usize) -> u64 {
    const CHAINS: usize = 5;
    assert!(Isa::AmxBf16.is_available(), "tiles of AMX on a CPU without them");
    // SAFETY: the tier is available, as asserted; with full short runs all registers have the same shape.
    unsafe {
        Amx.configure(&Shapes::new(ROWS, WORDS));
        for _ in 0..rounds {
            Amx.dot::<0, 2, 3>();
            Amx.dot::<1, 2, 3>();
            Amx.dot::<5, 2, 3>();
            Amx.dot::<6, 2, 3>();
            Amx.dot::<7, 2, 3>();
        }
        Amx.release();
    }
    // Two numbers a word.
    (2 * CHAINS * ROWS * WORDS * 2 * WORDS * rounds) as u64
}

#[cfg(test)]
mod tests;
