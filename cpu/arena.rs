//! Memory in one piece, on a node if it has one; and which of a device's arenas lies where.

use std::ops::Range;
use std::ptr::NonNull;

use quadrille_numa::memory::plan::{Home, Need, Wish};
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

    /// A need of so many bytes. What is staged is written once and read once: it gains nothing from fast memory. Values are laid
    /// out from the start of their arena, each where there is room at its time, so most of them share its first bytes, and its
    /// end is used least.
    pub(crate) fn need(self, bytes: usize) -> Need {
        let wish = if matches!(self, Self::Staging(_)) { Wish::Dram } else { Wish::Fast };
        Need { what: self.words(), bytes: bytes as u64, wish, divisible: matches!(self, Self::Values(_)) }
    }
}

/// The nodes of a device's arenas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Homes(Vec<(Purpose, Home)>);

impl Homes {
    /// From the nodes of [`Purpose::all`], in that order; `None` is bound to none.
    pub fn new(programs: usize, homes: impl IntoIterator<Item = Option<Home>>) -> Self {
        Self(Purpose::all(programs).zip(homes).filter_map(|(purpose, home)| Some((purpose, home?))).collect())
    }

    /// The nodes of an arena.
    pub fn of(&self, purpose: Purpose) -> Option<Home> {
        self.0.iter().find(|(other, _)| *other == purpose).map(|(_, home)| *home)
    }

    /// The node of an arena, or of its first bytes.
    pub fn node_of(&self, purpose: Purpose) -> Option<usize> {
        self.of(purpose).map(|home| home.node)
    }

    /// Whether all arenas begin on the same nodes.
    pub fn are_near(&self, other: &Self) -> bool {
        let nodes =
            |homes: &Self| homes.0.iter().map(|(purpose, home)| (*purpose, home.node)).collect::<Vec<_>>();
        nodes(self) == nodes(other)
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
    /// The nodes that it is bound to.
    bound: Vec<Bound>,
    /// Why it is not where it was sent.
    pub refused: Option<Refusal>,
}

/// A part of an arena that is bound to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    /// Bytes of the arena, from the first of a page on.
    range: Range<usize>,
    node: usize,
}

impl Bound {
    /// The parts of `bytes` that lie at home.
    fn parts(bytes: usize, home: Option<Home>) -> Vec<Self> {
        let Some(home) = home else { return Vec::new() };
        let from = home.rest.map_or(bytes, |rest| usize::try_from(rest.from).unwrap_or(bytes).min(bytes));
        let rest = home.rest.and_then(|rest| rest.node).map(|node| Self { range: from..bytes, node });
        let parts = std::iter::once(Self { range: 0..from, node: home.node }).chain(rest);
        parts.filter(|part| !part.range.is_empty()).collect()
    }
}

impl Arena {
    /// Room for `len` elements, on nodes if they are named.
    pub fn new(len: usize, home: Option<Home>) -> Result<Self, OutOfMemory> {
        let bytes = len.checked_mul(size_of::<f32>()).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mapping = Mapping::reserve(bytes).map_err(|_| OutOfMemory { bytes })?;
        // The system may have been told not to give large pages, and may have none: then they are small.
        let _ = mapping.advise_large();
        let mut bound = Bound::parts(mapping.bytes(), home);
        let bind = |part: &Bound| mapping.set_policy(part.range.clone(), &Policy::Preferred(part.node)).err();
        let refused = bound.iter().find_map(bind);
        if refused.is_some() {
            bound.clear();
        }
        Ok(Self { room: Room::Pages(mapping), len, bound, refused })
    }

