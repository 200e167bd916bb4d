//! Cores, sockets and caches, from `/sys/devices/system/cpu`.

use std::collections::BTreeMap;

use super::files::Files;
use super::{Cache, Core, Node, Socket};

/// How many cache entries a CPU may have; real ones have four or five.
const CACHES_LIMIT: usize = 16;

/// Groups the allowed CPUs into cores. The second value says what had to be assumed.
pub(super) fn cores(files: Files, nodes: &[Node]) -> (Vec<Core>, Vec<String>) {
    let mut cores: Vec<(usize, Core)> = Vec::new();
    let (mut no_siblings, mut no_socket) = (Vec::new(), Vec::new());
    for node in nodes {
        let mut groups: BTreeMap<usize, Core> = BTreeMap::new();
        for &cpu in &node.cpus {
            let siblings = siblings(files, cpu).unwrap_or_else(|| {
                no_siblings.push(cpu);
                vec![cpu]
            });
            let socket = socket(files, cpu).unwrap_or_else(|| {
                no_socket.push(cpu);
                0
            });
            let first = siblings.first().copied().unwrap_or(cpu);
            let core = groups.entry(first).or_insert(Core {
                cpus: Vec::new(),
                node: node.os_index,
                socket,
                l3: None,
            });
            core.cpus.push(cpu);
        }
        // Cores that share their last-level cache stay side by side, so that a cut keeps them together.
        cores.extend(groups.into_values().map(|core| {
            let first = core.cpus[0];
            let shared = cache_groups(files, first);
            let last = shared.iter().max_by_key(|(level, _)| *level).map_or(first, |(_, group)| *group);
            let l3 = shared.iter().find(|(level, _)| *level == 3).map(|(_, group)| *group);
            (last, Core { l3, ..core })
        }));
    }
    cores.sort_by_key(|(group, core)| (core.node, *group, core.cpus[0]));
    let mut notes = Vec::new();
    if !no_siblings.is_empty() {
        notes.push(format!(
            "the hardware threads of CPUs {} are unknown: each counts as a core of its own.",
            crate::cpu_list::format(&no_siblings)
        ));
    }
    if !no_socket.is_empty() {
        notes.push(format!(
            "the socket of CPUs {} is unknown: they count as socket 0.",
            crate::cpu_list::format(&no_socket)
        ));
    }
    (cores.into_iter().map(|(_, core)| core).collect(), notes)
}

/// The sockets the cores lie on.
pub(super) fn sockets(cores: &[Core]) -> Vec<Socket> {
    let mut cpus: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for core in cores {
        cpus.entry(core.socket).or_default().extend(&core.cpus);
    }
    cpus.into_iter()
        .map(|(os_index, mut cpus)| {
            cpus.sort_unstable();
            Socket { os_index, cpus }
        })
        .collect()
}

/// The caches of one CPU; an entry that makes no sense is left out, since nothing depends on it but the text.
pub(super) fn caches(files: Files, cpu: usize) -> Vec<Cache> {
    let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache");
    let indices = files.numbered(&folder, "index").unwrap_or_default();
    let mut caches: Vec<Cache> = indices
        .into_iter()
        .take(CACHES_LIMIT)
        .filter_map(|index| {
            let entry = format!("{folder}/index{index}");
            Some(Cache {
                level: files.number(&format!("{entry}/level")).ok()? as usize,
                kind: files.text(&format!("{entry}/type")).ok()?,
                bytes: size(&files.text(&format!("{entry}/size")).ok()?)?,
                shared_by: files.list(&format!("{entry}/shared_cpu_list")).ok()?.len().max(1),
            })
        })
        .collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// The level of each of a CPU's caches, and the smallest of the CPUs that share it: a name for these.
fn cache_groups(files: Files, cpu: usize) -> Vec<(usize, usize)> {
    let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache");
    let indices = files.numbered(&folder, "index").unwrap_or_default();
    indices
        .into_iter()
        .take(CACHES_LIMIT)
        .filter_map(|index| {
            let level = files.number(&format!("{folder}/index{index}/level")).ok()?;
            let shared = files.list(&format!("{folder}/index{index}/shared_cpu_list")).ok()?;
            Some((level as usize, *shared.first()?))
        })
        .collect()
}

/// The socket of a CPU.
pub(super) fn socket(files: Files, cpu: usize) -> Option<usize> {
    // Some systems write -1 where they do not know.
    files.number(&topology(cpu, "physical_package_id")).ok()?.try_into().ok()
}

fn siblings(files: Files, cpu: usize) -> Option<Vec<usize>> {
    // A list that leaves the CPU itself out is corrupt.
    files.list(&topology(cpu, "thread_siblings_list")).ok().filter(|list| list.contains(&cpu))
}

fn topology(cpu: usize, file: &str) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/topology/{file}")
}

/// `32K`, `16384K`, `1M` in bytes.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
