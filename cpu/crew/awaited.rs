//! What the host waits for while other entries are left: it is woken once, when that is done, and not for every entry.
//!
//! Why it is never missed: the host names the entry and then looks whether it is done; whoever finishes an entry passes it and
//! then looks whether it is the one. Both touch the name by a read-modify-write, so one comes first and the other reads from
//! it: if the host comes first, the finisher sees the name and rings; if the finisher comes first, the host acquires what the
//! finisher released and sees the entry done. `cpu/tests/loom.rs` tries the orders.

use super::Ticket;
use super::sync::{AtomicU64, Ordering};

/// Nothing is waited for. No lane has so high a number.
const NOTHING: u64 = u64::MAX;

/// The entry that the one thread that may wait for it does wait for.
#[derive(Debug)]
pub struct Awaited(AtomicU64);

impl Default for Awaited {
    fn default() -> Self {
        Self(AtomicU64::new(NOTHING))
    }
}

impl Awaited {
    /// From here on [`Awaited::is`] knows the entry. What is looked at behind this shows all that was finished before.
    pub fn name(&self, ticket: Ticket) {
        self.0.swap(ticket.to_word(), Ordering::AcqRel);
    }

    /// Nothing is waited for any more.
    pub fn forget(&self) {
        self.0.store(NOTHING, Ordering::Relaxed);
    }

    /// Whether somebody waits for an entry that has just been passed.
    pub fn is(&self, ticket: Ticket) -> bool {
        // Adding nothing is not loading: it takes part in the order of all changes.
        self.0.fetch_add(0, Ordering::AcqRel) == ticket.to_word()
    }
}
