//! Behind which third-level cache each thread of a quadrant is: what the system says, or, in a virtual machine whose system names one for all, what
//! is measured. Such a machine may be given the CPUs of several caches, and is not told.

use std::time::Duration;

use crate::handover::handover;
use crate::{Machine, Quadrant};

/// Nanoseconds from CPU to CPU from which on they are behind two caches: between what is measured behind one, 25 to 60, and behind two, 150
/// to 400.
const APART: f64 = 100.0;
/// How long two neighbours are measured: some 0.3 to 1 ms, unless something else runs there.
const ROUNDS: u32 = 5;
const MOST: Duration = Duration::from_millis(20);

/// The third-level caches of a quadrant's threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// For each thread a name of its cache, the same for all behind one; empty if all are behind one, or nobody knows.
    pub of_threads: Vec<usize>,
    /// What a user should know about how this was found out.
    pub note: Option<String>,
}

impl Caches {
    /// Those of a quadrant.
    pub fn of(machine: &Machine, quadrant: &Quadrant) -> Self {
        let cpus: Option<Vec<usize>> = (0..quadrant.threads).map(|t| quadrant.cpu_of_thread(t)).collect();
        let Some(cpus) = cpus else { return Self::default() };
        let told: Option<Vec<usize>> = cpus.iter().map(|cpu| cache_of(machine, *cpu)).collect();
        match told {
            Some(told) if told.windows(2).any(|pair| pair[0] != pair[1]) => {
                Self { of_threads: told, note: None }
            }
            _ if machine.here && is_virtual() => {
                Self::measured(quadrant.index, &cpus, |pair| handover(pair, ROUNDS, MOST))
            }
            _ => Self::default(),
        }
    }

    /// The same by how far neighbours are from each other. If that of some is not to be had, nothing is known.
    fn measured(quadrant: usize, cpus: &[usize], distance: impl Fn([usize; 2]) -> Option<f64>) -> Self {
        let distances = cpus.windows(2).map(|pair| distance([pair[0], pair[1]]));
        let Some(distances) = distances.collect::<Option<Vec<f64>>>() else { return Self::default() };
        let Some(far) = distances.iter().copied().filter(|ns| *ns > APART).max_by(f64::total_cmp) else {
            return Self::default();
        };
        let mut of_threads = vec![0];
        for ns in distances {
            let last = of_threads.last().copied().unwrap_or_default();
            of_threads.push(last + usize::from(ns > APART));
        }
        let caches = of_threads.last().map_or(1, |last| last + 1);
        let note = format!(
            "quadrant {quadrant}: CPUs up to {far:.0} ns apart, as behind {caches} third-level caches; threads take own cache's work first"
        );
        Self { of_threads, note: Some(note) }
    }
}

/// The cache of the core that a CPU belongs to.
fn cache_of(machine: &Machine, cpu: usize) -> Option<usize> {
    machine.cores.iter().find(|core| core.cpus.contains(&cpu))?.l3
}

/// Whether this is a virtual machine.
fn is_virtual() -> bool {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpus.lines()
        .any(|line| line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_far_are_behind_two_caches() {
        // CPUs 0 to 3 behind one cache, 4 to 7 behind another.
        let distance = |[one, other]: [usize; 2]| Some(if one / 4 == other / 4 { 30.0 } else { 180.4 });
        let found = Caches::measured(2, &[0, 1, 2, 5, 6], distance);
        assert_eq!(found.of_threads, [0, 0, 0, 1, 1]);
        let note = found.note.expect("it is said");
        assert!(
            note.starts_with("quadrant 2: ") && note.contains("180 ns") && note.contains("2 third"),
            "{note}"
        );
    }

    #[test]
    fn what_is_said_fits_a_line_of_a_terminal() {
        let cpus: Vec<usize> = (0..64).collect();
        let note = Caches::measured(31, &cpus, |_| Some(1234.5)).note.expect("it is said");
        // Behind twelve blanks, in a line of 120.
        assert!(note.chars().count() <= 108, "{note}");
    }

    #[test]
    fn nothing_is_made_of_one_cache_or_of_what_cannot_be_measured() {
        let none = Caches::default();
        assert_eq!(Caches::measured(0, &[0, 1, 2], |_| Some(60.0)), none);
        assert_eq!(Caches::measured(0, &[0, 1, 2], |pair| (pair[0] > 0).then_some(200.0)), none);
        assert_eq!(Caches::measured(0, &[5], |_| None), none);
    }
}
