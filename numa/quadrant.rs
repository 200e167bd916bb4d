//! The cut of a machine into quadrants.
//!
//! A quadrant never spans two NUMA nodes unless fewer quadrants than nodes were asked for. Cuts fall between
//! cores where there are enough of them, between hardware threads where there are not, and a CPU is shared
//! only where even those run out. Everything decided here is said in [`Partition::how`].

use crate::cpu_list;
use crate::threads::{self, Place, Reserve, Role, Thread};
use crate::topology::{Core, Machine, Node, Tier};

/// Quadrants beyond the number of CPUs are for tests on small machines; this many are always granted.
const SHARED_QUADRANTS: usize = 64;

/// No quadrant gains from more threads, and a slip of the finger should not start a million.
const THREADS_LIMIT: usize = 1024;

/// A set of CPUs with the memory near them; what one device runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quadrant {
    /// Its place in [`Partition::quadrants`].
    pub index: usize,
    /// Its logical CPUs in the order threads take them: one hardware thread of every core first.
    pub cpus: Vec<usize>,
    /// The node to bind ordinary memory to; `None` if it spans nodes or none is known or allowed.
    pub dram_node: Option<usize>,
    /// The near fast node, if there is one and it may be used.
    pub fast_node: Option<usize>,
    /// All nodes of its ordinary memory: several if it spans nodes or `numa=fake` cut its node.
    pub dram_nodes: Vec<usize>,
    /// All fast nodes near it that it may use.
    pub fast_nodes: Vec<usize>,
    /// How many threads its crew has.
    pub threads: usize,
    /// Whether its threads are pinned: there is a CPU for each, shared with no other quadrant.
    pub pinned: bool,
}

impl Quadrant {
    /// The CPU to pin a thread of the crew to; `None` if the crew is not pinned.
    pub fn cpu_of_thread(&self, thread: usize) -> Option<usize> {
        if self.pinned { self.cpus.get(thread).copied() } else { None }
    }
}

/// A machine cut into quadrants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The quadrants, in order of socket, node and core.
    pub quadrants: Vec<Quadrant>,
    /// Every thread and its place.
    pub threads: Vec<Thread>,
    /// What was decided and why, on one line.
    pub how: String,
}

/// Why a machine cannot be cut as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// Nothing to run on.
    #[error("{what} must be at least 1")]
    Zero {
        /// Which of the two numbers was 0.
        what: &'static str,
    },
    /// More quadrants than CPUs, and more than tests need.
    #[error(
        "{requested} quadrants were asked for, but this machine has {cpus} allowed CPUs; ask for at most {most}"
    )]
    TooManyQuadrants {
        /// What was asked for.
        requested: usize,
        /// How many CPUs are allowed.
        cpus: usize,
        /// What would be granted.
        most: usize,
    },
    /// More threads than make sense.
    #[error(
        "{requested} threads per quadrant were asked for, but this machine has {cpus} allowed CPUs; \
         ask for at most {THREADS_LIMIT}"
    )]
    TooManyThreads {
        /// What was asked for.
        requested: usize,
        /// How many CPUs are allowed.
        cpus: usize,
    },
    /// Fewer quadrants than nodes that do not divide them.
    #[error("{nodes} NUMA nodes cannot be joined evenly into {requested} quadrants; ask for {suggestions}")]
    Uneven {
        /// What was asked for.
        requested: usize,
        /// How many nodes have allowed CPUs.
        nodes: usize,
        /// The numbers that would do.
        suggestions: String,
    },
    /// Nothing to cut at.
    #[error(
        "nothing says here which cores share a third-level cache, so the machine cannot be cut at these; ask for a number of \
         quadrants"
    )]
    NoCaches,
    /// The machine holds no CPU: it was not made by `topology::detect`.
    #[error("the machine has no CPUs to make a quadrant of")]
    NoCpus,
}

/// One node's share, before it is cut.
struct Home<'a> {
    node: &'a Node,
    cores: Vec<&'a Core>,
}

/// The memory near a quadrant.
#[derive(Default)]
struct NearMemory {
    dram_node: Option<usize>,
    fast_node: Option<usize>,
    dram_nodes: Vec<usize>,
    fast_nodes: Vec<usize>,
}

