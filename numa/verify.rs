//! Whether memory and threads are where they should be: the kernel is asked, and nothing is taken for granted.

use std::fs;

use crate::cpu_list;
use crate::memory::small::SmallPieces;
use crate::memory::{Census, Mapping, Policy, Refusal};
use crate::pin::{Pinning, pin_current_thread};
use crate::quadrant::{Partition, Quadrant};

/// Where a thread may run, and where it last did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadPlace {
    /// The CPUs of its mask.
    pub allowed: Vec<usize>,
    /// The CPU that it ran on last.
    pub ran_on: usize,
}

impl ThreadPlace {
    /// Whether it may run on `cpu` alone, and did.
    pub fn is_on(&self, cpu: usize) -> bool {
        self.allowed == [cpu] && self.ran_on == cpu
    }
}

/// Linux's number of the thread that calls; `None` where there is none to be had.
pub fn thread_id() -> Option<u32> {
    fs::read_link("/proc/thread-self").ok()?.file_name()?.to_str()?.parse().ok()
}

/// Where a thread of this process is; `None` if it has ended or the system does not say.
pub fn thread_place(id: u32) -> Option<ThreadPlace> {
    let status = fs::read_to_string(format!("/proc/self/task/{id}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
    // Field 39; the name, field 2, stands in brackets and may hold anything.
    let ran_on = stat.rsplit_once(')')?.1.split_whitespace().nth(36)?.parse().ok()?;
    Some(ThreadPlace { allowed: cpu_list::parse(list).ok()?, ran_on })
}

/// What became of memory that a quadrant asked for on one of its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFinding {
    /// `DRAM` or `fast memory`.
    pub kind: &'static str,
    /// The node.
    pub node: usize,
    /// Where the pages are, or why nobody can tell.
    pub pages: Result<Census, Refusal>,
}

impl NodeFinding {
    /// Pages that are elsewhere.
    pub fn elsewhere(&self) -> usize {
        self.pages.as_ref().map_or(0, |census| census.elsewhere(self.node))
    }
}

/// What became of a quadrant's memory and threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuadrantFinding {
    /// The quadrant.
    pub quadrant: usize,
    /// Its memories, none if it is bound to no node.
    pub memories: Vec<NodeFinding>,
    /// What became of a small piece of fast memory, where there is a heap of such pieces; nothing depends on it, since pages
    /// serve as well.
    pub small: Option<String>,
    /// Threads that ran.
    pub threads: usize,
    /// What is wrong with threads, one clause each.
    pub astray: Vec<String>,
    /// Pinning that the system refused.
    pub refused: Vec<String>,
}

impl QuadrantFinding {
    /// Whether all pages and threads are where they should be, as far as the system says.
    pub fn is_right(&self) -> bool {
        self.astray.is_empty() && self.memories.iter().all(|memory| memory.elsewhere() == 0)
    }

    /// In words.
    pub fn line(&self) -> String {
        let mut words = Vec::new();
        for NodeFinding { kind, node, pages } in &self.memories {
            words.push(match pages {
                Err(refusal) => format!("{kind} node {node}: nobody knows ({refusal})"),
                Ok(census) => match census.elsewhere(*node) {
                    0 => format!("{kind} node {node}: all {} pages there", census.touched()),
                    count => format!("{kind} node {node}: {count} pages ELSEWHERE ({census})"),
                },
            });
        }
        if words.is_empty() {
            words.push("memory bound to no node".to_owned());
        }
        words.extend(self.small.clone());
        words.push(match (self.astray.as_slice(), self.refused.first()) {
            ([], None) => format!("{} thread(s) on their CPUs", self.threads),
            ([], Some(refused)) => format!("{} thread(s) not pinned ({refused})", self.threads),
            (astray, _) => format!("threads ASTRAY: {}", astray.join(", ")),
        });
        format!("quadrant {}: {}", self.quadrant, words.join("; "))
    }
}

/// For each quadrant asks for `bytes` on each of its nodes, has its threads touch them on their CPUs, and asks the kernel
/// where pages and threads are.
pub fn verify(partition: &Partition, bytes: usize) -> Vec<QuadrantFinding> {
    let has_fast = partition.quadrants.iter().any(|quadrant| quadrant.fast_node.is_some());
    let pieces = if has_fast { SmallPieces::load() } else { SmallPieces::default() };
    partition.quadrants.iter().map(|quadrant| verify_quadrant(quadrant, bytes, &pieces)).collect()
}

/// Bytes of the small piece that a quadrant takes: less than a page.
const PIECE: usize = 1000;

