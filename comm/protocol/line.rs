//! A worker's line to the master, beside the collectives of the workers among themselves.
//!
//! Of P + 1 ranks the first P are workers and the last is the master. In one process the master is a thread of its own; a
//! process of several ranks gives it the same place behind the workers.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::letter::{Letter, Meaning};
use crate::clock::{Moment, Work};
use crate::collective::{Collective, Traffic};
use crate::error::{CommError, Peer};
use crate::transport::{Buffer, Kind, Tag, Transport};

const REQUEST: Tag = Tag { exchange: 0, kind: Kind::Request };
const REPLY: Tag = Tag { exchange: 0, kind: Kind::Reply };
/// An array that travels by itself, before the letter with the last one.
const ARRAY_UP: Tag = Tag { exchange: 1, kind: Kind::Request };
const ARRAY_DOWN: Tag = Tag { exchange: 1, kind: Kind::Reply };

/// A worker's end.
pub(super) struct Line<T> {
    group: Collective<T>,
    master: usize,
    /// The letter that goes to the master and comes back; not here while it is under way.
    letter: Option<Letter>,
    len: usize,
    /// Where the arrays of a packed buffer lie that travel before the letter, and what is in the letter.
    apart: Vec<Range<usize>>,
    last: Range<usize>,
    /// The number of the next collective call; the same on all workers.
    next: u64,
    /// How long the master took for its updates in this worker's exchanges.
    updating: Duration,
}

impl<T: Transport> Line<T> {
    /// The line of a worker whose packed buffers have `len` values. The last rank of `transport` is the master.
    pub(super) fn new(transport: T, len: usize) -> Self {
        let master = transport.size().saturating_sub(1);
        let group = Collective::among(transport, master);
        Line {
            group,
            master,
            letter: None,
            len,
            apart: Vec::new(),
            last: 0..len,
            next: 0,
            updating: Duration::ZERO,
        }
    }

    /// The same with a message for each of `parts` of a packed buffer, which hold all of it but zeros.
    pub(super) fn going(self, mut parts: Vec<Range<usize>>) -> Self {
        let last = parts.pop().unwrap_or(0..self.len);
        // A buffer for each array is on its way at a time.
        let group = self.group.keeping(parts.len());
        Line { group, apart: parts, last, ..self }
    }

