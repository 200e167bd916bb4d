//! What the machine looks like from inside this process.
//!
//! A [`Machine`] is plain data. Today it is read from Linux's own files (`disabled.rs`), which needs nothing
//! but Rust. A later cargo feature `hwloc` will select a sibling file `enabled.rs` with the same two
//! functions, `detect` and `detect_at`; callers will not notice. On a system without these files the machine
//! is one node with the CPUs the standard library counts, and [`Machine::notes`] says so.

use crate::cpu_list;

mod cores;
mod disabled;
mod files;
mod memory;
mod quota;

pub use disabled::{detect, detect_at};

/// The machine as this process may use it.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The processor's name as the kernel gives it; `unknown processor` if it gives none.
    pub model: String,
    /// The logical CPUs in this process's affinity mask, ascending.
    pub cpus: Vec<usize>,
    /// The physical cores behind those CPUs, neighbours in a shared cache side by side.
    pub cores: Vec<Core>,
    /// Every NUMA node, by operating system number, including those without CPUs.
    pub nodes: Vec<Node>,
    /// The sockets that hold allowed CPUs.
    pub sockets: Vec<Socket>,
    /// The caches of the first allowed CPU, smallest level first.
    pub caches: Vec<Cache>,
    /// How many CPUs' worth of time the cgroup grants, if it limits at all.
    pub quota: Option<f64>,
    /// False if the nodes could not be read and `nodes` is one stand-in; memory is then never bound.
    pub numa_known: bool,
    /// Everything a user should know about how this was found out, one sentence each.
    pub notes: Vec<String>,
}

impl Machine {
    /// The node with this operating system number.
    pub fn node(&self, os_index: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.os_index == os_index)
    }
}

/// One physical core: the allowed logical CPUs that share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its allowed hardware threads, ascending.
    pub cpus: Vec<usize>,
    /// The operating system number of its node.
    pub node: usize,
    /// The operating system number of its socket.
    pub socket: usize,
}

/// One NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The operating system's number for it.
    pub os_index: usize,
    /// Its CPUs that this process may use.
    pub cpus: Vec<usize>,
    /// How many CPUs it has, allowed or not; 0 for a node of memory only.
    pub total_cpus: usize,
    /// Its memory, if the kernel says.
    pub memory_bytes: Option<u64>,
    /// Whether it is fast memory beside slower DRAM: MCDRAM or HBM. Memory of unknown speed is not fast.
    pub fast: bool,
    /// For a node of memory only: the node with CPUs it lies nearest to.
    pub near: Option<usize>,
    /// Whether this process may allocate on it (`Mems_allowed_list`).
    pub allowed: bool,
    /// Distances to the nodes in order of their numbers; empty if unknown.
    pub distances: Vec<u32>,
}

/// One processor package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// The operating system's number for it.
    pub os_index: usize,
    /// Its allowed CPUs, ascending.
    pub cpus: Vec<usize>,
}

/// One cache as seen from one CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// 1 for L1, and so on.
    pub level: usize,
    /// What the kernel calls it: `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size.
    pub bytes: u64,
    /// How many logical CPUs share it, allowed or not.
    pub shared_by: usize,
}

/// Why there is no machine to run on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The mask and the machine do not meet: the two files contradict each other.
    #[error(
        "the affinity mask ({}) holds none of the CPUs that are online ({}); \
         check taskset, the cpuset cgroup and the job's CPU binding",
        cpu_list::format(.mask), cpu_list::format(.online)
    )]
    NoCpus {
        /// The mask that was read.
        mask: Vec<usize>,
        /// The CPUs online.
        online: Vec<usize>,
    },
}
