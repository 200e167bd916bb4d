//! One agreed end for workers in several processes.
//!
//! ```text
//!     whoever is asked to stop:  Stop → process 0
//!     process 0:                 HowFar → all;  everybody holds its worker before the next iteration that it would begin
//!     all:                       Begun(n) → process 0, with the number of iterations that were begun
//!     process 0:                 End(the largest n, at least 1) → all;  everybody lets its worker go on to there
//! ```
//!
//! Only service threads take part, which never wait for a worker, so the question is answered in a moment whatever the
//! method does, and methods whose workers drift apart are not brought into step. Between question and answer nobody begins
//! an iteration, so nobody is further than the end; and whoever is behind comes there. A worker that is held waits for the
//! service threads alone, so no exchange is kept waiting for long; if a process is lost it is let go, and finds that out by
//! itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
struct Course {
    /// How many iterations were begun.
    begun: u64,
    /// Whether the worker is not to begin another one.
    held: bool,
    /// Where all stop.
    end: Option<u64>,
    /// Whether nothing can be agreed any more.
    void: bool,
}

/// This process's part in the agreement.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    course: Mutex<Course>,
    changed: Condvar,
    /// Whether this or another process was asked to stop.
    asked: AtomicBool,
}

impl Agreement {
    fn lock(&self) -> MutexGuard<'_, Course> {
        // Nothing panics while this lock is held.
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this worker stops before `iteration`, which it begins otherwise. Waits while the end is being agreed upon, for
    /// `patience` at most.
    pub(super) fn stops_before(&self, iteration: u64, patience: Duration) -> bool {
        let course = self.lock();
        let open = |course: &mut Course| course.held && course.end.is_none() && !course.void;
        let waited = self.changed.wait_timeout_while(course, patience, open);
        let mut course = waited.unwrap_or_else(PoisonError::into_inner).0;
        if course.end.is_some_and(|end| iteration >= end) {
            return true;
        }
        course.begun = course.begun.max(iteration + 1);
        false
    }

    /// Holds the worker, and says how many iterations it has begun.
    pub(super) fn hold(&self) -> u64 {
        self.asked.store(true, Ordering::Relaxed);
        let mut course = self.lock();
        course.held = true;
        course.begun
    }

    /// Lets the worker go on to the end that was agreed upon.
    pub(super) fn set_end(&self, end: u64) {
        self.lock().end.get_or_insert(end);
        self.changed.notify_all();
    }

    /// Gives up: a process is lost.
    pub(super) fn cancel(&self) {
        self.lock().void = true;
        self.changed.notify_all();
    }

    /// Whether this or another process was asked to stop.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

/// What process 0 has heard.
#[derive(Debug)]
pub(super) struct Poll {
    begun: Vec<Option<u64>>,
}

impl Poll {
    /// A poll of so many processes.
    pub(super) fn new(processes: usize) -> Self {
        Poll { begun: vec![None; processes] }
    }

    /// Notes how far a process is. Returns the end once all have answered.
    pub(super) fn note(&mut self, process: usize, begun: u64) -> Option<u64> {
        self.begun[process] = Some(begun);
        let all: Option<Vec<u64>> = self.begun.iter().copied().collect();
        all.and_then(|all| all.into_iter().max()).map(|furthest| furthest.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn whoever_is_behind_comes_to_where_the_furthest_is() {
        let (ahead, behind) = (Agreement::default(), Agreement::default());
        assert!((0..5).all(|iteration| !ahead.stops_before(iteration, LONG)));
        assert!(!behind.stops_before(0, LONG));
        let mut poll = Poll::new(2);
        assert_eq!(poll.note(1, behind.hold()), None);
        let end = poll.note(0, ahead.hold());
        assert_eq!(end, Some(5));
        assert!(ahead.is_asked() && behind.is_asked());
        ahead.set_end(5);
        behind.set_end(5);
        assert!(ahead.stops_before(5, LONG));
        assert!((1..5).all(|iteration| !behind.stops_before(iteration, LONG)));
        assert!(behind.stops_before(5, LONG));
    }

    #[test]
    fn a_worker_that_is_held_begins_nothing_until_the_end_is_known() {
        let agreement = Agreement::default();
        assert!(!agreement.stops_before(0, LONG));
        assert_eq!(agreement.hold(), 1);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| agreement.stops_before(1, LONG));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!worker.is_finished());
            agreement.set_end(1);
            assert!(worker.join().expect("it ends"));
        });
    }

    #[test]
    fn a_worker_is_let_go_when_a_process_is_lost_or_nobody_answers() {
        let agreement = Agreement::default();
        agreement.hold();
        let start = Instant::now();
        assert!(!agreement.stops_before(0, Duration::from_millis(10)));
        assert!(start.elapsed() >= Duration::from_millis(10));
        agreement.cancel();
        assert!(!agreement.stops_before(1, LONG));
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn a_run_that_nobody_has_begun_ends_after_one_iteration() {
        assert_eq!(Poll::new(1).note(0, 0), Some(1));
    }
}
