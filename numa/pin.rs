//! Pinning the current thread to one CPU.

use core_affinity::CoreId;

/// How many CPUs the affinity call's fixed mask can name. A larger number would index past that mask.
const MASK_CPUS: usize = 1024;

/// What became of a wish to pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pinning {
    /// The thread now runs on this CPU only.
    Pinned(usize),
    /// The thread stays where it was, for this reason.
    Refused(String),
}

/// Pins the thread that calls to one logical CPU.
///
/// A refusal is a value, not an error: training goes on unpinned, and the run says so in its first lines.
pub fn pin_current_thread(cpu: usize) -> Pinning {
    if cpu >= MASK_CPUS {
        return Pinning::Refused(format!(
            "CPU {cpu} cannot be pinned to: the affinity mask reaches CPU {} only",
            MASK_CPUS - 1
        ));
    }
    if core_affinity::set_for_current(CoreId { id: cpu }) {
        Pinning::Pinned(cpu)
    } else {
        Pinning::Refused(format!(
            "the operating system refused CPU {cpu}: it is offline, outside this process's CPU set, \
             or pinning is not supported here"
        ))
    }
}

/// Lets the thread that calls run on any of these CPUs. A new thread has the CPUs of the one that started it, so one without a
/// place of its own must be let go where that one is pinned.
#[cfg(target_os = "linux")]
pub fn release_current_thread(cpus: &[usize]) -> Pinning {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    match (sched_setaffinity(None, &set), cpus.first()) {
        (Ok(()), Some(&first)) => Pinning::Pinned(first),
        (Ok(()), None) => Pinning::Refused("no CPU was named".to_owned()),
        (Err(error), _) => {
            Pinning::Refused(format!("the operating system refused to let a thread go: {error}"))
        }
    }
}

/// Lets the thread that calls run on any of these CPUs: nothing is ever pinned here.
#[cfg(not(target_os = "linux"))]
pub fn release_current_thread(_cpus: &[usize]) -> Pinning {
    Pinning::Refused("only Linux lets a thread run on some CPUs".to_owned())
}

/// Tries to pin a thread to each of these CPUs, and returns why not, one line for each reason.
///
/// A container or a filter of system calls may refuse what the affinity mask allows. It is better to know before crews
/// start, since a run says what it does in its first lines.
pub fn refusals(cpus: &[usize]) -> Vec<String> {
    let cpus = cpus.to_vec();
    // A thread of its own, so that whoever asks is not moved.
    let attempt = move || -> Vec<String> {
        let outcomes = cpus.into_iter().map(pin_current_thread);
        let refused = outcomes.filter_map(|outcome| match outcome {
            Pinning::Refused(reason) => Some(reason),
            Pinning::Pinned(_) => None,
        });
        refused.collect()
    };
    let thread = std::thread::Builder::new().name("pinning".to_owned()).spawn(attempt);
    let outcome =
        thread.map(|thread| thread.join().unwrap_or_else(|_| vec!["the attempt failed".to_owned()]));
    outcome.unwrap_or_else(|error| vec![format!("no thread can be started ({error})")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_to_an_allowed_cpu_and_refuses_others() {
        // In a thread of its own, so that the mask of the test runner's thread stays whole.
        let outcome = std::thread::spawn(|| {
            let allowed = core_affinity::get_core_ids().unwrap_or_default();
            let first = allowed.first().map(|core| core.id);
            (first, first.map(pin_current_thread), pin_current_thread(1023), pin_current_thread(usize::MAX))
        });
        let (first, pinned, absent, absurd) = outcome.join().unwrap();
        if let Some(cpu) = first {
            assert_eq!(pinned, Some(Pinning::Pinned(cpu)));
        }
        if std::thread::available_parallelism().map_or(1, usize::from) < 1023 {
            assert!(matches!(absent, Pinning::Refused(_)));
        }
        assert!(matches!(absurd, Pinning::Refused(reason) if reason.contains("mask reaches CPU 1023")));
    }

    #[test]
    fn a_thread_of_a_pinned_one_is_let_go() {
        let allowed: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        let Some(&first) = allowed.first() else { return };
        let all = allowed.clone();
        let of_child = std::thread::spawn(move || {
            pin_current_thread(first);
            let child = std::thread::spawn(move || {
                let before = core_affinity::get_core_ids().map(|ids| ids.len());
                release_current_thread(&all);
                (before, core_affinity::get_core_ids().map(|ids| ids.len()))
            });
            child.join().unwrap()
        });
        assert_eq!(of_child.join().unwrap(), (Some(1), Some(allowed.len())));
    }
}