/// A quadrant before its threads are counted.
struct Piece {
    /// Its cores, or single hardware threads where there are more quadrants than cores.
    units: Vec<Vec<usize>>,
    nodes: Vec<usize>,
}

/// Where a machine is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Between NUMA nodes.
    Nodes,
    /// Into so many quadrants, of all workers together.
    Into(usize),
    /// Between groups of cores that share a third-level cache. Where a NUMA node has several (EPYC in NPS1), what one of them has
    /// written is far from the others.
    Caches,
}

/// How a machine is to be cut.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// Where.
    pub cut: Cut,
    /// Threads of each crew; as many for each of its cores as `smt` says if none is given.
    pub threads: Option<usize>,
    /// Hardware threads of a core that a crew uses; at least 1.
    pub smt: usize,
    /// Cores for threads that do not compute.
    pub reserve: Reserve,
    /// Workers that share the quadrants evenly.
    pub workers: usize,
}

impl Wishes {
    /// One worker whose crews have all cores.
    pub fn new(quadrants: Option<usize>, threads: Option<usize>) -> Self {
        Self::at(quadrants.map_or(Cut::Nodes, Cut::Into), threads)
    }

    /// The same, cut there.
    pub fn at(cut: Cut, threads: Option<usize>) -> Self {
        Self { cut, threads, smt: 1, reserve: Reserve::NONE, workers: 1 }
    }
}

/// Cuts a machine into quadrants: one per NUMA node, or as many as requested, with one thread per core or as
/// many per quadrant as requested.
///
/// # Errors
/// See [`cut`].
pub fn quadrants(
    machine: &Machine,
    requested: Option<usize>,
    threads: Option<usize>,
) -> Result<Partition, PartitionError> {
    cut(machine, &Wishes::new(requested, threads))
}

/// Cuts a machine into quadrants and gives every thread its place.
///
/// # Errors
/// If the machine cannot be cut as wished.
pub fn cut(machine: &Machine, wishes: &Wishes) -> Result<Partition, PartitionError> {
    let Wishes { threads, reserve, workers, .. } = *wishes;
    let (homes, smt) = (homes(machine), wishes.smt.max(1));
    let (nodes, cpus) = (homes.len(), machine.cpus.len());
    if homes.is_empty() {
        return Err(PartitionError::NoCpus);
    }
    check(wishes.cut, threads, nodes, cpus)?;
    let (pieces, cut) = match wishes.cut {
        Cut::Caches => (at_caches(&homes)?, "one for each third-level cache".to_owned()),
        Cut::Into(count) if count < nodes => join(&homes, count),
        Cut::Into(count) => divide(&homes, count),
        Cut::Nodes => divide(&homes, nodes),
    };
    let count = pieces.len();
    let shared = count > cpus;
    let cap = if threads.is_none() { machine.quota.map(|limit| per_quadrant(limit, count)) } else { None };
    let sizes: Vec<usize> = pieces.iter().map(|piece| piece.units.len()).collect();
    let crew_cores = threads.or(cap).map(|threads| threads.div_ceil(smt));
    let may_shrink = threads.is_none() && !shared;
    let wish = threads::Wish { workers, reserve, crew_cores, may_shrink };
    // Where quadrants share CPUs, no core is anybody's own.
    let wish = if shared { threads::Wish { reserve: Reserve::NONE, ..wish } } else { wish };
    let places = threads::reserve(&sizes, &wish);
    let mut capped = false;
    let made = pieces.iter().enumerate().map(|(index, piece)| {
        let kept = places.iter().filter(|place| place.quadrant == Some(index)).count();
        let (crew, kept) = piece.units.split_at(piece.units.len() - kept);
        let own = crew.iter().map(|unit| unit.len().min(smt)).sum::<usize>().max(1);
        let granted = cap.map_or(own, |cap| own.min(cap));
        capped |= granted < own;
        let threads = threads.unwrap_or(granted);
        let mut cpus = order(crew, smt);
        let pinned = !shared && threads <= cpus.len();
        cpus.extend(interleave(kept));
        let NearMemory { dram_node, fast_node, dram_nodes, fast_nodes } = memory(machine, &piece.nodes);
        Quadrant { index, cpus, dram_node, fast_node, dram_nodes, fast_nodes, threads, pinned }
    });
    let quadrants: Vec<Quadrant> = made.collect();
    let mut how = vec![match wishes.cut {
        Cut::Nodes if !machine.numa_known => "1 quadrant, since the NUMA nodes are unknown".to_string(),
        Cut::Nodes => format!("{}, one for each NUMA node with allowed CPUs", counted(count, "quadrant")),
        _ => format!("{} as asked: {cut}", counted(count, "quadrant")),
    }];
    let caches = at_caches(&homes).map_or(0, |pieces| pieces.len());
    if wishes.cut == Cut::Nodes && caches > nodes {
        how.push(format!("{caches} third-level caches, at which --quadrants l3 would cut"));
    }
    how.push(describe_threads(machine, &quadrants, wishes, capped, shared));
    let threads = all_threads(&quadrants, &pieces, &places, workers);
    how.extend(threads::describe(&threads, reserve));
    Ok(Partition { quadrants, threads, how: how.join("; ") })
}

