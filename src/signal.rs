//! Ctrl-C and the signals of batch systems: the handler sets a flag, and the run ends at an iteration that all
//! workers agree on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::failure::{Code, Failure};

/// When to stop, agreed between the workers of a process.
#[derive(Debug)]
pub struct StopAgreement {
    asked: Arc<AtomicBool>,
    course: Mutex<Course>,
}

/// How far workers are.
#[derive(Debug, Default)]
struct Course {
    /// How many iterations the worker that is furthest ahead has begun.
    begun: u64,
    /// The iteration before which all stop.
    end: Option<u64>,
}

impl StopAgreement {
    /// Listens to SIGINT, SIGTERM and SIGUSR1. A second SIGINT or SIGTERM ends the program at once.
    pub fn listen() -> Result<Arc<Self>, Failure> {
        use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGUSR1] {
            let failed =
                |e: std::io::Error| Failure::new(Code::Environment, format!("no signal handler: {e}"));
            if signal != SIGUSR1 {
                // Looks at the flag before the next line's handler sets it: only the second signal ends.
                let conditional =
                    signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, asked.clone());
                conditional.map_err(failed)?;
            }
            signal_hook::flag::register(signal, asked.clone()).map_err(failed)?;
        }
        Ok(Arc::new(Self { asked, course: Mutex::default() }))
    }

    /// Whether a signal has come: what need not be finished may be left.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether a worker stops before `iteration`, which it begins otherwise.
    ///
    /// The first that comes here once a signal has come decides: the last iteration is the furthest that any worker has
    /// begun, at least the one that it is about to begin itself. Whoever begins an iteration says so in the same breath, so
    /// nobody is further when that is decided, and nobody goes further afterwards; and whoever is behind, as workers of the
    /// asynchronous methods may be, comes there. So all have done the same number of iterations.
    pub fn stops_before(&self, iteration: u64) -> bool {
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = course.begun.max(iteration + 1);
        if self.is_asked() {
            course.end.get_or_insert(begun);
        }
        if course.end.is_some_and(|end| iteration >= end) {
            return true;
        }
        course.begun = begun;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement() -> StopAgreement {
        StopAgreement { asked: Arc::default(), course: Mutex::default() }
    }

    #[test]
    fn a_worker_that_is_behind_comes_to_where_the_furthest_is() {
        let stop = agreement();
        assert!((0..5).all(|iteration| !stop.stops_before(iteration)), "one is in iteration 4");
        assert!(!stop.stops_before(0), "the other in the first");
        stop.asked.store(true, Ordering::Relaxed);
        assert!((1..5).all(|iteration| !stop.stops_before(iteration)));
        assert!(stop.stops_before(5));
        assert!(stop.stops_before(5), "whoever looks");
    }

    #[test]
    fn the_iteration_that_is_about_to_begin_is_the_last() {
        let stop = agreement();
        stop.asked.store(true, Ordering::Relaxed);
        assert!(!stop.stops_before(7));
        assert!(!stop.stops_before(7), "of all workers");
        assert!(stop.stops_before(8));
    }

    #[test]
    fn workers_in_a_race_do_as_many_iterations() {
        for _ in 0..50 {
            let stop = &agreement();
            let done: Vec<u64> = std::thread::scope(|scope| {
                let work = move |delay: u64| {
                    let mut iteration = 0;
                    while !stop.stops_before(iteration) {
                        (0..delay).for_each(|_| std::thread::yield_now());
                        iteration += 1;
                        if iteration == 30 {
                            stop.asked.store(true, Ordering::Relaxed);
                        }
                    }
                    iteration
                };
                let workers = [0, 1, 3].map(|delay| scope.spawn(move || work(delay)));
                workers.into_iter().map(|worker| worker.join().expect("it ends")).collect()
            });
            assert!(done[0] >= 30 && done.iter().all(|other| *other == done[0]), "{done:?}");
        }
    }
}
