//! Memory in one piece, on a node if it has one; and which of a device's arenas lies where.

use std::ptr::NonNull;

use quadrille_numa::memory::plan::{Need, Wish};
use quadrille_numa::memory::small::{Piece, SmallPieces};
use quadrille_numa::memory::{Census, Mapping, Policy, Refusal, census_of, page_bytes};
use quadrille_numa::verify::share;

/// The system did not give memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// What an arena of a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// What the tasks of a lane use while they run.
    Workspaces,
    /// What each thread uses while it runs a grain.
    Scratch,
    /// Values, gradients of values and states of the layers of one of the programs.
    Values(usize),
    /// The packed weights.
    Weights,
    /// Their gradients.
    Gradients,
    /// Sums of the gradients of several mini-batches.
    Sums,
    /// The centre of the elastic methods.
    Centre,
    /// Histories of the update rule.
    Histories,
    /// What the host has put there for the next step of one of the programs.
    Staging(usize),
}

impl Purpose {
    /// All of them, in the order in which they keep fast memory: first what an iteration goes through most often for each
    /// byte. Workspaces and scratch are used again by every task; values are written and read several times; weights are read
    /// by forward, by ∇A and by the update; what only the update reads comes last but for what only tests use.
    pub fn all(programs: usize) -> impl Iterator<Item = Self> {
        [Self::Workspaces, Self::Scratch, Self::Values(0), Self::Weights]
            .into_iter()
            .chain([Self::Gradients, Self::Sums, Self::Centre, Self::Histories])
            .chain((1..programs).map(Self::Values))
            .chain((0..programs).map(Self::Staging))
    }

    /// In a word or two.
    fn words(self) -> String {
        match self {
            Self::Workspaces => "workspaces".to_owned(),
            Self::Scratch => "scratch".to_owned(),
            Self::Values(0) => "activations".to_owned(),
            Self::Values(test) => format!("activations of test {}", test - 1),
            Self::Weights => "weights".to_owned(),
            Self::Gradients => "gradients".to_owned(),
            Self::Sums => "sums of gradients".to_owned(),
            Self::Centre => "centre".to_owned(),
            Self::Histories => "histories".to_owned(),
            Self::Staging(0) => "staging".to_owned(),
            Self::Staging(test) => format!("staging of test {}", test - 1),
        }
    }

    /// A need of so many bytes. What is staged is written once and read once: it gains nothing from fast memory.
    pub(crate) fn need(self, bytes: usize) -> Need {
        let wish = if matches!(self, Self::Staging(_)) { Wish::Dram } else { Wish::Fast };
        Need { what: self.words(), bytes: bytes as u64, wish }
    }
}

/// The nodes of a device's arenas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Homes(Vec<(Purpose, usize)>);

impl Homes {
    /// From the nodes of [`Purpose::all`], in that order; `None` is bound to none.
    pub fn new(programs: usize, nodes: impl IntoIterator<Item = Option<usize>>) -> Self {
        Self(Purpose::all(programs).zip(nodes).filter_map(|(purpose, node)| Some((purpose, node?))).collect())
    }

    /// The node of an arena.
    pub fn of(&self, purpose: Purpose) -> Option<usize> {
        self.0.iter().find(|(other, _)| *other == purpose).map(|(_, node)| *node)
    }
}

/// Where an arena was to lie, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaPlace {
    /// The device.
    pub device: usize,
    /// What it is for.
    pub what: String,
    /// The node that it is bound to.
    pub node: Option<usize>,
    /// Where its pages are, or why nobody can tell.
    pub pages: Result<Census, Refusal>,
}

impl ArenaPlace {
    /// Pages that are not where they should be.
    pub fn elsewhere(&self) -> usize {
        match (self.node, &self.pages) {
            (Some(node), Ok(census)) => census.elsewhere(node),
            _ => 0,
        }
    }
}

/// What an arena is made of.
#[derive(Debug)]
enum Room {
    /// Pages of its own.
    Pages(Mapping),
    /// A small piece of fast memory, which lies where it should.
    Piece(Piece),
}

