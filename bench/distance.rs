//! How far two CPUs are from each other: the time until one sees what the other has written. Behind one cache that is some 50 ns, behind
//! two some 200, and in a virtual machine it may change while nothing says so.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use quadrille_numa::{Machine, Pinning, pin_current_thread};

use crate::record::median;

/// Times that a value goes there and back, in rounds of which the middle one counts: others may have been held up.
const TURNS: u32 = 2_000;
const ROUNDS: usize = 21;

/// A line of its own.
#[repr(align(128))]
struct Ball(AtomicU32);

impl Ball {
    /// Waits for a value and answers with the next.
    fn answer(&self, value: u32) {
        while self.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
        self.0.store(value + 1, Ordering::Release);
    }
}

/// Nanoseconds from one CPU to another, one way; `None` if they are one, or threads cannot be pinned to them.
fn between([one, other]: [usize; 2]) -> Option<f64> {
    if one == other {
        return None;
    }
    let (ball, met, elsewhere) = (Ball(AtomicU32::new(0)), Barrier::new(2), AtomicBool::new(false));
    // Two threads on one CPU would wait for each other's turn of the scheduler.
    let meets = |cpu| {
        if let Pinning::Refused(_) = pin_current_thread(cpu) {
            elsewhere.store(true, Ordering::Relaxed);
        }
        met.wait();
        !elsewhere.load(Ordering::Relaxed)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if meets(other) {
                (0..ROUNDS as u32 * TURNS).for_each(|turn| ball.answer(2 * turn + 1));
            }
        });
        let here = scope.spawn(|| meets(one).then(|| median(&rounds(&ball))));
        here.join().ok().flatten()
    })
}

/// What a turn one way took in each round, in nanoseconds.
fn rounds(ball: &Ball) -> Vec<f64> {
    let round = |round: u32| {
        let begin = Instant::now();
        (round * TURNS..(round + 1) * TURNS).for_each(|turn| ball.answer(2 * turn));
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(2 * TURNS)
    };
    (0..ROUNDS as u32).map(round).collect()
}

/// Nanoseconds from the first of a machine's cores to the last of so many, one way; `None` where that is not to be had.
pub fn across(machine: &Machine, threads: usize) -> Option<f64> {
    let cpus: Vec<usize> = machine.cores.iter().filter_map(|core| core.cpus.first().copied()).collect();
    between([*cpus.first()?, *cpus.get(threads.checked_sub(1)?)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_cpu_writes_another_sees_after_a_while() {
        let machine = quadrille_numa::detect().expect("a machine");
        assert_eq!(across(&machine, 1), None, "one CPU is no distance from itself");
        assert_eq!(across(&machine, machine.cores.len() + 1), None, "there are not so many");
        if machine.cores.len() < 2 {
            println!("skipped: one core");
            return;
        }
        let found = across(&machine, 2);
        let plausible = found.is_none_or(|ns| (1.0..1e6).contains(&ns));
        assert!(plausible, "{found:?} ns");
    }
}
