//! A vector register of an instruction set: the few operations from which every kernel is made.

#[cfg(target_arch = "x86_64")]
pub(crate) mod turn;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512Bf16, Avx512f, interleaved, narrowed};

use super::stored::{AsF32, Stored};

/// A vector register of an instruction set.
///
/// # Safety
/// Every method needs a CPU that has the instruction set; loads and stores need `LANES` elements behind the
/// pointer.
pub(crate) trait Simd {
    /// The register.
    type Vector: Copy;
    /// Floats in it.
    const LANES: usize;
    unsafe fn zero() -> Self::Vector;
    unsafe fn splat(value: f32) -> Self::Vector;
    unsafe fn load(from: *const f32) -> Self::Vector;
    unsafe fn store(to: *mut f32, value: Self::Vector);
    /// Stores past the caches, whose lines are not read before: `to` is aligned to a vector. Other threads see it after [`settle`].
    unsafe fn store_past(to: *mut f32, value: Self::Vector);
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Asks for the cache line of an address, which need not exist.
    fn prefetch(address: *const f32);
    /// The same for the second-level cache. More of these can be under way, since none waits for a place in the first.
    fn prefetch_far(address: *const f32);
    unsafe fn divide(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Where `value > than`, `(value, tap)`; elsewhere `(than, from)`. A NaN is not greater than anything.
    unsafe fn greater(
        value: Self::Vector,
        than: Self::Vector,
        tap: Self::Vector,
        from: Self::Vector,
    ) -> (Self::Vector, Self::Vector);
    /// `value` where `a == b`, elsewhere 0.
    unsafe fn where_equal(a: Self::Vector, b: Self::Vector, value: Self::Vector) -> Self::Vector;
    /// `x` above 0, elsewhere `0 · x`: what is not a number stays so.
    #[inline(always)]
    unsafe fn rectified(x: Self::Vector) -> Self::Vector {
        // SAFETY: by the trait's contract.
        unsafe {
            let (_, passes) = Self::greater(x, Self::zero(), Self::splat(1.0), Self::zero());
            Self::fused(x, passes, Self::zero())
        }
    }
    /// The backward of a ReLU: a gradient where the ReLU's value is above 0, elsewhere 0.
    #[inline(always)]
    unsafe fn passed(gradient: Self::Vector, value: Self::Vector) -> Self::Vector {
        // SAFETY: by the trait's contract.
        unsafe { Self::greater(value, Self::zero(), gradient, Self::zero()).1 }
    }
    /// Small whole numbers from `LANES` bytes.
    unsafe fn load_bytes(from: *const u8) -> Self::Vector;
    /// Whole numbers below 256 to `LANES` bytes.
    unsafe fn store_bytes(to: *mut u8, value: Self::Vector);
    unsafe fn subtract(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn multiply(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a·b + c`, rounded once.
    unsafe fn fused(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    unsafe fn root(a: Self::Vector) -> Self::Vector;
    /// For each element the sum of itself and two neighbours on either side, added up from the first to the last, in a row of which
    /// `before`, `here` and `behind` are three vectors.
    unsafe fn five(before: Self::Vector, here: Self::Vector, behind: Self::Vector) -> Self::Vector;
    /// Turns a square round: row `r` of `rows` begins at `from + r · distance` and has `columns` elements, neither more than
    /// `LANES`; vector `c` at `to` becomes their elements `c`. Rows and columns that are missing become 0.
    unsafe fn turn(from: *const f32, distance: usize, extents: [usize; 2], to: &mut Square);
}

/// Waits for what this thread has stored past the caches, so that what it tells other threads comes later.
pub(crate) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every CPU of x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Room for the square of any tier: a vector for each of its rows, one after the other.
#[repr(C, align(64))]
pub(crate) struct Square(pub [f32; 256]);

/// How words of 32 bits are multiplied: a number in f32, or a pair of numbers in bf16.
///
/// # Safety
/// Every method needs a CPU that has the instruction set; pointers lead to what the method says.
pub(crate) trait Product {
    /// The registers of words and of sums.
    type Registers: Simd;
    /// How arrays keep numbers that are multiplied.
    type Kept: Stored<Self::Registers>;
    /// Numbers of a word.
    const IN_WORD: usize;
    /// Words of numbers that follow each other in memory: a vector for each number of a word lies behind `from`.
    unsafe fn along(from: *const f32) -> Vector<Self>;
    /// Words of numbers that lie `row` elements apart: a vector lies at `from` and at each following number of a word.
    unsafe fn across(from: *const f32, row: usize) -> Vector<Self>;
    /// `sum + a·b`, number by number; both products of a pair go into one sum.
    unsafe fn add(a: Vector<Self>, b: Vector<Self>, sum: Vector<Self>) -> Vector<Self>;
}

/// A register of a product's words.
pub(crate) type Vector<P> = <<P as Product>::Registers as Simd>::Vector;

impl<S: Simd> Product for S {
    type Registers = S;
    type Kept = AsF32;
    const IN_WORD: usize = 1;
    #[inline(always)]
    unsafe fn along(from: *const f32) -> S::Vector {
        // SAFETY: by the trait's contract.
        unsafe { S::load(from) }
    }
    #[inline(always)]
    unsafe fn across(from: *const f32, _: usize) -> S::Vector {
        // SAFETY: by the trait's contract.
        unsafe { S::load(from) }
    }
    #[inline(always)]
    unsafe fn add(a: S::Vector, b: S::Vector, sum: S::Vector) -> S::Vector {
        // SAFETY: by the trait's contract.
        unsafe { S::fused(a, b, sum) }
    }
}
