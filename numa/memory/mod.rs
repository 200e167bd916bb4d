//! Memory on a node: reserved, bound, first touched by who owns it, and verified.
//!
//! Three steps, as everywhere in this crate. [`capacity`] reads how much there is on each node, [`plan`] decides what
//! goes where, as plain data and before anything is allocated, and [`Mapping`] does it.
//!
//! Pages are never *bound* in Linux's sense (`MPOL_BIND`). The kernel accepts a binding beyond what a node holds and
//! kills the process when it touches too much. They *prefer* their node ([`Policy::Preferred`]), their owner touches them,
//! and [`Mapping::settle`] asks where they are and moves those that came from elsewhere. A move that finds no room fails
//! and says so; it kills nobody. It also makes room: a node whose free memory is all the cache of files
//! gives a preferring page from another node, while a move drops cached files first.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

pub mod capacity;
pub mod plan;
pub mod small;
mod system;

pub use system::{LARGE_PAGE, Mapping, page_bytes};

/// Pages that the system is asked about at once: few enough that the lists for the question stay small.
const PAGES_AT_ONCE: usize = 1 << 14;

/// How often pages are sent that have not moved.
const TIMES_SENT: usize = 3;

/// The system does not do what it was asked. A value and no error: containers forbid these calls, and training goes on
/// where memory falls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The system call.
    pub call: &'static str,
    /// Its error number.
    pub errno: i32,
}

impl Refusal {
    fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }

    /// Why the last call failed.
    fn last(call: &'static str) -> Self {
        Self::new(call, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, std::io::Error::from_raw_os_error(self.errno))
    }
}

/// Where the pages of some memory come from when they are first touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// As the thread that touches them says.
    Default,
    /// From the node of the CPU that touches them.
    Local,
    /// From this node, and from the next best where it is full.
    Preferred(usize),
    /// From any of these nodes, and from others where they are full. Needs Linux 5.15.
    PreferredMany(Vec<usize>),
    /// From these nodes only. Where they are full the kernel ends a process, most likely this one.
    Bind(Vec<usize>),
    /// From these nodes in turn.
    Interleave(Vec<usize>),
}

impl Policy {
    /// Linux's number for it, and its nodes.
    fn mode(&self) -> (c_int, &[usize]) {
        match self {
            Self::Default => (0, &[]),
            Self::Preferred(node) => (1, std::slice::from_ref(node)),
            Self::Bind(nodes) => (2, nodes),
            Self::Interleave(nodes) => (3, nodes),
            Self::Local => (4, &[]),
            Self::PreferredMany(nodes) => (5, nodes),
        }
    }
}

/// Where pages are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Pages on each node.
    pub on: BTreeMap<usize, usize>,
    /// Pages that nobody has touched, which are nowhere yet.
    pub untouched: usize,
    /// Pages of which the system does not say where they are.
    pub unknown: usize,
}

impl Census {
    fn count(&mut self, answer: c_int) {
        match usize::try_from(answer) {
            Ok(node) => *self.on.entry(node).or_default() += 1,
            Err(_) if answer == -libc::ENOENT => self.untouched += 1,
            Err(_) => self.unknown += 1,
        }
    }

    /// Adds those of another memory.
    pub fn add(&mut self, other: &Self) {
        other.on.iter().for_each(|(node, pages)| *self.on.entry(*node).or_default() += pages);
        self.untouched += other.untouched;
        self.unknown += other.unknown;
    }

    /// Touched pages.
    pub fn touched(&self) -> usize {
        self.on.values().sum::<usize>() + self.unknown
    }

    /// Touched pages that are not known to be on `node`.
    pub fn elsewhere(&self, node: usize) -> usize {
        self.touched() - self.on.get(&node).copied().unwrap_or(0)
    }
}

impl fmt::Display for Census {
    /// As in `12 pages on node 0, 3 on node 4, 1 untouched`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> =
            self.on.iter().map(|(node, pages)| format!("{pages} on node {node}")).collect();
        if self.unknown > 0 {
            words.push(format!("{} nobody knows where", self.unknown));
        }
        if self.untouched > 0 {
            words.push(format!("{} untouched", self.untouched));
        }
        if words.is_empty() { f.write_str("none") } else { f.write_str(&words.join(", ")) }
    }
}

/// Where the pages of any memory of this process are.
///
/// # Errors
/// If the system does not say.
pub fn census_of(start: NonNull<u8>, bytes: usize) -> Result<Census, Refusal> {
    let page = page_bytes();
    let first = start.addr().get() / page;
    let end = start.addr().get().saturating_add(bytes).div_ceil(page);
    let mut nodes = vec![0; end.saturating_sub(first)];
    system::ask_or_send(start, None, &mut nodes)?;
    let mut census = Census::default();
    nodes.iter().for_each(|answer| census.count(*answer));
    Ok(census)
}

