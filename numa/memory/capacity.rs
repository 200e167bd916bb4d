//! How much memory there is to have, on each node and in all.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Census, page_bytes};
use crate::cpu_list;
use crate::topology::{Machine, Node, Tier, detect_at};

/// What of a node is never planned away, as a part of its memory: page tables, other processes, the kernel's reserves.
const KEPT_PART: u64 = 32;
/// The same, at least and at most.
const KEPT_BYTES: [u64; 2] = [16 << 20, 1 << 30];

/// What of `total` bytes is never planned away.
pub(super) fn kept(total: u64) -> u64 {
    (total / KEPT_PART).clamp(KEPT_BYTES[0], KEPT_BYTES[1])
}

/// What this process can still have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Of each node that it may use, in the order of their numbers; none where nodes are unknown.
    pub nodes: Vec<NodeCapacity>,
    /// Of all that are of use, and no more than a cgroup grants; `None` if the system does not say.
    pub bytes: Option<u64>,
    /// What leaves less than there is, if something does.
    pub limited_by: Option<Limit>,
}

/// What leaves a process less memory than the machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// A cgroup that grants no more.
    Cgroup(PathBuf),
    /// Only these nodes are of use: on others it may not allocate, or nothing is placed there.
    Nodes(Vec<usize>),
    /// So many processes of one job plan with it at once.
    Processes(usize),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(group) => write!(f, "the cgroup {}", group.display()),
            Self::Nodes(nodes) => {
                write!(f, "the part of this machine that may be used (nodes {})", cpu_list::format(nodes))
            }
            Self::Processes(count) => write!(f, "the share of one of {count} processes on this machine"),
        }
    }
}

/// What one node can still give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCapacity {
    /// Its number.
    pub node: usize,
    /// Its memory.
    pub total: u64,
    /// What is free, or would be if the kernel dropped cached files.
    pub free: u64,
}

impl Capacity {
    /// What this process can have now, of the machine it runs on.
    pub fn now(machine: &Machine) -> Self {
        Self::below(Path::new("/"), machine)
    }

    /// The same by the files below `root`, which say what `/sys` and `/proc` say.
    pub fn below(root: &Path, machine: &Machine) -> Self {
        let nodes = machine.nodes.iter().filter(|node| machine.numa_known && node.allowed);
        let nodes: Vec<_> = nodes.filter_map(|node| node_capacity(root, node.os_index)).collect();
        let mut bytes = meminfo(root);
        let mut limited_by = None;
        let of_nodes = of_useful_nodes(machine, &nodes).map(|(free, useful)| (free, Limit::Nodes(useful)));
        let of_group = granted(root).map(|(granted, group)| (granted, Limit::Cgroup(group)));
        for (most, limit) in of_nodes.into_iter().chain(of_group) {
            if bytes.is_none_or(|bytes| most < bytes) {
                (bytes, limited_by) = (Some(most), Some(limit));
            }
        }
        Self { nodes, bytes, limited_by }
    }

    /// The same as if what lies on these pages were not there yet: what is still to be placed, and can be moved.
    pub fn without(mut self, pages: &Census) -> Self {
        let bytes = |pages: usize| (pages * page_bytes()) as u64;
        for node in &mut self.nodes {
            let there = pages.on.get(&node.node).copied().unwrap_or(0);
            node.free = (node.free + bytes(there)).min(node.total);
        }
        self.bytes = self.bytes.map(|free| free + bytes(pages.touched()));
        self
    }

    /// The share of one of several processes that plan at the same moment, each on these CPUs: of all memory as many parts as there
    /// are processes, and of a node as many as compute near it.
    pub fn of_one_among(self, processes: &[Vec<usize>], machine: &Machine) -> Self {
        self.of_one_below(Path::new("/"), processes, machine)
    }

    /// The same by the files below `root`.
    pub fn of_one_below(mut self, root: &Path, processes: &[Vec<usize>], machine: &Machine) -> Self {
        let several = processes.len();
        if several < 2 {
            return self;
        }
        for node in &mut self.nodes {
            let near = || machine.nodes.iter().find(|other| other.os_index == node.node)?.near;
            let cpus = Some(cpus_of(root, node.node)).filter(|cpus| !cpus.is_empty());
            let cpus = cpus.or_else(|| near().map(|near| cpus_of(root, near))).unwrap_or_default();
            let is_near = |own: &&Vec<usize>| own.iter().any(|cpu| cpus.binary_search(cpu).is_ok());
            // One that is near nobody is there for all.
            let sharers = Some(processes.iter().filter(is_near).count()).filter(|count| *count > 0);
            let sharers = sharers.unwrap_or(several) as u64;
            (node.total, node.free) = (node.total / sharers, node.free / sharers);
        }
        self.bytes = self.bytes.map(|bytes| bytes / several as u64);
        self.limited_by = Some(Limit::Processes(several));
        self
    }

