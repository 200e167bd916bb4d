//! The networks that a solver names.

use crate::net::{NetSpec, NetState};

/// Where a network is described.
#[derive(Clone, Debug, PartialEq)]
pub enum NetSource {
    /// In a file of its own.
    File {
        /// The solver's field that names it.
        field: &'static str,
        /// The file, as written.
        path: String,
    },
    /// In the solver file.
    Inline(Box<NetSpec>),
}

impl NetSource {
    /// What a person would call it: the file, or the name of a network in the solver file.
    pub fn name(&self) -> &str {
        match self {
            Self::File { path, .. } => path,
            Self::Inline(spec) => &spec.name,
        }
    }
}

/// What a solver adds to the state in which a net is built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateChange {
    /// Another level.
    pub level: Option<i32>,
    /// Further stages.
    pub stages: Vec<String>,
}

impl StateChange {
    /// `state` with the change.
    pub fn of(&self, mut state: NetState) -> NetState {
        state.level = self.level.unwrap_or(state.level);
        state.stages.extend(self.stages.iter().cloned());
        state
    }
}

/// A network to test.
#[derive(Clone, Debug, PartialEq)]
pub struct TestNet {
    /// The network.
    pub source: NetSource,
    /// What is added to its state.
    pub state: StateChange,
    /// Mini-batches of a test, at least 1.
    pub batches: u64,
}
