//! What the machine can do at most: multiply-adds and bytes a second, measured in the same run.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::bandwidth::{TRIAD_BYTES, triad};
use super::peak::fused_multiply_adds;
use crate::isa::Numerics;

/// Both ceilings, on as many threads as are used.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    /// GFLOP/s of multiply-adds in the precision asked for.
    pub gflops: f64,
    /// GB/s from and to memory.
    pub gbs: f64,
}

/// Runs of each, of which the best counts.
const RUNS: usize = 3;
/// The arrays together are this many times as large as all caches of the last level ...
const TIMES_CACHE: usize = 4;
/// ... but within these bounds, in bytes.
const LEAST_BYTES: usize = 96 << 20;
const MOST_BYTES: usize = 4 << 30;

impl Ceilings {
    /// Measures both on `threads` threads.
    pub fn measure(numerics: Numerics, threads: usize) -> Self {
        Self { gflops: multiply_adds(numerics, threads), gbs: bytes(threads) }
    }
}

/// The best of some runs, in amounts (summed over the threads) a nanosecond.
fn best(runs: impl Iterator<Item = f64>) -> f64 {
    runs.fold(0.0, f64::max)
}

/// GFLOP/s of multiply-adds in the precision asked for on `threads` threads (at least 1).
pub fn multiply_adds(numerics: Numerics, threads: usize) -> f64 {
    const ROUNDS: usize = 2_000_000;
    best((0..RUNS).map(|_| {
        let start = Instant::now();
        let done: u64 = std::thread::scope(|scope| {
            let run = || {
                let mut sink = 1e-9;
                let flops = fused_multiply_adds(numerics, ROUNDS, &mut sink);
                black_box(sink);
                flops
            };
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            handles.into_iter().map(|h| h.join().unwrap_or(0)).sum()
        });
        done as f64 / start.elapsed().as_secs_f64() * 1e-9
    }))
}

/// GB/s of STREAM's triad on `threads` threads (at least 1), in arrays that no cache holds. Each thread has arrays of its own, which it writes first, so that they lie near it.
pub fn bytes(threads: usize) -> f64 {
    let total = TIMES_CACHE.saturating_mul(last_level_cache()).clamp(LEAST_BYTES, MOST_BYTES);
    let elements = (total / TRIAD_BYTES).div_ceil(threads);
    let barrier = Barrier::new(threads);
    let run = || {
        let mut arrays = [vec![0.0f32; elements], vec![1.0f32; elements], vec![2.0f32; elements]];
        let [sum, a, b] = &mut arrays;
        (0..=RUNS)
            .map(|_| {
                barrier.wait();
                let start = Instant::now();
                let moved = triad(black_box(sum), a, b, 3.0);
                black_box(&sum);
                moved as f64 / start.elapsed().as_secs_f64() * 1e-9
            })
            .collect::<Vec<f64>>()
    };
    let rates: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        handles.into_iter().map(|h| h.join().unwrap_or_default()).collect()
    });
    // The first run brings the pages in.
    best((1..=RUNS).map(|run| rates.iter().filter_map(|of_thread| of_thread.get(run)).sum()))
}

/// Bytes of all caches of the last level; 0 if the machine cannot be looked at.
fn last_level_cache() -> usize {
    let Ok(machine) = quadrille_numa::detect() else { return 0 };
    let last = machine.caches.iter().max_by_key(|cache| cache.level);
    last.map_or(0, |cache| {
        let caches = machine.cpus.len().div_ceil(cache.shared_by.max(1));
        usize::try_from(cache.bytes).unwrap_or(usize::MAX).saturating_mul(caches)
    })
}
