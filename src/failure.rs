//! Why the program ends early, with the exit code that users and batch scripts rely on.

use std::fmt;
use std::io::Write;

use quadrille_comm::{CommError, Peer};
use quadrille_core::device::DeviceError;
use quadrille_core::run::StepError;
use quadrille_core::site::SpecError;
use quadrille_cpu::EngineError;
use quadrille_gpu::CudaError;
use quadrille_io::IoError;

/// The documented exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Wrong use of the command line.
    Usage = 2,
    /// A network or solver that cannot be what it says.
    Spec = 64,
    /// Data that is not what it should be.
    Data = 65,
    /// An input that is not there.
    Missing = 66,
    /// A bug of the program.
    Bug = 70,
    /// The machine or its environment did not give what is needed.
    Environment = 71,
    /// Stopped early with a good snapshot.
    Stopped = 75,
    /// Another worker was lost.
    PeerLost = 76,
    /// A value is not finite.
    NotFinite = 77,
}

/// Why the program ends early.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What the user reads.
    pub message: String,
    /// How far this is from the cause: another worker's silence is nearer than its end, which may be but the echo of a third's.
    remote: u8,
    /// The rank that was waited for in vain.
    missed: Option<usize>,
}

impl Failure {
    /// A failure with one of the documented codes.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let remote = u8::from(code == Code::PeerLost);
        Self { code: code as u8, message: message.into(), remote, missed: None }
    }

    /// The same failure in other words.
    pub fn saying(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// How far this is from the cause; 0 if it is no echo of another worker's failure.
    pub fn remoteness(&self) -> u8 {
        self.remote
    }

    /// The rank that was waited for in vain, if this failure is about one. It belongs to the failure: a wait in vain that was
    /// put up with, as at a meeting that takes long, is none.
    pub fn missed(&self) -> Option<usize> {
        self.missed
    }

    /// Prints it for the user; `who` stands before it.
    pub fn tell(&self, who: &str) {
        // At once, since other processes may write there, too. It may also be closed; the code says it all the same.
        let _ = std::io::stderr().write_all(format!("quadrille: {who}{self}\n").as_bytes());
    }

    /// The end of this process since another one ended with `code`.
    pub fn follows(code: u8, message: String) -> Self {
        Self { code, message, remote: 2, missed: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<SpecError> for Failure {
    fn from(error: SpecError) -> Self {
        Self::new(Code::Spec, error.to_string())
    }
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        Self { code: error.exit_code(), message: error.to_string(), remote: 0, missed: None }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let code = match error {
            DeviceError::Environment { .. } => Code::Environment,
            _ => Code::Bug,
        };
        Self::new(code, error.to_string())
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Device(error) => error.into(),
            other => Self::new(Code::Bug, other.to_string()),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let code = match error {
            EngineError::Plan(_) => Code::Bug,
            EngineError::Kernel(_) => Code::Usage,
            EngineError::Threads(_) | EngineError::Memory(_) => Code::Environment,
        };
        Self::new(code, error.to_string())
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Device(error) => error.into(),
            CudaError::Layer(_) => Self::new(Code::Usage, error.to_string()),
            CudaError::Plan(_) => Self::new(Code::Bug, error.to_string()),
        }
    }
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Self {
        let code = match error {
            CommError::Unavailable(_) => Code::Environment,
            CommError::Protocol { .. } => Code::Bug,
            _ => Code::PeerLost,
        };
        let failure = Self::new(code, error.to_string());
        match error {
            CommError::PeerLost { peer, .. } => Self { remote: 2, missed: Some(peer), ..failure },
            CommError::Timeout { peer: Peer::Rank(peer), .. } => Self { missed: Some(peer), ..failure },
            _ => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use quadrille_comm::Doing;
    use quadrille_comm::transport::{Kind, Tag};

    use super::*;

    #[test]
    fn a_failure_knows_whom_it_waited_for_in_vain() {
        let doing = Doing::Receiving(Tag { exchange: 0, kind: Kind::Reply });
        let of = |error: CommError| Failure::from(error).saying("in other words".to_owned()).missed();
        let timeout = |peer| CommError::Timeout { rank: 0, peer, seconds: 1.0, doing };
        assert_eq!(of(timeout(Peer::Rank(3))), Some(3));
        assert_eq!(of(CommError::PeerLost { rank: 0, peer: 2, doing }), Some(2));
        assert_eq!(of(timeout(Peer::Any)), None);
        // Whoever was started with other flags is there.
        assert_eq!(of(CommError::Mismatch { rank: 0, peer: 1, field: "seed" }), None);
        assert_eq!(Failure::new(Code::NotFinite, "a loss").missed(), None);
    }
}
