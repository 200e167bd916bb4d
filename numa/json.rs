//! `topo --json`: the machine for programs.
//!
//! Nodes and CPUs have the operating system's numbers, sizes are in bytes, bandwidths in MiB/s as firmware or hwloc tell
//! them; what is unknown is null. Keys may be added, never renamed.

use serde_json::{Value, json};

use crate::quadrant::{Partition, Quadrant};
use crate::threads::Thread;
use crate::topology::{Machine, Node, Tier};

/// The machine, its quadrants and threads, and what is worth a warning.
pub fn to_json(machine: &Machine, partition: &Partition) -> Value {
    json!({
        "quadrants": partition.quadrants.iter().map(|q| quadrant(machine, q)).collect::<Vec<_>>(),
        "threads": partition.threads.iter().map(thread).collect::<Vec<_>>(),
        "warnings": machine.notes,
        "machine": {
            "model": machine.model,
            "here": machine.here,
            "reader": crate::topology::reader(),
            "cpus": machine.cpus,
            "cores": machine.cores.len(),
            "nodes": machine.nodes.iter().map(node).collect::<Vec<_>>(),
        },
    })
}

fn quadrant(machine: &Machine, quadrant: &Quadrant) -> Value {
    let mut cpus = quadrant.cpus.clone();
    cpus.sort_unstable();
    json!({
        "cpus": cpus,
        "dram": memory(machine, quadrant.dram_node, &quadrant.dram_nodes),
        "fast": memory(machine, quadrant.fast_node, &quadrant.fast_nodes),
        "threads": quadrant.threads,
        "pinned": quadrant.pinned,
    })
}

/// The memory of a quadrant: the node that it is bound to, or all nodes that the kernel chooses among.
fn memory(machine: &Machine, bound: Option<usize>, near: &[usize]) -> Value {
    let indices = bound.map_or_else(|| near.to_vec(), |node| vec![node]);
    let nodes: Vec<&Node> = indices.iter().filter_map(|&node| machine.node(node)).collect();
    let Some(first) = nodes.first() else { return Value::Null };
    let sum = |value: fn(&Node) -> Option<u64>| nodes.iter().map(|node| value(node)).sum::<Option<u64>>();
    // Parts of one node are as fast as the whole; nodes that a quadrant spans are so together.
    let bandwidth = if nodes.iter().any(|node| node.fake_of.is_some()) {
        first.bandwidth
    } else {
        sum(|node| node.bandwidth)
    };
    let mut value =
        json!({"node": first.os_index, "bytes": sum(|node| node.memory_bytes), "bandwidth": bandwidth});
    if bound.is_none() {
        value["nodes"] = json!(indices);
    }
    value
}

fn thread(thread: &Thread) -> Value {
    json!({"role": thread.role.to_string(), "quadrant": thread.quadrant, "cpu": thread.cpu})
}

fn node(node: &Node) -> Value {
    let kind = match node.tier {
        _ if node.memory_bytes == Some(0) => "none",
        Tier::Dram => "dram",
        Tier::Fast => "fast",
        Tier::Slow => "slow",
        Tier::Gpu => "gpu",
        Tier::Unknown => "unknown",
    };
    json!({
        "node": node.os_index,
        "cpus": node.cpus,
        "bytes": node.memory_bytes,
        "bandwidth": node.bandwidth,
        "kind": kind,
        "subtype": node.subtype,
        "near": node.near,
        "allowed": node.allowed,
        "fake_of": node.fake_of,
        "cache_bytes": node.cache_bytes,
    })
}
