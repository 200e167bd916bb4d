//! MPI is not part of this build.

use std::convert::Infallible;

use super::{Node, Options};
use crate::error::CommError;
use crate::transport::{Buffer, Tag, Transport};

/// All processes of the job. This build knows of one only, so there is no value of this type.
pub struct World(Infallible);

/// The endpoint of a rank that lives in this process. This build has none, so there is no value of this type.
pub struct MpiTransport(Infallible);

/// Connects this process with the others that were started with it.
///
/// # Errors
/// In this build always [`CommError::Unavailable`], with what to do.
pub fn connect(_options: Options) -> Result<World, CommError> {
    Err(CommError::Unavailable(
        "this program was built without MPI: it trains on one node, with the workers as threads of one process; \
         start it once, without srun -n or mpirun -n, or build it with --features mpi"
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

impl World {
    /// This process, `0 ≤ rank < size`.
    pub fn rank(&self) -> usize {
        match self.0 {}
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        match self.0 {}
    }

    /// The processes of this job on this node.
    pub fn node(&self) -> &Node {
        match self.0 {}
    }

    /// The endpoints of this process in the group of workers.
    pub fn workers(&self, _beside_first: usize) -> Vec<MpiTransport> {
        match self.0 {}
    }

    /// The endpoint of this process in a group of all processes.
    pub fn processes(&self) -> MpiTransport {
        match self.0 {}
    }

    /// Has the service thread do something.
    pub fn on_service_thread(&self, _work: impl FnOnce() + Send + 'static) {
        match self.0 {}
    }

    /// Whether any process was asked to stop.
    pub fn is_asked(&self) -> bool {
        match self.0 {}
    }

    /// Whether the worker of this process stops before `iteration`.
    pub fn stops_before(&self, _iteration: u64) -> bool {
        match self.0 {}
    }

    /// Ends this process's part in good order.
    pub fn finish(&self) -> bool {
        match self.0 {}
    }

    /// Tells the others that this process ends with an exit code, and whom it missed.
    pub fn abandon(&self, _code: u8, _follows: bool, _missed: Option<usize>) -> (u8, Option<usize>) {
        match self.0 {}
    }

    /// The process that failed with an exit code, and the code.
    pub fn failed(&self) -> Option<(usize, u8)> {
        match self.0 {}
    }

    /// Ends the process at once.
    pub fn quit(&self, _code: u8) -> ! {
        match self.0 {}
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        match self.0 {}
    }

    fn size(&self) -> usize {
        match self.0 {}
    }

    fn send(&mut self, _to: usize, _tag: Tag, _payload: Buffer) -> Result<(), CommError> {
        match self.0 {}
    }

    fn recv(&mut self, _from: usize, _tag: Tag) -> Result<Buffer, CommError> {
        match self.0 {}
    }

    fn recv_any(&mut self, _tag: Tag) -> Result<(usize, Buffer), CommError> {
        match self.0 {}
    }

    fn try_recv(&mut self, _from: usize, _tag: Tag) -> Result<Option<Buffer>, CommError> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn says_that_mpi_is_not_there_and_what_to_do() {
        assert!(!available());
        let options =
            Options { peer_timeout: Duration::from_secs(1), asked: Default::default(), cpus: vec![0] };
        let Err(CommError::Unavailable(text)) = connect(options) else {
            panic!("connect must refuse");
        };
        assert!(text.contains("without MPI") && text.contains("start it once"), "{text}");
    }
}
