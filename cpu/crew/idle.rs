//! How whoever waits for the end of a step sleeps: woken when the last lane has run empty, and not for each of them.
//!
//! Why it is never missed: a lane is passed before [`Idle::emptied`] is called. Whoever calls it touches one word by a
//! read-modify-write and then looks at all lanes, so of several one comes last and has acquired what the others released: it sees
//! all lanes empty and rings. The waiter listens before it looks, as everyone at a bell. `cpu/tests/loom.rs` tries the orders.

use super::Bell;
use super::sync::{AtomicU64, Ordering};

/// Lanes that run empty, and who waits for the last.
#[derive(Debug)]
pub struct Idle {
    emptied: AtomicU64,
    bell: Bell,
}

impl Default for Idle {
    fn default() -> Self {
        Self { emptied: AtomicU64::new(0), bell: Bell::default() }
    }
}

impl Idle {
    /// Says that a lane has run empty; `is_drained` looks whether all have.
    pub fn emptied(&self, is_drained: impl FnOnce() -> bool) {
        self.emptied.fetch_add(1, Ordering::AcqRel);
        if is_drained() {
            self.bell.ring();
        }
    }

    /// Wakes the waiter to look, whatever lanes hold.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Sleeps until `is_over`.
    pub fn wait(&self, is_over: impl Fn() -> bool) {
        self.bell.wait(is_over);
    }
}
