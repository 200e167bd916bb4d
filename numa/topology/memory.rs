//! What kind of memory each node is, for both readers.
//!
//! Not every node of memory only is fast: memory behind CXL is slower than DRAM, and a GPU's is not ours. So
//! bandwidth decides. Only where it is not told, what the node is called is believed, and last the names of the
//! two families of chips whose only such nodes are on the package.

use super::{Node, Tier};

/// Chip names whose nodes of memory only are MCDRAM or HBM.
const FAST_ON_PACKAGE: [&str; 2] = ["Xeon Phi", "CPU Max"];

/// Whether a node is called what memory on the package is called.
pub(super) fn is_called_fast(subtype: &str) -> bool {
    ["MCDRAM", "HBM"].contains(&subtype)
}

/// Whether a node is called what memory behind DRAM is called: `NVM`, `CXL-DRAM` and the like.
pub(super) fn is_called_slow(subtype: &str) -> bool {
    subtype == "NVM" || subtype.starts_with("CXL")
}

/// Says of a node that it lies between several others.
pub(super) fn shared_note(os_index: usize, homes: &str) -> String {
    format!("node {os_index} has memory but no CPUs and is equally near nodes {homes}: it is not used.")
}

/// Decides what each node is, from what is known of it and of the node near it; returns what is worth saying.
pub(super) fn judge(model: &str, nodes: &mut [Node]) -> Vec<String> {
    let mut notes = Vec::new();
    for place in 0..nodes.len() {
        let node = &nodes[place];
        if node.total_cpus > 0 || node.tier == Tier::Gpu || node.fake_of.is_some() {
            continue;
        }
        let home = node.near.and_then(|near| nodes.iter().find(|other| other.os_index == near));
        let tier = home.map_or(Tier::Unknown, |home| tier(model, node, home, &mut notes));
        nodes[place].tier = tier;
    }
    notes.extend(about_caches(nodes));
    notes.extend(about_fakes(nodes));
    notes.extend(about_gpus(nodes));
    notes
}

fn tier(model: &str, node: &Node, home: &Node, notes: &mut Vec<String>) -> Tier {
    let (name, near) = (node.os_index, home.os_index);
    if node.memory_bytes == Some(0) {
        return Tier::Unknown;
    }
    let subtype = node.subtype.as_deref().unwrap_or_default();
    if home.memory_bytes == Some(0) && !is_called_slow(subtype) {
        notes.push(format!("node {near} has CPUs but no memory: that of node {name} near it is theirs."));
        return Tier::Dram;
    }
    match (node.bandwidth, home.bandwidth) {
        (Some(own), Some(dram)) if own > dram => Tier::Fast,
        (Some(own), Some(dram)) => {
            notes.push(format!(
                "node {name} has memory but no CPUs and is no faster than node {near} \
                 ({own} against {dram} MB/s): it is not used."
            ));
            Tier::Slow
        }
        _ if is_called_fast(subtype) => Tier::Fast,
        _ if is_called_slow(subtype) => {
            notes
                .push(format!("node {name} is called {subtype}, which is slower than DRAM: it is not used."));
            Tier::Slow
        }
        _ if FAST_ON_PACKAGE.iter().any(|name| model.contains(name)) => Tier::Fast,
        _ => {
            notes.push(format!(
                "node {name} has memory but no CPUs, and the firmware does not tell its bandwidth: \
                 it is not taken for fast memory."
            ));
            Tier::Unknown
        }
    }
}

fn about_caches(nodes: &[Node]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut sizes: Vec<u64> = nodes.iter().filter_map(|node| node.cache_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let those: Vec<usize> =
            nodes.iter().filter(|n| n.cache_bytes == Some(size)).map(|n| n.os_index).collect();
        let noun = if those.len() == 1 { "node" } else { "each of nodes" };
        notes.push(format!(
            "a memory-side cache of {} stands before {noun} {} (MCDRAM or HBM in cache mode, or DRAM before persistent \
             memory): the hardware fills it, and nothing can be placed there.",
            crate::describe::bytes(size),
            crate::cpu_list::format(&those)
        ));
    }
    notes
}

fn about_fakes(nodes: &[Node]) -> Vec<String> {
    let mut notes = Vec::new();
    for home in nodes.iter().filter(|node| node.fake_of.is_none()) {
        let mut joined: Vec<usize> =
            nodes.iter().filter(|n| n.fake_of == Some(home.os_index)).map(|n| n.os_index).collect();
        if joined.is_empty() {
            continue;
        }
        joined.push(home.os_index);
        notes.push(format!(
            "nodes {} have the same CPUs, as numa=fake makes them of one: they count as one, and the kernel \
             chooses among them.",
            crate::cpu_list::format(&joined)
        ));
    }
    notes
}

fn about_gpus(nodes: &[Node]) -> Option<String> {
    let those: Vec<usize> = nodes.iter().filter(|n| n.tier == Tier::Gpu).map(|n| n.os_index).collect();
    (!those.is_empty()).then(|| {
        format!("nodes {} are memory of GPUs: nothing is placed there.", crate::cpu_list::format(&those))
    })
}
