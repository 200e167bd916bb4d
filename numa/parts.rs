//! How many parts a chip is cut into (`--quadrants auto`): the chip partitioning of the SC17 paper, and its limit.
//!
//! Each part has weights, gradients and activations of its own. On a Knights Landing the paper found 16 parts best, 3.3
//! times as fast as one, as long as all copies fit the fast memory. So fast memory is cut further than into its NUMA nodes
//! while copies fit. Elsewhere a part for each NUMA node keeps every access near; more copies would only take memory and
//! bandwidth from each other.

use crate::quadrant::{Partition, quadrants};
use crate::topology::Machine;

/// Most parts: the paper's largest number.
const MOST_PARTS: usize = 16;

/// Fewest cores of a part: those of the paper's 16 parts of 68 cores.
const FEWEST_CORES: usize = 4;

/// Hundredths of a fast node that copies may take; the rest is for what the system and the engine need beside them.
const ROOM_PERCENT: u64 = 90;

/// What a training copies into each part, or shares out among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    /// Bytes that each part holds whatever its share of the mini-batch: weights, gradients, histories.
    pub fixed: u64,
    /// Bytes of values and gradients of a whole mini-batch, which the parts of a worker share.
    pub shared: u64,
    /// Images in a worker's mini-batch.
    pub batch: usize,
    /// Workers, each with as many parts.
    pub workers: usize,
}

/// A number of parts that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Parts of each worker.
    pub parts: usize,
    /// Bytes that each holds.
    pub bytes: u64,
    /// Bytes of fast memory that each may take; `None` where a part has none.
    pub room: Option<u64>,
}

impl Candidate {
    /// Whether every copy fits the fast memory.
    pub fn fits(&self) -> bool {
        self.room.is_some_and(|room| self.bytes <= room)
    }
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Parts of each worker.
    pub parts: usize,
    /// Why, as a clause.
    pub why: String,
    /// All that was looked at, in order of parts.
    pub candidates: Vec<Candidate>,
}

/// Chooses the parts of each worker. `nodes` is how many each gets with one for each NUMA node.
pub fn choose(machine: &Machine, nodes: usize, copies: &Copies) -> Choice {
    let workers = copies.workers.max(1);
    let fine = |parts: usize| {
        parts == nodes
            || parts <= MOST_PARTS
                && parts <= copies.batch
                && parts * workers * FEWEST_CORES <= machine.cores.len()
    };
    let numbers = (0..).map(|doublings| nodes.max(1) << doublings).take_while(|parts| fine(*parts));
    let candidate = |parts: usize| {
        let partition = quadrants(machine, Some(parts * workers), None).ok();
        let bytes = copies.fixed + copies.shared / parts as u64;
        Candidate { parts, bytes, room: partition.and_then(|partition| room(machine, &partition)) }
    };
    let candidates: Vec<Candidate> = numbers.map(candidate).collect();
    let best = candidates.iter().rev().find(|candidate| candidate.fits());
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let (parts, why) = match (best, candidates.first()) {
        (Some(best), _) => {
            let next = candidates.iter().find(|candidate| candidate.parts == 2 * best.parts);
            let limit = match next {
                Some(next) => format!("{} parts would need {} each", next.parts, gib(next.bytes)),
                None => format!(
                    "more would have fewer than {FEWEST_CORES} cores each, be more than {MOST_PARTS}, or more than images"
                ),
            };
            let (bytes, room) = (gib(best.bytes), gib(best.room.unwrap_or(0)));
            (
                best.parts,
                format!("copies of {bytes} fit the {room} of fast memory that each may take; {limit}"),
            )
        }
        (None, Some(Candidate { room: Some(room), bytes, .. })) => {
            let (bytes, room) = (gib(*bytes), gib(*room));
            (
                nodes,
                format!(
                    "one for each NUMA node, since a copy of {bytes} exceeds the {room} of fast memory of each"
                ),
            )
        }
        _ => (
            nodes,
            "one for each NUMA node, since there is no fast memory that more copies could use".to_owned(),
        ),
    };
    Choice { parts, why, candidates }
}

/// The fast memory that each part of a partition may take, at the least; `None` if one has none.
fn room(machine: &Machine, partition: &Partition) -> Option<u64> {
    let shares =
        |node: usize| partition.quadrants.iter().filter(|q| q.fast_node == Some(node)).count() as u64;
    let of_part = |node: Option<usize>| {
        let bytes = machine.node(node?)?.memory_bytes?;
        Some(bytes / 100 * ROOM_PERCENT / shares(node?).max(1))
    };
    partition.quadrants.iter().map(|q| of_part(q.fast_node)).min().flatten()
}
