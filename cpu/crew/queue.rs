//! A lane's queue: tasks in order, each cut into grains that any thread of the crew may take.
//!
//! A ring of slots, all atomics, no lock. `tail` counts what was pushed, `head` is the number of the entry whose turn it
//! is. One thread pushes at a time (the device sees to that); any number claim and finish.
//!
//! - The grains of an entry are divided into *shares* of neighbours, one for each few threads of the crew. A thread takes
//!   the grains of its own share first, then those that others have left ([`Home`]), and threads of one share alone write the word that
//!   hands its grains out.
//! - That word packs the number of the entry whose grains were last taken from the share with how many of them were. A claim is a
//!   compare-and-swap on it. A word with a lower entry says that nothing of the head's share was taken yet: the head moves on only when
//!   all grains are finished, so it has taken all of the shares before. Words only ever grow, so a claim by
//!   whoever has read an old `head` fails, or finds nothing left.
//! - A slot is written again only after `head` has passed it, which it has not before all grains are finished: what was read of it
//!   before a claim that succeeds was that entry's. So the words of shares order nothing, and are relaxed. The number of grains
//!   bears the entry's number: a later entry's would give grains to a share of which this one has none, and whose word
//!   therefore never named it.
//! - The thread that finishes the last grain, and no other, moves `head` to the next entry. Until then no claim
//!   succeeds (all grains are taken), so a plain release store will do.
//! - A task may be *narrow*: bound by memory, it gains nothing from many threads at once. Whoever asks politely gets a grain of
//!   it only if less of them run than it is wide. That is a hint and no bound: the counts are read at different times.
//! - What grains wrote is seen by whoever sees the entry done: finishing is an acquire-release add on `done`, so
//!   the last finisher has seen all others' writes, and its release store of `head` passes them on to every later
//!   acquire load. Passing a wait is a read-modify-write of `head` and so continues that release.

use super::Home;
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
    /// All grains of the head are taken, or as many as are wanted; some still run, or ran when this was asked.
    Busy,
    /// This grain is the caller's.
    Grain {
        /// The entry's number in this lane.
        seq: u64,
        /// What was pushed.
        payload: u64,
        /// The grain.
        grain: u32,
        /// Whether no other grain of the entry was taken before.
        first: bool,
    },
}

#[derive(Debug)]
struct Slot {
    entry: AtomicU64,
    /// The entry's number and how many grains it has.
    grains: AtomicU64,
    done: AtomicU32,
    /// Grains that are worth running at once.
    width: AtomicU32,
    /// Not 0 once a share was begun.
    begun: AtomicU32,
}

/// The number of the entry of which a share's grains were last taken, and how many: see the head of this file. On lines of its
/// own, with the one that is fetched beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Share(AtomicU64);

/// Which of `grains` grains belong to a share of several.
fn grains_of(share: usize, shares: usize, grains: u64) -> std::ops::Range<u64> {
    let start = |share: usize| share as u64 * grains / shares as u64;
    start(share)..start(share + 1)
}

/// An entry's number and a number of its grains.
fn word_of(seq: u64, grains: u64) -> u64 {
    seq << GRAIN_BITS | grains
}

/// The number of grains in a word of entry `seq`; `None` if it is another entry's.
fn grains_in(word: u64, seq: u64) -> Option<u64> {
    (word >> GRAIN_BITS == seq).then_some(word & GRAIN_MASK)
}

/// Grains of entry `seq` that a share's word says are taken; `None` if the entry is done, and the word a later one's.
fn taken_of(word: u64, seq: u64) -> Option<u64> {
    if word >> GRAIN_BITS < seq { Some(0) } else { grains_in(word, seq) }
}

/// How many threads a task is offered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// No more than it is wide.
    Wanted,
    /// All that ask.
    All,
}

/// Which shares of a task a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those behind its cache.
    Near,
    /// All of them, these first.
    All,
}

/// One lane's queue.
#[derive(Debug)]
pub struct LaneQueue {
    slots: Box<[Slot]>,
    shares: Box<[Share]>,
    head: AtomicU64,
    tail: AtomicU64,
}

