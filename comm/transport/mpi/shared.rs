//! What the service thread and the rest of its process share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use super::agreement::Agreement;
use super::wire::Address;
use crate::transport::Buffer;
use crate::transport::place::{Patience, Place};

/// Groups of endpoints: [`super::WORKERS`] and [`super::PROCESSES`].
pub(super) const CHANNELS: usize = 2;

/// A group of endpoints, some of them in this process.
pub(super) struct Channel {
    /// Of each rank the process that it lives in.
    pub(super) process: Vec<usize>,
    /// Of each rank of this process where its messages arrive.
    pub(super) places: Vec<Option<Place>>,
}

impl Channel {
    /// A group whose ranks live in these processes, of which one is `own`.
    pub(super) fn new(process: Vec<usize>, own: usize) -> Self {
        let ranks = process.len();
        let places = process.iter().map(|process| (*process == own).then(|| Place::new(ranks)));
        Channel { places: places.collect(), process }
    }

    /// Notes that the ranks of all other processes are gone, and which process is to blame.
    fn set_broken(&self, blamed: usize) {
        // A process's first rank has its number.
        let absent = self.places.iter().enumerate().filter(|(_, place)| place.is_none());
        for (rank, _) in absent {
            self.places.iter().flatten().for_each(|place| place.set_gone(rank, blamed));
        }
    }
}

/// Why the job cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loss {
    /// The process to blame.
    pub(super) blamed: usize,
    /// The exit code that it ended with, if it said one.
    pub(super) code: Option<u8>,
    /// Whether others told this process; then they told all.
    pub(super) told: bool,
}

/// What the service thread is asked to do.
pub(super) enum Order {
    /// A packed buffer for another process.
    Send { process: usize, address: Address, payload: Buffer },
    /// Something to be done by the service thread itself, such as moving to its CPU.
    Run(Box<dyn FnOnce() + Send>),
    /// Wait for all processes, then end MPI.
    Finish,
    /// Tell the others that this process ends with a failure.
    Abandon { code: u8, blamed: usize },
}

/// See the top of the file.
pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) patience: Patience,
    pub(super) agreement: Agreement,
    /// Endpoints that wait for a message right now.
    pub(super) waiting: AtomicUsize,
    channels: Mutex<[Option<Arc<Channel>>; CHANNELS]>,
    orders: Mutex<Vec<Order>>,
    loss: Mutex<Option<Loss>>,
    thread: OnceLock<Thread>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one of these locks is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Of process `rank` of `size`, made by its service thread.
    pub(super) fn new(rank: usize, size: usize, patience: Patience) -> Self {
        let thread = OnceLock::from(std::thread::current());
        Shared {
            rank,
            size,
            patience,
            agreement: Agreement::default(),
            waiting: AtomicUsize::new(0),
            channels: Mutex::default(),
            orders: Mutex::default(),
            loss: Mutex::default(),
            thread,
        }
    }

    /// Hands an order to the service thread.
    pub(super) fn order(&self, order: Order) {
        lock(&self.orders).push(order);
        self.wake();
    }

    /// Moves all orders to the end of `orders`.
    pub(super) fn take_orders(&self, orders: &mut Vec<Order>) {
        orders.append(&mut lock(&self.orders));
    }

    /// Wakes the service thread.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Opens a group of endpoints.
    pub(super) fn open(&self, channel: usize, process: Vec<usize>) -> Arc<Channel> {
        let opened = Arc::new(Channel::new(process, self.rank));
        // In this order: a loss that is noted meanwhile marks the new group by one of the two.
        lock(&self.channels)[channel] = Some(Arc::clone(&opened));
        if let Some(loss) = self.loss() {
            opened.set_broken(loss.blamed);
        }
        self.wake();
        opened
    }

    /// A group of endpoints, if it is open.
    pub(super) fn channel(&self, channel: usize) -> Option<Arc<Channel>> {
        lock(&self.channels).get(channel)?.clone()
    }

    /// Why the job cannot go on, if it cannot.
    pub(super) fn loss(&self) -> Option<Loss> {
        *lock(&self.loss)
    }

    /// Notes that the job cannot go on: no endpoint will get any more messages from other processes. What was noted first
    /// stays. Returns whether this is news.
    pub(super) fn set_loss(&self, loss: Loss) -> bool {
        let mut known = lock(&self.loss);
        if known.is_some() {
            return false;
        }
        *known = Some(loss);
        drop(known);
        let channels = lock(&self.channels).clone();
        channels.iter().flatten().for_each(|channel| channel.set_broken(loss.blamed));
        self.agreement.cancel();
        true
    }

    /// Whether an endpoint of this process waits.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}