    /// Room for the thread that calls: a small piece of fast memory, if there are any on that node, or else pages.
    pub fn own(len: usize, home: Option<usize>, pieces: &SmallPieces) -> Result<Self, OutOfMemory> {
        let bytes = len.saturating_mul(size_of::<f32>());
        let home = home.map(|node| Home { node, rest: None });
        match home.and_then(|home| pieces.on_node(bytes, home.node)) {
            Some(piece) => {
                let bound = Bound::parts(bytes, home);
                Ok(Self { room: Room::Piece(piece), len, bound, refused: None })
            }
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
        if let (Room::Pages(mapping), [_, ..], 1..) = (&self.room, &self.bound[..], self.len) {
            mapping.touch(share(mapping.bytes(), thread, threads));
        }
    }

    /// Moves pages to the nodes that they are bound to, if they came from elsewhere when they were touched.
    pub fn settle(&self) {
        if let (Room::Pages(mapping), 1..) = (&self.room, self.len) {
            for part in &self.bound {
                // Who wants to know asks where they are.
                let _ = mapping.settle_in(part.range.clone(), part.node);
            }
        }
    }

    /// Where it lies, part by part.
    pub fn places(&self, device: usize, purpose: Purpose) -> Vec<ArenaPlace> {
        let pages = |range: Option<&Bound>| match (&self.room, range) {
            (Room::Pages(mapping), Some(part)) => mapping.census_in(part.range.clone()),
            (Room::Pages(mapping), None) => mapping.census(),
            (Room::Piece(piece), _) => census_of(piece.start(), piece.bytes()),
        };
        let place = |what: String, part: Option<&Bound>| ArenaPlace {
            device,
            what,
            node: part.map(|part| part.node),
            pages: pages(part),
        };
        match &self.bound[..] {
            [] => vec![place(purpose.words(), None)],
            [first, rest @ ..] => {
                let rest =
                    rest.iter().map(|part| place(format!("the rest of {}", purpose.words()), Some(part)));
                std::iter::once(place(purpose.words(), Some(first))).chain(rest).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quadrille_numa::memory::LARGE_PAGE;
    use quadrille_numa::memory::plan::Rest;

    use super::*;

    fn whole(node: usize) -> Home {
        Home { node, rest: None }
    }

    #[test]
    fn homes_are_in_the_order_of_purposes() {
        let purposes: Vec<Purpose> = Purpose::all(2).collect();
        let homes = Homes::new(2, (0..purposes.len()).map(|place| (place != 3).then_some(whole(place))));
        for (place, purpose) in purposes.iter().enumerate() {
            assert_eq!(homes.node_of(*purpose), (place != 3).then_some(place), "{purpose:?}");
        }
        assert_eq!(homes.of(Purpose::Values(2)), None);
        assert_eq!(Homes::default().of(Purpose::Weights), None);
    }

    #[test]
    fn homes_are_near_if_they_begin_on_the_same_nodes() {
        let rest = Some(Rest { from: LARGE_PAGE as u64, node: Some(1) });
        let homes = |node: usize, rest| Homes::new(1, [whole(0), whole(0), Home { node, rest }].map(Some));
        assert!(homes(4, rest).are_near(&homes(4, None)) && homes(4, rest) != homes(4, None));
        assert!(!homes(4, rest).are_near(&homes(5, rest)) && !homes(4, None).are_near(&Homes::default()));
    }

    #[test]
    fn an_arena_on_a_node_that_is_not_there_says_so_and_works() {
        let arena = Arena::new(10, Some(whole(5000))).unwrap();
        assert_eq!(arena.refused.as_ref().map(|refused| refused.call), Some("mbind"));
        arena.touch_share(0, 1);
        arena.settle();
        let places = arena.places(0, Purpose::Weights);
        assert_eq!((places.len(), places[0].node, places[0].elsewhere()), (1, None, 0));
    }

    #[test]
    fn an_arena_in_two_parts_is_bound_part_by_part() {
        let rest = |from: usize, node| Some(Home { node: 0, rest: Some(Rest { from: from as u64, node }) });
        let part = |range, node| Bound { range, node };
        assert_eq!(Bound::parts(100, rest(60, Some(3))), [part(0..60, 0), part(60..100, 3)]);
        // Rounding up to pages can leave nothing for the second, or nobody binds it.
        assert_eq!(Bound::parts(100, rest(100, Some(3))), [part(0..100, 0)]);
        assert_eq!(Bound::parts(100, rest(60, None)), [part(0..60, 0)]);
        assert_eq!(Bound::parts(100, None), []);
        let arena = Arena::new(LARGE_PAGE, rest(LARGE_PAGE, Some(0))).unwrap();
        if let Some(refused) = &arena.refused {
            println!("skipped: {refused}");
            return;
        }
        arena.touch_share(0, 1);
        arena.settle();
        let places = arena.places(1, Purpose::Values(0));
        let whats: Vec<&str> = places.iter().map(|place| place.what.as_str()).collect();
        assert_eq!(whats, ["activations", "the rest of activations"]);
        let pages =
            |place: &ArenaPlace| place.pages.as_ref().map(Census::touched).unwrap_or(0) * page_bytes();
        assert_eq!(places.iter().map(pages).collect::<Vec<_>>(), [LARGE_PAGE, 3 * LARGE_PAGE]);
        assert!(places.iter().all(|place| place.elsewhere() == 0), "{places:?}");
    }
}
