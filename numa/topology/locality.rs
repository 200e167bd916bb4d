//! What Linux's files tell about nodes of memory: whose they are, how fast, and what stands before them.
//!
//! Firmware numbers nodes as it likes: cluster 0's MCDRAM may be node 7. So a node of memory only belongs to
//! the CPU node at the smallest distance, never to "number + 4".

use super::files::Files;
use super::{Node, Tier};
use crate::cpu_list;

/// How many GPUs a machine is believed to have.
const GPUS_LIMIT: usize = 256;

/// Fills in `near` of the nodes without CPUs, and marks those of GPUs; returns what is worth saying.
pub(super) fn homes_of_memory(files: Files, nodes: &mut [Node]) -> Vec<String> {
    let mut notes = Vec::new();
    let of_gpus = nodes_of_gpus(files);
    let homes: Vec<(usize, usize)> = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.total_cpus > 0)
        .map(|(place, node)| (place, node.os_index))
        .collect();
    for node in nodes.iter_mut() {
        if node.total_cpus > 0 || node.fake_of.is_some() {
            continue;
        }
        if of_gpus.contains(&node.os_index) {
            node.tier = Tier::Gpu;
        } else if node.memory_bytes != Some(0) {
            node.near = nearest(files, node, &homes, &mut notes);
        }
    }
    notes
}

/// The bandwidth that firmware tells for a node's nearest CPUs, in the kernel's MB/s.
pub(super) fn bandwidth(files: Files, node: usize) -> Option<u64> {
    let path = format!("sys/devices/system/node/node{node}/access0/initiators/read_bandwidth");
    files.number(&path).ok().filter(|&megabytes| megabytes > 0)
}

/// The size of the cache before a node's memory.
pub(super) fn cache_bytes(files: Files, node: usize) -> Option<u64> {
    let folder = format!("sys/devices/system/node/node{node}/memory_side_cache");
    let levels = files.numbered(&folder, "index").ok()?;
    let sizes = levels.iter().filter_map(|level| files.number(&format!("{folder}/index{level}/size")).ok());
    sizes.filter(|&bytes| bytes > 0).max()
}

/// The nodes that are GPUs' memory, as NVIDIA's driver tells.
fn nodes_of_gpus(files: Files) -> Vec<usize> {
    let folder = "proc/driver/nvidia/gpus";
    let gpus = files.names(folder, GPUS_LIMIT).unwrap_or_default();
    let node = |gpu: &String| files.field(&format!("{folder}/{gpu}/numa_status"), "Node").ok()?.parse().ok();
    gpus.iter().filter_map(node).collect()
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
    notes.push(super::memory::shared_note(os_index, &cpu_list::format(&candidates)));
    None
}
