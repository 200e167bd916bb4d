//! The bell: how a thread that found no work sleeps without missing any.
//!
//! An event count. A thread *listens* (reads the epoch), looks for work, and only then *sleeps* unless the epoch
//! has moved. Whoever makes work *rings* (moves the epoch, then wakes sleepers if there are any).
//!
//! Why nothing is missed: ring does `epoch += 1; sleepers += 0`, sleep does `sleepers += 1; read epoch`. Both touch
//! `sleepers` by a read-modify-write, so one comes first and the other reads from it: if the sleeper comes first,
//! the ringer sees it; if the ringer comes first, the sleeper acquires what the ringer released and sees the new
//! epoch. If the ringer sees the sleeper, it takes the lock before it notifies; the sleeper holds the lock from its
//! last look at the epoch until it waits, so the notification cannot fall between. If the sleeper sees the new
//! epoch, it does not sleep. Work made before the listening is found by the look that follows: the listener
//! acquires the epoch that the ringer released. `cpu/tests/loom.rs` tries the orders.

use super::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering};

/// An event count.
#[derive(Debug)]
pub struct Bell {
    epoch: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Default for Bell {
    fn default() -> Self {
        Self {
            epoch: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }
}

impl Bell {
    /// Says that there may be something new.
    pub fn ring(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        // Adding nothing is not loading: it takes part in the order of all changes of the count.
        if self.sleepers.fetch_add(0, Ordering::AcqRel) > 0 {
            drop(self.lock.lock());
            self.wake.notify_all();
        }
    }

    /// The moment from which on [`Bell::sleep`] misses nothing.
    pub fn listen(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Sleeps until `is_over`, which is looked at whenever the bell rings.
    pub fn wait(&self, is_over: impl Fn() -> bool) {
        loop {
            let heard = self.listen();
            if is_over() {
                return;
            }
            self.sleep(heard);
        }
    }

    /// Sleeps until the bell has rung since `heard`.
    pub fn sleep(&self, heard: u64) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        // The lock guards nothing that a panic could leave broken, so a poisoned one is as good.
        let mut guard = self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while self.epoch.load(Ordering::Acquire) == heard {
            guard = self.wake.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }
}