/// Where some whole pages of this process are, whoever owns them, once those that are not on `node` have been moved there, as
/// far as there is room. They prefer that node from then on: what has a policy is left alone by NUMA balancing, which otherwise
/// moves pages after whoever reads them. `touch` reads something of each page in between: of those that NUMA balancing has marked,
/// to see who reads them, some kernels do not say where they are, nor do they move them.
///
/// # Errors
/// If the system does not say where they are.
pub fn settle_at(
    start: NonNull<u8>,
    pages: usize,
    node: usize,
    touch: impl FnOnce(),
) -> Result<Census, Refusal> {
    // Without a policy they are there, too, if nobody moves them.
    let _ = system::set_policy_at(start, pages, &Policy::Preferred(node));
    touch();
    let mut census = Census::default();
    each_chunk(0..pages, |first, nodes| {
        settle_pages(node, nodes, &mut census, |number, to, nodes| {
            let at = start.as_ptr().wrapping_add((first + number) * page_bytes());
            NonNull::new(at).map_or(Ok(()), |at| system::ask_or_send(at, to, nodes))
        })
    })?;
    Ok(census)
}

/// Asks where pages are, sends those that are elsewhere to `node`, and counts them. `ask_or_send` does so with some of them, from
/// the one of this number on.
///
/// The system may end a request at a page that it cannot move just then, and leave those behind it. So little is sent at once, and
/// what is left is sent again.
fn settle_pages(
    node: usize,
    nodes: &mut [c_int],
    census: &mut Census,
    ask_or_send: impl Fn(usize, Option<usize>, &mut [c_int]) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let stray = |answer: &c_int| usize::try_from(*answer).is_ok_and(|on| on != node);
    ask_or_send(0, None, nodes)?;
    for _ in 0..TIMES_SENT {
        if !nodes.iter().any(stray) {
            break;
        }
        for (number, part) in nodes.chunks_mut(LARGE_PAGE / page_bytes()).enumerate() {
            if part.iter().any(stray) {
                // What was not moved shows in the answer to the next question.
                let _ = ask_or_send(number * (LARGE_PAGE / page_bytes()), Some(node), part);
            }
        }
        ask_or_send(0, None, nodes)?;
    }
    nodes.iter().for_each(|answer| census.count(*answer));
    Ok(())
}

/// Visits pages, some at a time: the first of them, and room for an answer for each.
fn each_chunk(
    pages: Range<usize>,
    mut visit: impl FnMut(usize, &mut [c_int]) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut nodes = vec![0; pages.len().min(PAGES_AT_ONCE)];
    pages.clone().step_by(PAGES_AT_ONCE).try_for_each(|first| {
        let len = PAGES_AT_ONCE.min(pages.end - first);
        visit(first, &mut nodes[..len])
    })
}

impl Mapping {
    /// Where its pages are.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn census(&self) -> Result<Census, Refusal> {
        self.census_in(0..self.bytes())
    }

    /// Where the pages are that begin in a range of its bytes.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn census_in(&self, range: Range<usize>) -> Result<Census, Refusal> {
        let mut census = Census::default();
        each_chunk(pages_in(range), |first, nodes| {
            self.ask(first, nodes)?;
            nodes.iter().for_each(|answer| census.count(*answer));
            Ok(())
        })?;
        Ok(census)
    }

    /// Where its pages are once those that are not on `node` have been moved there, as far as there is room.
    ///
    /// # Errors
    /// If the system does not say where they are. If it only does not move them they are found where they were.
    pub fn settle(&self, node: usize) -> Result<Census, Refusal> {
        self.settle_in(0..self.bytes(), node)
    }

    /// The same of the pages that begin in a range of its bytes.
    ///
    /// # Errors
    /// If the system does not say where they are.
    pub fn settle_in(&self, range: Range<usize>, node: usize) -> Result<Census, Refusal> {
        let mut census = Census::default();
        each_chunk(pages_in(range), |first, nodes| {
            settle_pages(node, nodes, &mut census, |number, to, nodes| match to {
                None => self.ask(first + number, nodes),
                Some(node) => self.send(first + number, node, nodes),
            })
        })?;
        Ok(census)
    }
}