fn verify_quadrant(quadrant: &Quadrant, bytes: usize, pieces: &SmallPieces) -> QuadrantFinding {
    let nodes = [("DRAM", quadrant.dram_node), ("fast memory", quadrant.fast_node)];
    let nodes = nodes.into_iter().filter_map(|(kind, node)| Some((kind, node?)));
    let reserved: Vec<(&str, usize, Result<Mapping, Refusal>)> =
        nodes.map(|(kind, node)| (kind, node, reserve(node, bytes))).collect();
    let mappings: Vec<&Mapping> = reserved.iter().filter_map(|(.., mapping)| mapping.as_ref().ok()).collect();
    let visits: Vec<Visit> = std::thread::scope(|scope| {
        let visit = |thread| {
            let mappings = &mappings;
            std::thread::Builder::new().spawn_scoped(scope, move || visit(quadrant, thread, mappings, pieces))
        };
        let started: Vec<_> = (0..quadrant.threads).map(visit).collect();
        let lost =
            || Visit { astray: Some("a thread could not be started".to_owned()), refused: None, small: None };
        started
            .into_iter()
            .map(|thread| thread.ok().and_then(|t| t.join().ok()).unwrap_or_else(lost))
            .collect()
    });
    let memories = reserved.iter().map(|(kind, node, mapping)| {
        let pages = mapping.as_ref().map_err(Refusal::clone).and_then(|mapping| mapping.settle(*node));
        NodeFinding { kind, node: *node, pages }
    });
    let memories = memories.collect();
    let small = visits.iter().find_map(|visit| visit.small.clone());
    let (astray, refused): (Vec<_>, Vec<_>) = visits.into_iter().map(|v| (v.astray, v.refused)).unzip();
    QuadrantFinding {
        quadrant: quadrant.index,
        memories,
        small,
        threads: quadrant.threads,
        astray: astray.into_iter().flatten().collect(),
        refused: refused.into_iter().flatten().collect(),
    }
}

fn reserve(node: usize, bytes: usize) -> Result<Mapping, Refusal> {
    let mapping = Mapping::reserve(bytes)?;
    mapping.set_policy(0..mapping.bytes(), &Policy::Preferred(node))?;
    Ok(mapping)
}

/// What a thread found on its CPU.
struct Visit {
    astray: Option<String>,
    refused: Option<String>,
    small: Option<String>,
}

/// A thread of a quadrant goes to its CPU and touches its share of the memory.
fn visit(quadrant: &Quadrant, thread: usize, mappings: &[&Mapping], pieces: &SmallPieces) -> Visit {
    let cpu = quadrant.cpu_of_thread(thread);
    let refused = match cpu.map(pin_current_thread) {
        Some(Pinning::Refused(reason)) => Some(reason),
        _ => None,
    };
    for mapping in mappings {
        mapping.touch(share(mapping.bytes(), thread, quadrant.threads));
    }
    let place = thread_id().and_then(thread_place);
    let astray = match (cpu, place) {
        (Some(cpu), Some(place)) if refused.is_none() && !place.is_on(cpu) => {
            let allowed = cpu_list::format(&place.allowed);
            Some(format!(
                "thread {thread} ran on CPU {} (allowed {allowed}) and not on CPU {cpu}",
                place.ran_on
            ))
        }
        _ => None,
    };
    let fast = quadrant.fast_node.filter(|_| thread == 0).zip(pieces.source());
    let small = fast.map(|(node, source)| match pieces.on_node(PIECE, node) {
        Some(_) => format!("a small piece of {source} on node {node}"),
        None => format!("no small piece of {source} on node {node}, so pages are taken"),
    });
    Visit { astray, refused, small }
}

/// What of so many bytes the owner's thread number `thread` of `threads` touches first.
pub fn share(bytes: usize, thread: usize, threads: usize) -> std::ops::Range<usize> {
    let at = |part: usize| (bytes as u128 * part as u128 / threads.max(1) as u128) as usize;
    at(thread)..at(thread + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_once() {
        for (bytes, threads) in [(0, 3), (4096, 3), (usize::MAX, 7)] {
            let ends: Vec<usize> = (0..threads).map(|thread| share(bytes, thread, threads).end).collect();
            let starts: Vec<usize> = (0..threads).map(|thread| share(bytes, thread, threads).start).collect();
            assert_eq!((starts[0], ends[threads - 1]), (0, bytes));
            assert_eq!(starts[1..], ends[..threads - 1]);
        }
    }

    #[test]
    fn this_machine_is_as_it_says() {
        let machine = crate::detect().unwrap();
        let partition = crate::quadrants(&machine, None, None).unwrap();
        for finding in verify(&partition, 1 << 20) {
            assert!(finding.is_right(), "{}", finding.line());
            assert!(finding.threads > 0);
        }
    }

    #[test]
    fn a_thread_is_found_where_it_was_pinned() {
        let Some(id) = thread_id() else { return println!("skipped: no /proc/thread-self") };
        let place = thread_place(id).unwrap();
        assert!(place.allowed.contains(&place.ran_on), "{place:?}");
        assert_eq!(thread_place(0), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let pages = Ok(Census { on: [(4, 10), (0, 2)].into(), ..Census::default() });
        let mut finding = QuadrantFinding {
            quadrant: 3,
            memories: vec![NodeFinding { kind: "fast memory", node: 4, pages }],
            small: None,
            threads: 2,
            astray: vec![],
            refused: vec![],
        };
        assert!(!finding.is_right());
        assert_eq!(
            finding.line(),
            "quadrant 3: fast memory node 4: 2 pages ELSEWHERE (2 on node 0, 10 on node 4); 2 thread(s) on their CPUs"
        );
        finding.memories.clear();
        assert!(finding.is_right());
        finding.astray.push("thread 0 ran on CPU 1".to_owned());
        assert_eq!(
            finding.line(),
            "quadrant 3: memory bound to no node; threads ASTRAY: thread 0 ran on CPU 1"
        );
    }
}
