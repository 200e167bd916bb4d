//! The machine from Linux's own files, without hwloc.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::files::{Files, Trouble, bad, excerpt, field_of};
use super::locality;
use super::{Machine, Node, Source, Tier, TopologyError, cores, memory, orphans, quota};
use crate::cpu_list;

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";
const STATUS: &str = "proc/self/status";

/// Describes the machine this process runs on.
pub(super) fn here() -> Result<Machine, TopologyError> {
    let machine = detect_at(Path::new("/"), std::thread::available_parallelism().map_or(1, usize::from))?;
    Ok(Machine { here: true, ..machine })
}

/// Describes the machine whose files someone has copied to a folder. CPUs that the files do not count are not
/// made up.
pub(super) fn root(root: &Path) -> Result<Machine, TopologyError> {
    let files = Files::below(root);
    let cpus = files.numbered(CPUS, "cpu").unwrap_or_default();
    if cpus.is_empty() {
        return Err(Source::Root(root.to_owned()).refuse(format!(
            "there is no folder {CPUS}/cpu0 in it; expected a copy of a machine's /sys and /proc, as \
             hwloc-gather-topology makes it"
        )));
    }
    detect_at(root, cpus.len())
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
    if numa_known {
        notes.extend(adopt(files, &allowed, &mut nodes));
        notes.extend(locality::homes_of_memory(files, &mut nodes));
        notes.extend(memory::judge(&model, &mut nodes));
    }
    let (cores, assumed) = cores::cores(files, &nodes);
    notes.extend(assumed);
    let cpus = usable(&allowed, &nodes, &mut notes);
    let quota = quota::noted(files, cpus.len(), &mut notes);
    let caches = cpus.first().map_or_else(Vec::new, |&cpu| cores::caches(files, cpu));
    let sockets = cores::sockets(&cores);
    Ok(Machine { model, cpus, cores, nodes, sockets, caches, quota, here: false, numa_known, notes })
}

/// The processor's name; `unknown processor` if the kernel gives none.
pub(super) fn model(files: Files) -> String {
    files
        .text("proc/cpuinfo")
        .ok()
        .and_then(|text| field_of(&text, "model name"))
        .map(|name| printable(&name))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown processor".to_string())
}

/// One line of printable text, whatever the file holds.
pub(super) fn printable(name: &str) -> String {
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
    let mask = match mask(files, "Cpus_allowed_list") {
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

/// The CPUs or nodes of a mask of this process; an empty one makes no sense.
pub(super) fn mask(files: Files, name: &str) -> Result<Vec<usize>, Trouble> {
    let mask = cpu_list::parse(&files.field(STATUS, name)?).map_err(|error| bad(STATUS, error))?;
    if mask.is_empty() { Err(bad(STATUS, format!("{name} is empty"))) } else { Ok(mask) }
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
    let mems = mask(files, "Mems_allowed_list").ok();
    let mut seen = BTreeMap::new();
    let mut lists: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    let mut nodes = Vec::with_capacity(indices.len());
    for &os_index in &indices {
        let path = format!("{NODES}/node{os_index}/cpulist");
        let mut all = files.list(&path)?;
        // The kernel gives every node that it makes of one node (numa=fake) all CPUs of that.
        let fake_of = if all.is_empty() { None } else { lists.get(&all).copied() };
        if fake_of.is_some() {
            all.clear();
        } else {
            lists.insert(all.clone(), os_index);
        }
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
            bandwidth: locality::bandwidth(files, os_index),
            tier: Tier::Dram,
            subtype: None,
            near: fake_of,
            fake_of,
            cache_bytes: locality::cache_bytes(files, os_index),
            allowed: mems.as_ref().is_none_or(|mems| mems.contains(&os_index)),
            distances: distances(files, os_index, indices.len(), notes),
        });
    }
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        return Err(Trouble { missing: false, said: format!("no node in /{NODES} holds an allowed CPU") });
    }
    Ok(nodes)
}

/// Makes nodes for CPUs whose own is offline.
fn adopt(files: Files, allowed: &[usize], nodes: &mut Vec<Node>) -> Vec<String> {
    // A set, since a corrupt mask may hold tens of thousands.
    let homed: BTreeSet<usize> = nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
    let mut homeless: BTreeMap<orphans::Clue, Vec<usize>> = BTreeMap::new();
    // What a corrupt mask makes up is not there.
    let there = files.numbered(CPUS, "cpu").unwrap_or_default();
    for &cpu in allowed.iter().filter(|cpu| !homed.contains(cpu) && there.binary_search(cpu).is_ok()) {
        let socket = cores::socket(files, cpu).unwrap_or(0);
        homeless.entry(orphans::Clue { node: None, socket }).or_default().push(cpu);
    }
    let (cpus, notes) = orphans::adopt(homeless, nodes);
    for (cpu, home) in cpus {
        if let Some(node) = nodes.iter_mut().find(|node| node.os_index == home) {
            node.cpus.push(cpu);
        }
    }
    notes
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
        cpus: allowed.to_vec(),
        total_cpus: allowed.len(),
        memory_bytes: total.and_then(|value| kibibytes(&value)),
        allowed: true,
        ..Node::unknown(0)
    }
}

/// The allowed CPUs that have a node; those that have none are given up aloud.
fn usable(allowed: &[usize], nodes: &[Node], notes: &mut Vec<String>) -> Vec<usize> {
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
