//! MPI is not part of this build.

use std::time::Duration;

use crate::error::CommError;
use crate::transport::{Buffer, Tag, Transport};

/// The endpoint of an MPI process. This build has none, so there is no value of this type.
pub enum MpiTransport {}

/// Connects to the other processes of the MPI job, with `peer_timeout` as the bound of every wait.
/// In this build: always [`CommError::Unavailable`], with what to do.
pub fn connect(_peer_timeout: Duration) -> Result<MpiTransport, CommError> {
    Err(CommError::Unavailable(
        "this program was built without MPI: it trains on one node, with the workers as threads of one process; \
         start it once, without srun -n or mpirun -n"
            .to_owned(),
    ))
}

/// True if this build can communicate over MPI.
pub fn available() -> bool {
    false
}

/// One line on the MPI of this build, for the first lines of a run.
pub fn describe() -> String {
    "not in this build".to_owned()
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        match *self {}
    }

    fn size(&self) -> usize {
        match *self {}
    }

    fn send(&mut self, _to: usize, _tag: Tag, _payload: Buffer) -> Result<(), CommError> {
        match *self {}
    }

    fn recv(&mut self, _from: usize, _tag: Tag) -> Result<Buffer, CommError> {
        match *self {}
    }

    fn recv_any(&mut self, _tag: Tag) -> Result<(usize, Buffer), CommError> {
        match *self {}
    }

    fn try_recv(&mut self, _from: usize, _tag: Tag) -> Result<Option<Buffer>, CommError> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_that_mpi_is_not_there_and_what_to_do() {
        assert!(!available());
        let Err(CommError::Unavailable(text)) = connect(Duration::from_secs(1)) else {
            panic!("connect must refuse");
        };
        assert!(text.contains("without MPI") && text.contains("start it once"), "{text}");
    }
}
