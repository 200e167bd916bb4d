//! Broadcast and sum over a binomial tree, written once over [`Transport`], and the sum that all get by whichever way is
//! chosen ([`crate::choice`]): the tree, `doubling.rs` or `ring.rs`.
//!
//! # Order of addition in the tree
//!
//! A rank starts from its own values and adds the partial sums of its children in increasing order of rank; only
//! then does it send the result to its parent. Arrival plays no part, so threads, the simulated network and MPI give
//! the same bits.
//!
//! # Messages and buffers
//!
//! One packed message per tree edge: P − 1 for a broadcast, P − 1 for a sum. A broadcast moves one buffer per edge
//! from parent to child, a sum moves one back; so the pools are as full after both as before, and from the second
//! round on nothing is allocated. A sum that is not followed by a broadcast of the same length (or the reverse) leaves
//! a spare buffer at one end of every edge, which is kept for later or freed, and allocates one at the other: use them
//! in pairs wherever that matters.
//!
//! # Why it ends
//!
//! Sends never wait. In a broadcast a rank waits for its parent only, in a sum for its children only; the tree has no
//! cycle, and all ranks call the same collectives in the same order, so the rank that is furthest behind never waits
//! for one ahead of it. If a rank fails it drops its transport, and each of its neighbours fails in turn.

use std::ops::Range;
use std::time::Duration;

use crate::choice::{Algorithm, Choice, Way};
use crate::clock::{Moment, Work};
use crate::error::CommError;
use crate::pool::Pool;
use crate::transport::{Buffer, Kind, Tag, Transport};
use crate::tree::{children, parent};

/// What one rank has sent through its collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Messages sent.
    pub messages: u64,
    /// Bytes of payload sent.
    pub bytes: u64,
}

/// One rank's part in collectives: its transport, its pool of buffers, its count of traffic.
///
/// Every rank calls the same functions in the same order, with buffers of the same length and with a number
/// `exchange` that no earlier call had. After an error it cannot be used again: drop it.
pub struct Collective<T> {
    transport: T,
    size: usize,
    choice: Choice,
    /// Where each array of a packed buffer lies, if each travels in a message of its own; else nothing.
    parts: Vec<Range<usize>>,
    pub(crate) pool: Pool,
    traffic: Traffic,
}

impl<T: Transport> Collective<T> {
    /// Collectives over all ranks of `transport`.
    pub fn new(transport: T) -> Self {
        let size = transport.size();
        Self::among(transport, size)
    }

    /// Collectives over the first `size` ranks of `transport`, of which this is one. The others take no part.
    pub fn among(transport: T, size: usize) -> Self {
        // A broadcast needs a buffer per child; a sum then needs one more, and one may be left over from before.
        let limit = children(transport.rank(), size).count() + 2;
        let choice = Choice::Fixed(Algorithm::Tree);
        let parts = Vec::new();
        Collective { transport, size, choice, parts, pool: Pool::new(limit), traffic: Traffic::default() }
    }

    /// The same with another way to travel. All ranks choose alike. With parts, which hold all of a packed buffer but zeros,
    /// each of them has a message of its own: the per-layer way, to compare with. Values that are fewer than the parts reach
    /// travel as one.
    pub fn going(self, way: Way) -> Self {
        Collective { choice: way.choice, parts: way.parts, ..self }
    }

    /// The same with room for so many free buffers more of a length.
    pub(crate) fn keeping(mut self, more: usize) -> Self {
        self.pool.keep(more);
        self
    }

    /// The way in which `len` values are summed for all. The ring's order depends on where its pieces are cut, so buffers
    /// that travel part by part never go around it.
    pub fn algorithm(&self, len: usize) -> Algorithm {
        match self.choice.of(len, self.size) {
            Algorithm::Ring if !self.parts.is_empty() => Algorithm::Tree,
            algorithm => algorithm,
        }
    }