/// Every thread with its CPU: the crews, then those that have cores of their own or none.
fn all_threads(quadrants: &[Quadrant], pieces: &[Piece], places: &[Place], workers: usize) -> Vec<Thread> {
    let each = (quadrants.len() / workers.max(1)).max(1);
    let crew = |quadrant: &Quadrant| {
        let (worker, index) = (quadrant.index / each, Some(quadrant.index));
        let cpus: Vec<Option<usize>> = (0..quadrant.threads).map(|t| quadrant.cpu_of_thread(t)).collect();
        cpus.into_iter().map(move |cpu| Thread { role: Role::Compute, worker, quadrant: index, cpu })
    };
    let mut threads: Vec<Thread> = quadrants.iter().flat_map(crew).collect();
    let mut taken = vec![0; pieces.len()];
    for &Place { role, worker, quadrant } in places {
        let cpu = quadrant.and_then(|quadrant| {
            taken[quadrant] += 1;
            let units = &pieces[quadrant].units;
            units.get(units.len() - taken[quadrant])?.first().copied()
        });
        threads.push(Thread { role, worker, quadrant, cpu });
    }
    threads
}

/// The CPUs of a crew's cores in the order in which its threads take them: one of each core first, or as many of each
/// core as are used side by side, so that fewer threads take fewer cores.
fn order(units: &[Vec<usize>], smt: usize) -> Vec<usize> {
    if smt == 1 {
        return interleave(units);
    }
    let used = units.iter().flat_map(|unit| unit.iter().take(smt).copied());
    let rest: Vec<Vec<usize>> = units.iter().map(|unit| unit.iter().skip(smt).copied().collect()).collect();
    used.chain(interleave(&rest)).collect()
}

fn check(cut: Cut, threads: Option<usize>, nodes: usize, cpus: usize) -> Result<(), PartitionError> {
    match cut {
        Cut::Into(0) => return Err(PartitionError::Zero { what: "the number of quadrants" }),
        Cut::Into(requested) if requested > cpus.max(SHARED_QUADRANTS) => {
            return Err(PartitionError::TooManyQuadrants {
                requested,
                cpus,
                most: cpus.max(SHARED_QUADRANTS),
            });
        }
        Cut::Into(requested) if requested < nodes && !nodes.is_multiple_of(requested) => {
            let divisors: Vec<String> =
                (1..=nodes).filter(|&d| nodes.is_multiple_of(d)).map(|d| d.to_string()).collect();
            let suggestions = format!("{}, or more than {nodes}", divisors.join(", "));
            return Err(PartitionError::Uneven { requested, nodes, suggestions });
        }
        _ => {}
    }
    match threads {
        Some(0) => Err(PartitionError::Zero { what: "the number of threads per quadrant" }),
        Some(requested) if requested > THREADS_LIMIT.max(cpus) => {
            Err(PartitionError::TooManyThreads { requested, cpus })
        }
        _ => Ok(()),
    }
}

