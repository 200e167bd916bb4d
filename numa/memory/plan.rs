//! What goes where: decided from sizes and capacities, before anything is allocated.
//!
//! A pure function, [`MemoryPlan::new`], so that the decision can be printed, and tested for machines that are not here. Needs
//! come in the order in which they keep fast memory: where it does not hold all, the first that still fits stays, and what
//! does not fit spills to DRAM. A need lies in one place, but for one that may be divided: of that as much stays as all others
//! leave room for. Quadrants take turns, need by need, so that two quadrants that share a node lose the same.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::capacity::{Capacity, Limit, kept};
use super::{LARGE_PAGE, page_bytes};
use crate::quadrant::Quadrant;

/// How fast memory is used (`--fast-memory`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FastMemory {
    /// What fits goes there; the rest spills to DRAM.
    #[default]
    Prefer,
    /// All that wishes for it goes there, or the run does not begin.
    Require,
    /// Nothing goes there.
    Off,
}

impl FastMemory {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::Prefer, "prefer"), (Self::Require, "require"), (Self::Off, "off")];
}

impl FromStr for FastMemory {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::NAMES.into_iter().find(|(_, other)| *other == name);
        known.map(|(fast, _)| fast).ok_or_else(|| format!("{name:?} is none of prefer, require, off"))
    }
}

impl fmt::Display for FastMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.into_iter().find(|(other, _)| other == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// Which memory a need wishes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The quadrant's fast memory, if it has some.
    Fast,
    /// The quadrant's DRAM: what is read once for each time that it is written gains nothing from fast memory.
    Dram,
    /// Fast memory that would otherwise be empty, or else the quadrant's DRAM.
    Spare,
}

/// Memory that a quadrant needs in one piece of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// What for, in a word or two.
    pub what: String,
    /// How much.
    pub bytes: u64,
    /// Where it would best be.
    pub wish: Wish,
    /// Whether its first bytes may be in fast memory and the rest in DRAM. The first should be those that are used most.
    pub divisible: bool,
}

/// Where something lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The node, at least of its first bytes.
    pub node: usize,
    /// What of it lies elsewhere.
    pub rest: Option<Rest>,
}

/// The end of something that lies in two places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// Bytes before it: whole large pages.
    pub from: u64,
    /// The node; `None` if it is bound to none.
    pub node: Option<usize>,
}

/// The nodes of a quadrant, and all that it needs, in the order in which needs keep fast memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuadrantNeeds {
    /// The node of its DRAM; `None` if it spans several, or none is known.
    pub dram_node: Option<usize>,
    /// The node of its fast memory.
    pub fast_node: Option<usize>,
    /// What it needs.
    pub needs: Vec<Need>,
}

impl QuadrantNeeds {
    /// The needs of a quadrant.
    pub fn of(quadrant: &Quadrant, needs: Vec<Need>) -> Self {
        Self { dram_node: quadrant.dram_node, fast_node: quadrant.fast_node, needs }
    }
}

/// Why something lies where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is bound to no node: there is only one, or the quadrant spans several.
    Unbound,
    /// It is in the fast memory that it wished for.
    Fast,
    /// It is in the DRAM that it wished for, or the quadrant has no other memory.
    Dram,
    /// Fast memory is not to be used.
    Off,
    /// So many bytes were missing in fast memory.
    Spilled(u64),
    /// Only its first bytes had room in fast memory.
    Divided(Rest),
    /// Its DRAM is full; it lies in that of another quadrant, or in fast memory.
    Overflow,
    /// No node holds it as a whole; it is bound to none.
    Scattered,
}

/// One need and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// What for.
    pub what: String,
    /// How much, in whole pages.
    pub bytes: u64,
    /// Where; `None` if it is bound to no node.
    pub node: Option<usize>,
    /// Why there.
    pub why: Why,
}

impl Placed {
    /// Where it lies, if it is bound to a node.
    pub fn home(&self) -> Option<Home> {
        let rest = if let Why::Divided(rest) = self.why { Some(rest) } else { None };
        self.node.map(|node| Home { node, rest })
    }