impl LaneQueue {
    /// A queue of at least `capacity` entries, whose grains are handed out in so many shares, at least one.
    pub fn new(capacity: usize, shares: usize) -> Self {
        let slot = || Slot {
            entry: AtomicU64::new(0),
            grains: AtomicU64::new(0),
            done: AtomicU32::new(0),
            width: AtomicU32::new(0),
            begun: AtomicU32::new(0),
        };
        let slots = (0..capacity.max(2).next_power_of_two()).map(|_| slot()).collect();
        let shares = (0..shares.max(1)).map(|_| Share::default()).collect();
        Self { slots, shares, head: AtomicU64::new(0), tail: AtomicU64::new(0) }
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
        slot.grains.store(word_of(seq, u64::from(grains)), Ordering::Relaxed);
        slot.width.store(width, Ordering::Relaxed);
        slot.begun.store(0, Ordering::Relaxed);
        self.tail.store(seq + 1, Ordering::Release);
        Some(seq)
    }

    /// Takes a grain of the head if there is one within reach, of the thread's own share if that has any; passes waits that `is_done`
    /// says are over.
    pub fn claim(&self, home: &Home, reach: Reach, offer: Offer, is_done: impl Fn(Ticket) -> bool) -> Claim {
        let mut seq = self.head.load(Ordering::Acquire);
        loop {
            if seq >= self.tail.load(Ordering::Acquire) {
                return Claim::Empty;
            }
            let slot = &self.slots[self.slot_of(seq)];
            let entry = slot.entry.load(Ordering::Relaxed);
            if entry & WAIT != 0 {
                if !is_done(Ticket::of_word(entry & !WAIT)) {
                    return Claim::Blocked;
                }
                let passed = self.head.compare_exchange(seq, seq + 1, Ordering::AcqRel, Ordering::Acquire);
                seq = passed.map_or_else(|current| current, |_| seq + 1);
                continue;
            }
            // If the slot is another entry's by now, so is the head: whoever moved it on rings for all that wait.
            let Some(grains) = grains_in(slot.grains.load(Ordering::Relaxed), seq) else {
                return Claim::Busy;
            };
            if offer == Offer::Wanted && self.is_satisfied(seq, slot, grains) {
                return Claim::Busy;
            }
            let mut taken = home.near().find_map(|share| self.take(share, seq, grains));
            if reach == Reach::All && taken.is_none() {
                taken = home.far(self.shares.len()).find_map(|share| self.take(share, seq, grains));
            }
            let Some((grain, begins)) = taken else { return Claim::Busy };
            let first = begins && slot.begun.swap(1, Ordering::Relaxed) == 0;
            return Claim::Grain { seq, payload: entry, grain, first };
        }
    }

    /// Takes a grain of a share of entry `seq`, if one is left, and says whether it is the share's first.
    fn take(&self, share: usize, seq: u64, grains: u64) -> Option<(u32, bool)> {
        let own = grains_of(share, self.shares.len(), grains);
        let word = &self.shares[share].0;
        let mut current = word.load(Ordering::Relaxed);
        loop {
            let taken = taken_of(current, seq)?;
            if taken >= own.end - own.start {
                return None;
            }
            let next = word_of(seq, taken + 1);
            match word.compare_exchange_weak(current, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(((own.start + taken) as u32, taken == 0)),
                Err(other) => current = other,
            }
        }
    }

    /// Whether as many grains of entry `seq` run as it is wide.
    fn is_satisfied(&self, seq: u64, slot: &Slot, grains: u64) -> bool {
        let width = u64::from(slot.width.load(Ordering::Relaxed));
        if width >= grains {
            return false;
        }
        let taken = |share: &Share| taken_of(share.0.load(Ordering::Relaxed), seq).unwrap_or(0);
        let taken: u64 = self.shares.iter().map(taken).sum();
        taken.saturating_sub(u64::from(slot.done.load(Ordering::Relaxed))) >= width
    }

    /// Says that a claimed grain of entry `seq` is finished. True for the last: its caller must call
    /// [`LaneQueue::advance`] when it has done what comes after all grains.
    pub fn finish(&self, seq: u64) -> bool {
        let slot = &self.slots[self.slot_of(seq)];
        // The head cannot pass this entry before its last grain is finished, so the slot is still this entry's.
        let grains = slot.grains.load(Ordering::Relaxed) & GRAIN_MASK;
        let last = u64::from(slot.done.fetch_add(1, Ordering::AcqRel)) + 1 == grains;
        if last {
            slot.done.store(0, Ordering::Relaxed);
        }
        last
    }

    /// Moves the head past entry `seq`.
    pub fn advance(&self, seq: u64) {
        self.head.store(seq + 1, Ordering::Release);
    }

    /// Number of entries that are done.
    pub fn passed(&self) -> u64 {
        self.head.load(Ordering::Acquire)
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
