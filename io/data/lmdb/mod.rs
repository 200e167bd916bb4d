//! LMDB with Caffe's Datum: read without a lock file, without mapping, and without ever writing.
//!
//! A data set is a file that nobody changes while it is read, so none of what the LMDB library is for is needed: there
//! is no reader table (no `lock.mdb`, which fails on read-only and on many shared file systems), and records are read
//! by their offset, so that nothing is read ahead and a file that is cut off is an error and not a dead process. What
//! corresponds are the library's MDB_RDONLY, MDB_NOLOCK and MDB_NORDAHEAD.

mod page;
mod write;

pub use write::LmdbWriter;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use self::page::{BRANCH, HEADER, LEAF, META_BYTES, Meta, NO_PAGE, Value};
use super::datum;
use super::records::{IndexHash, Record, Records};
use crate::error::IoError;

/// Deepest tree: with two keys a page 2^32 of them.
const DEEPEST: usize = 32;

/// A data set in an LMDB.
#[derive(Debug)]
pub struct Lmdb {
    name: String,
    file: File,
    entries: Vec<Entry>,
    hash: String,
}

/// Where a record lies in the file.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    value: u64,
    key_bytes: u16,
    value_bytes: u32,
}

/// The file of an LMDB that is named by its folder or by the file itself.
pub fn lmdb_file(path: &Path) -> Option<PathBuf> {
    let inside = path.join("data.mdb");
    if inside.is_file() {
        return Some(inside);
    }
    let mut start = [0; 4];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut start, HEADER as u64));
    let found = path.is_file() && read.is_ok() && u32::from_le_bytes(start) == page::MAGIC;
    found.then(|| path.to_owned())
}

impl Lmdb {
    /// Opens a data base and finds all its records: its pages of keys are read once, records are not.
    ///
    /// # Errors
    /// [`IoError::Missing`] if it cannot be opened, [`IoError::Data`] if it is damaged or empty.
    pub fn open(path: &Path, name: &str) -> Result<Self, IoError> {
        let unreadable = |error| IoError::unreadable(path, "an LMDB file", &error);
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let damaged = |message: String| {
            IoError::data(path, format!("is not a whole LMDB: {message}"))
                .hint("copy it again, or check it with mdb_stat")
        };
        let meta = newest_meta(&file).map_err(damaged)?;
        if meta.flags != 0 {
            return Err(damaged(format!(
                "its main data base has flags {:#x}, which Caffe's never has",
                meta.flags
            )));
        }
        let mut walk =
            Walk { file: &file, meta, bytes, pages: 0, entries: Vec::new(), hash: IndexHash::default() };
        if meta.root != NO_PAGE {
            walk.page(meta.root, 1).map_err(damaged)?;
        }
        let Walk { entries, hash, .. } = walk;
        if entries.len() as u64 != meta.entries {
            return Err(damaged(format!("it says {} records, but has {}", meta.entries, entries.len())));
        }
        if entries.is_empty() {
            return Err(IoError::data(path, "is an LMDB without records"));
        }
        Ok(Self { name: name.to_owned(), file, entries, hash: hash.finish() })
    }
}

/// The state of the last transaction: the newer of two that lie in the first two pages.
fn newest_meta(file: &File) -> Result<Meta, String> {
    let read = |at: u64| {
        let mut bytes = [0; META_BYTES];
        file.read_exact_at(&mut bytes, at + HEADER as u64).map_err(|_| "it is cut off".to_owned())?;
        page::meta(&bytes)
    };
    let first = read(0);
    // Without the first the size of pages is not known; that of nearly all machines is tried.
    let second = read(first.as_ref().map_or(4096, |meta| meta.page_bytes as u64));
    match (first, second) {
        (Ok(a), Ok(b)) => Ok(if b.transaction > a.transaction { b } else { a }),
        (Ok(meta), Err(_)) | (Err(_), Ok(meta)) => Ok(meta),
        (Err(error), Err(_)) => Err(error),
    }
}

/// A walk over a tree, in the order of its keys.
struct Walk<'a> {
    file: &'a File,
    meta: Meta,
    /// Of the file.
    bytes: u64,
    /// Read so far: more than the file has would be a circle.
    pages: u64,
    entries: Vec<Entry>,
    hash: IndexHash,
}

impl Walk<'_> {
    fn page(&mut self, number: u64, depth: usize) -> Result<(), String> {
        let size = self.meta.page_bytes as u64;
        self.pages += 1;
        if depth > DEEPEST || depth > usize::from(self.meta.depth) || self.pages > self.bytes / size {
            return Err("its pages refer to each other in a circle".to_owned());
        }
        let at =
            number.checked_mul(size).filter(|at| at.checked_add(size).is_some_and(|end| end <= self.bytes));
        let at = at.ok_or_else(|| format!("page {number} lies behind its end"))?;
        let mut bytes = vec![0; self.meta.page_bytes];
        self.file.read_exact_at(&mut bytes, at).map_err(|error| format!("page {number}: {error}"))?;
        let flags = page::u16_at(&bytes, page::FLAGS).unwrap_or_default();
        let nodes = page::nodes(&bytes)?;
        match flags & (BRANCH | LEAF) {
            BRANCH => nodes.iter().try_for_each(|node| self.page(node.child(), depth + 1)),
            LEAF => nodes.iter().try_for_each(|node| self.record(node, &bytes, at)),
            _ => Err(format!("page {number} is of no kind that holds keys")),
        }
    }

    /// Notes a record of the leaf page `page`, which lies at `at` in the file.
    fn record(&mut self, node: &page::Node<'_>, page: &[u8], at: u64) -> Result<(), String> {
        let key = String::from_utf8_lossy(node.key);
        let (value, bytes) = match node.value(page)? {
            Value::Inside { at: inside, bytes } => (at + inside as u64, bytes),
            Value::Pages { first, bytes } => {
                let start = first
                    .checked_mul(self.meta.page_bytes as u64)
                    .and_then(|at| at.checked_add(HEADER as u64));
                let end = start.and_then(|start| start.checked_add(bytes as u64));
                let start = start.filter(|_| end.is_some_and(|end| end <= self.bytes));
                (start.ok_or_else(|| format!("the value of {key:?} lies behind its end"))?, bytes)
            }
        };
        self.hash.add(node.key, None, bytes as u64);
        self.entries.push(Entry {
            key: at + (node.at + page::NODE) as u64,
            value,
            key_bytes: node.key.len() as u16,
            value_bytes: bytes as u32,
        });
        Ok(())
    }
}

impl Records for Lmdb {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn hash(&self) -> &str {
        &self.hash
    }

    fn label(&self, _: usize) -> Option<i32> {
        None
    }

    fn record_name(&self, index: usize) -> String {
        let Entry { key, key_bytes, .. } = self.entries[index];
        let mut bytes = vec![0; usize::from(key_bytes)];
        match self.file.read_exact_at(&mut bytes, key) {
            Ok(()) => format!("record {:?}", String::from_utf8_lossy(&bytes)),
            Err(_) => format!("record {index}"),
        }
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Vec<u8>) -> Result<Record<'a>, String> {
        let Entry { value, value_bytes, .. } = self.entries[index];
        // No more than the file has: the walk made sure of it.
        scratch.resize(value_bytes as usize, 0);
        self.file.read_exact_at(scratch, value).map_err(|error| format!("cannot be read: {error}"))?;
        datum::parse(scratch)
    }
}
