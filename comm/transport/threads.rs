//! Ranks that are threads of one process.
//!
//! A rank that leaves marks itself gone in every place, after everything that it sent.

use std::sync::Arc;
use std::time::Duration;

use super::place::{Patience, Place};
use super::{Buffer, Tag, Transport, check_peer};
use crate::error::{CommError, Doing, Peer};

/// The endpoint of one rank; made by [`endpoints`].
pub struct ThreadTransport {
    rank: usize,
    places: Arc<[Place]>,
    patience: Patience,
}

/// Connects `workers` ranks. Entry i of the result is the endpoint of rank i; move each to its thread.
/// `peer_timeout` bounds every wait for a message.
pub fn endpoints(workers: usize, peer_timeout: Duration) -> Vec<ThreadTransport> {
    let places: Arc<[Place]> = (0..workers).map(|_| Place::new(workers)).collect();
    let patience = Patience { timeout: peer_timeout, grace: Duration::ZERO };
    (0..workers).map(|rank| ThreadTransport { rank, places: Arc::clone(&places), patience }).collect()
}

#[cfg(test)]
impl ThreadTransport {
    /// The same endpoint with another bound of its waits.
    pub(crate) fn waiting_for(mut self, peer_timeout: Duration) -> Self {
        self.patience.timeout = peer_timeout;
        self
    }
}

impl Transport for ThreadTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.places.len()
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        let doing = Doing::Sending(tag);
        check_peer(self.rank, self.size(), to, doing)?;
        match self.places[to].put(to, self.rank, tag, payload) {
            true => Ok(()),
            false => Err(CommError::PeerLost { rank: self.rank, peer: to, doing }),
        }
    }

    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        check_peer(self.rank, self.size(), from, Doing::Receiving(tag))?;
        let place = &self.places[self.rank];
        place.wait_for(self.rank, Peer::Rank(from), tag, self.patience).map(|(_, payload)| payload)
    }

    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        self.places[self.rank].wait_for(self.rank, Peer::Any, tag, self.patience)
    }

    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError> {
        check_peer(self.rank, self.size(), from, Doing::Receiving(tag))?;
        let found = self.places[self.rank].look(self.rank, Peer::Rank(from), tag)?;
        Ok(found.map(|(_, payload)| payload))
    }
}

impl Drop for ThreadTransport {
    fn drop(&mut self) {
        for place in self.places.iter() {
            place.set_gone(self.rank, self.rank);
        }
        self.places[self.rank].clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::transport::Kind;

    const LONG: Duration = Duration::from_secs(30);

    fn tag(exchange: u64) -> Tag {
        Tag { exchange, kind: Kind::Reduce }
    }

    fn pair(peer_timeout: Duration) -> (ThreadTransport, ThreadTransport) {
        let mut ends = endpoints(2, peer_timeout);
        let second = ends.pop().unwrap();
        (ends.pop().unwrap(), second)
    }

    #[test]
    fn tags_keep_messages_apart_and_one_tag_keeps_its_order() {
        let (mut a, mut b) = pair(LONG);
        a.send(1, tag(2), vec![20.0].into()).unwrap();
        a.send(1, tag(1), vec![10.0].into()).unwrap();
        a.send(1, tag(2), vec![21.0].into()).unwrap();
        assert_eq!(b.try_recv(0, tag(3)).unwrap(), None);
        assert_eq!(b.recv(0, tag(1)).unwrap()[..], [10.0]);
        assert_eq!(b.try_recv(0, tag(2)).unwrap().unwrap()[..], [20.0]);
        assert_eq!(b.recv_any(tag(2)).unwrap(), (0, vec![21.0].into()));
    }

    #[test]
    fn a_dropped_endpoint_is_noticed_after_its_last_message() {
        let (mut a, mut b) = pair(LONG);
        a.send(1, tag(0), vec![1.0].into()).unwrap();
        drop(a);
        assert_eq!(b.recv(0, tag(0)).unwrap()[..], [1.0]);
        let lost = |doing| CommError::PeerLost { rank: 1, peer: 0, doing };
        assert_eq!(b.recv(0, tag(1)), Err(lost(Doing::Receiving(tag(1)))));
        assert_eq!(b.recv_any(tag(1)), Err(lost(Doing::Receiving(tag(1)))));
        assert_eq!(b.try_recv(0, tag(1)), Err(lost(Doing::Receiving(tag(1)))));
        assert_eq!(b.send(0, tag(1), Buffer::zeros(1)), Err(lost(Doing::Sending(tag(1)))));
    }

    #[test]
    fn a_rank_that_is_already_waiting_is_woken_when_its_peer_goes() {
        let (a, mut b) = pair(Duration::from_secs(10));
        let start = Instant::now();
        let waiting = std::thread::spawn(move || b.recv(0, tag(0)));
        std::thread::sleep(Duration::from_millis(20));
        drop(a);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, CommError::PeerLost { rank: 1, peer: 0, .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10), "noticed by the timeout only");
    }

    #[test]
    fn silence_ends_with_a_timeout_that_says_who_and_what() {
        let (_a, mut b) = pair(Duration::from_millis(20));
        let error = b.recv(0, tag(7)).unwrap_err();
        let doing = Doing::Receiving(tag(7));
        assert_eq!(error, CommError::Timeout { rank: 1, peer: Peer::Rank(0), seconds: 0.02, doing });
        let text = error.to_string();
        assert!(text.contains("rank 0") && text.contains("0.02 s") && text.contains("exchange 7"), "{text}");
        assert!(matches!(b.recv_any(tag(7)), Err(CommError::Timeout { peer: Peer::Any, .. })));
    }

    #[test]
    fn a_peer_that_does_not_exist_is_refused() {
        let (mut a, _b) = pair(LONG);
        for peer in [0, 2] {
            assert!(matches!(a.send(peer, tag(0), Buffer::zeros(1)), Err(CommError::Protocol { .. })));
            assert!(matches!(a.recv(peer, tag(0)), Err(CommError::Protocol { .. })));
            assert!(matches!(a.try_recv(peer, tag(0)), Err(CommError::Protocol { .. })));
        }
    }
}