    /// Its parts as people are told of them: the node, the bytes, and what they are.
    fn parts(&self) -> Vec<(Option<usize>, u64, String)> {
        let note = match self.why {
            Why::Divided(Rest { from, node }) => {
                let (first, other) = (said(from), said(self.bytes - from));
                return vec![
                    (self.node, from, format!("{} (the first {first})", self.what)),
                    (
                        node,
                        self.bytes - from,
                        format!("{} (the other {other}, missing in fast memory)", self.what),
                    ),
                ];
            }
            Why::Spilled(missing) => format!(" (spilled: {} missing in fast memory)", said(missing)),
            Why::Overflow => " (no room in its own DRAM)".to_owned(),
            Why::Scattered => " (no node holds it)".to_owned(),
            Why::Unbound | Why::Fast | Why::Dram | Why::Off => String::new(),
        };
        vec![(self.node, self.bytes, format!("{}{note}", self.what))]
    }
}

/// Where everything goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// For each quadrant its needs, in the order in which they were given.
    pub quadrants: Vec<Vec<Placed>>,
    /// What stands above the lines of the quadrants.
    pub how: String,
    /// The nodes of fast memory.
    fast_nodes: Vec<usize>,
}

/// There is not enough memory, and nothing was allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TooLittle {
    /// Fast memory is required, and a quadrant has none.
    NoFast {
        /// The quadrant.
        quadrant: usize,
    },
    /// Fast memory is required, and does not hold all that wishes for it.
    Fast {
        /// The node.
        node: usize,
        /// What its quadrants need there.
        needed: u64,
        /// What it can give.
        free: u64,
    },
    /// The machine does not hold it.
    Machine {
        /// What all quadrants need.
        needed: u64,
        /// What there is to have.
        available: u64,
        /// What leaves no more, if the machine has more.
        limited_by: Option<Limit>,
    },
}

impl fmt::Display for TooLittle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFast { quadrant } => write!(
                f,
                "--fast-memory require: quadrant {quadrant} has no fast memory near it\n  hint: quadrille topo shows what \
                 there is; --fast-memory prefer uses what a machine has"
            ),
            Self::Fast { node, needed, free } => write!(
                f,
                "--fast-memory require: node {node} is to hold {}, but has {} to give: {} missing\n  hint: a smaller \
                 --batch needs less; --fast-memory prefer leaves in DRAM what does not fit",
                said(*needed),
                said(*free),
                said(needed.saturating_sub(*free))
            ),
            Self::Machine { needed, available, limited_by } => {
                let whose = limited_by.as_ref().map_or("this machine".to_owned(), Limit::to_string);
                let (needed, available) = (said(*needed), said(*available));
                write!(
                    f,
                    "the run needs {needed} of memory, but {whose} has {available} to give; nothing was allocated"
                )
            }
        }
    }
}

impl std::error::Error for TooLittle {}

/// What is left of each node while needs are placed.
struct Left {
    nodes: BTreeMap<usize, u64>,
}

impl Left {
    fn of(capacity: &Capacity) -> Self {
        let left = capacity.nodes.iter().map(|node| (node.node, node.free.saturating_sub(kept(node.total))));
        Self { nodes: left.collect() }
    }

    fn on(&self, node: usize) -> u64 {
        self.nodes.get(&node).copied().unwrap_or(0)
    }

    /// Takes `bytes` from a node if it has so many.
    fn take(&mut self, node: Option<usize>, bytes: u64) -> Option<usize> {
        let left = self.nodes.get_mut(&node?).filter(|left| **left >= bytes)?;
        *left -= bytes;
        node
    }

    /// Takes `bytes` from whichever of `nodes` has most left, if it has so many.
    fn take_any(&mut self, nodes: &[usize], bytes: u64) -> Option<usize> {
        let most = nodes.iter().copied().max_by_key(|node| (self.on(*node), std::cmp::Reverse(*node)));
        self.take(most, bytes)
    }
}

impl MemoryPlan {
    /// Places all needs of all quadrants, given what the nodes and the machine can give.
    ///
    /// # Errors
    /// If the machine does not hold them, or its fast memory does not hold what is required to lie there.
    pub fn new(
        quadrants: &[QuadrantNeeds],
        capacity: &Capacity,
        fast: FastMemory,
    ) -> Result<Self, TooLittle> {
        let page = page_bytes() as u64;
        let whole = |need: &Need| need.bytes.next_multiple_of(page);
        let needed = quadrants.iter().flat_map(|q| &q.needs).map(whole).sum::<u64>();
        if let Some(available) = capacity.bytes.map(|bytes| bytes.saturating_sub(kept(bytes)))
            && needed > available
        {
            let limited_by = capacity.limited_by.clone();
            return Err(TooLittle::Machine { needed, available, limited_by });
        }
        let left = Left::of(capacity);
        if fast == FastMemory::Require {
            check_required(quadrants, &left)?;
        }
        let several = capacity.nodes.len() > 1;
        let mut placing = Placing::new(quadrants, fast, several, left);
        placing.place_all();
        let placed =
            placing.placed.into_iter().map(|placed| placed.into_iter().flatten().collect()).collect();
        let how = describe(quadrants, several, fast);
        let fast_nodes = quadrants.iter().filter_map(|q| q.fast_node).collect();
        Ok(Self { quadrants: placed, how, fast_nodes })
    }

