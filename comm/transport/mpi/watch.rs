//! Is the process before this one in the ring still there?
//!
//! It beats, and what else it sends is as good. On the same node the kernel tells at once when it has ended, through a file
//! descriptor of the process.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Beats in a peer timeout.
const BEATS: u32 = 8;

/// No two beats are further apart than this.
const LONGEST: Duration = Duration::from_secs(1);

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing.
    Well,
    /// It is time to beat.
    Beat,
    /// The process is gone or silent.
    Lost,
}

/// Watches one process, and says when to beat for another.
pub(super) struct Watch {
    process: Option<OwnedFd>,
    timeout: Duration,
    every: Duration,
    heard: Instant,
    beaten: Instant,
    looked: Instant,
}

impl Watch {
    /// Watches a process whose id is `id`, if it is on this node; it counts as lost after `timeout` without a sign.
    pub(super) fn new(id: Option<u64>, timeout: Duration, now: Instant) -> Self {
        let id = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let process = id.and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
        let every = (timeout / BEATS).min(LONGEST);
        Watch { process, timeout, every, heard: now, beaten: now, looked: now }
    }

    /// How long the service thread may rest at most, so as not to be late.
    pub(super) fn every(&self) -> Duration {
        self.every
    }

    /// Notes a sign of life.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// What to do; to be asked when there is nothing left to receive.
    pub(super) fn look(&mut self, now: Instant) -> Finding {
        // Whoever was stopped for long itself has heard nothing meanwhile.
        if now.duration_since(self.looked) > self.timeout / 4 {
            self.heard = now;
        }
        self.looked = now;
        if now.duration_since(self.heard) > self.timeout || self.has_ended() {
            return Finding::Lost;
        }
        if now.duration_since(self.beaten) >= self.every {
            self.beaten = now;
            return Finding::Beat;
        }
        Finding::Well
    }

    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)), Ok(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);

    #[test]
    fn silence_for_a_timeout_is_a_loss_and_a_beat_is_due_eight_times_in_it() {
        let start = Instant::now();
        let mut watch = Watch::new(None, TIMEOUT, start);
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let steps: Vec<Finding> = (1..=82).map(|step| watch.look(at(f64::from(step) * 0.1))).collect();
        assert_eq!(steps.iter().filter(|found| **found == Finding::Beat).count(), 8);
        assert_eq!(steps.iter().position(|found| *found == Finding::Lost), Some(80));
        watch.hear(at(8.2));
        assert_ne!(watch.look(at(8.3)), Finding::Lost);
    }

    #[test]
    fn whoever_was_stopped_itself_does_not_blame_others() {
        let start = Instant::now();
        let mut watch = Watch::new(None, TIMEOUT, start);
        assert_eq!(watch.look(start + 100 * TIMEOUT), Finding::Beat);
    }

    #[test]
    fn a_process_of_this_node_that_ends_is_noticed_at_once() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let mut watch = Watch::new(Some(u64::from(child.id())), TIMEOUT, Instant::now());
        assert_ne!(watch.look(Instant::now()), Finding::Lost);
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        assert_eq!(watch.look(Instant::now()), Finding::Lost);
    }
}