/// The nodes with allowed CPUs, those of one socket side by side, each with its cores.
fn homes(machine: &Machine) -> Vec<Home<'_>> {
    let mut homes: Vec<Home> = machine
        .nodes
        .iter()
        .map(|node| Home {
            node,
            cores: machine
                .cores
                .iter()
                .filter(|core| core.node == node.os_index && !core.cpus.is_empty())
                .collect(),
        })
        .filter(|home| !home.cores.is_empty())
        .collect();
    homes.sort_by_key(|home| (home.cores.first().map(|core| core.socket), home.node.os_index));
    homes
}

fn join(homes: &[Home], count: usize) -> (Vec<Piece>, String) {
    let size = homes.len() / count;
    let pieces = homes
        .chunks(size)
        .map(|group| {
            let cores = group.iter().flat_map(|home| home.cores.iter());
            Piece {
                units: cores.map(|core| core.cpus.clone()).collect(),
                nodes: group.iter().map(|home| home.node.os_index).collect(),
            }
        })
        .collect();
    (
        pieces,
        format!("{size} of {} NUMA nodes joined in each, so memory is not bound to one node", homes.len()),
    )
}

/// How many third-level caches the allowed cores have, each counted once for every NUMA node that it spans.
///
/// # Errors
/// If nothing says which cores share one.
pub fn third_level_caches(machine: &Machine) -> Result<usize, PartitionError> {
    at_caches(&homes(machine)).map(|pieces| pieces.len())
}

/// A piece for each group of cores of a node that share a third-level cache.
fn at_caches(homes: &[Home]) -> Result<Vec<Piece>, PartitionError> {
    let groups = homes.iter().flat_map(|home| {
        let groups = home.cores.chunk_by(|one, next| one.l3 == next.l3);
        groups.map(|cores| (home.node.os_index, cores))
    });
    let piece = |(node, cores): (usize, &[&Core])| {
        let all_known = cores.iter().all(|core| core.l3.is_some());
        let units = cores.iter().map(|core| core.cpus.clone()).collect();
        all_known.then_some(Piece { units, nodes: vec![node] }).ok_or(PartitionError::NoCaches)
    };
    groups.map(piece).collect()
}

fn divide(homes: &[Home], count: usize) -> (Vec<Piece>, String) {
    let cores: usize = homes.iter().map(|home| home.cores.len()).sum();
    let cpus: usize = homes.iter().flat_map(|home| &home.cores).map(|core| core.cpus.len()).sum();
    let by_core = count <= cores;
    // What is cut: cores, or single hardware threads once there are more quadrants than cores.
    let units: Vec<Vec<Vec<usize>>> = homes
        .iter()
        .map(|home| {
            if by_core {
                home.cores.iter().map(|core| core.cpus.clone()).collect()
            } else {
                home.cores.iter().flat_map(|core| core.cpus.iter().map(|&cpu| vec![cpu])).collect()
            }
        })
        .collect();
    let sizes: Vec<usize> = units.iter().map(Vec::len).collect();
    let parts = shares(&sizes, count);
    let mut pieces = Vec::with_capacity(count);
    for ((home, units), &parts) in homes.iter().zip(&units).zip(&parts) {
        for part in 0..parts {
            let (first, last) = if parts <= units.len() {
                (part * units.len() / parts, (part + 1) * units.len() / parts)
            } else {
                (part % units.len(), part % units.len() + 1)
            };
            pieces.push(Piece { units: units[first..last].to_vec(), nodes: vec![home.node.os_index] });
        }
    }
    let nodes = counted(homes.len(), "NUMA node");
    let cut = if count == homes.len() {
        "one for each NUMA node with allowed CPUs".to_string()
    } else if by_core {
        format!("{nodes} cut between cores")
    } else if count <= cpus {
        format!("{nodes} cut between hardware threads")
    } else {
        format!("more than the {}, so quadrants share CPUs", counted(cpus, "allowed CPU"))
    };
    (pieces, cut)
}

/// How many parts each node is cut into: at least one, then always one more where the parts are largest.
fn shares(sizes: &[usize], count: usize) -> Vec<usize> {
    let mut parts = vec![1; sizes.len()];
    for _ in sizes.len()..count {
        // Compares size/parts as fractions; the first of equals wins.
        let largest = (0..sizes.len()).reduce(|best, other| {
            if sizes[other] * parts[best] > sizes[best] * parts[other] { other } else { best }
        });
        if let Some(node) = largest {
            parts[node] += 1;
        }
    }
    parts
}

