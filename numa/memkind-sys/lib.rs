//! libmemkind, loaded at run time: a heap in fast memory (MCDRAM, HBM), for pieces that are too small to be bound page by
//! page. Where the library is missing, or the machine has no fast memory, that is a value.
//!
//! Bound here is what Quadrille calls of memkind's interface (memkind(3), version 1.10 or later): the heap of a kind,
//! and questions about it. A piece says nothing about its node: memkind takes the fast node nearest to the CPU of the
//! thread that calls only when it needs new memory from the system, so whoever cares asks the kernel.

mod raw;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use raw::Functions;

/// Why there is no memkind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// The library is not installed.
    #[error("libmemkind is not installed ({0})")]
    Library(String),
    /// The library is not one that we know how to call.
    #[error("libmemkind is another than expected ({0})")]
    Symbol(String),
}

/// Which memory pieces come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The nearest fast memory, and nothing when it is full.
    Hbw,
    /// Any fast memory, and nothing when it is full.
    HbwAll,
    /// The nearest fast memory, or any memory when it is full.
    HbwPreferred,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hbw, Self::HbwAll, Self::HbwPreferred];
}

/// The library.
#[derive(Clone)]
pub struct Memkind(Arc<Functions>);

impl fmt::Debug for Memkind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memkind {}", self.version())
    }
}

impl Memkind {
    /// Loads the library.
    ///
    /// # Errors
    /// If it is not there, or lacks what is called here.
    pub fn load() -> Result<Self, Absent> {
        Functions::load().map(|functions| Self(Arc::new(functions)))
    }

    /// Its version, as in `1.14.0`.
    pub fn version(&self) -> String {
        // Major, minor and patch in three digits each.
        let version = self.0.version();
        format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000)
    }

    /// Whether the machine has fast memory that memkind knows of.
    pub fn has_fast_memory(&self) -> bool {
        self.0.has_fast_memory()
    }

    /// Whether pieces of a kind are to be had.
    pub fn is_available(&self, kind: Kind) -> bool {
        self.0.is_available(kind)
    }

    /// A piece of zeroed memory, touched by the thread that calls; `None` if there is none of this kind.
    pub fn piece(&self, kind: Kind, bytes: usize) -> Option<Piece> {
        let start = self.0.allocate(kind, bytes.max(1))?;
        // SAFETY: so many bytes were just allocated.
        unsafe { start.write_bytes(0, bytes) };
        Some(Piece { start, bytes, memkind: self.clone() })
    }
}

/// Memory of one of memkind's heaps, aligned for any number.
#[derive(Debug)]
pub struct Piece {
    start: NonNull<u8>,
    bytes: usize,
    memkind: Memkind,
}

// SAFETY: a piece is plain memory, which memkind lets any thread free.
unsafe impl Send for Piece {}
// SAFETY: safe code reads and writes nothing through a piece; who does so by its pointer sees to races himself.
unsafe impl Sync for Piece {}

impl Piece {
    /// Its first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How much there is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The kind of heap that memkind finds it in; `None` if it is none of ours.
    pub fn kind(&self) -> Option<Kind> {
        self.memkind.0.kind_of(self.start)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: allocated by this library in `Memkind::piece`, and nobody else frees it.
        unsafe { self.memkind.0.free(self.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memkind() -> Option<Memkind> {
        Memkind::load().map_err(|absent| println!("skipped: {absent}; see scripts/setup --memkind")).ok()
    }

    #[test]
    fn the_library_says_what_it_is() {
        let Some(memkind) = memkind() else { return };
        let parts: Vec<u32> = memkind.version().split('.').map(|part| part.parse().unwrap()).collect();
        assert!(parts.len() == 3 && (1..100).contains(&parts[0]), "{memkind:?}");
    }

    #[test]
    fn pieces_are_there_if_and_only_if_their_kind_is() {
        let Some(memkind) = memkind() else { return };
        if !memkind.has_fast_memory() {
            println!("skipped: this machine has no fast memory for memkind; tests/numa_vm has");
        }
        for kind in Kind::ALL {
            let piece = memkind.piece(kind, 1000);
            match memkind.has_fast_memory() {
                true => assert_eq!(piece.is_some(), memkind.is_available(kind), "{kind:?}"),
                false => assert!(kind == Kind::HbwPreferred || piece.is_none(), "{kind:?}"),
            }
            if let Some(piece) = piece {
                // SAFETY: the piece is ours, and so long.
                let bytes = unsafe { std::slice::from_raw_parts(piece.start().as_ptr(), piece.bytes()) };
                assert!(bytes.len() == 1000 && bytes.iter().all(|byte| *byte == 0));
                assert!(piece.kind().is_some());
            }
        }
    }
}