    /// Whether anything is bound to a node.
    pub fn binds(&self) -> bool {
        self.quadrants.iter().flatten().any(|placed| placed.node.is_some())
    }

    /// The plan in words: a line that says how, and one or two for each quadrant if anything is bound.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.how.clone()];
        for (quadrant, placed) in self.quadrants.iter().enumerate().filter(|_| self.binds()) {
            let mut groups: Vec<(Option<usize>, u64, Vec<String>)> = Vec::new();
            for (node, part, what) in placed.iter().filter(|one| one.bytes > 0).flat_map(Placed::parts) {
                match groups.iter_mut().find(|(other, ..)| *other == node) {
                    Some((_, bytes, whats)) => {
                        *bytes += part;
                        whats.push(what);
                    }
                    None => groups.push((node, part, vec![what])),
                }
            }
            let group = |(node, bytes, whats): &(Option<usize>, u64, Vec<String>)| {
                let place = match node {
                    Some(node) if self.fast_nodes.contains(node) => format!("node {node} (fast)"),
                    Some(node) => format!("node {node} (DRAM)"),
                    None => "no node of its own".to_owned(),
                };
                format!("{} in {place}: {}", said(*bytes), whats.join(", "))
            };
            let groups: Vec<String> = groups.iter().map(group).collect();
            lines.push(format!("quadrant {quadrant}: {}", groups.join("; ")));
        }
        lines
    }
}

/// Makes sure that every quadrant has fast memory for all that wishes for it.
fn check_required(quadrants: &[QuadrantNeeds], left: &Left) -> Result<(), TooLittle> {
    let mut needed: BTreeMap<usize, u64> = BTreeMap::new();
    for (index, quadrant) in quadrants.iter().enumerate() {
        let node = quadrant.fast_node.ok_or(TooLittle::NoFast { quadrant: index })?;
        let page = page_bytes() as u64;
        let wishes = quadrant.needs.iter().filter(|need| need.wish == Wish::Fast);
        *needed.entry(node).or_default() += wishes.map(|need| need.bytes.next_multiple_of(page)).sum::<u64>();
    }
    match needed.into_iter().find(|(node, needed)| *needed > left.on(*node)) {
        Some((node, needed)) => Err(TooLittle::Fast { node, needed, free: left.on(node) }),
        None => Ok(()),
    }
}

/// Needs on their way to their places.
struct Placing<'a> {
    quadrants: &'a [QuadrantNeeds],
    fast: FastMemory,
    /// Whether there are nodes to choose from.
    several: bool,
    drams: Vec<usize>,
    left: Left,
    /// As the needs; `None` for those whose turn is still to come.
    placed: Vec<Vec<Option<Placed>>>,
}

impl<'a> Placing<'a> {
    fn new(quadrants: &'a [QuadrantNeeds], fast: FastMemory, several: bool, left: Left) -> Self {
        let drams = quadrants.iter().filter_map(|q| q.dram_node).collect();
        let placed = quadrants.iter().map(|q| vec![None; q.needs.len()]).collect();
        Self { quadrants, fast, several, drams, left, placed }
    }

    /// Places first what cannot be divided, then divides what does not fit as a whole, and fills what is left.
    fn place_all(&mut self) {
        self.take_turns(|placing, quadrant, need| {
            need.wish != Wish::Spare && !placing.divides(quadrant, need)
        });
        self.take_turns(|_, _, need| need.wish != Wish::Spare);
        self.take_turns(|_, _, _| true);
    }

