//! Where messages for one rank of this process arrive, and where it waits for them.
//!
//! Every rank has one place behind one lock. Whoever delivers locks the place of the receiver, puts the message and wakes
//! it; a receiver waits on its own condition variable only. A rank that is gone is marked in every place under the same
//! lock, after everything that it sent: who finds the mark and no message knows that none will come. No thread ever holds
//! two locks, so there is no order of locks to get wrong.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::mailbox::Mailbox;
use super::{Buffer, Tag};
use crate::error::{CommError, Doing, Peer};

/// What others may change about one rank.
struct Inbox {
    mail: Mailbox,
    /// Of each rank that will send no more the rank to blame; the entry of the owner says that it will receive no more.
    gone: Vec<Option<usize>>,
}

/// How long a rank waits for a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// The peer timeout.
    pub(super) timeout: Duration,
    /// How much longer it listens for news of who is to blame: where others may have waited as long, the rank that is waited
    /// for is seldom the one that is lost.
    pub(super) grace: Duration,
}

/// The messages for one rank.
pub(super) struct Place {
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

impl Place {
    /// An empty place in a world of so many ranks.
    pub(super) fn new(ranks: usize) -> Self {
        let inbox = Inbox { mail: Mailbox::default(), gone: vec![None; ranks] };
        Place { inbox: Mutex::new(inbox), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing panics while this lock is held, so a poisoned one still guards a sound inbox.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a message to the owner, `to`. False if it will receive no more.
    pub(super) fn put(&self, to: usize, from: usize, tag: Tag, payload: Buffer) -> bool {
        let mut inbox = self.lock();
        if inbox.gone[to].is_some() {
            return false;
        }
        inbox.mail.put(from, tag, payload);
        drop(inbox);
        self.changed.notify_one();
        true
    }

    /// Notes that `rank` will send no more, and who is to blame. What was noted first stays.
    pub(super) fn set_gone(&self, rank: usize, blamed: usize) {
        self.lock().gone[rank].get_or_insert(blamed);
        self.changed.notify_one();
    }

    /// Who is to blame for the absence of `rank`, if it is gone.
    #[cfg(feature = "mpi")]
    pub(super) fn gone(&self, rank: usize) -> Option<usize> {
        self.lock().gone[rank]
    }

    /// Forgets all messages: the owner will receive no more.
    pub(super) fn clear(&self) {
        self.lock().mail.clear();
    }

    /// The message if it is there; an error if it can never come. `rank` is the owner.
    pub(super) fn look(
        &self,
        rank: usize,
        awaited: Peer,
        tag: Tag,
    ) -> Result<Option<(usize, Buffer)>, CommError> {
        self.lock().look(rank, awaited, tag)
    }

    /// Waits for the message. `rank` is the owner.
    pub(super) fn wait_for(
        &self,
        rank: usize,
        awaited: Peer,
        tag: Tag,
        patience: Patience,
    ) -> Result<(usize, Buffer), CommError> {
        let start = Instant::now();
        let mut inbox = self.lock();
        loop {
            if let Some(found) = inbox.look(rank, awaited, tag)? {
                return Ok(found);
            }
            let left = (patience.timeout + patience.grace).checked_sub(start.elapsed());
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                let (seconds, doing) = (patience.timeout.as_secs_f64(), Doing::Receiving(tag));
                return Err(CommError::Timeout { rank, peer: awaited, seconds, doing });
            };
            inbox = self.changed.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inbox {
    fn look(&mut self, rank: usize, awaited: Peer, tag: Tag) -> Result<Option<(usize, Buffer)>, CommError> {
        if let Some(found) = self.mail.take(awaited, tag) {
            return Ok(Some(found));
        }
        // Whose absence makes waiting pointless.
        let mut gone = self.gone.iter().enumerate().filter(|(peer, _)| awaited.admits(*peer));
        match gone.find_map(|(_, blamed)| *blamed) {
            Some(peer) => Err(CommError::PeerLost { rank, peer, doing: Doing::Receiving(tag) }),
            None => Ok(None),
        }
    }
}
