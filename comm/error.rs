//! What can go wrong between ranks, in words that a user of a cluster can act on.

use std::fmt;

use crate::transport::Tag;

/// Whom a rank is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// One rank.
    Rank(usize),
    /// Whoever sends first.
    Any,
}

impl Peer {
    /// True if a message of rank `from` is one that is waited for.
    pub fn admits(self, from: usize) -> bool {
        match self {
            Peer::Rank(rank) => rank == from,
            Peer::Any => true,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Rank(rank) => write!(f, "rank {rank}"),
            Peer::Any => f.write_str("any rank"),
        }
    }
}

/// What a rank was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Sending the message with this tag.
    Sending(Tag),
    /// Waiting for the message with this tag.
    Receiving(Tag),
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doing::Sending(tag) => write!(f, "sending {tag}"),
            Doing::Receiving(tag) => write!(f, "waiting for {tag}"),
        }
    }
}

/// Why communication ended. `rank` is always the rank that reports.
///
/// Whoever gets one drops its transport: that is how the other ranks learn of it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// A peer ended, so that what is waited for can never come.
    #[error(
        "rank {rank} lost rank {peer} while {doing}; a rank also ends when it loses another one, \
         so the earliest error among all ranks names the cause"
    )]
    PeerLost {
        /// The rank that reports.
        rank: usize,
        /// The rank that is gone.
        peer: usize,
        /// What could not be done.
        doing: Doing,
    },
    /// A peer did not answer within the peer timeout.
    #[error(
        "rank {rank} heard nothing from {peer} for {seconds} s while {doing}; the peer is dead, stuck or much slower: \
         look at its log, or give it a longer peer timeout"
    )]
    Timeout {
        /// The rank that reports.
        rank: usize,
        /// Whom it waited for.
        peer: Peer,
        /// The peer timeout in seconds.
        seconds: f64,
        /// What it waited for.
        doing: Doing,
    },
    /// A rank was started with another job than rank 0.
    #[error(
        "rank {rank}: rank {peer} was started with another {field} than rank 0; \
         give every rank the same program, files and flags"
    )]
    Mismatch {
        /// The rank that reports.
        rank: usize,
        /// The first rank that differs from rank 0.
        peer: usize,
        /// What differs.
        field: &'static str,
    },
    /// A message or a call that the protocol does not allow: a defect, or ranks that run different programs.
    #[error("rank {rank}: {problem}")]
    Protocol {
        /// The rank that reports.
        rank: usize,
        /// The rank whose message was wrong, if a message was.
        peer: Option<usize>,
        /// What was expected and what came.
        problem: String,
    },
    /// The simulator stopped this rank, as it was told to. No other transport reports this.
    #[error("sim: rank {rank} was stopped at its operation {operation}")]
    Stopped {
        /// The rank that was stopped.
        rank: usize,
        /// The operation, counted from 0, that it could no longer do.
        operation: u64,
    },
    /// This way of communicating is not there; the text says what to do.
    #[error("{0}")]
    Unavailable(String),
}

impl CommError {
    /// The rank that this error blames, if it blames one.
    pub fn peer(&self) -> Option<usize> {
        match *self {
            CommError::PeerLost { peer, .. }
            | CommError::Mismatch { peer, .. }
            | CommError::Timeout { peer: Peer::Rank(peer), .. } => Some(peer),
            CommError::Protocol { peer, .. } => peer,
            CommError::Timeout { peer: Peer::Any, .. }
            | CommError::Stopped { .. }
            | CommError::Unavailable(_) => None,
        }
    }
}
