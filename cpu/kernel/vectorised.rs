//! Plain loops compiled once for each tier, so that the compiler fills the tier's vectors.
//!
//! For work bound by memory this is all that is needed. No tier contracts a product and a sum here, so all tiers give
//! the same bits.

use crate::isa::Isa;

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
        match isa {
            // SAFETY: the CPU has the tier, as asserted.
            Isa::Avx512f => return unsafe { avx512f(work) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2(work) },
            Isa::Portable => {}
        }
    }
    work.run();
}
