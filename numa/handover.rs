//! How far two CPUs are from each other: the time until one sees what the other has written. Behind one third-level cache that is 25 to 60
//! ns, behind two 150 to 400, and in a virtual machine it may change while nothing says so.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::{Pinning, pin_current_thread};

/// Times that a value goes there and back in a round.
const TURNS: u32 = 500;
/// What the value is when one side has given up.
const OVER: u32 = u32::MAX;
/// Looks at the value between two at the clock.
const LOOKS: u32 = 1_000;

/// A line of its own.
#[repr(align(128))]
struct Ball {
    value: AtomicU32,
    until: Instant,
}

impl Ball {
    /// Waits for a value and answers with the next; false if it takes too long.
    fn answer(&self, value: u32) -> bool {
        let mut looks = 0u32;
        loop {
            match self.value.load(Ordering::Acquire) {
                found if found == value => break,
                OVER => return false,
                _ => std::hint::spin_loop(),
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) && Instant::now() > self.until {
                self.value.store(OVER, Ordering::Release);
                return false;
            }
        }
        // If the other side gives up now, this overwrites that; it looks at the clock itself.
        self.value.store(value + 1, Ordering::Release);
        true
    }

    /// What a turn one way takes, in nanoseconds: the middle one of some rounds, since others may have been held up.
    fn middle(&self, rounds: u32) -> Option<f64> {
        let round = |round: u32| {
            let begin = Instant::now();
            let all = (round * TURNS..(round + 1) * TURNS).all(|turn| self.answer(2 * turn));
            all.then(|| begin.elapsed().as_secs_f64() * 1e9 / f64::from(2 * TURNS))
        };
        let mut times: Vec<f64> = (0..rounds).map(round).collect::<Option<_>>()?;
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }
}

/// Nanoseconds from one CPU to another, one way, from so many rounds of some 0.1 ms; `None` if they are one, if threads cannot be
/// pinned to them, or if it takes longer than `most` since something else runs there.
pub fn handover([one, other]: [usize; 2], rounds: u32, most: Duration) -> Option<f64> {
    if one == other {
        return None;
    }
    let ball = Ball { value: AtomicU32::new(0), until: Instant::now() + most };
    let (met, elsewhere) = (Barrier::new(2), AtomicBool::new(false));
    // Two threads on one CPU would wait for each other's turn of the scheduler.
    let meets = |cpu| {
        if let Pinning::Refused(_) = pin_current_thread(cpu) {
            elsewhere.store(true, Ordering::Relaxed);
        }
        met.wait();
        !elsewhere.load(Ordering::Relaxed)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| meets(other) && (0..rounds * TURNS).all(|turn| ball.answer(2 * turn + 1)));
        let here = scope.spawn(|| meets(one).then(|| ball.middle(rounds)).flatten());
        here.join().ok().flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_cpu_writes_another_sees_after_a_while() {
        let second = Duration::from_secs(1);
        assert_eq!(handover([0, 0], 3, second), None, "one CPU is no distance from itself");
        assert_eq!(handover([0, 1_000_000], 3, second), None, "there are not so many");
        let machine = crate::detect().expect("a machine");
        let &[one, other, ..] = &machine.cpus[..] else { return println!("skipped: one CPU") };
        let found = handover([one, other], 3, second);
        assert!(found.is_none_or(|ns| (1.0..1e6).contains(&ns)), "{found:?} ns");
    }

    #[test]
    fn a_side_that_waits_in_vain_gives_up() {
        let ball = Ball { value: AtomicU32::new(1), until: Instant::now() };
        assert!(!ball.answer(0));
        assert_eq!(ball.value.load(Ordering::Relaxed), OVER);
        assert!(!ball.answer(1), "and so does the other");
        assert_eq!(ball.middle(1), None);
    }
}
