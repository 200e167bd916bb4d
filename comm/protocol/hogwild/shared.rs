//! Weights that several workers change at once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quadrille_core::net::ParamRule;
use quadrille_core::solver::easgd::centre_after;
use quadrille_core::solver::{PackedRule, add_to_running_sum, update};

/// A packed buffer in memory that all workers of a process share, without a lock.
///
/// Every value is an atomic that holds the bits of an `f32`. A change reads a value, computes the next, and writes it if
/// nobody else has written meanwhile; else it starts again from what is there now. So no change of a value is lost, and
/// none is applied to a value that was gone. Between values there is no order: of a buffer that others change meanwhile one
/// reads some values from before and some from after, which is what Hogwild accepts.
///
/// All accesses are relaxed. Values depend on nothing else in memory, and what was done before a meeting of all workers is
/// seen after it, since messages order it.
pub struct SharedCentre {
    values: Box<[AtomicU32]>,
    /// Who waits for the others, by worker.
    waiting: Box<[AtomicBool]>,
    /// Who ended without leaving in good order, by worker.
    lost: Box<[AtomicBool]>,
}

impl SharedCentre {
    /// The first centre of so many workers.
    pub fn new(centre: &[f32], workers: usize) -> Self {
        let values = centre.iter().map(|value| AtomicU32::new(value.to_bits())).collect();
        let [waiting, lost] = [(); 2].map(|()| (0..workers).map(|_| AtomicBool::new(false)).collect());
        SharedCentre { values, waiting, lost }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The values as they are, each by itself.
    ///
    /// # Panics
    /// If `out` is not as long.
    pub fn read(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.len(), "the same packed buffer");
        for (out, value) in out.iter_mut().zip(&self.values) {
            *out = f32::from_bits(value.load(Ordering::Relaxed));
        }
    }

    /// A worker meets a part of the centre: the centre moves by equation (2) towards the worker's `weights`, and
    /// `centre_out` receives what it was before. Both slices are that part.
    ///
    /// # Panics
    /// If the lengths differ or the part lies outside.
    pub fn meet(&self, part: Range<usize>, weights: &[f32], elastic: f32, centre_out: &mut [f32]) {
        let lens = [weights.len(), centre_out.len()];
        assert_eq!(lens, [part.len(); 2], "one part of the packed buffers");
        for ((value, weight), out) in self.values[part].iter().zip(weights).zip(centre_out) {
            *out = change(value, |centre| centre_after(centre, *weight, elastic));
        }
    }

    /// Takes a step of plain SGD down a part of the packed `gradient`, each parameter with its own factors. The scale is that
    /// of the whole gradient: [`PackedRule::scale`].
    ///
    /// # Panics
    /// If `gradient` is not as long as the centre, or the part lies outside.
    pub fn descend(&self, part: Range<usize>, rule: &PackedRule, [rate, scale]: [f32; 2], gradient: &[f32]) {
        assert_eq!(gradient.len(), self.len(), "the same packed buffer");
        for piece in rule.pieces() {
            let step = rule.step(piece, 0, rate, scale);
            let (first, last) = (piece.range.start.max(part.start), piece.range.end.min(part.end));
            let here = first..last.max(first);
            for (value, g) in self.values[here.clone()].iter().zip(&gradient[here]) {
                change(value, |before| {
                    let mut after = [before];
                    match piece.rule {
                        ParamRule::RunningSum { fraction } => {
                            add_to_running_sum(fraction, &mut after, [*g].into_iter());
                        }
                        // Without momentum the history of a step is that step alone, and nobody keeps it.
                        ParamRule::Gradient => update(&step, &mut after, &[*g], &mut [0.0], &mut []),
                    }
                    after[0]
                });
            }
        }
    }

    /// Lets others know whether worker `rank` waits for them.
    pub(super) fn set_waiting(&self, rank: usize, waits: bool) {
        self.waiting[rank].store(waits, Ordering::Relaxed);
    }

    /// How many workers change it.
    pub(super) fn workers(&self) -> usize {
        self.waiting.len()
    }

    /// Lets others know that worker `rank` is lost to them.
    pub(super) fn set_lost(&self, rank: usize) {
        self.lost[rank].store(true, Ordering::Relaxed);
    }

    /// The first of the workers that are lost.
    pub(super) fn first_lost(&self) -> Option<usize> {
        self.lost.iter().position(|lost| lost.load(Ordering::Relaxed))
    }

    /// The workers that wait for others.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let waits = self.waiting.iter().enumerate();
        waits.filter(|(_, waits)| waits.load(Ordering::Relaxed)).map(|(rank, _)| rank)
    }
}

/// Changes one value, whoever else does so at the same time. Returns what it was before.
#[inline(always)]
fn change(value: &AtomicU32, after: impl Fn(f32) -> f32) -> f32 {
    let mut before = value.load(Ordering::Relaxed);
    loop {
        let next = after(f32::from_bits(before)).to_bits();
        match value.compare_exchange_weak(before, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return f32::from_bits(before),
            Err(other) => before = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_is_lost_when_threads_race_for_one_value() {
        let (threads, changes) = (4, 20_000);
        let value = AtomicU32::new(0f32.to_bits());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..changes {
                        change(&value, |before| before + 1.0);
                    }
                });
            }
        });
        // Below 2²⁴, so every count is exact.
        assert_eq!(f32::from_bits(value.into_inner()), (threads * changes) as f32);
    }

    #[test]
    fn whoever_swaps_gets_what_the_one_before_left() {
        // With ηρ = 1 the centre becomes the worker's weight, so each value that is put in comes out once.
        let (threads, swaps) = (3u32, 5_000u32);
        let centre = &SharedCentre::new(&[0.0], threads as usize);
        let swap = |thread: u32| {
            (0..swaps).map(move |i| {
                let mut out = [0.0];
                centre.meet(0..1, &[(1 + thread * swaps + i) as f32], 1.0, &mut out);
                out[0]
            })
        };
        let mut seen: Vec<f32> = std::thread::scope(|scope| {
            let start = |thread| scope.spawn(move || swap(thread).collect::<Vec<_>>());
            let threads: Vec<_> = (0..threads).map(start).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut last = [0.0];
        centre.read(&mut last);
        seen.push(last[0]);
        seen.sort_by(f32::total_cmp);
        assert_eq!(seen, (0..=threads * swaps).map(|value| value as f32).collect::<Vec<_>>());
    }
}
