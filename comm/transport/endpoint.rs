//! An endpoint of any kind, for programs that choose at run time.

use std::ops::Range;
use std::time::Duration;

use super::mpi::MpiTransport;
use super::threads::ThreadTransport;
use super::timed::TimedTransport;
use super::{Buffer, Tag, Transport};
use crate::clock::{Moment, Work};
use crate::error::CommError;

/// A rank's endpoint, wherever the others live.
pub enum Endpoint {
    /// All ranks are threads of this process.
    Threads(ThreadTransport),
    /// Ranks live in several processes.
    Mpi(MpiTransport),
    /// All ranks are threads of this process, in virtual time.
    Timed(TimedTransport),
}

impl Endpoint {
    fn inner(&self) -> &dyn Transport {
        match self {
            Endpoint::Threads(endpoint) => endpoint,
            Endpoint::Mpi(endpoint) => endpoint,
            Endpoint::Timed(endpoint) => endpoint,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Transport {
        match self {
            Endpoint::Threads(endpoint) => endpoint,
            Endpoint::Mpi(endpoint) => endpoint,
            Endpoint::Timed(endpoint) => endpoint,
        }
    }
}

impl Transport for Endpoint {
    fn rank(&self) -> usize {
        self.inner().rank()
    }

    fn size(&self) -> usize {
        self.inner().size()
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        self.inner_mut().send(to, tag, payload)
    }

    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        self.inner_mut().recv(from, tag)
    }

    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        self.inner_mut().recv_any(tag)
    }

    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError> {
        self.inner_mut().try_recv(from, tag)
    }

    fn now(&self) -> Moment {
        self.inner().now()
    }

    fn spend(&mut self, work: Work, took: Duration) -> Duration {
        self.inner_mut().spend(work, took)
    }

    fn change_shared(&mut self, len: usize, access: &mut dyn FnMut(Range<usize>)) -> Duration {
        self.inner_mut().change_shared(len, access)
    }

    fn keep_order(&mut self) {
        self.inner_mut().keep_order();
    }
}
