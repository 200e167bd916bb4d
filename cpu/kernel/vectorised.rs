//! Plain loops compiled once for each tier, so that the compiler fills the tier's vectors.
//!
//! For work bound by memory this is all that is needed. No tier contracts a product and a sum here, so all tiers give
//! the same bits.

use crate::isa::{Isa, Vectors};
use crate::kernel::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::kernel::simd::{Avx2, Avx512f};

/// A piece of work made of plain loops. `run` must be `#[inline(always)]`, as must be what it calls: only what is
/// inlined is compiled for the tier.
pub(crate) trait Vectorised {
    /// Does the work.
    fn run(self);
}

/// Runs `work` as compiled for `isa`.
///
/// # Panics
/// If the CPU does not have the tier.
pub(crate) fn on(isa: Isa, work: impl Vectorised) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512f(work: impl Vectorised) {
            work.run();
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(work: impl Vectorised) {
            work.run();
        }
        assert!(isa.is_available(), "{isa} kernels on a CPU without them");
        match isa.vectors() {
            // SAFETY: the CPU has the tier, as asserted.
            Vectors::Avx512f => return unsafe { avx512f(work) },
            // SAFETY: as above.
            Vectors::Avx2 => return unsafe { avx2(work) },
            Vectors::None => {}
        }
    }
    work.run();
}

/// A piece of work written with a tier's vectors. `run` must be `#[inline(always)]`, as must be what it calls.
pub(crate) trait Explicit {
    /// Does the work.
    ///
    /// # Safety
    /// The CPU has the instruction set of `S`.
    unsafe fn run<S: Simd>(self);
}

/// Runs `work` with the vectors of `isa`.
///
/// # Panics
/// If the CPU does not have the tier, or the tier has no vectors.
pub(crate) fn with_vectors(isa: Isa, work: impl Explicit) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512f(work: impl Explicit) {
            // SAFETY: the CPU has the feature.
            unsafe { work.run::<Avx512f>() }
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(work: impl Explicit) {
            // SAFETY: the CPU has the features.
            unsafe { work.run::<Avx2>() }
        }
        assert!(isa.is_available(), "{isa} kernels on a CPU without them");
        match isa.vectors() {
            // SAFETY: the CPU has the tier, as asserted.
            Vectors::Avx512f => return unsafe { avx512f(work) },
            // SAFETY: as above.
            Vectors::Avx2 => return unsafe { avx2(work) },
            Vectors::None => {}
        }
    }
    drop(work);
    panic!("the tier {isa} has no vectors");
}

/// Asks for the cache line of an address that is soon to be read or written. Any address will do: nothing is accessed.
#[inline(always)]
pub(crate) fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch of an address that is not mapped does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
