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
}
