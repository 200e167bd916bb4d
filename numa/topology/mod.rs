//! What the machine looks like from inside this process, or what a description of another machine says.
//!
//! A [`Machine`] is plain data, found in one of two ways that tell the same things: through the library hwloc
//! (`enabled.rs`, the cargo feature `hwloc`) or from Linux's own files (`sysfs`), which needs nothing but Rust.
//! `enabled.rs` and `disabled.rs` have the same functions, so callers do not notice. What kind of memory a node
//! is and whose it is, is decided in one place for both (`memory`). On a system without these files the machine
//! is one node with the CPUs the standard library counts, and [`Machine::notes`] says so.

use crate::cpu_list;

mod cores;
mod files;
mod locality;
mod memory;
mod orphans;
mod quota;
mod source;
pub(crate) mod surroundings;
mod sysfs;

#[cfg(not(feature = "hwloc"))]
mod disabled;
#[cfg(feature = "hwloc")]
mod enabled;

#[cfg(not(feature = "hwloc"))]
use disabled as reader;
#[cfg(feature = "hwloc")]
use enabled as reader;

pub use source::Source;
pub use sysfs::detect_at;

/// Describes the machine this process runs on, whatever the environment describes beside it.
///
/// A site may set `HWLOC_XMLFILE` for all jobs, so a training must not end because of it; but a plan for another
/// machine is of no use here. That such a variable is not honoured is one of the notes.
///
/// # Errors
/// If no CPU may be used.
pub fn detect() -> Result<Machine, TopologyError> {
    let source = Source::of_environment(&|name| std::env::var_os(name));
    let mut machine = reader::here(&source)?;
    if let Some(variable) = source.variable() {
        machine.notes.push(format!(
            "{variable} describes another machine: only topo shows that one; \
             everything else runs on this machine and reads it from /sys."
        ));
    }
    Ok(machine)
}

/// Describes what the environment wants to see: this machine, or the one that `HWLOC_XMLFILE`, `HWLOC_FSROOT` or
/// `HWLOC_SYNTHETIC` describes. Nothing may be bound on such a machine ([`Machine::here`]).
///
/// # Errors
/// If the description cannot be read, or no CPU may be used.
pub fn survey() -> Result<Machine, TopologyError> {
    read(&Source::of_environment(&|name| std::env::var_os(name)))
}

/// Describes the machine of a source.
///
/// # Errors
/// If the source cannot be read, or no CPU may be used.
pub fn read(source: &Source) -> Result<Machine, TopologyError> {
    match source {
        Source::Here => reader::here(source),
        Source::Root(root) => reader::root(root),
        Source::Synthetic(text) => reader::synthetic(text),
        Source::Xml(file) => reader::xml(file),
    }
}

/// Which reader this build has, for people.
pub fn reader() -> String {
    reader::describe()
}

/// Whether this build can read all that [`Source`] has.
pub const HAS_HWLOC: bool = cfg!(feature = "hwloc");

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
    /// Whether it is the machine this process runs on: threads and memory may be bound on no other.
    pub here: bool,
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
    /// A name for the cores that share its third-level cache, the smallest of their CPUs; `None` if it has none or nobody tells.
    pub l3: Option<usize>,
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
    /// Bandwidth for the CPUs it is nearest to, in MiB/s as firmware or hwloc tell it.
    pub bandwidth: Option<u64>,
    /// What kind of memory it is, and so what it is used for.
    pub tier: Tier,
    /// What it is called: `MCDRAM`, `HBM`, `NVM`. A hint, believed only where no bandwidth is told.
    pub subtype: Option<String>,
    /// For a node of memory only: the node with CPUs it lies nearest to.
    pub near: Option<usize>,
    /// The node that has its CPUs, if the kernel was told to make several nodes of one (`numa=fake`).
    pub fake_of: Option<usize>,
    /// Size of the cache in front of its memory: MCDRAM or HBM in cache mode. Nothing can be placed there.
    pub cache_bytes: Option<u64>,
    /// Whether this process may allocate on it (`Mems_allowed_list`).
    pub allowed: bool,
    /// Distances to the nodes in order of their numbers; empty if unknown, [`Node::FAR`] where one is.
    pub distances: Vec<u32>,
}

impl Node {
    /// A distance that is unknown.
    pub const FAR: u32 = u32::MAX;

    /// One of which nothing is known but its number: no CPUs, and not to be used.
    fn unknown(os_index: usize) -> Self {
        Self {
            os_index,
            cpus: Vec::new(),
            total_cpus: 0,
            memory_bytes: None,
            bandwidth: None,
            tier: Tier::Dram,
            subtype: None,
            near: None,
            fake_of: None,
            cache_bytes: None,
            allowed: false,
            distances: Vec::new(),
        }
    }
}

/// What kind of memory a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Ordinary memory of cores.
    Dram,
    /// Beside slower DRAM of the same cores: MCDRAM, HBM.
    Fast,
    /// Beside faster DRAM of the same cores: memory behind CXL, persistent memory. Nothing is placed there.
    Slow,
    /// Memory of a GPU that the kernel shows as a node. Nothing is placed there.
    Gpu,
    /// Memory without CPUs of which neither speed nor place is known well enough to use it.
    Unknown,
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
    /// A description of a machine that cannot be used.
    #[error("{variable}={value}: {why}")]
    Description {
        /// The environment variable that names it.
        variable: &'static str,
        /// Its value: the file, the folder or the description itself.
        value: String,
        /// What is wrong, and what to do.
        why: String,
    },
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
