//! How the threads of a run end: once one has failed, the others have a bounded time to notice.
//!
//! A worker that waits for another gives up after the peer timeout. But one that is stuck elsewhere, in a file system that does
//! not answer, say, never comes back, and no thread can be ended from outside. So whoever fails first sets a deadline, and at
//! its end the process ends with that failure instead of waiting for a thread that may never end. A snapshot that is being
//! written is written first.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::failure::{Code, Failure};
use crate::world::World;

/// How long the others have: who waits for the one that failed notices at once, who computes ends its iteration.
pub const GRACE: Duration = Duration::from_secs(5);

/// Waits until all threads have told how they ended, and are gone. Each tells its failure if it has one. Returns the failure
/// to report, that nearest to the cause, if some have not come to their end after the longest `patience` with what was told, and
/// that.
pub fn wait_for_all(
    told: &Receiver<Option<Failure>>,
    patience: impl Fn(&Failure) -> Duration,
) -> Option<(Failure, Duration)> {
    let mut failure: Option<Failure> = None;
    let mut first = None;
    let mut waited = Duration::ZERO;
    loop {
        let next = match first.map(|first: Instant| waited.saturating_sub(first.elapsed())) {
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(left) => told.recv_timeout(left),
        };
        match next {
            Ok(None) => {}
            Ok(Some(other)) => {
                first.get_or_insert_with(Instant::now);
                waited = waited.max(patience(&other));
                if failure.as_ref().is_none_or(|first| other.remoteness() < first.remoteness()) {
                    failure = Some(other);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => return failure.map(|failure| (failure, waited)),
        }
    }
}

/// Tells how a thread ended before it does.
pub fn telling<T>(tell: &Sender<Option<Failure>>, result: Result<T, Failure>) -> Result<T, Failure> {
    // Whoever is told outlives all threads.
    let _ = tell.send(result.as_ref().err().cloned());
    result
}

/// What a thread returned.
///
/// # Errors
/// Also if it panicked.
pub fn joined<T>(handle: ScopedJoinHandle<'_, Result<T, Failure>>) -> Result<T, Failure> {
    let lost = |_| Err(Failure::new(Code::Bug, "a worker panicked: please report this"));
    handle.join().unwrap_or_else(lost)
}

/// Ends the process with `failure` although threads still run, which had so long to end.
pub fn leave_behind(failure: &Failure, waited: Duration, world: &World) -> ! {
    let seconds = waited.as_secs();
    failure.tell("");
    let others = format!("not every worker of this process came to its end within {seconds} s after that");
    Failure::follows(failure.code, others).tell("");
    world.exit(failure.code)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn failure(code: Code) -> Option<Failure> {
        Some(Failure::new(code, format!("{code:?}")))
    }

    #[test]
    fn threads_that_all_end_are_waited_for() {
        for failures in [vec![None, None], vec![failure(Code::Data), failure(Code::PeerLost)]] {
            let (tell, told) = channel();
            failures.into_iter().for_each(|failure| tell.send(failure).expect("room"));
            drop(tell);
            assert!(wait_for_all(&told, |_| SHORT).is_none());
        }
    }

    #[test]
    fn one_that_is_stuck_is_left_behind_and_the_cause_is_told() {
        for (failures, code) in [
            (vec![failure(Code::PeerLost)], Code::PeerLost),
            (vec![failure(Code::PeerLost), None, failure(Code::Data)], Code::Data),
            (vec![failure(Code::Data), failure(Code::PeerLost)], Code::Data),
        ] {
            let (tell, told) = channel();
            failures.into_iter().for_each(|failure| tell.send(failure).expect("room"));
            let (found, waited) = wait_for_all(&told, |_| SHORT).expect("one is stuck");
            assert_eq!((found.code, waited), (code as u8, SHORT));
            drop(tell);
        }
    }

    #[test]
    fn the_longest_patience_counts() {
        let (tell, told) = channel();
        for code in [Code::PeerLost, Code::NotFinite] {
            tell.send(failure(code)).expect("room");
        }
        let patience = |failure: &Failure| SHORT * if failure.code == Code::NotFinite as u8 { 3 } else { 1 };
        let start = Instant::now();
        let (found, waited) = wait_for_all(&told, patience).expect("one is stuck");
        assert_eq!((found.code, waited), (Code::NotFinite as u8, 3 * SHORT));
        assert!(start.elapsed() >= waited);
    }
}
