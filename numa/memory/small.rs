//! Small pieces of fast memory: from memkind's heap where there is one, so that they need not be whole pages.
//!
//! memkind promises no node: its heap gives memory again that it took for a thread elsewhere. So each piece is looked at
//! before it is used, and one that lies elsewhere goes back; its owner takes pages of his own then.

use memkind_sys::{Kind, Memkind};

pub use memkind_sys::Piece;

use super::census_of;

/// From so many bytes on, memory could hold a large page and is better reserved by itself.
pub const SMALL: usize = 2 << 20;

/// Where small pieces come from.
#[derive(Debug, Clone, Default)]
pub struct SmallPieces(Option<Memkind>);

impl SmallPieces {
    /// memkind's heap, if the library is installed and finds fast memory; else nothing comes from here.
    pub fn load() -> Self {
        Self(Memkind::load().ok().filter(Memkind::has_fast_memory))
    }

    /// What they come from, as in `memkind 1.14.0`; `None` if there are none.
    pub fn source(&self) -> Option<String> {
        self.0.as_ref().map(|memkind| format!("memkind {}", memkind.version()))
    }

    /// A piece of zeros that lies on `node`, touched by the thread that calls, which is one near that node. `None` if it is
    /// not small, or there is none there.
    pub fn on_node(&self, bytes: usize, node: usize) -> Option<Piece> {
        if bytes == 0 || bytes >= SMALL {
            return None;
        }
        // A full node must not end the process, so the kind is one that spills.
        let piece = self.0.as_ref()?.piece(Kind::HbwPreferred, bytes)?;
        let census = census_of(piece.start(), piece.bytes()).ok()?;
        (census.elsewhere(node) == 0 && census.untouched == 0).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_memkind_there_are_no_pieces() {
        let none = SmallPieces::default();
        assert!(none.on_node(1000, 0).is_none() && none.source().is_none());
    }

    #[test]
    fn large_ones_are_not_taken_from_here() {
        let pieces = SmallPieces::load();
        if pieces.source().is_none() {
            println!("skipped: no memkind, or no fast memory that it finds; tests/numa_vm has both");
        }
        assert!(pieces.on_node(SMALL, 0).is_none() && pieces.on_node(0, 0).is_none());
    }
}