    pub(super) fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of workers, P.
    pub(super) fn size(&self) -> usize {
        self.group.size()
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    pub(super) fn now(&self) -> Moment {
        self.group.now()
    }

    pub(super) fn updating(&self) -> Duration {
        self.updating
    }

    /// Where the letter that goes there and back lies while it is here.
    #[cfg(test)]
    pub(super) fn spare_place(&self) -> Option<*const f32> {
        self.letter.as_ref().map(|letter| letter.values().as_ptr())
    }

    /// Sends packed `values` for an exchange, with the number that belongs to them.
    pub(super) fn ask(&mut self, values: &[f32], number: f32) -> Result<(), CommError> {
        self.check_len(values.len())?;
        for part in &self.apart {
            let array = self.group.pool.copy_of(&values[part.clone()]);
            self.group.send(self.master, ARRAY_UP, array)?;
        }
        let values = &values[self.last.clone()];
        let mut letter = self.letter.take().unwrap_or_else(|| Letter::new(values.len()));
        letter.values_mut().copy_from_slice(values);
        self.group.send(self.master, REQUEST, letter.seal(Meaning::Exchange, number))
    }

    /// Asks for what comes once all workers ask for it; the reply has room for `room` values.
    pub(super) fn ask_with_all(&mut self, meaning: Meaning, room: usize) -> Result<(), CommError> {
        self.group.send(self.master, REQUEST, Letter::new(room).seal(meaning, 0.0))
    }

    /// Waits, as for the centre, until all workers have come here as often: however far they have drifted apart, whoever is
    /// first hears of the others while these exchange.
    fn meet(&mut self) -> Result<(), CommError> {
        self.ask_with_all(Meaning::Centre, 0)?;
        self.answer(Meaning::Centre, &mut [])
    }

    /// Waits for the reply to an exchange: the arrays, then the letter.
    pub(super) fn answer_exchange(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        for index in 0..self.apart.len() {
            let part = self.apart[index].clone();
            let array = self.group.receive(self.master, ARRAY_DOWN, part.len())?;
            values[part].copy_from_slice(&array);
            self.group.pool.put(array);
        }
        self.answer(Meaning::Exchange, &mut values[self.last.clone()])
    }

    /// Waits for the reply to what was asked, and copies its values. Each time that the master says who is still missing,
    /// the wait begins anew, and it is that worker who is blamed at its end.
    pub(super) fn answer(&mut self, asked: Meaning, values: &mut [f32]) -> Result<(), CommError> {
        let mut missing = self.master;
        loop {
            let (letter, meaning) = match self.group.receive_any_length(self.master, REPLY) {
                Ok(buffer) => Letter::read(buffer).ok_or_else(|| self.unexpected("is none"))?,
                Err(CommError::Timeout { rank, seconds, doing, .. }) => {
                    return Err(CommError::Timeout { rank, peer: Peer::Rank(missing), seconds, doing });
                }
                Err(error) => return Err(error),
            };
            match meaning {
                Meaning::NotYet => missing = letter.number() as usize,
                _ if meaning == asked && letter.len() == values.len() => {
                    values.copy_from_slice(letter.values());
                    if asked == Meaning::Exchange {
                        self.updating += letter.duration();
                    }
                    if letter.len() == self.last.len() {
                        self.letter = Some(letter);
                    }
                    return Ok(());
                }
                _ => {
                    let problem = format!("has {} values and means {meaning:?}", letter.len());
                    return Err(self.unexpected(&format!("{problem}, not {} and {asked:?}", values.len())));
                }
            }
        }
    }

    /// Waits until the master announces turn `turn`, counted from 0 over all workers. The turn before is that of the worker
    /// before, who is blamed if it does not end within a peer timeout.
    pub(super) fn await_turn(&mut self, turn: u64) -> Result<(), CommError> {
        let tag = Tag { exchange: turn, kind: Kind::Turn };
        match self.group.receive_any_length(self.master, tag) {
            Ok(_) => Ok(()),
            Err(CommError::Timeout { rank, seconds, doing, .. }) => {
                let before = turn.checked_sub(1).map(|before| (before % self.size().max(1) as u64) as usize);
                // A turn of this worker is over: it is the master that does not go on.
                let before = before.filter(|before| *before != rank);
                let peer = Peer::Rank(before.unwrap_or(self.master));
                Err(CommError::Timeout { rank, peer, seconds, doing })
            }
            Err(error) => Err(error),
        }
    }

    /// Tells the master that this worker's turn is over.
    pub(super) fn end_turn(&mut self, turn: u64) -> Result<(), CommError> {
        let tag = Tag { exchange: turn, kind: Kind::TurnOver };
        self.group.send(self.master, tag, Buffer::default())
    }

    /// Sums a few values over all workers; the master takes no part.
    pub(super) fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.next += 1;
        self.group.all_reduce_sum(values, self.next - 1)
    }

    /// The same of workers that may have drifted apart.
    pub(super) fn meet_and_sum(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.meet()?;
        self.all_reduce_sum(values)
    }

    pub(super) fn check_len(&self, got: usize) -> Result<(), CommError> {
        if got == self.len {
            return Ok(());
        }
        let problem = format!("the centre has {} values, but a buffer of {got} was given", self.len);
        Err(CommError::Protocol { rank: self.rank(), peer: None, problem })
    }

    fn unexpected(&self, what: &str) -> CommError {
        let problem = format!("a reply of the master, rank {}, {what}: the ranks differ", self.master);
        CommError::Protocol { rank: self.rank(), peer: Some(self.master), problem }
    }
}

