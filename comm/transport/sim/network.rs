//! The state of the simulated network and its scheduler: plain data, used by one thread at a time.

use super::{Kill, SimFailure};
use crate::error::{CommError, Doing, Peer};
use crate::transport::mailbox::Mailbox;
use crate::transport::{Buffer, Tag, missing};

/// More events than any test needs; reached only by ranks that poll for what never comes.
const MAX_EVENTS: u64 = 50_000;

/// The longest delay, in ticks, of a message on a prompt, a slow and a clogged path.
const PACES: [u64; 4] = [10, 10, 100, 5_000];

/// The longest pause, in ticks, between the moment a rank may go on and the moment it does.
const MAX_PAUSE: u64 = 50;

/// SplitMix64 (Steele, Lea and Flood, 2014) as a function of a counter.
struct Random {
    seed: u64,
    counter: u64,
}

impl Random {
    /// A number below `bound`, which is small enough for the bias of the remainder not to matter.
    fn below(&mut self, bound: u64) -> u64 {
        self.counter += 1;
        let mut z = self.seed.wrapping_add(self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// What a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) from: Peer,
    pub(super) tag: Tag,
}

/// When an event happens: virtual time, then order of creation.
type Due = (u64, u64);

/// A message on its way.
struct Flight {
    due: Due,
    from: usize,
    to: usize,
    tag: Tag,
    payload: Buffer,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// Has the baton.
    Running,
    /// Gets the baton at that time.
    Ready(Due),
    /// Waits for a message.
    Blocked(Want),
    /// Its code has ended.
    Ended,
}

struct Rank {
    phase: Phase,
    inbox: Mailbox,
    /// It will send no more.
    gone: bool,
    /// It was stopped, at this operation.
    stopped: Option<u64>,
    operations: u64,
}

/// Everything that a simulated run depends on.
pub(super) struct Network {
    seed: u64,
    random: Random,
    clock: u64,
    created: u64,
    events: u64,
    /// The pace of each ordered pair, at `from * size + to`.
    paces: Vec<u64>,
    flights: Vec<Flight>,
    ranks: Vec<Rank>,
    running: Option<usize>,
    failure: Option<SimFailure>,
    kill: Option<Kill>,
}

impl Network {
    pub(super) fn new(size: usize, seed: u64, kill: Option<Kill>) -> Self {
        let mut random = Random { seed, counter: 0 };
        let paces = (0..size * size).map(|_| PACES[random.below(PACES.len() as u64) as usize]).collect();
        let ranks = (0..size)
            .map(|rank| Rank {
                phase: Phase::Ready((random.below(MAX_PAUSE), rank as u64)),
                inbox: Mailbox::default(),
                gone: false,
                stopped: None,
                operations: 0,
            })
            .collect();
        Network {
            seed,
            random,
            clock: 0,
            created: size as u64,
            events: 0,
            paces,
            flights: Vec::new(),
            ranks,
            running: None,
            failure: None,
            kill,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The rank that has the baton.
    pub(super) fn running(&self) -> Option<usize> {
        self.running
    }

    pub(super) fn failure(&self) -> Option<&SimFailure> {
        self.failure.as_ref()
    }

    /// Counts one operation of `rank` and stops it if this is the one at which it has to stop.
    pub(super) fn count_operation(&mut self, rank: usize) -> Result<(), CommError> {
        let operation = self.ranks[rank].operations;
        self.ranks[rank].operations += 1;
        if self.kill == Some(Kill { rank, operation }) {
            self.ranks[rank].stopped = Some(operation);
            self.leave(rank);
            // What it sent was still in its own memory, or already out: both happen.
            let random = &mut self.random;
            self.flights.retain(|flight| flight.from != rank || random.below(2) == 0);
        }
        match self.ranks[rank].stopped {
            Some(operation) => Err(CommError::Stopped { rank, operation }),
            None => Ok(()),
        }
    }

    /// Puts a message on its way.
    pub(super) fn send(
        &mut self,
        from: usize,
        to: usize,
        tag: Tag,
        payload: Buffer,
    ) -> Result<(), CommError> {
        if self.ranks[to].gone {
            // Whether a sender notices that its peer has just died is a matter of luck; that a peer has ended is not.
            if self.ranks[to].stopped.is_some() && self.random.below(2) == 0 {
                return Ok(());
            }
            return Err(CommError::PeerLost { rank: from, peer: to, doing: Doing::Sending(tag) });
        }
        let pace = self.paces[from * self.size() + to];
        let (time, order) = self.due_within(pace);
        let before = self.flights.iter().filter(|other| (other.from, other.to, other.tag) == (from, to, tag));
        // Behind the earlier messages of this pair with this tag; `order` decides among equals.
        let time = before.map(|other| other.due.0).fold(time, u64::max);
        self.flights.push(Flight { due: (time, order), from, to, tag, payload });
        Ok(())
    }

    /// Takes what `rank` wants if it has arrived; fails if it can no longer come.
    pub(super) fn look(&mut self, rank: usize, want: Want) -> Result<Option<(usize, Buffer)>, CommError> {
        if let Some(found) = self.ranks[rank].inbox.take(want.from, want.tag) {
            return Ok(Some(found));
        }
        match self.lost(rank, want) {
            Some(peer) => Err(CommError::PeerLost { rank, peer, doing: Doing::Receiving(want.tag) }),
            None => Ok(None),
        }
    }

    /// `rank` gives the baton away until what it wants has arrived or is lost.
    pub(super) fn block(&mut self, rank: usize, want: Want) {
        self.ranks[rank].phase = Phase::Blocked(want);
        self.schedule();
    }

    /// `rank` gives the baton away for a while.
    pub(super) fn pause(&mut self, rank: usize) {
        self.ranks[rank].phase = Phase::Ready(self.due_within(MAX_PAUSE));
        self.schedule();
    }

    /// `rank` will send and receive no more. What it sent is still on its way.
    pub(super) fn leave(&mut self, rank: usize) {
        self.ranks[rank].gone = true;
    }

    /// The code of `rank` has ended.
    pub(super) fn end(&mut self, rank: usize) {
        self.leave(rank);
        self.ranks[rank].phase = Phase::Ended;
        if self.failure.is_none() {
            self.schedule();
        }
    }

    /// Lets events happen until one of them gives the baton to a rank. None is left: either all ranks have ended, or
    /// those that have not wait for each other.
    pub(super) fn schedule(&mut self) {
        self.running = None;
        while self.running.is_none() && self.failure.is_none() {
            self.release_hopeless();
            let message = (0..self.flights.len()).min_by_key(|&index| self.flights[index].due);
            let rank = (0..self.size()).filter_map(|rank| Some((self.ready_at(rank)?, rank))).min();
            match (message, rank) {
                (Some(index), Some((due, _))) if self.flights[index].due < due => self.deliver(index),
                (_, Some((due, rank))) => {
                    self.clock = due.0;
                    self.ranks[rank].phase = Phase::Running;
                    self.running = Some(rank);
                }
                (Some(index), None) => self.deliver(index),
                (None, None) => return self.note_deadlock(),
            }
            self.events += 1;
            if self.events >= MAX_EVENTS {
                self.running = None;
                self.failure = Some(SimFailure::Endless { seed: self.seed, events: self.events });
            }
        }
    }

    fn deliver(&mut self, index: usize) {
        let Flight { due, from, to, tag, payload } = self.flights.swap_remove(index);
        self.clock = due.0;
        self.ranks[to].inbox.put(from, tag, payload);
        if let Phase::Blocked(want) = self.ranks[to].phase
            && self.ranks[to].inbox.holds(want.from, want.tag)
        {
            self.ranks[to].phase = Phase::Ready(self.due_within(MAX_PAUSE));
        }
    }

    /// Ranks that wait for what can no longer come go on, to be told so.
    fn release_hopeless(&mut self) {
        for rank in 0..self.size() {
            if let Phase::Blocked(want) = self.ranks[rank].phase
                && self.lost(rank, want).is_some()
            {
                self.ranks[rank].phase = Phase::Ready(self.due_within(MAX_PAUSE));
            }
        }
    }

    fn note_deadlock(&mut self) {
        let blocked = |(rank, state): (usize, &Rank)| match state.phase {
            Phase::Blocked(want) => Some((rank, want.from, want.tag)),
            _ => None,
        };
        let waiting: Vec<_> = self.ranks.iter().enumerate().filter_map(blocked).collect();
        if !waiting.is_empty() {
            self.failure = Some(SimFailure::Deadlock { seed: self.seed, waiting });
        }
    }

    /// The rank because of which `want` can no longer be met: it is gone, and nothing wanted is on its way.
    fn lost(&self, rank: usize, want: Want) -> Option<usize> {
        let coming = self
            .flights
            .iter()
            .any(|flight| flight.to == rank && flight.tag == want.tag && want.from.admits(flight.from));
        let gone = self.ranks.iter().map(|state| state.gone).enumerate();
        missing(want.from, gone).filter(|_| !coming)
    }

    fn ready_at(&self, rank: usize) -> Option<Due> {
        match self.ranks[rank].phase {
            Phase::Ready(due) => Some(due),
            _ => None,
        }
    }

    /// A moment at most `ticks` from now, behind all that were made before for the same time.
    fn due_within(&mut self, ticks: u64) -> Due {
        self.created += 1;
        (self.clock + 1 + self.random.below(ticks), self.created)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The first outputs of the reference implementation for seed 1234567.
        let mut random = Random { seed: 1_234_567, counter: 0 };
        let bound = u64::MAX;
        assert_eq!(random.below(bound), 6_457_827_717_110_365_317);
        assert_eq!(random.below(bound), 3_203_168_211_198_807_973);
    }
}
