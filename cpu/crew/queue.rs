//! A lane's queue: tasks in order, each cut into grains that any thread of the crew may take.
//!
//! A ring of slots, all atomics, no lock. `tail` counts what was pushed, `head` packs the number of the entry whose
//! turn it is with the next grain of it to hand out. One thread pushes at a time (the device sees to that); any
//! number claim and finish.
//!
//! - A claim is a compare-and-swap on `head`: it succeeds only if the entry was still at the head, so what was
//!   read of the slot before it was that entry's. A slot is written again only after `head` has passed it.
//! - The thread that finishes the last grain, and no other, moves `head` to the next entry. Until then every claim
//!   fails (all grains are taken), so a plain release store will do.
//! - A task may be *narrow*: bound by memory, it gains nothing from many threads at once. Whoever asks politely gets a grain of
//!   it only if less of them run than it is wide. That is a hint and no bound: the counts are read at different times.
//! - What grains wrote is seen by whoever sees the entry done: finishing is an acquire-release add on `done`, so
//!   the last finisher has seen all others' writes, and its release store of `head` passes them on to every later
//!   acquire load. Claims are read-modify-writes of `head` and so continue that release.

use super::sync::{AtomicU32, AtomicU64, Ordering};

const GRAIN_BITS: u32 = 24;
const GRAIN_MASK: u64 = (1 << GRAIN_BITS) - 1;
/// Marks an entry that is a wait.
const WAIT: u64 = 1 << 63;
const SEQ_BITS: u32 = 40;

/// Most grains of one task.
pub const MAX_GRAINS: u32 = GRAIN_MASK as u32;

/// An entry of some lane, for events and waits: it is done when the lane's head has passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The lane, counted over all devices of a worker.
    pub lane: u32,
    /// Its number in that lane.
    pub seq: u64,
}

impl Ticket {
    /// Both numbers in one word, whose highest bit is 0.
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.lane) << SEQ_BITS | self.seq
    }

    /// What [`Ticket::to_word`] was given.
    fn of_word(word: u64) -> Self {
        Self { lane: (word >> SEQ_BITS) as u32, seq: word & ((1 << SEQ_BITS) - 1) }
    }
}

/// What a thread finds at the head of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing was pushed.
    Empty,
    /// The head waits for an entry of another lane.
    Blocked,
    /// All grains of the head are taken, or as many as are wanted; some still run.
    Busy,
    /// This grain is the caller's.
    Grain {
        /// The entry's number in this lane.
        seq: u64,
        /// What was pushed.
        payload: u64,
        /// The grain.
        grain: u32,
    },
}

#[derive(Debug)]
struct Slot {
    entry: AtomicU64,
    grains: AtomicU32,
    done: AtomicU32,
    /// Grains that are worth running at once.
    width: AtomicU32,
}

/// How many threads a task is offered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// No more than it is wide.
    Wanted,
    /// All that ask.
    All,
}

/// One lane's queue.
#[derive(Debug)]
pub struct LaneQueue {
    slots: Box<[Slot]>,
    head: AtomicU64,
    tail: AtomicU64,
}

