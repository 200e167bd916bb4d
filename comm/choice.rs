//! Which way a sum over all ranks takes, by its size.
//!
//! # The model
//!
//! A message of n bytes takes α + nβ. With P ranks a sum that all get takes
//!
//! ```text
//!     tree         2⌈log₂ P⌉ (α + nβ)                       up to rank 0 and down again
//!     doubling     log₂ P (α + nβ)                          P a power of two
//!     ring         2(P − 1) α + 2 (P − 1)/P nβ              P pieces, each once around twice
//! ```
//!
//! so doubling is never slower than the tree, and the ring wins over both from some size on where P > 2.
//!
//! # Why nothing is measured
//!
//! Tree and doubling add in the same order, the ring adds in another (`ring.rs`), so the choice decides bits, and the same
//! seed has to give the same bits on every machine and over every transport. The size at which the ring wins depends on α/β
//! only, which is 3.5 KB, 4 KB and 8 KB for the three networks of SC17's Table 2: a fixed number in between decides as a
//! measurement would, but for buffers within a factor of two of that size, where both ways take about the same time.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// α/β in bytes: 1.2 µs over 0.3 ns a byte, the middle of SC17's Table 2 (Mellanox 40 Gb/s QDR).
const LATENCY_BYTES: f64 = 4000.0;

/// A message of a part of a buffer loses at most one in so many bytes' time to its latency.
const PART_OVER_LATENCY: f64 = 64.0;

/// The least length of the parts in which a buffer that is summed over `ranks` ranks may travel one after the other, in values: also
/// the pieces of a part that go around a ring are long beside what latency costs. The same on every rank, on every machine.
pub fn bucket_len(ranks: usize) -> usize {
    (PART_OVER_LATENCY * LATENCY_BYTES) as usize * ranks.max(4) / size_of::<f32>()
}

/// A way to add up over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Up a binomial tree and down again.
    Tree,
    /// Recursive doubling: pairs of ranks, then pairs of pairs. For powers of two.
    Doubling,
    /// Around a ring, piece by piece.
    Ring,
}

impl Algorithm {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Tree => "tree",
            Algorithm::Doubling => "doubling",
            Algorithm::Ring => "ring",
        }
    }

    /// The name of the order in which it adds. What has the same has the same bits.
    pub fn order(self) -> &'static str {
        match self {
            Algorithm::Tree | Algorithm::Doubling => "pairs",
            Algorithm::Ring => "ring",
        }
    }

    /// Whether it can serve so many ranks.
    pub fn serves(self, ranks: usize) -> bool {
        self != Algorithm::Doubling || ranks.is_power_of_two()
    }

    /// What a sum of so many bytes takes by the model, in units of β.
    fn cost(self, bytes: f64, ranks: usize) -> f64 {
        let steps = f64::from(ranks.next_power_of_two().trailing_zeros());
        let others = ranks.saturating_sub(1) as f64;
        match self {
            Algorithm::Tree => 2.0 * steps * (LATENCY_BYTES + bytes),
            Algorithm::Doubling => steps * (LATENCY_BYTES + bytes),
            Algorithm::Ring => 2.0 * others * (LATENCY_BYTES + bytes / ranks as f64),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the way is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// By size and number of ranks.
    #[default]
    Auto,
    /// Always the same.
    Fixed(Algorithm),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => f.write_str("auto"),
            Choice::Fixed(algorithm) => algorithm.fmt(f),
        }
    }
}

impl Choice {
    /// The way for a sum of `len` values over `ranks` ranks: the same on every rank, on every machine.
    pub fn of(self, len: usize, ranks: usize) -> Algorithm {
        let bytes = (len * size_of::<f32>()) as f64;
        let all = [Algorithm::Doubling, Algorithm::Tree, Algorithm::Ring];
        match self {
            Choice::Fixed(algorithm) => algorithm,
            Choice::Auto => all
                .into_iter()
                .filter(|algorithm| algorithm.serves(ranks))
                .min_by(|a, b| a.cost(bytes, ranks).total_cmp(&b.cost(bytes, ranks)))
                .unwrap_or(Algorithm::Tree),
        }
    }
}

/// How packed buffers travel; the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// How sums over all ranks are formed.
    pub choice: Choice,
    /// Where each array of a packed buffer lies, if each travels in a message of its own; else nothing.
    pub parts: Vec<Range<usize>>,
}

impl Way {
    /// By tree, packed.
    pub const TREE: Way = Way { choice: Choice::Fixed(Algorithm::Tree), parts: Vec::new() };

    /// As chosen, packed.
    pub fn packed(choice: Choice) -> Self {
        Way { choice, parts: Vec::new() }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Algorithm::Tree, Algorithm::Doubling, Algorithm::Ring];
        match all.into_iter().find(|algorithm| algorithm.name() == text) {
            Some(algorithm) => Ok(Choice::Fixed(algorithm)),
            None if text == "auto" => Ok(Choice::Auto),
            None => Err("expected auto, tree, doubling or ring".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sums_double_large_ones_go_around() {
        use Algorithm::{Doubling, Ring, Tree};
        for (len, ranks, expected) in [
            (1, 2, Doubling),
            (100_000_000, 2, Doubling),
            (1, 4, Doubling),
            (10_000, 4, Ring),
            (431_080, 4, Ring),
            (1, 3, Ring),
            (1, 5, Tree),
            (431_080, 3, Ring),
            (1, 64, Doubling),
            (10_000, 64, Doubling),
            (10_000_000, 64, Ring),
        ] {
            assert_eq!(Choice::Auto.of(len, ranks), expected, "{len} values, {ranks} ranks");
        }
        assert_eq!(Choice::Fixed(Tree).of(1_000_000, 64), Tree);
    }

    #[test]
    fn the_ring_wins_where_the_model_says_and_from_there_on() {
        for ranks in [4, 5, 8, 17, 64] {
            let ways: Vec<_> = (0..30).map(|power| Choice::Auto.of(1 << power, ranks)).collect();
            let first = ways.iter().position(|way| *way == Algorithm::Ring).unwrap();
            assert!(
                first > 0 && ways[first..].iter().all(|way| *way == Algorithm::Ring),
                "{ranks}: {ways:?}"
            );
            assert!(ways[..first].iter().all(|way| way.order() == "pairs"), "{ranks}: {ways:?}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for algorithm in [Algorithm::Tree, Algorithm::Doubling, Algorithm::Ring] {
            assert_eq!(algorithm.to_string().parse(), Ok(Choice::Fixed(algorithm)));
        }
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        assert!("star".parse::<Choice>().unwrap_err().contains("doubling"));
    }
}