/// The master's end.
pub(super) struct Desk<T> {
    transport: T,
    traffic: Traffic,
}

impl<T: Transport> Desk<T> {
    /// The desk of the last rank of `transport`.
    pub(super) fn new(transport: T) -> Self {
        Desk { transport, traffic: Traffic::default() }
    }

    /// The number of workers, P.
    pub(super) fn workers(&self) -> usize {
        self.transport.size().saturating_sub(1)
    }

    pub(super) fn rank(&self) -> usize {
        self.transport.rank()
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Lets `update` change a centre of `values` by what one worker sent. Returns how long that took.
    pub(super) fn update(&mut self, values: usize, update: impl FnOnce()) -> Duration {
        let start = Instant::now();
        update();
        self.transport.spend(Work::Centre { values, workers: 1 }, start.elapsed())
    }

    /// Waits for the request that comes first: first come, first served. Workers owe the master nothing while they compute
    /// and test, so this ends only with a request or with the loss of a worker. Who waits for the master does so for one
    /// peer timeout at most.
    pub(super) fn next_request(&mut self) -> Result<(usize, Letter, Meaning), CommError> {
        let (from, buffer) = self.patiently(REQUEST)?;
        match Letter::read(buffer) {
            Some((letter, meaning)) => Ok((from, letter, meaning)),
            None => Err(self.unexpected(from, "is none")),
        }
    }

    /// Waits until the worker whose turn it is says that it is over.
    pub(super) fn turn_over(&mut self, turn: u64) -> Result<(), CommError> {
        self.patiently(Tag { exchange: turn, kind: Kind::TurnOver }).map(|_| ())
    }

    fn patiently(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        loop {
            match self.transport.recv_any(tag) {
                Err(CommError::Timeout { .. }) => {}
                other => return other,
            }
        }
    }

    /// Sends a reply.
    pub(super) fn reply(
        &mut self,
        to: usize,
        letter: Letter,
        meaning: Meaning,
        number: f32,
    ) -> Result<(), CommError> {
        self.send(to, REPLY, letter.seal(meaning, number))
    }

    /// Takes the arrays that came before a letter, one for each of `parts` of `whole`. They serve for the reply.
    pub(super) fn take_arrays(
        &mut self,
        from: usize,
        parts: &[Range<usize>],
        whole: &mut [f32],
        arrays: &mut Vec<Buffer>,
    ) -> Result<(), CommError> {
        for part in parts {
            let array = self.transport.recv(from, ARRAY_UP)?;
            if array.len() != part.len() {
                return Err(self.unexpected(from, &format!("has an array of {} values", array.len())));
            }
            whole[part.clone()].copy_from_slice(&array);
            arrays.push(array);
        }
        Ok(())
    }

    /// Sends one array of a reply.
    pub(super) fn reply_array(&mut self, to: usize, array: Buffer) -> Result<(), CommError> {
        self.send(to, ARRAY_DOWN, array)
    }

    /// Tells all workers that a turn begins; each of them knows whose it is.
    pub(super) fn announce(&mut self, turn: u64) -> Result<(), CommError> {
        let tag = Tag { exchange: turn, kind: Kind::Turn };
        (0..self.workers()).try_for_each(|worker| self.send(worker, tag, Buffer::default()))
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        let bytes = size_of_val(&payload[..]) as u64;
        self.transport.send(to, tag, payload)?;
        self.traffic.messages += 1;
        self.traffic.bytes += bytes;
        Ok(())
    }

    /// The error for a message of a worker that the method does not allow.
    pub(super) fn unexpected(&self, from: usize, what: &str) -> CommError {
        let problem = format!("a request of rank {from} {what}: the ranks differ");
        CommError::Protocol { rank: self.rank(), peer: Some(from), problem }
    }
}
