//! The state of all ranks in virtual time: plain data behind one lock.

use quadrille_core::machine::Link;
use quadrille_core::rng::{Purpose, Stream};

use super::Wires;
use crate::error::Peer;
use crate::transport::{Buffer, Kind, Tag, missing};

/// What a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) from: Peer,
    pub(super) tag: Tag,
}

/// A message that has been sent.
struct Letter {
    arrives: u64,
    /// What the message takes of either end.
    work: u64,
    from: usize,
    /// Orders messages of one sender.
    number: u64,
    tag: Tag,
    payload: Buffer,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// Computes, or is about to do something at its bound.
    Active,
    /// Waits for a message.
    Waiting(Want),
    /// Will do nothing any more.
    Gone,
}

struct Rank {
    phase: Phase,
    /// The time of the rank itself.
    own: u64,
    /// Where its exchange is, while it does one on a time line of its own.
    aside: Option<u64>,
    /// When an exchange began that it has not done yet.
    begun: Option<u64>,
    /// It does nothing before this time any more.
    bound: u64,
    /// When its end of a way that others do not share is free again.
    out_free: u64,
    /// When the last message to each other rank arrives: one does not overtake another.
    last: Vec<u64>,
    inbox: Vec<Letter>,
    sent: u64,
    /// What the exchange on a time line of its own has taken of this rank's cores.
    busy: u64,
    /// How many times have been drawn.
    drawn: u64,
}

/// Everything that happens in virtual time.
pub(super) struct World {
    ranks: Vec<Rank>,
    wires: Wires,
    /// When the shared ways are free again: those of workers, of the master, of data.
    free: [u64; 3],
    failure: Option<String>,
}

/// The shared ways, in [`World::free`].
const WORKERS: usize = 0;
const MASTER: usize = 1;
const DATA: usize = 2;

/// A cost in whole nanoseconds.
fn nanoseconds(cost: f64) -> u64 {
    cost.round().max(0.0) as u64
}

impl World {
    pub(super) fn new(size: usize, wires: Wires) -> Self {
        let rank = || Rank {
            phase: Phase::Active,
            own: 0,
            aside: None,
            begun: None,
            bound: 0,
            out_free: 0,
            last: vec![0; size],
            inbox: Vec::new(),
            sent: 0,
            busy: 0,
            drawn: 0,
        };
        World { ranks: (0..size).map(|_| rank()).collect(), wires, free: [0; 3], failure: None }
    }

