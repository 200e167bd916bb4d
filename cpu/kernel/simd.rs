//! A vector register of an instruction set: the few operations from which every kernel is made.

use std::arch::x86_64::*;

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
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a·b + c`, rounded once.
    unsafe fn fused(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
}

/// 8 floats; needs AVX2 and FMA.
pub(crate) struct Avx2;

impl Simd for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fused(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
}

/// 16 floats; needs AVX-512F.
pub(crate) struct Avx512f;

impl Simd for Avx512f {
    type Vector = __m512;
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fused(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}
