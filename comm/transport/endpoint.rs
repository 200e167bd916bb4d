//! An endpoint of either kind, for programs that choose at run time.

use super::mpi::MpiTransport;
use super::threads::ThreadTransport;
use super::{Buffer, Tag, Transport};
use crate::error::CommError;

/// A rank's endpoint, wherever the others live.
pub enum Endpoint {
    /// All ranks are threads of this process.
    Threads(ThreadTransport),
    /// Ranks live in several processes.
    Mpi(MpiTransport),
}

impl Transport for Endpoint {
    fn rank(&self) -> usize {
        match self {
            Endpoint::Threads(endpoint) => endpoint.rank(),
            Endpoint::Mpi(endpoint) => endpoint.rank(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Endpoint::Threads(endpoint) => endpoint.size(),
            Endpoint::Mpi(endpoint) => endpoint.size(),
        }
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        match self {
            Endpoint::Threads(endpoint) => endpoint.send(to, tag, payload),
            Endpoint::Mpi(endpoint) => endpoint.send(to, tag, payload),
        }
    }

    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        match self {
            Endpoint::Threads(endpoint) => endpoint.recv(from, tag),
            Endpoint::Mpi(endpoint) => endpoint.recv(from, tag),
        }
    }

    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        match self {
            Endpoint::Threads(endpoint) => endpoint.recv_any(tag),
            Endpoint::Mpi(endpoint) => endpoint.recv_any(tag),
        }
    }

    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError> {
        match self {
            Endpoint::Threads(endpoint) => endpoint.try_recv(from, tag),
            Endpoint::Mpi(endpoint) => endpoint.try_recv(from, tag),
        }
    }
}
