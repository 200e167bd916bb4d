//! Which nodes of memory only are fast memory, and whose.
//!
//! Firmware numbers nodes as it likes: cluster 0's MCDRAM may be node 7. So a node of memory only belongs to
//! the CPU node at the smallest distance, never to "number + 4". Nor is every such node fast (CXL memory is
//! slower than DRAM), so speed is believed only from bandwidths the firmware tells, or for the two chip
//! families whose only such nodes are on the package.

use super::Node;
use super::files::Files;

/// Chip names whose nodes of memory only are MCDRAM or HBM.
const FAST_ON_PACKAGE: [&str; 2] = ["Xeon Phi", "CPU Max"];

/// Fills in `near` and `fast` of the nodes without CPUs; returns what is worth saying.
pub(super) fn place_memory(files: Files, model: &str, nodes: &mut [Node]) -> Vec<String> {
    let mut notes = Vec::new();
    let homes: Vec<(usize, usize)> = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.total_cpus > 0)
        .map(|(place, node)| (place, node.os_index))
        .collect();
    for node in nodes.iter_mut() {
        if node.total_cpus > 0 || node.memory_bytes == Some(0) {
            continue;
        }
        let near = nearest(files, node, &homes, &mut notes);
        let fast = near.is_some_and(|home| is_fast(files, model, node.os_index, home, &mut notes));
        node.near = near;
        node.fast = fast;
    }
    notes
}

fn nearest(files: Files, node: &Node, homes: &[(usize, usize)], notes: &mut Vec<String>) -> Option<usize> {
    let os_index = node.os_index;
    if let [(_, only)] = homes {
        return Some(*only);
    }
    let distances: Vec<(u32, usize)> =
        homes.iter().filter_map(|&(place, home)| Some((*node.distances.get(place)?, home))).collect();
    let Some(least) = distances.iter().map(|(distance, _)| *distance).min() else {
        notes.push(format!(
            "node {os_index} has memory but no CPUs and its distances are unknown: it is not used."
        ));
        return None;
    };
    let candidates: Vec<usize> =
        distances.iter().filter(|(distance, _)| *distance == least).map(|(_, home)| *home).collect();
    if let [only] = candidates[..] {
        return Some(only);
    }
    let folder = format!("sys/devices/system/node/node{os_index}/access0/initiators");
    let initiators = files.numbered(&folder, "node").unwrap_or_default();
    let told: Vec<usize> = candidates.iter().copied().filter(|home| initiators.contains(home)).collect();
    if let [only] = told[..] {
        return Some(only);
    }
    notes.push(format!(
        "node {os_index} has memory but no CPUs and is equally near nodes {}: it is not used.",
        crate::cpu_list::format(&candidates)
    ));
    None
}

fn is_fast(files: Files, model: &str, os_index: usize, home: usize, notes: &mut Vec<String>) -> bool {
    let bandwidth = |node: usize| {
        let path = format!("sys/devices/system/node/node{node}/access0/initiators/read_bandwidth");
        files.number(&path).ok().filter(|&megabytes| megabytes > 0)
    };
    match (bandwidth(os_index), bandwidth(home)) {
        (Some(own), Some(dram)) if own > dram => true,
        (Some(own), Some(dram)) => {
            notes.push(format!(
                "node {os_index} has memory but no CPUs and is no faster than node {home} \
                 ({own} against {dram} MB/s): it is not used."
            ));
            false
        }
        _ if FAST_ON_PACKAGE.iter().any(|name| model.contains(name)) => true,
        _ => {
            notes.push(format!(
                "node {os_index} has memory but no CPUs, and the firmware does not tell its bandwidth: \
                 it is not taken for fast memory."
            ));
            false
        }
    }
}
