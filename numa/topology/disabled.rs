//! The machine from Linux's own files, without hwloc.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::files::{Files, Trouble, bad, excerpt, field_of};
use super::{Machine, Node, TopologyError, cores, memory, quota};
use crate::cpu_list;

const NODES: &str = "sys/devices/system/node";
const STATUS: &str = "proc/self/status";

/// Describes the machine this process runs on.
pub fn detect() -> Result<Machine, TopologyError> {
    detect_at(Path::new("/"), std::thread::available_parallelism().map_or(1, usize::from))
}

/// Describes the machine whose `/sys` and `/proc` lie below `root`.
///
/// `fallback_cpus` is how many CPUs to believe in if the files tell nothing. What is missing or makes no
/// sense is replaced by something simpler and noted in [`Machine::notes`].
pub fn detect_at(root: &Path, fallback_cpus: usize) -> Result<Machine, TopologyError> {
    let files = Files::below(root);
    let mut notes = Vec::new();
    let model = model(files);
    let allowed = allowed_cpus(files, fallback_cpus, &mut notes)?;
    let (mut nodes, numa_known) = match nodes(files, &allowed, &mut notes) {
        Ok(nodes) => (nodes, true),
        Err(trouble) => {
            let why = if trouble.missing { "is missing" } else { "makes no sense" };
            notes.push(format!(
                "the description of NUMA nodes {why} ({}): taking the machine for one node.",
                trouble.said
            ));
            (vec![single_node(files, &allowed)], false)
        }
    };
    let cpus = usable(&allowed, &nodes, &mut notes);
    if numa_known {
        notes.extend(memory::place_memory(files, &model, &mut nodes));
    }
    let (cores, assumed) = cores::cores(files, &nodes);
    notes.extend(assumed);
    let quota = quota::quota(files).filter(|&limit| limit < cpus.len() as f64);
    if let Some(limit) = quota {
        notes.push(format!(
            "the cgroup grants the time of {limit:.1} CPUs although {} may be used: \
             more threads than that are stopped for part of every period.",
            cpus.len()
        ));
    }
    let caches = cpus.first().map_or_else(Vec::new, |&cpu| cores::caches(files, cpu));
    let sockets = cores::sockets(&cores);
    Ok(Machine { model, cpus, cores, nodes, sockets, caches, quota, numa_known, notes })
}

fn model(files: Files) -> String {
    files
        .text("proc/cpuinfo")
        .ok()
        .and_then(|text| field_of(&text, "model name"))
        .map(|name| excerpt_model(&name))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown processor".to_string())
}

