//! How much memory there is to have, on each node and in all.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Census, page_bytes};
use crate::topology::Machine;

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
    /// Of all of them together, and no more than a cgroup grants; `None` if the system does not say.
    pub bytes: Option<u64>,
    /// The cgroup that grants less than there is, if one does.
    pub limited_by: Option<PathBuf>,
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
        let nodes = nodes.filter_map(|node| node_capacity(root, node.os_index)).collect();
        let whole = meminfo(root);
        let (granted, group) = granted(root).unzip();
        let limited = granted.is_some_and(|granted| whole.is_none_or(|whole| granted < whole));
        let bytes = [whole, granted].into_iter().flatten().min();
        Self { nodes, bytes, limited_by: group.filter(|_| limited) }
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

    /// What a machine like this would have with nothing running on it: of one that is only described.
    pub fn of_idle(machine: &Machine) -> Self {
        let nodes = machine.nodes.iter().filter(|node| machine.numa_known && node.allowed);
        let nodes: Vec<NodeCapacity> = nodes
            .filter_map(|node| Some((node.os_index, node.memory_bytes?)))
            .map(|(node, total)| NodeCapacity { node, total, free: total })
            .collect();
        let bytes = (!nodes.is_empty()).then(|| nodes.iter().map(|node| node.total).sum());
        Self { nodes, bytes, limited_by: None }
    }
}

/// What this process can have in all, whatever the nodes, but for what is never planned away; `None` if the system does not say.
pub fn available() -> Option<u64> {
    let root = Path::new("/");
    let bytes = [meminfo(root), granted(root).map(|(granted, _)| granted)].into_iter().flatten().min()?;
    Some(bytes.saturating_sub(kept(bytes)))
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
