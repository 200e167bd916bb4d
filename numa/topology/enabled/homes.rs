//! Which node is the ordinary memory of which CPUs, from what hwloc tells.
//!
//! hwloc hangs every node where the CPUs are that it is nearest to, so nodes of the same CPUs are alike to it: DRAM and the
//! MCDRAM beside it, or the several nodes that `numa=fake` makes of one. Here one of them becomes the home of these
//! CPUs, and the others are near it.

use std::collections::BTreeMap;

use crate::topology::memory::{is_called_fast, is_called_slow, shared_note};
use crate::topology::{Node, Tier};

/// A node before it is known whose it is: `Node::cpus` is empty.
pub(super) struct Candidate {
    /// What is known of it.
    pub node: Node,
    /// The CPUs that it is nearest to, allowed or not.
    pub locality: Vec<usize>,
    /// The distance of its own memory.
    pub own_distance: Option<u32>,
    /// Whether the kernel says that it has CPUs; `None` if it does not say.
    pub has_cpus: Option<bool>,
}

/// Decides which nodes are homes. Returns them all by number, with `total_cpus`, `near` and `fake_of`; the home of each CPU;
/// and what is worth saying.
pub(super) fn settle(mut found: Vec<Candidate>) -> (Vec<Node>, BTreeMap<usize, usize>, Vec<String>) {
    found.sort_by_key(|candidate| candidate.node.os_index);
    let mut groups: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (place, candidate) in found.iter().enumerate() {
        groups.entry(candidate.locality.clone()).or_default().push(place);
    }
    // The nearest memory first: what all of a socket shares comes behind what its parts have of their own.
    let mut groups: Vec<(Vec<usize>, Vec<usize>)> = groups.into_iter().collect();
    groups.sort_by_key(|(locality, _)| locality.len());
    let mut home_of: BTreeMap<usize, usize> = BTreeMap::new();
    let mut notes = Vec::new();
    for (locality, members) in groups {
        let homeless: Vec<usize> =
            locality.iter().copied().filter(|cpu| !home_of.contains_key(cpu)).collect();
        let home = if homeless.is_empty() { None } else { home(&found, &members) };
        if let Some(home) = home {
            let os_index = found[home].node.os_index;
            found[home].node.total_cpus = homeless.len();
            home_of.extend(homeless.iter().map(|&cpu| (cpu, os_index)));
        }
        for &place in members.iter().filter(|&&place| Some(place) != home) {
            match home {
                Some(home) => attach(&mut found, place, home),
                None => attach_to_any(&mut found[place].node, &locality, &home_of, &mut notes),
            }
        }
    }
    (found.into_iter().map(|candidate| candidate.node).collect(), home_of, notes)
}

/// Which of the nodes of the same CPUs holds their ordinary memory.
fn home(found: &[Candidate], members: &[usize]) -> Option<usize> {
    let usable = || members.iter().copied().filter(|&place| found[place].node.tier != Tier::Gpu);
    let called = |place: usize| found[place].node.subtype.as_deref().unwrap_or_default();
    let has_memory = |place: &usize| found[*place].node.memory_bytes.is_some_and(|bytes| bytes > 0);
    let with_cpus = || usable().find(|&place| found[place].has_cpus == Some(true));
    let dram = || usable().find(|&place| called(place) == "DRAM");
    let plain = |place: &usize| !is_called_fast(called(*place)) && !is_called_slow(called(*place));
    let unnamed = || usable().filter(plain).find(has_memory).or_else(|| usable().find(plain));
    // A machine with HBM and nothing else has that as its ordinary memory.
    let fast = || usable().find(|&place| is_called_fast(called(place)));
    with_cpus().or_else(dram).or_else(unnamed).or_else(fast).or_else(|| usable().next())
}

/// Puts a node beside the home of its CPUs.
fn attach(found: &mut [Candidate], place: usize, home: usize) {
    let (node, beside) = (&found[place], &found[home]);
    let same_speed = node.node.bandwidth == beside.node.bandwidth;
    let both_have_cpus = node.has_cpus == Some(true) && beside.has_cpus == Some(true);
    let at = beside.node.os_index;
    let far =
        found.iter().position(|c| c.node.os_index == at).and_then(|p| node.node.distances.get(p)).copied();
    // Memory of another kind is farther than the CPUs' own; the parts of one node are as near as each other.
    let as_near = far.is_some() && far <= node.own_distance && node.node.subtype == beside.node.subtype;
    let fake =
        node.node.tier != Tier::Gpu && same_speed && (both_have_cpus || node.has_cpus.is_none() && as_near);
    let node = &mut found[place].node;
    node.near = Some(at);
    node.fake_of = fake.then_some(at);
}

/// Finds the home of a node whose CPUs have all found theirs elsewhere.
fn attach_to_any(
    node: &mut Node,
    locality: &[usize],
    home_of: &BTreeMap<usize, usize>,
    notes: &mut Vec<String>,
) {
    let mut homes: Vec<usize> = locality.iter().filter_map(|cpu| home_of.get(cpu).copied()).collect();
    homes.sort_unstable();
    homes.dedup();
    match homes[..] {
        [only] => node.near = Some(only),
        _ if node.tier == Tier::Gpu || node.memory_bytes == Some(0) => {}
        [] => notes.push(format!("node {} is near no CPU: it is not used.", node.os_index)),
        _ => notes.push(shared_note(node.os_index, &crate::cpu_list::format(&homes))),
    }
}
