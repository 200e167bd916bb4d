//! The instructions in plain Rust, as their description has them; where a CPU would raise an exception, this panics.

use std::array;

use super::*;
use crate::kernel::elements::rectified;
use crate::kernel::words::{halves_of, widened, word};

/// The registers of a thread.
#[derive(Default)]
pub(super) struct Model {
    needs: Option<Needs>,
    registers: [[[u32; WORDS]; ROWS]; 8],
}

impl Model {
    /// Rows and words of a row.
    fn shape(&self, register: usize) -> [usize; 2] {
        let shapes = self.needs.expect("shapes are set").shapes();
        let (rows, bytes) = (usize::from(shapes.rows[register]), usize::from(shapes.row_bytes[register]));
        assert!((1..=ROWS).contains(&rows) && (1..=64).contains(&bytes) && bytes.is_multiple_of(4));
        [rows, bytes / 4]
    }
}

/// A bf16, of which numbers that are not normal count as 0.
fn number(half: u32) -> f32 {
    let value = f32::from_bits(half << 16);
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { value }
}

type Register = [[u32; WORDS]; ROWS];

/// `sums + a · b`. What lies outside of the shapes of `a` and `b` is 0.
#[inline(always)]
fn products(mut sums: Register, a: &Register, b: &Register) -> Register {
    let b = b.map(|row| [row.map(|word| number(word & 0xffff)), row.map(|word| number(word >> 16))]);
    for (to, a) in sums.iter_mut().zip(a) {
        // Even and odd numbers have sums of their own, which begin with 0. Products of two bf16 are exact.
        let mut halves = [[0.0f32; WORDS]; 2];
        for (a, b) in a.iter().zip(&b) {
            let a = [number(a & 0xffff), number(a >> 16)];
            for half in 0..2 {
                halves[half].iter_mut().zip(&b[half]).for_each(|(sum, b)| *sum += a[half] * b);
            }
        }
        for ((to, even), odd) in to.iter_mut().zip(halves[0]).zip(halves[1]) {
            *to = (f32::from_bits(*to) + (even + odd)).to_bits();
        }
    }
    sums
}

/// The same, which the compiler makes into vectors of 16: the tests of whole layers go through millions of these.
///
/// # Safety
/// The CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
fn products_by_vectors(sums: Register, a: &Register, b: &Register) -> Register {
    products(sums, a, b)
}

impl Tiles for Model {
    unsafe fn configure(&mut self, needs: Needs) {
        let shapes = needs.shapes();
        assert!(shapes.palette == 1 && shapes.start_row == 0 && shapes.reserved == [0; 14]);
        assert!(shapes.rows[8..] == [0; 8] && shapes.row_bytes[8..] == [0; 8], "registers that do not exist");
        assert!(shapes.rows.iter().zip(shapes.row_bytes).all(|(rows, bytes)| (*rows == 0) == (bytes == 0)));
        if self.needs != Some(needs) {
            *self = Self { needs: Some(needs), ..Self::default() };
        }
    }
    unsafe fn zero<const T: usize>(&mut self) {
        self.shape(T);
        self.registers[T] = Default::default();
    }
    unsafe fn load<const T: usize>(&mut self, from: *const f32, distance: usize) {
        let [rows, words] = self.shape(T);
        self.registers[T] = Default::default();
        for (r, row) in self.registers[T].iter_mut().enumerate().take(rows) {
            // SAFETY: by the trait's contract.
            unsafe {
                let from = from.byte_add(r * distance).cast::<u8>();
                from.copy_to_nonoverlapping(row.as_mut_ptr().cast(), words * size_of::<u32>());
            }
        }
    }
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        let [c, a, b] = [C, A, B].map(|register| self.shape(register));
        assert!(C != A && C != B && A != B, "registers are different ones");
        assert!(c == [a[0], b[1]] && a[1] == b[0], "shapes do not agree: {c:?} {a:?} {b:?}");
        let [sums, a, b] = [C, A, B].map(|register| self.registers[register]);
        self.registers[C] = if Isa::Avx512f.is_available() {
            // SAFETY: the CPU has the instructions.
            unsafe { products_by_vectors(sums, &a, &b) }
        } else {
            products(sums, &a, &b)
        };
    }
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, distance: usize) {
        let [rows, words] = self.shape(T);
        for (r, row) in self.registers[T].iter().enumerate().take(rows) {
            // SAFETY: by the trait's contract.
            unsafe {
                let to = to.byte_add(r * distance).cast::<u8>();
                to.copy_from_nonoverlapping(row.as_ptr().cast(), words * size_of::<u32>());
            }
        }
    }
    fn ask(&self, _: *const f32) {}
    fn ask_far(&self, _: *const f32) {}
    unsafe fn leave<const RELU: bool, const SIGN: bool, const KEPT: bool>(
        &self,
        from: *const f32,
        sign: *const f32,
        to: *mut f32,
    ) {
        // SAFETY: by the trait's contract, as all below; the sums may end where they are.
        let mut sums = unsafe { from.cast::<[f32; WORDS]>().read() };
        if RELU {
            sums = sums.map(|sum| rectified(sum, 0.0));
        }
        if SIGN {
            let mut values = [0.0; WORDS];
            // SAFETY: as above.
            unsafe {
                match KEPT {
                    true => self.widen(sign, values.as_mut_ptr()),
                    false => values = sign.cast::<[f32; WORDS]>().read(),
                }
            }
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = if value > 0.0 { *sum } else { 0.0 });
        }
        // SAFETY: as above.
        unsafe {
            match KEPT {
                true => to
                    .cast::<[f32; WORDS / 2]>()
                    .write(array::from_fn(|i| word(sums[2 * i], sums[2 * i + 1]))),
                false => to.cast::<[f32; WORDS]>().write(sums),
            }
        }
    }
    unsafe fn widen(&self, from: *const f32, to: *mut f32) {
        // SAFETY: by the trait's contract.
        let (from, to) = unsafe { (&*from.cast::<[f32; WORDS / 2]>(), &mut *to.cast::<[f32; WORDS]>()) };
        let pairs = from.iter().zip(to.as_chunks_mut::<2>().0);
        pairs.for_each(|(word, pair)| *pair = halves_of(*word).map(widened));
    }
    unsafe fn transpose(&self, from: *const f32, distance: usize, [rows, columns]: [usize; 2], to: *mut f32) {
        for (r, c) in (0..ROWS * WORDS).map(|i| (i / WORDS, i % WORDS)) {
            // SAFETY: by the trait's contract; only what is there is read.
            unsafe {
                let there = r < rows && c < columns;
                to.add(c * WORDS + r).write(match there {
                    true => from.byte_add(r * distance).add(c).read(),
                    false => f32::NAN,
                });
            }
        }
    }
}

/// Words of small integers, none of them 0, and the integers.
#[cfg(test)]
pub(super) fn integers(words: usize, seed: usize) -> (Vec<f32>, Vec<f32>) {
    let values: Vec<f32> = (0..2 * words)
        .map(|i| {
            let value = ((i * 7 + seed * 13 + i / 5) % 9) as f32 - 4.0;
            if value == 0.0 { 5.0 } else { value }
        })
        .collect();
    use crate::kernel::words::{halves, rounded};
    let mut packed = vec![0.0; words];
    halves(&mut packed).iter_mut().zip(&values).for_each(|(half, value)| *half = rounded(*value));
    (packed, values)
}
