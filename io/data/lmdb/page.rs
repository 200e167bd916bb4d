//! The pages of an LMDB file (versions 0.9 and 1.0 of the library, 64-bit, little-endian), taken apart with every offset checked.

use super::super::records::MAX_RECORD;

/// Bytes of a page's header.
pub(super) const HEADER: usize = 16;
/// Bytes of a node's header.
pub(super) const NODE: usize = 8;
/// Where a page's flags stand.
pub(super) const FLAGS: usize = 10;
/// Where the number of pages of a long value, or else the end of the list of nodes, stands.
pub(super) const LOWER: usize = 12;
/// Where the start of the first node in a page stands.
pub(super) const UPPER: usize = 14;
/// The kinds of pages.
pub(super) const BRANCH: u16 = 1;
pub(super) const LEAF: u16 = 2;
pub(super) const OVERFLOW: u16 = 4;
pub(super) const META: u16 = 8;
/// A node whose value lies on pages of its own.
pub(super) const BIG: u16 = 1;
/// What a file begins with, behind the first page's header.
pub(super) const MAGIC: u32 = 0xbeef_c0de;
/// Bytes of a meta page that are used, without its header.
pub(super) const META_BYTES: usize = 136;
/// The root of an empty tree.
pub(super) const NO_PAGE: u64 = u64::MAX;

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_le_bytes(*b))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// What a meta page says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub page_bytes: usize,
    pub transaction: u64,
    pub root: u64,
    pub entries: u64,
    pub depth: u16,
    /// Of the main data base: keys in another order, or several values for a key.
    pub flags: u16,
}

/// Reads a meta page without its header.
///
/// # Errors
/// Why this is none.
pub(super) fn meta(bytes: &[u8]) -> Result<Meta, String> {
    let cut = || "its first page is cut off".to_owned();
    let magic = u32_at(bytes, 0).ok_or_else(cut)?;
    if magic.swap_bytes() == MAGIC {
        return Err("it was made on a machine with the other byte order".to_owned());
    }
    if magic != MAGIC {
        return Err("it does not begin as an LMDB file does".to_owned());
    }
    let version = u32_at(bytes, 4).ok_or_else(cut)?;
    if version != 1 {
        return Err(format!("it has format {version} of LMDB; expected 1"));
    }
    // Two data bases of 48 bytes from 24 on: that of free pages, which tells the size of pages, and the main one.
    let main = 24 + 48;
    let read = || {
        Some(Meta {
            page_bytes: u32_at(bytes, 24)? as usize,
            flags: u16_at(bytes, main + 4)?,
            depth: u16_at(bytes, main + 6)?,
            entries: u64_at(bytes, main + 32)?,
            root: u64_at(bytes, main + 40)?,
            transaction: u64_at(bytes, 128)?,
        })
    };
    let meta = read().ok_or_else(cut)?;
    if !meta.page_bytes.is_power_of_two() || !(256..=1 << 16).contains(&meta.page_bytes) {
        return Err(format!("its pages have {} bytes", meta.page_bytes));
    }
    Ok(meta)
}

/// A node of a page, by its offset in the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    pub at: usize,
    words: [u16; 3],
    pub key: &'a [u8],
}

/// The nodes of a page.
///
/// # Errors
/// Why they are none.
pub(super) fn nodes(page: &[u8]) -> Result<Vec<Node<'_>>, String> {
    let broken = || "a page of it is damaged: a node lies outside".to_owned();
    let lower = usize::from(u16_at(page, LOWER).ok_or_else(broken)?);
    if lower < HEADER || lower > page.len() {
        return Err(broken());
    }
    let node = |i: usize| {
        let at = usize::from(u16_at(page, HEADER + 2 * i)?);
        let words = [u16_at(page, at)?, u16_at(page, at + 2)?, u16_at(page, at + 4)?];
        let key = page.get(at + NODE..at + NODE + usize::from(u16_at(page, at + 6)?))?;
        (at >= lower).then_some(Node { at, words, key })
    };
    (0..(lower - HEADER) / 2).map(|i| node(i).ok_or_else(broken)).collect()
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// In the page, from this offset on.
    Inside { at: usize, bytes: usize },
    /// On pages of its own from this one on.
    Pages { first: u64, bytes: usize },
}

impl Node<'_> {
    /// The page below a node of a branch page.
    pub(super) fn child(&self) -> u64 {
        let [low, middle, high] = self.words.map(u64::from);
        low | middle << 16 | high << 32
    }

    /// The value of a node of a leaf page.
    ///
    /// # Errors
    /// Why it has none.
    pub(super) fn value(&self, page: &[u8]) -> Result<Value, String> {
        let [low, high, flags] = self.words;
        let bytes = usize::from(low) | usize::from(high) << 16;
        let key = String::from_utf8_lossy(self.key);
        if flags & !BIG != 0 {
            return Err(format!(
                "{key:?} is a data base of its own or has several values; Caffe makes neither"
            ));
        }
        if bytes > MAX_RECORD {
            return Err(format!("{key:?} has {bytes} bytes; at most {MAX_RECORD} are possible"));
        }
        let at = self.at + NODE + self.key.len();
        if flags == BIG {
            let first = u64_at(page, at).ok_or("a page of it is damaged: a node lies outside")?;
            return Ok(Value::Pages { first, bytes });
        }
        match page.get(at..at + bytes) {
            Some(_) => Ok(Value::Inside { at, bytes }),
            None => Err("a page of it is damaged: a value lies outside".to_owned()),
        }
    }
}
