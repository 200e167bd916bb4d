//! CPUs without a node: theirs is offline, or the description that was read leaves out what a job may not use.
//!
//! They may be used all the same, so each group gets a node without memory, and is a quadrant whose memory the
//! kernel chooses.

use std::collections::BTreeMap;

use super::Node;
use crate::cpu_list;

/// What is known of the node that a CPU should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Clue {
    /// Its number, if that is known.
    pub node: Option<usize>,
    /// The socket of the CPU.
    pub socket: usize,
}

/// Adds a node for each group of CPUs. Returns the node of each CPU and what is worth saying.
pub(super) fn adopt(
    homeless: BTreeMap<Clue, Vec<usize>>,
    nodes: &mut Vec<Node>,
) -> (Vec<(usize, usize)>, Vec<String>) {
    let (mut homes, mut notes) = (Vec::new(), Vec::new());
    for (clue, cpus) in homeless {
        let taken = |index: &usize| nodes.iter().any(|node| node.os_index == *index);
        let unused = (0..).find(|index| !taken(index)).unwrap_or(nodes.len());
        let os_index = clue.node.filter(|index| !taken(index)).unwrap_or(unused);
        let place = nodes.iter().position(|node| node.os_index > os_index).unwrap_or(nodes.len());
        for node in nodes.iter_mut().filter(|node| !node.distances.is_empty()) {
            node.distances.insert(place.min(node.distances.len()), Node::FAR);
        }
        notes.push(format!(
            "the node of CPUs {} is offline or may not be used: they count as node {os_index}, without memory.",
            cpu_list::format(&cpus)
        ));
        homes.extend(cpus.iter().map(|&cpu| (cpu, os_index)));
        let node = Node { total_cpus: cpus.len(), memory_bytes: Some(0), ..Node::unknown(os_index) };
        nodes.insert(place, node);
    }
    (homes, notes)
}
