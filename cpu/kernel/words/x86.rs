//! Words by the instructions of AVX-512 BF16.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{LANES, Narrow, Narrowing};
use crate::isa::Isa;
use crate::kernel::simd::{Avx512Bf16, Avx512f, Simd, interleaved, narrowed};

impl Narrow for Avx512Bf16 {
    type Registers = Avx512f;
    type Products = Self;
    #[inline(always)]
    unsafe fn neighbours(a: *const f32, b: *const f32, to: *mut f32) {
        // SAFETY: by the trait's contract.
        unsafe {
            _mm512_storeu_ps(to, narrowed(a, b));
        }
    }
    #[inline(always)]
    unsafe fn pairs(a: *const f32, b: *const f32, to: *mut f32) {
        // SAFETY: as above.
        unsafe {
            _mm512_storeu_ps(to, interleaved(narrowed(a, b)));
        }
    }
    #[inline(always)]
    unsafe fn words(a: __m512, b: __m512, to: *mut f32) {
        // SAFETY: as above; all registers of 512 bits are alike.
        unsafe {
            let halves = transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(b, a));
            _mm512_storeu_ps(to, interleaved(halves));
        }
    }
    #[inline(always)]
    unsafe fn behind(a: __m512, b: __m512, to: *mut f32) {
        // SAFETY: as above; all registers of 512 bits are alike.
        unsafe { _mm512_storeu_ps(to, transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(b, a))) }
    }
    #[inline(always)]
    unsafe fn pairs_of_words(a: *const f32, b: *const f32, to: *mut f32) {
        // SAFETY: as above.
        unsafe {
            let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
            let halves = _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.cast()));
            _mm512_storeu_ps(to, interleaved(_mm512_castsi512_ps(halves)));
        }
    }
    #[inline(always)]
    unsafe fn widen(from: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let halves = _mm256_loadu_si256(from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }
    #[inline(always)]
    unsafe fn narrow(value: __m512, to: *mut f32) {
        // SAFETY: as above; all registers of 256 bits are alike.
        unsafe { _mm256_storeu_ps(to, transmute::<__m256bh, __m256>(_mm512_cvtneps_pbh(value))) }
    }
    #[inline(always)]
    unsafe fn first(value: __m512, to: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(to.cast(), wide(value)) }
    }
    #[inline(always)]
    unsafe fn second(value: __m512, to: *mut f32) {
        // SAFETY: as above.
        unsafe {
            let first = _mm512_loadu_si512(to.cast());
            let words = _mm512_or_si512(first, _mm512_slli_epi32::<16>(wide(value)));
            _mm512_storeu_si512(to.cast(), words);
        }
    }
}

/// Rounded numbers in the lower halves of words.
#[inline(always)]
unsafe fn wide(value: __m512) -> __m512i {
    // SAFETY: the CPU has the instructions by contract; all registers of 256 bits are alike.
    unsafe { _mm512_cvtepu16_epi32(transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value))) }
}

/// Rounds the whole vectors among numbers, and says how many numbers these are.
///
/// # Safety
/// The CPU has the instructions; there is room for as many halves as numbers.
#[inline(always)]
pub(crate) unsafe fn round_vectors(from: &[f32], to: *mut u16) -> usize {
    let pairs = from.len() / (2 * LANES) * (2 * LANES);
    let whole = from.len() / LANES * LANES;
    for i in (0..pairs).step_by(2 * LANES) {
        // SAFETY: the instructions and the room by contract; two vectors lie in `from` from `i` on.
        unsafe {
            let a = from.as_ptr().add(i);
            Avx512Bf16::neighbours(a, a.add(LANES), to.add(i).cast());
        }
    }
    if pairs < whole {
        // SAFETY: as above, for one vector.
        unsafe { Avx512Bf16::narrow(Avx512f::load(from.as_ptr().add(pairs)), to.add(pairs).cast()) }
    }
    whole
}

/// Widens the whole vectors among halves, and says how many numbers these are.
///
/// # Safety
/// The CPU has the instructions; there are as many halves as room for numbers.
#[inline(always)]
pub(crate) unsafe fn widen_vectors(from: *const u16, to: &mut [f32]) -> usize {
    let whole = to.len() / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        // SAFETY: the instructions and the halves by contract; a vector lies in `to` from `i` on.
        unsafe { Avx512f::store(to.as_mut_ptr().add(i), Avx512Bf16::widen(from.add(i).cast())) }
    }
    whole
}

/// Runs `work` with the instructions of AVX-512 BF16.
///
/// # Panics
/// If the CPU does not have them.
pub(crate) fn with_words(work: impl Narrowing) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn run(work: impl Narrowing) {
        // SAFETY: the CPU has the features.
        unsafe { work.run::<Avx512Bf16>() }
    }
    assert!(Isa::Avx512Bf16.is_available(), "words of bf16 on a CPU without them");
    // SAFETY: the CPU has the tier, as asserted.
    unsafe { run(work) }
}