    pub(super) fn wires(&self) -> Wires {
        self.wires
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether a rank goes on at all.
    pub(super) fn runs(&self, rank: usize) -> bool {
        self.failure.is_none() && self.ranks[rank].phase != Phase::Gone
    }

    pub(super) fn is_gone(&self, rank: usize) -> bool {
        self.ranks[rank].phase == Phase::Gone
    }

    /// The time of the line on which the rank is.
    pub(super) fn time(&self, rank: usize) -> u64 {
        let rank = &self.ranks[rank];
        rank.aside.unwrap_or(rank.own)
    }

    /// The time before which the rank does nothing any more; `None` while it waits for what nobody has sent.
    fn bound(&self, rank: usize) -> Option<u64> {
        let state = &self.ranks[rank];
        match state.phase {
            Phase::Active => Some(state.bound),
            Phase::Waiting(want) => self.first(rank, want).map(|letter| letter.arrives.max(state.bound)),
            Phase::Gone => None,
        }
    }

    /// The rank whose event comes next.
    pub(super) fn next(&self) -> Option<usize> {
        let bounds = (0..self.ranks.len()).filter_map(|rank| Some((self.bound(rank)?, rank)));
        bounds.min().map(|(_, rank)| rank)
    }

    pub(super) fn is_next(&self, rank: usize) -> bool {
        self.next() == Some(rank)
    }

    /// The time of a rank goes on.
    pub(super) fn pass(&mut self, rank: usize, by: u64) {
        let time = self.time(rank) + by;
        self.set_time(rank, time);
    }

    /// The same by work of the rank itself.
    pub(super) fn work(&mut self, rank: usize, by: u64) {
        self.ranks[rank].busy += by;
        self.pass(rank, by);
    }

    fn set_time(&mut self, rank: usize, time: u64) {
        let state = &mut self.ranks[rank];
        match &mut state.aside {
            Some(aside) => *aside = time,
            None => state.own = time,
        }
        // Until an exchange that has begun is done, the rank may still send from its begin on.
        let earliest = if state.aside.is_none() { state.begun.unwrap_or(time) } else { time };
        state.bound = state.bound.max(earliest);
    }

    /// The rank is about to do something at its time, or at its bound if that is later: its other time line was there.
    pub(super) fn begin_event(&mut self, rank: usize) {
        let time = self.time(rank).max(self.ranks[rank].bound);
        self.set_time(rank, time);
    }

    pub(super) fn begin_aside(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        state.begun = Some(state.own.max(state.bound));
    }

    pub(super) fn enter_aside(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        let begin = state.begun.take().unwrap_or(state.own);
        state.busy = 0;
        state.aside = Some(begin.max(state.bound));
    }

    /// Returns when the exchange ended.
    pub(super) fn end_aside(&mut self, rank: usize) -> u64 {
        let state = &mut self.ranks[rank];
        let end = state.aside.take().unwrap_or(state.own);
        let busy = state.busy;
        self.take_from_computing(rank, busy, self.wires.overlap);
        let state = &mut self.ranks[rank];
        state.bound = state.bound.max(end).max(state.own);
        end
    }

    /// A cost as the rank has it this time.
    pub(super) fn varied(&mut self, rank: usize, cost: f64) -> u64 {
        let Some(jitter) = self.wires.jitter else { return nanoseconds(cost) };
        let state = &mut self.ranks[rank];
        state.drawn += 1;
        let stream = Stream::new(jitter.seed, Purpose::Jitter, rank as u32);
        nanoseconds(cost * (1.0 + jitter.share * f64::from(stream.uniform(state.drawn))))
    }

    /// The way between two ranks: its place among the shared ones, and what it is like.
    fn way(&self, from: usize, to: usize) -> (usize, Link) {
        let master = self.ranks.len() - 1;
        if self.wires.has_master && (from == master || to == master) {
            (MASTER, self.wires.master)
        } else {
            (WORKERS, self.wires.workers)
        }
    }

    /// Whether a message waits for those of other ranks.
    pub(super) fn is_shared_way(&self, from: usize, to: usize, len: usize) -> bool {
        len > 0 && self.way(from, to).1.serial
    }

    /// Sends a message at the rank's time. The sender goes on at once.
    pub(super) fn send(&mut self, from: usize, to: usize, tag: Tag, payload: Buffer) {
        let (place, link) = self.way(from, to);
        let bytes = size_of_val(&payload[..]);
        let now = self.time(from);
        let work = if bytes == 0 { 0 } else { nanoseconds(link.message(bytes) / 2.0) };
        let arrives = match tag.kind {
            Kind::Fingerprint | Kind::Verdict => now,
            _ if bytes == 0 => now + self.varied(from, self.wires.control),
            _ if link.serial => {
                let end = now.max(self.free[place]) + self.varied(from, link.message(bytes));
                self.free[place] = end;
                end
            }
            _ => {
                let start = now.max(self.ranks[from].out_free);
                self.ranks[from].out_free = start + self.varied(from, link.transfer(bytes));
                self.ranks[from].out_free + self.varied(from, link.latency)
            }
        };
        let state = &mut self.ranks[from];
        // Nothing arrives when it is sent: the order of events rests on that.
        let arrives = arrives.max(now + 1).max(state.last[to]);
        state.last[to] = arrives;
        state.sent += 1;
        state.busy += work;
        let number = state.sent;
        self.ranks[to].inbox.push(Letter { arrives, work, from, number, tag, payload });
    }

    /// A mini-batch leaves for the rank at its time. Returns what its way takes, and when it arrives.
    pub(super) fn copy_data(&mut self, rank: usize, bytes: usize) -> (u64, u64) {
        let (now, link) = (self.time(rank), self.wires.data);
        let cost = self.varied(rank, link.message(bytes));
        let start = if link.serial { now.max(self.free[DATA]) } else { now };
        if link.serial {
            self.free[DATA] = start + cost;
        }
        (cost, start + cost)
    }

    /// What was done beside computing makes that longer, but for the share `overlap`.
    pub(super) fn take_from_computing(&mut self, rank: usize, work: u64, overlap: f64) {
        let share = nanoseconds((1.0 - overlap) * work as f64);
        self.ranks[rank].own += share;
    }

    pub(super) fn begin_wait(&mut self, rank: usize, want: Want) {
        self.begin_event(rank);
        if self.runs(rank) {
            self.ranks[rank].phase = Phase::Waiting(want);
        }
    }

    pub(super) fn end_wait(&mut self, rank: usize) {
        if self.runs(rank) {
            self.ranks[rank].phase = Phase::Active;
        }
    }

    fn first(&self, rank: usize, want: Want) -> Option<&Letter> {
        let wanted = self.ranks[rank].inbox.iter();
        let wanted = wanted.filter(|letter| letter.tag == want.tag && want.from.admits(letter.from));
        wanted.min_by_key(|letter| (letter.arrives, letter.from, letter.number))
    }

    pub(super) fn has(&self, rank: usize, want: Want) -> bool {
        self.first(rank, want).is_some()
    }

    /// Takes the message that came first. The rank goes on when it arrives.
    pub(super) fn take(&mut self, rank: usize, want: Want) -> Option<(usize, Buffer)> {
        let found = self.first(rank, want).map(|letter| (letter.from, letter.number))?;
        let inbox = &mut self.ranks[rank].inbox;
        let index = inbox.iter().position(|letter| (letter.from, letter.number) == found)?;
        let letter = inbox.swap_remove(index);
        self.ranks[rank].busy += letter.work;
        self.end_wait(rank);
        let time = self.time(rank).max(letter.arrives);
        self.set_time(rank, time);
        Some((letter.from, letter.payload))
    }

    /// Takes the message that came first if it has arrived.
    pub(super) fn take_arrived(&mut self, rank: usize, want: Want) -> Option<Buffer> {
        let now = self.time(rank);
        self.first(rank, want).filter(|letter| letter.arrives <= now)?;
        self.take(rank, want).map(|(_, payload)| payload)
    }

    /// The rank because of which what is wanted can never come.
    pub(super) fn lost(&self, rank: usize, want: Want) -> Option<usize> {
        let gone = self.ranks.iter().map(|state| state.phase == Phase::Gone).enumerate();
        let others = gone.filter(|(peer, _)| *peer != rank);
        missing(want.from, others).filter(|_| !self.has(rank, want))
    }

    pub(super) fn leave(&mut self, rank: usize) {
        self.ranks[rank].phase = Phase::Gone;
        self.ranks[rank].inbox.clear();
    }

    /// Nobody can go on: those who wait, wait for each other.
    pub(super) fn note_deadlock(&mut self) {
        let waits = |(rank, state): (usize, &Rank)| match state.phase {
            Phase::Waiting(want) if self.lost(rank, want).is_none() => {
                Some(format!("rank {rank} waits for {} from {}", want.tag, want.from))
            }
            _ => None,
        };
        let waiting: Vec<String> = self.ranks.iter().enumerate().filter_map(waits).collect();
        let hopeless = self.ranks.iter().filter(|state| matches!(state.phase, Phase::Waiting(_))).count();
        // Whoever has lost somebody goes on to say so, and others with it.
        if self.failure.is_none() && !waiting.is_empty() && waiting.len() == hopeless {
            self.failure = Some(format!("sim: deadlock in virtual time: {}", waiting.join(", ")));
        }
    }
}