/// Zeroed memory of fixed length, aligned for any number. The system fills a page when it is first touched: what nobody touches
/// takes nothing, and whoever touches a page first has it near, if it is bound to no node.
#[derive(Debug)]
pub(crate) struct Arena {
    room: Room,
    /// Elements.
    pub len: usize,
    /// The node that it is bound to.
    home: Option<usize>,
    /// Why it is not where it was sent.
    pub refused: Option<Refusal>,
}

impl Arena {
    /// Room for `len` elements, on a node if one is named.
    pub fn new(len: usize, home: Option<usize>) -> Result<Self, OutOfMemory> {
        let bytes = len.checked_mul(size_of::<f32>()).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mapping = Mapping::reserve(bytes).map_err(|_| OutOfMemory { bytes })?;
        // The system may have been told not to give large pages, and may have none: then they are small.
        let _ = mapping.advise_large();
        let policy = home.map(Policy::Preferred);
        let refused = policy.and_then(|policy| mapping.set_policy(0..mapping.bytes(), &policy).err());
        let home = home.filter(|_| refused.is_none());
        Ok(Self { room: Room::Pages(mapping), len, home, refused })
    }

    /// Room for the thread that calls: a small piece of fast memory, if there are any on that node, or else pages.
    pub fn own(len: usize, home: Option<usize>, pieces: &SmallPieces) -> Result<Self, OutOfMemory> {
        let bytes = len.saturating_mul(size_of::<f32>());
        match home.and_then(|node| pieces.on_node(bytes, node)) {
            Some(piece) => Ok(Self { room: Room::Piece(piece), len, home, refused: None }),
            None => Self::new(len, home),
        }
    }

    /// Bytes that an arena of `len` elements takes.
    pub fn bytes(len: usize) -> usize {
        if len == 0 {
            0
        } else {
            len.saturating_mul(size_of::<f32>()).div_ceil(page_bytes()).saturating_mul(page_bytes())
        }
    }

    /// Its first element.
    pub fn start(&self) -> NonNull<f32> {
        match &self.room {
            Room::Pages(mapping) => mapping.start().cast(),
            Room::Piece(piece) => piece.start().cast(),
        }
    }

    /// Touches the share of one of its device's threads, if it is bound to a node. Only before anybody uses it.
    pub fn touch_share(&self, thread: usize, threads: usize) {
        if let (Room::Pages(mapping), Some(_), 1..) = (&self.room, self.home, self.len) {
            mapping.touch(share(mapping.bytes(), thread, threads));
        }
    }

    /// Moves pages to the node that it is bound to, if they came from elsewhere when they were touched.
    pub fn settle(&self) {
        if let (Room::Pages(mapping), Some(node), 1..) = (&self.room, self.home, self.len) {
            // Who wants to know asks where they are.
            let _ = mapping.settle(node);
        }
    }

    /// Where it lies.
    pub fn place(&self, device: usize, purpose: Purpose) -> ArenaPlace {
        let pages = match &self.room {
            Room::Pages(mapping) => mapping.census(),
            Room::Piece(piece) => census_of(piece.start(), piece.bytes()),
        };
        ArenaPlace { device, what: purpose.words(), node: self.home, pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_in_the_order_of_purposes() {
        let purposes: Vec<Purpose> = Purpose::all(2).collect();
        let homes = Homes::new(2, (0..purposes.len()).map(|place| (place != 3).then_some(place)));
        for (place, purpose) in purposes.iter().enumerate() {
            assert_eq!(homes.of(*purpose), (place != 3).then_some(place), "{purpose:?}");
        }
        assert_eq!(homes.of(Purpose::Values(2)), None);
        assert_eq!(Homes::default().of(Purpose::Weights), None);
    }

    #[test]
    fn an_arena_on_a_node_that_is_not_there_says_so_and_works() {
        let arena = Arena::new(10, Some(5000)).unwrap();
        assert_eq!(arena.refused.as_ref().map(|refused| refused.call), Some("mbind"));
        arena.touch_share(0, 1);
        arena.settle();
        assert_eq!(arena.place(0, Purpose::Weights).elsewhere(), 0);
    }
}
