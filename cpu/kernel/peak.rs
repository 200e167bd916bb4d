//! The ceiling: how many floating-point operations a thread does when nothing else hinders it.

use crate::isa::{Isa, Numerics, Precision, Vectors};

/// Multiply-adds of one call, of f32 or of pairs of bf16, for each lane of a vector; returns the operations done (a
/// multiply-add is two). The result of the sums goes through `sink`, so that nothing is optimised away.
pub fn fused_multiply_adds(numerics: Numerics, rounds: usize, sink: &mut f32) -> u64 {
    if numerics.check().is_err() {
        return portable_chains(rounds, sink);
    }
    match (numerics.precision, numerics.isa.vectors()) {
        (_, Vectors::None) => portable_chains(rounds, sink),
        #[cfg(target_arch = "x86_64")]
        // A sixteenth of the rounds: each is that much more work.
        (Precision::Bf16, _) if numerics.isa == Isa::AmxBf16 => super::correlate::amx::products(rounds / 16),
        #[cfg(target_arch = "x86_64")]
        (Precision::Bf16, _) => {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
            unsafe fn run(rounds: usize, sink: &mut f32) -> u64 {
                // SAFETY: the CPU has the features: checked by the caller.
                unsafe { chains::<super::simd::Avx512f, super::simd::Avx512Bf16>(rounds, sink) }
            }
            // SAFETY: the tier is available and has bf16.
            2 * unsafe { run(rounds, sink) }
        }
        #[cfg(target_arch = "x86_64")]
        (Precision::F32, Vectors::Avx2) => {
            #[target_feature(enable = "avx2,fma")]
            unsafe fn run(rounds: usize, sink: &mut f32) -> u64 {
                // SAFETY: the CPU has the features: checked by the caller.
                unsafe { chains::<super::simd::Avx2, super::simd::Avx2>(rounds, sink) }
            }
            // SAFETY: the tier is available.
            unsafe { run(rounds, sink) }
        }
        #[cfg(target_arch = "x86_64")]
        (Precision::F32, Vectors::Avx512f) => {
            #[target_feature(enable = "avx512f")]
            unsafe fn run(rounds: usize, sink: &mut f32) -> u64 {
                // SAFETY: the CPU has the features: checked by the caller.
                unsafe { chains::<super::simd::Avx512f, super::simd::Avx512f>(rounds, sink) }
            }
            // SAFETY: the tier is available.
            unsafe { run(rounds, sink) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => portable_chains(rounds, sink),
    }
}

/// Independent chains: enough to fill two pipes of a latency of four or five cycles.
const CHAINS: usize = 12;
/// Below 1, and as a pair of bf16 the same number and 0.
const FACTOR: f32 = 0.996_093_75;

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn chains<S: super::simd::Simd, P: super::simd::Product<Registers = S>>(
    rounds: usize,
    sink: &mut f32,
) -> u64 {
    // SAFETY: the CPU has the instruction set of `S` by contract; the store has room.
    unsafe {
        let (scale, add) = (S::splat(FACTOR), S::splat(*sink));
        let mut sums = [S::zero(); CHAINS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = S::splat(i as f32);
        }
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = P::add(scale, add, *sum);
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
            *value = *value * FACTOR + add;
        }
    }
    *sink += sums.iter().flatten().sum::<f32>();
    (2 * CHAINS * LANES * rounds) as u64
}
