//! The ceiling: how many floating-point operations a thread does when nothing else hinders it.

use crate::isa::Isa;

/// Multiply-adds of one call for each lane of a vector; returns the operations done (a multiply-add is two).
/// The result of the sums goes through `sink`, so that nothing is optimised away.
pub fn fused_multiply_adds(isa: Isa, rounds: usize, sink: &mut f32) -> u64 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if isa.is_available() => {
            #[target_feature(enable = "avx2,fma")]
            unsafe fn run(rounds: usize, sink: &mut f32) -> u64 {
                // SAFETY: the CPU has the features: checked by the caller.
                unsafe { chains::<super::simd::Avx2>(rounds, sink) }
            }
            // SAFETY: the tier is available.
            unsafe { run(rounds, sink) }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512f if isa.is_available() => {
            #[target_feature(enable = "avx512f")]
            unsafe fn run(rounds: usize, sink: &mut f32) -> u64 {
                // SAFETY: the CPU has the features: checked by the caller.
                unsafe { chains::<super::simd::Avx512f>(rounds, sink) }
            }
            // SAFETY: the tier is available.
            unsafe { run(rounds, sink) }
        }
        _ => portable_chains(rounds, sink),
    }
}

/// Independent chains: enough to fill two pipes of a latency of four or five cycles.
const CHAINS: usize = 12;

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn chains<S: super::simd::Simd>(rounds: usize, sink: &mut f32) -> u64 {
    // SAFETY: the CPU has the instruction set of `S` by contract; the store has room.
    unsafe {
        let (scale, add) = (S::splat(0.999_999), S::splat(*sink));
        let mut sums = [S::splat(1.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::fused(*sum, scale, add);
            }
        }
        let mut out = [0.0f32; 16];
        for sum in sums {
            S::store(out.as_mut_ptr(), sum);
            *sink += out[0];
        }
    }
    (2 * CHAINS * S::LANES * rounds) as u64
}

fn portable_chains(rounds: usize, sink: &mut f32) -> u64 {
    const LANES: usize = 4;
    let mut sums = [[1.0f32; LANES]; CHAINS];
    let add = *sink;
    for _ in 0..rounds {
        for value in sums.iter_mut().flatten() {
            *value = *value * 0.999_999 + add;
        }
    }
    *sink += sums.iter().flatten().sum::<f32>();
    (2 * CHAINS * LANES * rounds) as u64
}
