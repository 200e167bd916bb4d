//! The registers of x86-64.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{Product, Simd, Square, turn};
use crate::kernel::stored::AsBf16;

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
    unsafe fn store_past(to: *mut f32, value: __m256) {
        // SAFETY: by the trait's contract, and by that of this method aligned.
        unsafe { _mm256_stream_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn prefetch(address: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(address: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn divide(a: __m256, b: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn greater(value: __m256, than: __m256, tap: __m256, from: __m256) -> (__m256, __m256) {
        // SAFETY: by the trait's contract.
        unsafe {
            let mask = _mm256_cmp_ps::<_CMP_GT_OQ>(value, than);
            (_mm256_blendv_ps(than, value, mask), _mm256_blendv_ps(from, tap, mask))
        }
    }
    #[inline(always)]
    unsafe fn where_equal(a: __m256, b: __m256, value: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, b), value) }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, value: __m256) {
        // SAFETY: by the trait's contract.
        unsafe {
            let words = _mm256_cvttps_epi32(value);
            let halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storel_epi64(to.cast(), _mm_packus_epi16(halves, halves));
        }
    }
    #[inline(always)]
    unsafe fn subtract(a: __m256, b: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply(a: __m256, b: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fused(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn root(a: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn five(before: __m256, here: __m256, behind: __m256) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe {
            // The halves between: shifts stay within a half.
            let left = _mm256_castps_si256(_mm256_permute2f128_ps::<0x21>(before, here));
            let right = _mm256_castps_si256(_mm256_permute2f128_ps::<0x21>(here, behind));
            let middle = _mm256_castps_si256(here);
            let neighbours = [
                _mm256_alignr_epi8::<8>(middle, left),
                _mm256_alignr_epi8::<12>(middle, left),
                _mm256_alignr_epi8::<4>(right, middle),
                _mm256_alignr_epi8::<8>(right, middle),
            ];
            let [a, b, d, e] = neighbours.map(|n| _mm256_castsi256_ps(n));
            [b, here, d, e].into_iter().fold(a, |sum, n| <Self as Simd>::add(sum, n))
        }
    }
    #[inline(always)]
    unsafe fn turn(from: *const f32, distance: usize, extents: [usize; 2], to: &mut Square) {
        // SAFETY: by the trait's contract; a square of 8 words a side has room.
        unsafe { turn::eight(from, distance, extents, to.0.as_mut_ptr()) }
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
    unsafe fn store_past(to: *mut f32, value: __m512) {
        // SAFETY: by the trait's contract, and by that of this method aligned.
        unsafe { _mm512_stream_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn prefetch(address: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(address: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn divide(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn greater(value: __m512, than: __m512, tap: __m512, from: __m512) -> (__m512, __m512) {
        // SAFETY: by the trait's contract.
        unsafe {
            let mask = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(value, than);
            (_mm512_mask_blend_ps(mask, than, value), _mm512_mask_blend_ps(mask, from, tap))
        }
    }
    #[inline(always)]
    unsafe fn where_equal(a: __m512, b: __m512, value: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b), value) }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, value: __m512) {
        // SAFETY: by the trait's contract.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(value))) }
    }
    #[inline(always)]
    unsafe fn subtract(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fused(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn root(a: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn five(before: __m512, here: __m512, behind: __m512) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe {
            let [left, middle, right] = [before, here, behind].map(|v| _mm512_castps_si512(v));
            let neighbours = [
                _mm512_alignr_epi32::<14>(middle, left),
                _mm512_alignr_epi32::<15>(middle, left),
                _mm512_alignr_epi32::<1>(right, middle),
                _mm512_alignr_epi32::<2>(right, middle),
            ];
            let [a, b, d, e] = neighbours.map(|n| _mm512_castsi512_ps(n));
            [b, here, d, e].into_iter().fold(a, |sum, n| <Self as Simd>::add(sum, n))
        }
    }
    #[inline(always)]
    unsafe fn turn(from: *const f32, distance: usize, extents: [usize; 2], to: &mut Square) {
        // SAFETY: by the trait's contract; a square has room for 16 rows of 16 words.
        unsafe { turn::sixteen(from, distance * size_of::<f32>(), extents, to.0.as_mut_ptr()) }
    }
}

/// 16 pairs of bf16; needs AVX-512 BF16.
pub(crate) struct Avx512Bf16;

impl Product for Avx512Bf16 {
    type Registers = Avx512f;
    type Kept = AsBf16<Self>;
    const IN_WORD: usize = 2;
    #[inline(always)]
    unsafe fn along(from: *const f32) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { narrowed(from, from.add(Avx512f::LANES)) }
    }
    #[inline(always)]
    unsafe fn across(from: *const f32, row: usize) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { interleaved(narrowed(from, from.add(row))) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512, sum: __m512) -> __m512 {
        // SAFETY: by the trait's contract; all registers of 512 bits are alike.
        unsafe { _mm512_dpbf16_ps(sum, transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b)) }
    }
}

/// Where the halves of [`interleaved`] come from: number by number, first those in the lower half.
static INTERLEAVED: [u16; 32] = {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 16 {
        (places[2 * i], places[2 * i + 1]) = (i as u16, 16 + i as u16);
        i += 1;
    }
    places
};

/// Two vectors rounded to bf16, one behind the other.
///
/// # Safety
/// The CPU has AVX-512 BF16, and a vector lies at each address.
#[inline(always)]
pub(crate) unsafe fn narrowed(first: *const f32, second: *const f32) -> __m512 {
    // SAFETY: by contract; all registers of 512 bits are alike.
    unsafe {
        transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(second), _mm512_loadu_ps(first)))
    }
}

/// Each half of the lower half of a vector beside that of the upper half in the same place.
///
/// # Safety
/// The CPU has AVX-512 BW.
#[inline(always)]
pub(crate) unsafe fn interleaved(halves: __m512) -> __m512 {
    // SAFETY: by contract; the places are 32 numbers of 16 bits.
    unsafe {
        let places = _mm512_loadu_si512(INTERLEAVED.as_ptr().cast());
        _mm512_castsi512_ps(_mm512_permutexvar_epi16(places, _mm512_castps_si512(halves)))
    }
}