    /// The number of messages that a buffer of `len` values travels in.
    fn messages(&self, len: usize) -> usize {
        let is_cut = self.parts.last().is_some_and(|last| last.end <= len);
        if is_cut { self.parts.len() } else { 1 }
    }

    /// What travels in message number `index` of `of`.
    fn message(&self, index: usize, of: usize, len: usize) -> Range<usize> {
        if of == 1 { 0..len } else { self.parts[index].clone() }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// The number of ranks that take part.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What this rank has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// How many buffers this rank had to allocate so far.
    pub fn pool_misses(&self) -> u64 {
        self.pool.misses()
    }

    /// Copies the `values` of rank 0 into the `values` of every rank.
    pub fn broadcast(&mut self, values: &mut [f32], exchange: u64) -> Result<(), CommError> {
        if self.parts.is_empty() {
            return self.send_down(values, exchange);
        }
        let (len, messages) = (values.len(), self.messages(values.len()));
        (0..messages)
            .try_for_each(|index| self.send_down(&mut values[self.message(index, messages, len)], exchange))
    }

    fn send_down(&mut self, values: &mut [f32], exchange: u64) -> Result<(), CommError> {
        let tag = Tag { exchange, kind: Kind::Broadcast };
        let mut received = None;
        if let Some(parent) = parent(self.rank()) {
            let buffer = self.receive(parent, tag, values.len())?;
            values.copy_from_slice(&buffer);
            received = Some(buffer);
        }
        // The child with the largest subtree first: its subtree has the longest way to go.
        for child in children(self.rank(), self.size()).rev() {
            // The buffer that came from the parent already holds the values, so one child gets it without a copy.
            let buffer = received.take().unwrap_or_else(|| self.pool.copy_of(values));
            self.send(child, tag, buffer)?;
        }
        if let Some(buffer) = received {
            self.pool.put(buffer);
        }
        Ok(())
    }

    /// Sums `own` over all ranks and calls `at_root` with the sum, on rank 0 only.
    pub fn reduce_sum(
        &mut self,
        own: &[f32],
        exchange: u64,
        at_root: impl FnOnce(&[f32]),
    ) -> Result<(), CommError> {
        if self.parts.is_empty() {
            if let Some(sum) = self.sum_at_root(own, exchange)? {
                at_root(&sum);
                self.pool.put(sum);
            }
            return Ok(());
        }
        // What no part holds is zero on all ranks, and so is its sum.
        let mut whole = self.pool.copy_of(own);
        let messages = self.messages(own.len());
        for index in 0..messages {
            let part = self.message(index, messages, own.len());
            if let Some(sum) = self.sum_at_root(&own[part.clone()], exchange)? {
                whole[part].copy_from_slice(&sum);
                self.pool.put(sum);
            }
        }
        if self.rank() == 0 {
            at_root(&whole);
        }
        self.pool.put(whole);
        Ok(())
    }

    /// Replaces `values` on every rank by their sum over all ranks: the same bits everywhere.
    pub fn all_reduce_sum(&mut self, values: &mut [f32], exchange: u64) -> Result<(), CommError> {
        let algorithm = self.algorithm(values.len());
        if self.parts.is_empty() {
            return self.sum_by(algorithm, values, exchange);
        }
        let (len, messages) = (values.len(), self.messages(values.len()));
        (0..messages).try_for_each(|index| {
            self.sum_by(algorithm, &mut values[self.message(index, messages, len)], exchange)
        })
    }

    fn sum_by(&mut self, algorithm: Algorithm, values: &mut [f32], exchange: u64) -> Result<(), CommError> {
        match algorithm {
            Algorithm::Tree => self.up_and_down(values, exchange),
            Algorithm::Doubling => self.double(values, exchange),
            Algorithm::Ring => self.go_around(values, exchange),
        }
    }

    fn up_and_down(&mut self, values: &mut [f32], exchange: u64) -> Result<(), CommError> {
        if let Some(sum) = self.sum_at_root(values, exchange)? {
            values.copy_from_slice(&sum);
            self.pool.put(sum);
        }
        self.broadcast(values, exchange)
    }

    /// The sum over all ranks, on rank 0; `None` elsewhere.
    fn sum_at_root(&mut self, own: &[f32], exchange: u64) -> Result<Option<Buffer>, CommError> {
        let tag = Tag { exchange, kind: Kind::Reduce };
        let mut partial: Option<Buffer> = None;
        for child in children(self.rank(), self.size()) {
            let mut arrived = self.receive(child, tag, own.len())?;
            match &mut partial {
                None => {
                    add(&mut arrived, own);
                    partial = Some(arrived);
                }
                Some(sum) => {
                    add(sum, &arrived);
                    self.pool.put(arrived);
                }
            }
        }
        let partial = partial.unwrap_or_else(|| self.pool.copy_of(own));
        match parent(self.rank()) {
            Some(parent) => self.send(parent, tag, partial).map(|()| None),
            None => Ok(Some(partial)),
        }
    }

    /// What time it is for this rank.
    pub(crate) fn now(&self) -> Moment {
        self.transport.now()
    }

    /// Says that this rank has done `work`; see [`Transport::spend`].
    pub(crate) fn spend(&mut self, work: Work, took: Duration) -> Duration {
        self.transport.spend(work, took)
    }

    /// Changes values that ranks share in memory; see [`Transport::change_shared`].
    pub(crate) fn change_shared(&mut self, len: usize, access: &mut dyn FnMut(Range<usize>)) -> Duration {
        self.transport.change_shared(len, access)
    }

    /// Lets others do first what comes first; see [`Transport::keep_order`].
    pub(crate) fn keep_order(&mut self) {
        self.transport.keep_order();
    }

    /// Sends a message, and counts it.
    pub(crate) fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        let bytes = size_of_val(&payload[..]) as u64;
        self.transport.send(to, tag, payload)?;
        self.traffic.messages += 1;
        self.traffic.bytes += bytes;
        Ok(())
    }