impl LaneQueue {
    /// A queue of at least `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        let slot = || Slot {
            entry: AtomicU64::new(0),
            grains: AtomicU32::new(0),
            done: AtomicU32::new(0),
            width: AtomicU32::new(0),
        };
        let slots = (0..capacity.max(2).next_power_of_two()).map(|_| slot()).collect();
        Self { slots, head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    /// Entries that fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The slot of an entry; stable until `capacity` more entries were pushed.
    pub fn slot_of(&self, seq: u64) -> usize {
        (seq as usize) & (self.slots.len() - 1)
    }

    /// Pushes a task of `grains` grains; `payload` has 63 bits. `None` if the queue is full. One caller at a time.
    pub fn push_task(&self, payload: u64, grains: u32) -> Option<u64> {
        self.push_narrow(payload, grains, u32::MAX)
    }

    /// The same of a task of which at most `width` grains are worth running at once.
    pub fn push_narrow(&self, payload: u64, grains: u32, width: u32) -> Option<u64> {
        self.push(payload & !WAIT, grains.clamp(1, MAX_GRAINS), width)
    }

    /// Pushes a wait. `None` if the queue is full. One caller at a time.
    pub fn push_wait(&self, ticket: Ticket) -> Option<u64> {
        self.push(WAIT | ticket.to_word(), 0, 0)
    }

    fn push(&self, entry: u64, grains: u32, width: u32) -> Option<u64> {
        let seq = self.tail.load(Ordering::Relaxed);
        // Acquire: the last finisher's reset of the slot comes before its new use.
        if seq - self.passed() >= self.slots.len() as u64 {
            return None;
        }
        let slot = &self.slots[self.slot_of(seq)];
        slot.entry.store(entry, Ordering::Relaxed);
        slot.grains.store(grains, Ordering::Relaxed);
        slot.width.store(width, Ordering::Relaxed);
        self.tail.store(seq + 1, Ordering::Release);
        Some(seq)
    }

    /// Takes a grain of the head if there is one; passes waits that `is_done` says are over.
    pub fn claim(&self, offer: Offer, is_done: impl Fn(Ticket) -> bool) -> Claim {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (seq, grain) = (head >> GRAIN_BITS, head & GRAIN_MASK);
            if seq >= self.tail.load(Ordering::Acquire) {
                return Claim::Empty;
            }
            let slot = &self.slots[self.slot_of(seq)];
            let entry = slot.entry.load(Ordering::Relaxed);
            let next = if entry & WAIT != 0 {
                if !is_done(Ticket::of_word(entry & !WAIT)) {
                    return Claim::Blocked;
                }
                (seq + 1) << GRAIN_BITS
            } else {
                if grain >= u64::from(slot.grains.load(Ordering::Relaxed)) {
                    return Claim::Busy;
                }
                let running = grain.saturating_sub(u64::from(slot.done.load(Ordering::Relaxed)));
                if offer == Offer::Wanted && running >= u64::from(slot.width.load(Ordering::Relaxed)) {
                    return Claim::Busy;
                }
                head + 1
            };
            match self.head.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if entry & WAIT != 0 => head = next,
                Ok(_) => return Claim::Grain { seq, payload: entry, grain: grain as u32 },
                Err(current) => head = current,
            }
        }
    }

    /// Says that a claimed grain of entry `seq` is finished. True for the last: its caller must call
    /// [`LaneQueue::advance`] when it has done what comes after all grains.
    pub fn finish(&self, seq: u64) -> bool {
        let slot = &self.slots[self.slot_of(seq)];
        // The head cannot pass this entry before its last grain is finished, so the slot is still this entry's.
        let grains = slot.grains.load(Ordering::Relaxed);
        let last = slot.done.fetch_add(1, Ordering::AcqRel) + 1 == grains;
        if last {
            slot.done.store(0, Ordering::Relaxed);
        }
        last
    }

    /// Moves the head past entry `seq`. True if the lane is empty now.
    pub fn advance(&self, seq: u64) -> bool {
        self.head.store((seq + 1) << GRAIN_BITS, Ordering::Release);
        self.tail.load(Ordering::Acquire) == seq + 1
    }

    /// Number of entries that are done.
    pub fn passed(&self) -> u64 {
        self.head.load(Ordering::Acquire) >> GRAIN_BITS
    }

    /// Whether everything that was pushed is done, trailing waits included if `is_done` says they are over.
    pub fn is_drained(&self, is_done: impl Fn(Ticket) -> bool) -> bool {
        let mut seq = self.passed();
        while seq < self.tail.load(Ordering::Acquire) {
            let entry = self.slots[self.slot_of(seq)].entry.load(Ordering::Relaxed);
            if entry & WAIT == 0 || !is_done(Ticket::of_word(entry & !WAIT)) {
                return false;
            }
            seq += 1;
        }
        true
    }
}