/// One line of printable text, whatever the file holds.
fn excerpt_model(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// The CPUs of the affinity mask that are online.
fn allowed_cpus(
    files: Files,
    fallback_cpus: usize,
    notes: &mut Vec<String>,
) -> Result<Vec<usize>, TopologyError> {
    let online = match files.list("sys/devices/system/cpu/online") {
        Ok(online) if !online.is_empty() => Some(online),
        Ok(_) => None,
        Err(trouble) => {
            if !trouble.missing {
                notes.push(format!("which CPUs are online is unknown ({}).", trouble.said));
            }
            None
        }
    };
    let mask = files.field(STATUS, "Cpus_allowed_list").and_then(|text| {
        let mask = cpu_list::parse(&text).map_err(|error| bad(STATUS, error))?;
        if mask.is_empty() { Err(bad(STATUS, "Cpus_allowed_list is empty")) } else { Ok(mask) }
    });
    let mask = match mask {
        Ok(mask) => mask,
        Err(trouble) => {
            let count = fallback_cpus.clamp(1, cpu_list::CPU_LIMIT);
            let counted = online.as_ref().map_or(count, |online| online.len().min(count));
            notes.push(format!(
                "the affinity mask is unknown ({}): using the {counted} CPUs the standard library counts.",
                trouble.said
            ));
            match &online {
                Some(online) => online.iter().copied().take(count).collect(),
                None => (0..count).collect(),
            }
        }
    };
    let Some(online) = online else { return Ok(mask) };
    let cpus: Vec<usize> = mask.iter().copied().filter(|cpu| online.binary_search(cpu).is_ok()).collect();
    if cpus.is_empty() { Err(TopologyError::NoCpus { mask, online }) } else { Ok(cpus) }
}

/// All online nodes, or the first thing that makes them unbelievable.
fn nodes(files: Files, allowed: &[usize], notes: &mut Vec<String>) -> Result<Vec<Node>, Trouble> {
    let mut indices = files.numbered(NODES, "node")?;
    if let Ok(online) = files.list(&format!("{NODES}/online")) {
        indices.retain(|index| online.contains(index));
    }
    if indices.is_empty() {
        return Err(Trouble { missing: true, said: format!("/{NODES} holds no node") });
    }
    let mems = files
        .field(STATUS, "Mems_allowed_list")
        .ok()
        .and_then(|text| cpu_list::parse(&text).ok())
        .filter(|mems| !mems.is_empty());
    let mut seen = BTreeMap::new();
    let mut nodes = Vec::with_capacity(indices.len());
    for &os_index in &indices {
        let path = format!("{NODES}/node{os_index}/cpulist");
        let all = files.list(&path)?;
        for &cpu in &all {
            if let Some(other) = seen.insert(cpu, os_index) {
                return Err(bad(&path, format!("CPU {cpu} is in node {other} and in node {os_index}")));
            }
        }
        nodes.push(Node {
            os_index,
            total_cpus: all.len(),
            cpus: all.into_iter().filter(|cpu| allowed.binary_search(cpu).is_ok()).collect(),
            memory_bytes: node_memory(files, os_index, notes),
            fast: false,
            near: None,
            allowed: mems.as_ref().is_none_or(|mems| mems.contains(&os_index)),
            distances: distances(files, os_index, indices.len(), notes),
        });
    }
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        return Err(Trouble { missing: false, said: format!("no node in /{NODES} holds an allowed CPU") });
    }
    Ok(nodes)
}

fn node_memory(files: Files, os_index: usize, notes: &mut Vec<String>) -> Option<u64> {
    let path = format!("{NODES}/node{os_index}/meminfo");
    let field = format!("Node {os_index} MemTotal");
    match files.field(&path, &field).and_then(|value| kibibytes(&value).ok_or_else(|| bad(&path, "bad size")))
    {
        Ok(bytes) => Some(bytes),
        Err(trouble) => {
            notes.push(format!("the memory of node {os_index} is unknown ({}).", trouble.said));
            None
        }
    }
}

fn distances(files: Files, os_index: usize, count: usize, notes: &mut Vec<String>) -> Vec<u32> {
    let path = format!("{NODES}/node{os_index}/distance");
    let read = files.text(&path).and_then(|text| {
        let row: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        let row = row.ok_or_else(|| bad(&path, format!("\"{}\" is not a row of numbers", excerpt(&text))))?;
        if row.len() == count {
            Ok(row)
        } else {
            Err(bad(&path, format!("{} distances for {count} nodes", row.len())))
        }
    });
    read.unwrap_or_else(|trouble| {
        // One node needs no distances.
        if count > 1 {
            notes.push(format!("the distances of node {os_index} are unknown ({}).", trouble.said));
        }
        Vec::new()
    })
}

fn single_node(files: Files, allowed: &[usize]) -> Node {
    let total = files.field("proc/meminfo", "MemTotal").ok();
    Node {
        os_index: 0,
        cpus: allowed.to_vec(),
        total_cpus: allowed.len(),
        memory_bytes: total.and_then(|value| kibibytes(&value)),
        fast: false,
        near: None,
        allowed: true,
        distances: Vec::new(),
    }
}

/// The allowed CPUs that belong to a node; those that belong to none are given up aloud.
fn usable(allowed: &[usize], nodes: &[Node], notes: &mut Vec<String>) -> Vec<usize> {
    // A set, since a corrupt mask may hold tens of thousands.
    let homed: BTreeSet<usize> = nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
    let (inside, outside): (Vec<usize>, Vec<usize>) = allowed.iter().partition(|cpu| homed.contains(cpu));
    if !outside.is_empty() {
        notes.push(format!("CPUs {} belong to no node and are left idle.", cpu_list::format(&outside)));
    }
    inside
}

/// `16384 kB` in bytes.
fn kibibytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