    /// Places those needs that have no place yet and whose turn it is.
    fn take_turns(&mut self, is_its_turn: impl Fn(&Self, &QuadrantNeeds, &Need) -> bool) {
        let quadrants = self.quadrants;
        let most = quadrants.iter().map(|q| q.needs.len()).max().unwrap_or(0);
        let turns = (0..most).flat_map(|index| (0..quadrants.len()).map(move |number| (number, index)));
        for (number, index) in turns {
            let quadrant = &quadrants[number];
            let Some(need) = quadrant.needs.get(index) else { continue };
            if self.placed[number][index].is_some() || !is_its_turn(self, quadrant, need) {
                continue;
            }
            let bytes = need.bytes.next_multiple_of(page_bytes() as u64);
            let (node, why) = match quadrant.dram_node {
                Some(_) if self.several && self.divides(quadrant, need) => {
                    self.divide(quadrant, index, bytes)
                }
                Some(_) if self.several => self.place(quadrant, need.wish, bytes),
                _ => (None, Why::Unbound),
            };
            self.placed[number][index] = Some(Placed { what: need.what.clone(), bytes, node, why });
        }
    }

    /// Whether fast memory is to have only a part of a need.
    fn divides(&self, quadrant: &QuadrantNeeds, need: &Need) -> bool {
        let room = quadrant.fast_node.map(|node| self.left.on(node));
        let may = need.divisible && need.wish == Wish::Fast && self.fast == FastMemory::Prefer;
        may && room.is_some_and(|room| need.bytes > room)
    }

    /// The nodes of a need that is larger than what is left of fast memory: whoever waits for it there gets as much.
    fn divide(&mut self, quadrant: &QuadrantNeeds, index: usize, bytes: u64) -> (Option<usize>, Why) {
        let waits = |(other, placed): &(&QuadrantNeeds, &Vec<Option<Placed>>)| {
            other.fast_node == quadrant.fast_node && matches!(placed.get(index), Some(None))
        };
        let waiting = self.quadrants.iter().zip(&self.placed).filter(waits).count() as u64;
        let room = quadrant.fast_node.map_or(0, |node| self.left.on(node)) / waiting.max(1);
        let from = room / LARGE_PAGE as u64 * LARGE_PAGE as u64;
        if from == 0 {
            return self.place(quadrant, Wish::Fast, bytes);
        }
        let first = self.left.take(quadrant.fast_node, from);
        let node = self.left.take(quadrant.dram_node, bytes - from);
        let node = node.or_else(|| self.left.take_any(&self.drams, bytes - from));
        (first, Why::Divided(Rest { from, node }))
    }

    /// The node of one need, and why.
    fn place(&mut self, quadrant: &QuadrantNeeds, wish: Wish, bytes: u64) -> (Option<usize>, Why) {
        let fast_node = quadrant.fast_node.filter(|_| self.fast != FastMemory::Off);
        let mut why = Why::Dram;
        if wish != Wish::Dram {
            if let Some(node) = self.left.take(fast_node, bytes) {
                return (Some(node), Why::Fast);
            }
            why = match (fast_node, quadrant.fast_node) {
                _ if wish == Wish::Spare => Why::Dram,
                (Some(node), _) => Why::Spilled(bytes - self.left.on(node)),
                (None, Some(_)) => Why::Off,
                (None, None) => Why::Dram,
            };
        }
        if let Some(node) = self.left.take(quadrant.dram_node, bytes) {
            return (Some(node), why);
        }
        // Rather in a place that is slower to reach than nowhere at all.
        match self.left.take_any(&self.drams, bytes).or_else(|| self.left.take(fast_node, bytes)) {
            Some(node) => (Some(node), Why::Overflow),
            None => (None, Why::Scattered),
        }
    }
}

fn describe(quadrants: &[QuadrantNeeds], several: bool, fast: FastMemory) -> String {
    let any_fast = quadrants.iter().any(|quadrant| quadrant.fast_node.is_some());
    if !several {
        return "bound to no node, since the machine has one or does not tell".to_owned();
    }
    if quadrants.iter().all(|quadrant| quadrant.dram_node.is_none()) {
        return "bound to no node, since each quadrant spans several".to_owned();
    }
    match fast {
        FastMemory::Off if any_fast => {
            "each quadrant in its own DRAM; fast memory is not used, as asked".to_owned()
        }
        FastMemory::Require => "each quadrant in its own fast memory, as required, and DRAM".to_owned(),
        FastMemory::Prefer if any_fast => {
            "each quadrant in its own fast memory, as far as it fits, and DRAM".to_owned()
        }
        _ => "each quadrant in its own DRAM; there is no fast memory".to_owned(),
    }
}

/// A size as people say it.
pub fn said(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}
