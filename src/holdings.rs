//! Data sets that are held in memory: how much they take, and where they lie.
//!
//! A process has each of them once, whatever its quadrants: a sample is read by a thread that makes mini-batches and not by
//! those who compute, and its bytes are few beside the activations that become of them.

use std::ptr::NonNull;

use quadrille_io::data::Held;
use quadrille_numa::memory::capacity::Capacity;
use quadrille_numa::memory::plan::{Need, Wish};
use quadrille_numa::memory::{Census, Refusal, census_of, page_bytes, settle_at};

use crate::failure::{Code, Failure};
use crate::feed::Feed;

/// All data sets of a process that are held in memory.
#[derive(Default)]
pub struct Holdings<'a>(Vec<Held<'a>>);

impl<'a> Holdings<'a> {
    /// What is held of these; two that are the same are held once.
    pub fn of(feeds: impl IntoIterator<Item = &'a Feed>) -> Self {
        let mut pieces: Vec<Held<'a>> = feeds.into_iter().flat_map(Feed::held).collect();
        pieces.sort_by_key(|piece| piece.start());
        pieces.dedup_by_key(|piece| piece.start());
        Self(pieces)
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|piece| piece.bytes() as u64).sum()
    }

    /// What is to be planned for them: fast memory only where it would otherwise be empty, since a sample is read once in an
    /// epoch.
    pub fn need(&self) -> Option<Need> {
        let what = "data sets".to_owned();
        let bytes = self.bytes();
        (bytes > 0).then_some(Need { what, bytes, wish: Wish::Spare, divisible: false })
    }

    /// What there would be to have if they were not there.
    pub fn not_counted(&self, capacity: Capacity) -> Capacity {
        match self.census() {
            Ok(census) => capacity.without(&census),
            // Nobody knows where they are.
            Err(_) => Capacity { bytes: capacity.bytes.map(|bytes| bytes + self.bytes()), ..capacity },
        }
    }

    /// Moves them to a node, as far as there is room. Who wants to know asks where they are.
    pub fn settle(&self, node: Option<usize>) {
        let Some(node) = node else { return };
        for piece in &self.0 {
            if let Some((start, pages)) = whole_pages(*piece) {
                let _ = settle_at(start, pages, node, || piece.touch(page_bytes()));
            }
        }
    }

    /// Asks the system where they are and says so (`--verify-placement`).
    ///
    /// # Errors
    /// If a page of them is elsewhere than on this node.
    pub fn verify(&self, node: Option<usize>) -> Result<(), Failure> {
        if self.bytes() == 0 {
            return Ok(());
        }
        let census = self.census();
        let elsewhere = |node| census.as_ref().map_or(0, |census| census.elsewhere(node));
        let found = match &census {
            Err(refusal) => format!("nobody knows where their pages are ({refusal})"),
            Ok(census) => census.to_string(),
        };
        let (line, strays) = match node {
            None => (format!("bound to no node ({found})"), 0),
            Some(node) if elsewhere(node) > 0 => {
                (format!("{} pages are not on node {node}: {found}", elsewhere(node)), elsewhere(node))
            }
            Some(_) => (format!("all pages on their node ({found})"), 0),
        };
        say!("verify      data sets: {line}");
        let message = "--verify-placement: data sets are not where they belong";
        if strays == 0 { Ok(()) } else { Err(Failure::new(Code::Environment, message)) }
    }

    /// Where the pages are that hold nothing else.
    fn census(&self) -> Result<Census, Refusal> {
        let mut all = Census::default();
        for piece in &self.0 {
            // Whoever has not read a page for a while may not be told where it is: see `settle_at`.
            piece.touch(page_bytes());
            if let Some((start, pages)) = whole_pages(*piece) {
                all.add(&census_of(start, pages * page_bytes())?);
            }
        }
        Ok(all)
    }
}

/// The first of the pages that hold nothing else, and how many there are.
fn whole_pages(piece: Held<'_>) -> Option<(NonNull<u8>, usize)> {
    let (page, start) = (page_bytes(), piece.start());
    let before = start.addr().get().next_multiple_of(page) - start.addr().get();
    let pages = piece.bytes().saturating_sub(before) / page;
    let start = NonNull::new(start.as_ptr().wrapping_add(before))?;
    (pages > 0).then_some((start, pages))
}

#[cfg(test)]
mod tests {
    use quadrille_numa::memory::capacity::NodeCapacity;

    use super::*;

    fn of(values: &[f32]) -> Holdings<'_> {
        Holdings(vec![Held::F32(values)])
    }

    #[test]
    fn nothing_is_needed_for_what_is_read_from_files() {
        let none = Holdings::of([]);
        assert_eq!(none.need(), None);
        assert!(none.verify(Some(1000)).is_ok());
        assert_eq!(none.not_counted(Capacity::default()), Capacity::default());
    }

    #[test]
    fn what_is_there_is_planned_for_and_not_counted_twice() {
        let values = vec![1.0; 100_000];
        let data = of(&values);
        assert_eq!(data.need().map(|need| need.bytes), Some(400_000));
        let page = page_bytes() as u64;
        let held = whole_pages(data.0[0]).map_or(0, |(_, pages)| pages as u64 * page);
        assert!(held <= 400_000 && held + 2 * page > 400_000);
        let node = |node| NodeCapacity { node, total: 1 << 30, free: 0 };
        let capacity = Capacity { nodes: (0..64).map(node).collect(), bytes: Some(0), limited_by: None };
        let left = data.not_counted(capacity);
        let (of_nodes, in_all) = (left.nodes.iter().map(|node| node.free).sum::<u64>(), left.bytes);
        match data.census() {
            Ok(_) => assert_eq!((of_nodes, in_all), (held, Some(held))),
            Err(refusal) => {
                println!("skipped: {refusal}");
                assert_eq!((of_nodes, in_all), (0, Some(400_000)));
            }
        }
    }

    #[test]
    fn data_that_is_elsewhere_ends_with_the_environments_code() {
        let values = vec![1.0; 100_000];
        let data = of(&values);
        assert!(data.verify(None).is_ok());
        let Ok(census) = data.census() else { return println!("skipped: pages cannot be asked for") };
        let node = *census.on.first_key_value().expect("a node").0;
        data.settle(Some(node));
        assert!(data.verify(Some(node)).is_ok());
        let failure = data.verify(Some(node + 1000)).expect_err("no such node");
        assert_eq!(failure.code, Code::Environment as u8);
    }
}