/// The pages that begin in a range of bytes.
fn pages_in(range: Range<usize>) -> Range<usize> {
    range.start.div_ceil(page_bytes())..range.end.div_ceil(page_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the system lets us ask, which containers may forbid.
    fn answers(mapping: &Mapping) -> bool {
        match mapping.census() {
            Ok(_) => true,
            Err(refusal) => {
                println!("skipped: {refusal}");
                false
            }
        }
    }

    #[test]
    fn pages_are_nowhere_until_touched() {
        let page = page_bytes();
        let mapping = Mapping::reserve(5 * page).unwrap();
        if answers(&mapping) {
            assert_eq!(mapping.census().unwrap(), Census { untouched: 5, ..Census::default() });
            mapping.touch(page..3 * page);
            let census = mapping.census().unwrap();
            assert_eq!((census.untouched, census.touched(), census.unknown), (3, 2, 0), "{census}");
        }
    }

    #[test]
    fn a_census_counts_more_pages_than_are_asked_for_at_once() {
        let pages = PAGES_AT_ONCE + 3;
        let mapping = Mapping::reserve(pages * page_bytes()).unwrap();
        if answers(&mapping) {
            mapping.touch(0..page_bytes());
            mapping.touch((pages - 1) * page_bytes()..mapping.bytes());
            let census = mapping.census().unwrap();
            assert!(census.touched() >= 2 && census.touched() + census.untouched == pages, "{census}");
        }
    }

    #[test]
    fn settled_pages_are_where_they_were_sent() {
        let mapping = Mapping::reserve(8 * page_bytes()).unwrap();
        mapping.touch(0..mapping.bytes());
        if answers(&mapping) {
            let node = *mapping.census().unwrap().on.first_key_value().unwrap().0;
            let census = mapping.settle(node).unwrap();
            assert_eq!(census.elsewhere(node), 0, "{census}");
            // A node that is not there takes none, and none is lost.
            assert_eq!(mapping.settle(1000).unwrap().elsewhere(1000), 8);
        }
    }

    #[test]
    fn what_others_own_is_settled_by_the_page() {
        let page = page_bytes();
        let values = vec![7u8; 6 * page];
        let before = values.as_ptr().align_offset(page);
        let start = NonNull::from(&values[before..]).cast();
        match census_of(start, 5 * page) {
            Err(refusal) => println!("skipped: {refusal}"),
            Ok(census) => {
                let node = *census.on.first_key_value().unwrap().0;
                let mut touched = false;
                let settled = settle_at(start, 5, node, || touched = true).unwrap();
                assert_eq!((settled.touched(), settled.elsewhere(node), touched), (5, 0, true), "{settled}");
                assert_eq!(settle_at(start, 5, 1000, || ()).unwrap().elsewhere(1000), 5);
                assert_eq!(settle_at(start, 0, node, || ()).unwrap(), Census::default());
            }
        }
        assert!(values.iter().all(|value| *value == 7));
    }

    #[test]
    fn two_ranges_of_a_mapping_are_settled_apart() {
        let page = page_bytes();
        let mapping = Mapping::reserve(8 * page).unwrap();
        mapping.touch(0..6 * page);
        if answers(&mapping) {
            let node = *mapping.census().unwrap().on.first_key_value().unwrap().0;
            let first = mapping.settle_in(0..3 * page, node).unwrap();
            assert_eq!((first.touched(), first.untouched, first.elsewhere(node)), (3, 0, 0), "{first}");
            let rest = mapping.census_in(3 * page..8 * page).unwrap();
            assert_eq!((rest.touched(), rest.untouched), (3, 2), "{rest}");
        }
    }

    #[test]
    fn refusals_name_the_call() {
        let mapping = Mapping::reserve(1).unwrap();
        let refused = mapping.set_policy(0..1, &Policy::Bind(vec![1000])).unwrap_err();
        assert_eq!(refused.call, "mbind");
        assert_eq!(
            Refusal::new("mbind", libc::EPERM).to_string(),
            "mbind: Operation not permitted (os error 1)"
        );
        // Policies without nodes are taken wherever the call itself is allowed.
        match mapping.set_policy(0..1, &Policy::Default) {
            Ok(()) => mapping.set_policy(0..1, &Policy::Local).unwrap(),
            Err(refusal) => println!("skipped: {refusal}"),
        }
    }

    #[test]
    fn a_census_reads_like_a_sentence() {
        let mut census = Census { on: [(4, 3), (0, 12)].into(), untouched: 1, unknown: 2 };
        assert_eq!(census.to_string(), "12 on node 0, 3 on node 4, 2 nobody knows where, 1 untouched");
        assert_eq!((census.elsewhere(0), census.elsewhere(7), census.touched()), (5, 17, 17));
        census.add(&Census { on: [(4, 1), (5, 1)].into(), untouched: 1, unknown: 0 });
        assert_eq!(census.on, [(0, 12), (4, 4), (5, 1)].into());
        assert_eq!(Census::default().to_string(), "none");
    }
}
