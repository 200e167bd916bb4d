//! How far the CPUs are that a benchmark runs on.

use std::time::Duration;

use quadrille_numa::{Machine, handover};

/// Rounds, of which the middle one counts, and the most that they may take.
const ROUNDS: u32 = 85;
const MOST: Duration = Duration::from_secs(5);

/// Nanoseconds from the first of a machine's cores to the last of so many, one way; `None` where that is not to be had.
pub fn across(machine: &Machine, threads: usize) -> Option<f64> {
    let cpus: Vec<usize> = machine.cores.iter().filter_map(|core| core.cpus.first().copied()).collect();
    handover([*cpus.first()?, *cpus.get(threads.checked_sub(1)?)?], ROUNDS, MOST)
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