/// The first CPU of every unit, then the second of every unit, and so on.
fn interleave(units: &[Vec<usize>]) -> Vec<usize> {
    let depth = units.iter().map(Vec::len).max().unwrap_or(0);
    (0..depth).flat_map(|level| units.iter().filter_map(move |unit| unit.get(level).copied())).collect()
}

/// The memory of a quadrant on these nodes: what can be bound to, and all that is near.
fn memory(machine: &Machine, homes: &[usize]) -> NearMemory {
    if !machine.numa_known {
        return NearMemory::default();
    }
    let may_hold = |node: &&Node| node.allowed && node.memory_bytes != Some(0);
    let near_here = |near: Option<usize>| near.is_some_and(|near| homes.contains(&near));
    // Another node beside them is theirs if the kernel made it of theirs, or theirs has no memory.
    let own =
        |node: &&Node| homes.contains(&node.os_index) || node.tier == Tier::Dram && near_here(node.near);
    let nodes = || machine.nodes.iter().filter(may_hold);
    let mut dram: Vec<usize> = nodes().filter(own).map(|node| node.os_index).collect();
    if let ([home], true) = (homes, dram.is_empty()) {
        // A node without DIMMs, or one whose memory the job may not touch: the nearest that has some.
        let place = machine.nodes.iter().position(|other| other.os_index == *home);
        let distance = |node: &Node| node.distances.get(place?).copied().filter(|&far| far != Node::FAR);
        let others = nodes().filter(|node| node.total_cpus > 0);
        let nearest = others.filter_map(|node| Some((distance(node)?, node.os_index))).min();
        dram.extend(nearest.map(|(_, node)| node));
    }
    let fast: Vec<&Node> = nodes().filter(|n| n.tier == Tier::Fast && near_here(n.near)).collect();
    let largest = fast.iter().max_by_key(|node| (node.memory_bytes, std::cmp::Reverse(node.os_index)));
    let one_home = homes.len() == 1;
    NearMemory {
        dram_node: if let [only] = dram[..] { Some(only) } else { None },
        fast_node: largest.filter(|_| one_home).map(|node| node.os_index),
        dram_nodes: dram,
        fast_nodes: fast.iter().map(|node| node.os_index).collect(),
    }
}

/// What each of `count` quadrants may use of the granted time, at least one thread.
fn per_quadrant(limit: f64, count: usize) -> usize {
    ((limit / count as f64).floor() as usize).max(1)
}

fn describe_threads(
    machine: &Machine,
    quadrants: &[Quadrant],
    wishes: &Wishes,
    capped: bool,
    shared: bool,
) -> String {
    let mut counts: Vec<String> = quadrants.iter().map(|q| q.threads.to_string()).collect();
    let even = counts.iter().all(|count| *count == counts[0]);
    if even {
        counts.truncate(1);
    }
    let total: usize = quadrants.iter().map(|q| q.threads).sum();
    let why = match (wishes.threads, capped, wishes.smt) {
        (Some(_), ..) => "as asked".to_string(),
        (None, true, _) => "limited by the cgroup's CPU quota".to_string(),
        (None, false, _) if shared => "since they share CPUs".to_string(),
        (None, false, 0 | 1) => "one per core".to_string(),
        (None, false, smt) => format!("up to {smt} per core"),
    };
    let noun = if even && quadrants[0].threads == 1 { "thread" } else { "threads" };
    let each = if quadrants.len() > 1 && even { " each" } else { "" };
    let unpinned = quadrants.iter().filter(|q| !q.pinned).count();
    let pinning = if unpinned == 0 {
        "pinned".to_string()
    } else if unpinned == quadrants.len() {
        format!("not pinned, since {total} threads share {}", counted(machine.cpus.len(), "CPU"))
    } else {
        let those: Vec<usize> = quadrants.iter().filter(|q| !q.pinned).map(|q| q.index).collect();
        format!("pinned except in quadrants {}, which have fewer CPUs than threads", cpu_list::format(&those))
    };
    format!("{} {noun}{each} ({why}), {pinning}", counts.join("/"))
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