    /// Receives a message of any length, which is no part of a collective.
    pub(crate) fn receive_any_length(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        self.transport.recv(from, tag)
    }

    /// Receives a message of a collective.
    pub(crate) fn receive(&mut self, from: usize, tag: Tag, len: usize) -> Result<Buffer, CommError> {
        let buffer = self.transport.recv(from, tag)?;
        if buffer.len() == len {
            return Ok(buffer);
        }
        let got = buffer.len();
        let problem = format!("expected {len} values in {tag} from rank {from}, got {got}: the nets differ");
        Err(CommError::Protocol { rank: self.rank(), peer: Some(from), problem })
    }
}

/// Adds values to a sum.
pub(crate) fn add(sum: &mut [f32], values: &[f32]) {
    for (s, v) in sum.iter_mut().zip(values) {
        *s += v;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::{sim, threads};

    #[test]
    fn broadcast_and_sum_reach_every_rank() {
        for size in 1..=9 {
            let out = sim::run(size, 11, |transport| {
                let mut group = Collective::new(transport);
                let mut values = [group.rank() as f32 + 1.0, 7.0];
                group.all_reduce_sum(&mut values, 0)?;
                let mut shared = if group.rank() == 0 { [5.0] } else { [0.0] };
                group.broadcast(&mut shared, 1)?;
                let mut at_root = None;
                group.reduce_sum(&[2.0], 2, |sum| at_root = Some(sum[0]))?;
                Ok::<_, CommError>((values, shared, at_root))
            })
            .unwrap();
            let p = size as f32;
            for (rank, result) in out.into_iter().enumerate() {
                let at_root = (rank == 0).then_some(2.0 * p);
                assert_eq!(result, Ok(([p * (p + 1.0) / 2.0, 7.0 * p], [5.0], at_root)));
            }
        }
    }

    #[test]
    fn ranks_beyond_a_part_of_all_take_no_part() {
        for size in 1..=5 {
            let out = sim::run(size + 1, 3, |transport| {
                let rank = transport.rank();
                let mut sum = [rank as f32];
                if rank < size {
                    let mut group = Collective::among(transport, size);
                    assert_eq!((group.rank(), group.size()), (rank, size));
                    group.all_reduce_sum(&mut sum, 0).unwrap();
                }
                sum
            });
            let sum = (size * (size - 1) / 2) as f32;
            let expected: Vec<_> = (0..size).map(|_| [sum]).chain([[size as f32]]).collect();
            assert_eq!(out.unwrap(), expected);
        }
    }

    #[test]
    fn children_are_added_in_increasing_order() {
        // 1 + 2²⁴ rounds to 2²⁴; so (own 1 + child 1) + child 2²⁴ keeps what ((1 + 2²⁴) + 1) loses.
        let values = [1.0, 1.0, 16_777_216.0];
        for seed in 0..200 {
            let out = sim::run(3, seed, |transport| {
                let rank = transport.rank();
                let mut sum = [values[rank]];
                Collective::new(transport).all_reduce_sum(&mut sum, 0).map(|()| sum[0])
            });
            assert_eq!(out.unwrap(), vec![Ok(16_777_218.0); 3], "seed {seed}");
        }
    }

    #[test]
    fn one_message_per_edge_and_no_allocation_after_the_first_exchange() {
        for size in [1, 2, 3, 4, 5, 7, 16] {
            let out = sim::run(size, 5, |transport| {
                let mut group = Collective::new(transport);
                let mut values = [1.0; 10];
                group.all_reduce_sum(&mut values, 0).unwrap();
                let (traffic, misses) = (group.traffic(), group.pool_misses());
                for exchange in 1..20 {
                    group.all_reduce_sum(&mut values, exchange).unwrap();
                }
                assert_eq!(group.pool_misses(), misses, "rank {} of {size}", group.rank());
                assert_eq!(group.traffic().messages, 20 * traffic.messages);
                (traffic, misses)
            })
            .unwrap();
            let edges = size as u64 - 1;
            assert_eq!(out.iter().map(|(traffic, _)| traffic.messages).sum::<u64>(), 2 * edges);
            assert_eq!(out.iter().map(|(traffic, _)| traffic.bytes).sum::<u64>(), 2 * edges * 40);
            assert!(out.iter().map(|(_, misses)| misses).sum::<u64>() > 0, "the count of misses is alive");
        }
    }

    #[test]
    fn exchanges_with_different_numbers_are_never_mixed() {
        let failure = sim::run(2, 0, |transport| {
            let number = 3 + transport.rank() as u64;
            Collective::new(transport).all_reduce_sum(&mut [1.0], number)
        });
        let text = failure.unwrap_err().to_string();
        assert!(
            text.contains("partial sum of exchange 3") && text.contains("broadcast of exchange 4"),
            "{text}"
        );
    }

    #[test]
    fn a_broadcast_to_a_rank_that_is_gone_is_an_error() {
        let mut ends = threads::endpoints(2, Duration::from_secs(10));
        ends.truncate(1);
        let mut group = Collective::new(ends.remove(0));
        assert_eq!(group.broadcast(&mut [1.0], 0).unwrap_err().peer(), Some(1));
        assert_eq!(group.traffic(), Traffic::default());
    }

    #[test]
    fn another_length_is_an_error_that_names_the_rank() {
        let out = sim::run(2, 0, |transport| {
            let len = transport.rank() + 3;
            Collective::new(transport).all_reduce_sum(&mut vec![0.0; len], 0)
        });
        let errors = out.unwrap();
        let text = errors[0].as_ref().unwrap_err().to_string();
        assert!(text.contains("expected 3") && text.contains("from rank 1, got 4"), "{text}");
        assert_eq!(errors[1].as_ref().unwrap_err().peer(), Some(0));
    }
}
