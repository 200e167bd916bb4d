//! Moving owned packed buffers between ranks.
//!
//! A [`Transport`] is one rank's endpoint. Sending never blocks and gives the buffer away; receiving is bounded by
//! the peer timeout that the endpoint was made with. Messages of one sender with one tag arrive in the order in
//! which they were sent; nothing else about the order of arrival is promised.

mod endpoint;
mod mailbox;
pub mod mpi;
mod place;
pub mod sim;
pub mod threads;
pub mod timed;

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::time::Duration;

use crate::clock::{Moment, Work};
use crate::error::{CommError, Doing, Peer};

pub use endpoint::Endpoint;

/// One allocation of `f32` values that is moved, never shared: a packed buffer on its way.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Buffer(Vec<f32>);

impl Buffer {
    /// A buffer of `len` zeros.
    pub fn zeros(len: usize) -> Self {
        Buffer(vec![0.0; len])
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(values: Vec<f32>) -> Self {
        Buffer(values)
    }
}

impl Deref for Buffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Values on their way down the tree, from rank 0.
    Broadcast,
    /// Partial sums on their way up the tree, to rank 0.
    Reduce,
    /// What a rank is about to run (see [`crate::handshake`]).
    Fingerprint,
    /// Rank 0's answer to the fingerprints.
    Verdict,
    /// What a worker wants of the master, with what the master needs for it.
    Request,
    /// What the master has for a worker.
    Reply,
    /// That a turn with the master begins.
    Turn,
    /// That a worker's turn is over.
    TurnOver,
    /// That a worker has come to where all meet, or has not yet.
    Meeting,
    /// What processes tell each other beside the method.
    Text,
}

/// Names a message between two ranks: the number of the exchange, and what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Exchanges are counted from 0 by every rank for itself; all ranks run the same sequence. What has no such number,
    /// since ranks are not in step, has 0 and is told apart by its order.
    pub exchange: u64,
    /// What the message carries.
    pub kind: Kind,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Broadcast => write!(f, "the broadcast of exchange {}", self.exchange),
            Kind::Reduce => write!(f, "the partial sum of exchange {}", self.exchange),
            Kind::Fingerprint => f.write_str("the fingerprint of the start"),
            Kind::Verdict => f.write_str("rank 0's verdict on the start"),
            Kind::Request => f.write_str("a worker's request to the master"),
            Kind::Reply => f.write_str("the master's reply"),
            Kind::Turn => write!(f, "the begin of turn {} with the master", self.exchange),
            Kind::TurnOver => write!(f, "the end of turn {} with the master", self.exchange),
            Kind::Meeting => f.write_str("the meeting of all workers"),
            Kind::Text => f.write_str("a message about the run as a whole"),
        }
    }
}

/// One rank's endpoint.
///
/// A peer that is gone is an error as soon as that is known and what it sent before is used up; never "not yet".
/// Dropping the endpoint tells the others that this rank is gone.
pub trait Transport: Send {
    /// This rank, `0 ≤ rank < size`.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Gives `payload` away to rank `to`. Never blocks. `PeerLost` if that rank is known to be gone; success does
    /// not mean that the message arrived.
    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError>;

    /// Waits for the message `tag` of rank `from`, for the peer timeout at most.
    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError>;

    /// Waits for a message `tag` of whoever sends one first, for the peer timeout at most, and says whose it is.
    ///
    /// Fails with `PeerLost` when no such message is there and any rank is gone: a rank that may leave early has to
    /// keep its endpoint until the others need no more of it.
    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError>;

    /// The message `tag` of rank `from` if it is there, `None` if it may still come. Does not wait.
    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError>;

    /// What time it is for this rank.
    fn now(&self) -> Moment {
        Moment::real()
    }

    /// Says that this rank has done `work`, which took `took` by the real clock. Returns how long it took by the clock of this
    /// transport, which has gone on by as much.
    fn spend(&mut self, work: Work, took: Duration) -> Duration {
        let _ = work;
        took
    }

    /// Lets `access` change all of `len` values that ranks share in memory, at once or part by part; what other ranks change
    /// meanwhile comes between the parts. Returns how long the values took to change by the clock of this transport, as far
    /// as that can be told from the way to them.
    fn change_shared(&mut self, len: usize, access: &mut dyn FnMut(Range<usize>)) -> Duration {
        access(0..len);
        Duration::ZERO
    }

    /// Waits until other ranks have done what they do before now by the clock of this transport, where that has an order. Who
    /// looks at memory that others change comes here first.
    fn keep_order(&mut self) {}
}

/// Refuses a peer that does not exist and this rank itself: no protocol sends to itself.
fn check_peer(rank: usize, size: usize, peer: usize, doing: Doing) -> Result<(), CommError> {
    if peer < size && peer != rank {
        return Ok(());
    }
    let problem = format!("there is no peer {peer} for rank {rank} of {size} ({doing}); this is a defect");
    Err(CommError::Protocol { rank, peer: None, problem })
}

/// The peer, among those that `awaited` admits, whose absence makes waiting pointless.
fn missing(awaited: Peer, gone: impl Iterator<Item = (usize, bool)>) -> Option<usize> {
    gone.filter(|&(peer, gone)| gone && awaited.admits(peer)).map(|(peer, _)| peer).next()
}