    /// What a machine like this would have with nothing running on it: of one that is only described.
    pub fn of_idle(machine: &Machine) -> Self {
        let nodes = machine.nodes.iter().filter(|node| machine.numa_known && node.allowed);
        let nodes: Vec<NodeCapacity> = nodes
            .filter_map(|node| Some((node.os_index, node.memory_bytes?)))
            .map(|(node, total)| NodeCapacity { node, total, free: total })
            .collect();
        let all = (!nodes.is_empty()).then(|| nodes.iter().map(|node| node.total).sum());
        let of_nodes = of_useful_nodes(machine, &nodes).map(|(free, useful)| (free, Limit::Nodes(useful)));
        let (bytes, limited_by) = of_nodes.unzip();
        Self { nodes, bytes: bytes.or(all), limited_by }
    }
}

/// What this process can have in all, but for what is never planned away; `None` if the system does not say.
pub fn available() -> Option<u64> {
    available_below(Path::new("/"))
}

/// The same by the files below `root`.
pub fn available_below(root: &Path) -> Option<u64> {
    let bytes = Capacity::below(root, &detect_at(root, 1).ok()?).bytes?;
    Some(bytes.saturating_sub(kept(bytes)))
}

/// Whether its memory is there for what this process allocates.
fn is_of_use(node: &Node) -> bool {
    node.allowed && !matches!(node.tier, Tier::Slow | Tier::Gpu)
}

/// What the nodes that are of use can give together, and which they are; `None` where all are, or one of them does not tell. Beyond
/// that the kernel ends a process whose cpuset leaves out the others, however much these have.
fn of_useful_nodes(machine: &Machine, told: &[NodeCapacity]) -> Option<(u64, Vec<usize>)> {
    let with_memory = machine.nodes.iter().filter(|node| node.memory_bytes != Some(0));
    let (useful, others): (Vec<&Node>, Vec<&Node>) = with_memory.partition(|node| is_of_use(node));
    if !machine.numa_known || others.is_empty() {
        return None;
    }
    let useful: Vec<usize> = useful.iter().map(|node| node.os_index).collect();
    let free = |node: &usize| told.iter().find(|one| one.node == *node).map(|one| one.free);
    Some((useful.iter().map(free).sum::<Option<u64>>()?, useful))
}

/// The bytes of a line of `meminfo`, which counts in KiB.
fn line(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let (before, value) = line.split_once(':')?;
        (before.split_whitespace().last() == Some(name)).then_some(value)
    })?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn node_capacity(root: &Path, node: usize) -> Option<NodeCapacity> {
    let path = root.join(format!("sys/devices/system/node/node{node}/meminfo"));
    let text = fs::read_to_string(path).ok()?;
    let part = |name| line(&text, name).unwrap_or(0);
    let total = line(&text, "MemTotal")?;
    // Files that are not written yet cannot be dropped.
    let files =
        (part("Active(file)") + part("Inactive(file)")).saturating_sub(part("Dirty") + part("Writeback"));
    let free = (line(&text, "MemFree")? + files).min(total);
    Some(NodeCapacity { node, total, free })
}

/// All CPUs of a node in order, those that others were granted, too; none if the system does not tell.
fn cpus_of(root: &Path, node: usize) -> Vec<usize> {
    let path = root.join(format!("sys/devices/system/node/node{node}/cpulist"));
    fs::read_to_string(path).ok().and_then(|text| cpu_list::parse(text.trim()).ok()).unwrap_or_default()
}

fn meminfo(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    line(&text, "MemAvailable").or_else(|| line(&text, "MemFree"))
}

/// What the cgroup of this process, or one above it, still grants, and which it is; the least counts.
fn granted(root: &Path) -> Option<(u64, PathBuf)> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = Path::new(path.trim_start_matches('/'));
        // A group outside of our namespace of cgroups is called `/..` and leads nowhere.
        if path.components().any(|step| step == std::path::Component::ParentDir) {
            continue;
        }
        let (mounts, names) = match controllers {
            "" => (["sys/fs/cgroup", "sys/fs/cgroup/unified"].as_slice(), VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (["sys/fs/cgroup/memory"].as_slice(), VERSION_1)
            }
            _ => continue,
        };
        for mount in mounts {
            let groups = path.ancestors().map(|group| Path::new(mount).join(group));
            found
                .extend(groups.filter_map(|group| {
                    Some((left(&root.join(&group), names)?, Path::new("/").join(group)))
                }));
        }
    }
    found.into_iter().min()
}

/// The files of a cgroup: the limit, what is used, and the line of `memory.stat` for cached files that can be dropped.
type Names = [&'static str; 3];
const VERSION_2: Names = ["memory.max", "memory.current", "inactive_file"];
const VERSION_1: Names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];

fn left(group: &Path, [limit, used, cached]: Names) -> Option<u64> {
    // No limit is the word "max", which is no number, or in version 1 a number that no machine has.
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let value = stat.lines().find_map(|line| line.strip_prefix(cached)?.trim().parse::<u64>().ok());
    Some((limit + value.unwrap_or(0)).saturating_sub(number(used).unwrap_or(0)).min(limit))
}
