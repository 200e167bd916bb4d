//! Which thread runs on which CPU.

use std::fmt;

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Computes, in the crew of a quadrant.
    Compute,
    /// Leads a worker: hands tasks to its quadrants and waits for them.
    Main,
    /// Exchanges with other workers.
    Comm,
    /// Reads and decodes samples.
    Io,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Main => "main",
            Self::Comm => "comm",
            Self::Io => "io",
        })
    }
}

/// One thread and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// What it does.
    pub role: Role,
    /// The worker that it belongs to.
    pub worker: usize,
    /// The quadrant that it works in, or on whose cores it runs.
    pub quadrant: Option<usize>,
    /// The CPU that it is pinned to; `None` if it runs wherever the process may.
    pub cpu: Option<usize>,
}
