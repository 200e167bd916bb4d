//! Writes an LMDB in one pass: records in the order of their keys, long values on pages of their own, and the tree above them
//! level by level. The LMDB library, and so Caffe, reads the result.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::page::{
    BIG, BRANCH, FLAGS, HEADER, LEAF, LOWER, MAGIC, META, META_BYTES, NO_PAGE, NODE, OVERFLOW, UPPER,
};

/// Bytes of a page, whatever the machine has: the file says it.
const PAGE: usize = 4096;
/// Longest node of a leaf page with its entry in the list: two must fit in a page.
const LONGEST_NODE: usize = (((PAGE - HEADER) / 2) & !1) - 2;
/// Longest key that the library takes.
const LONGEST_KEY: usize = 511;

/// A data base that is being written.
#[derive(Debug)]
pub struct LmdbWriter {
    file: BufWriter<File>,
    /// The next page to be written.
    next: u64,
    leaf: PageBuilder,
    /// First key and number of each page of the level that is being written, from the leaves up.
    leaves: Vec<(Vec<u8>, u64)>,
    last_key: Vec<u8>,
    entries: u64,
    /// Branch, leaf and overflow pages.
    counts: [u64; 3],
}

/// A page that is being filled.
#[derive(Debug)]
struct PageBuilder {
    kind: u16,
    bytes: Vec<u8>,
    lower: usize,
    upper: usize,
    first: Vec<u8>,
}

impl PageBuilder {
    fn new(kind: u16) -> Self {
        Self { kind, bytes: vec![0; PAGE], lower: HEADER, upper: PAGE, first: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.lower == HEADER
    }

    /// Adds a node, or says that there is no room.
    fn add(&mut self, words: [u16; 3], key: &[u8], value: &[u8]) -> bool {
        let size = (NODE + key.len() + value.len() + 1) & !1;
        if self.upper - self.lower < size + 2 {
            return false;
        }
        if self.is_empty() {
            self.first = key.to_vec();
        }
        self.upper -= size;
        let at = self.upper;
        self.put_u16(self.lower, at as u16);
        self.lower += 2;
        words.iter().enumerate().for_each(|(i, word)| self.put_u16(at + 2 * i, *word));
        self.put_u16(at + 6, key.len() as u16);
        self.bytes[at + NODE..][..key.len()].copy_from_slice(key);
        self.bytes[at + NODE + key.len()..][..value.len()].copy_from_slice(value);
        true
    }

    fn put_u16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// The bytes of page `number`.
    fn finish(&mut self, number: u64) -> &[u8] {
        self.bytes[..8].copy_from_slice(&number.to_le_bytes());
        self.put_u16(FLAGS, self.kind);
        self.put_u16(LOWER, self.lower as u16);
        self.put_u16(UPPER, self.upper as u16);
        &self.bytes
    }
}

fn wrong(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

impl LmdbWriter {
    /// Starts a data base in an empty file.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(file: File) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        // The two meta pages come at the end.
        file.write_all(&[0; 2 * PAGE])?;
        Ok(Self {
            file,
            next: 2,
            leaf: PageBuilder::new(LEAF),
            leaves: Vec::new(),
            last_key: Vec::new(),
            entries: 0,
            counts: [0; 3],
        })
    }

    /// Adds a record, whose key must be greater than all before.
    ///
    /// # Errors
    /// What the system says; a key that is empty, too long or not greater; a value of 4 GiB or more.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key.is_empty() || key.len() > LONGEST_KEY || (self.entries > 0 && key <= self.last_key.as_slice())
        {
            let key = String::from_utf8_lossy(key);
            return Err(wrong(format!("key {key:?} is empty, too long, or not greater than the one before")));
        }
        let bytes = u32::try_from(value.len()).map_err(|_| wrong("a value of 4 GiB or more".to_owned()))?;
        let (low, high) = (bytes as u16, (bytes >> 16) as u16);
        let big = NODE + key.len() + value.len() > LONGEST_NODE;
        let place = if big { self.overflow(value)?.to_le_bytes() } else { [0; 8] };
        let (flags, content) = if big { (BIG, &place[..]) } else { (0, value) };
        if !self.leaf.add([low, high, flags], key, content) {
            self.end_leaf()?;
            self.leaf.add([low, high, flags], key, content);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.entries += 1;
        Ok(())
    }

    /// Writes a value on pages of its own and returns the first.
    fn overflow(&mut self, value: &[u8]) -> io::Result<u64> {
        let (number, pages) = (self.next, (HEADER + value.len()).div_ceil(PAGE));
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[FLAGS..FLAGS + 2].copy_from_slice(&OVERFLOW.to_le_bytes());
        header[LOWER..].copy_from_slice(&(pages as u32).to_le_bytes());
        self.file.write_all(&header)?;
        self.file.write_all(value)?;
        self.file.write_all(&[0; PAGE][..pages * PAGE - HEADER - value.len()])?;
        self.next += pages as u64;
        self.counts[2] += pages as u64;
        Ok(number)
    }

    fn end_leaf(&mut self) -> io::Result<()> {
        let mut leaf = std::mem::replace(&mut self.leaf, PageBuilder::new(LEAF));
        self.counts[1] += 1;
        let number = self.end_page(&mut leaf)?;
        self.leaves.push((leaf.first, number));
        Ok(())
    }

    fn end_page(&mut self, page: &mut PageBuilder) -> io::Result<u64> {
        let number = self.next;
        self.file.write_all(page.finish(number))?;
        self.next += 1;
        Ok(number)
    }

    /// Writes the tree and the meta pages, and brings everything to the disk. Returns the number of records.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(mut self) -> io::Result<u64> {
        if !self.leaf.is_empty() {
            self.end_leaf()?;
        }
        let mut level = std::mem::take(&mut self.leaves);
        let mut depth = u16::from(!level.is_empty());
        while level.len() > 1 {
            level = self.branches(&level)?;
            depth += 1;
        }
        let root = level.first().map_or(NO_PAGE, |(_, number)| *number);
        self.file.seek(SeekFrom::Start(0))?;
        for transaction in 0..2 {
            let page = self.meta(transaction, root, depth);
            self.file.write_all(&page)?;
        }
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        Ok(self.entries)
    }

    /// The branch pages above a level.
    fn branches(&mut self, level: &[(Vec<u8>, u64)]) -> io::Result<Vec<(Vec<u8>, u64)>> {
        let mut above = Vec::new();
        let mut page = PageBuilder::new(BRANCH);
        let mut children = 0;
        for (index, (key, child)) in level.iter().enumerate() {
            let words = [*child as u16, (*child >> 16) as u16, (*child >> 32) as u16];
            // The first key of a branch page is the smallest of all and not stored. The library wants two children
            // at least, so the last page does not begin with the last child.
            let last_but_one =
                index + 2 == level.len() && page.upper - page.lower < 2 * (NODE + LONGEST_KEY + 3);
            let full = children > 1 && last_but_one || children > 0 && !page.add(words, key, &[]);
            if full {
                self.end_branch(&mut page, &mut above)?;
                children = 0;
            }
            if children == 0 {
                page.add(words, &[], &[]);
                page.first = key.clone();
            }
            children += 1;
        }
        self.end_branch(&mut page, &mut above)?;
        Ok(above)
    }

    fn end_branch(&mut self, page: &mut PageBuilder, above: &mut Vec<(Vec<u8>, u64)>) -> io::Result<()> {
        let mut full = std::mem::replace(page, PageBuilder::new(BRANCH));
        self.counts[0] += 1;
        let number = self.end_page(&mut full)?;
        above.push((full.first, number));
        Ok(())
    }

    fn meta(&self, transaction: u64, root: u64, depth: u16) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[..8].copy_from_slice(&transaction.to_le_bytes());
        page[FLAGS..FLAGS + 2].copy_from_slice(&META.to_le_bytes());
        let mut content = Vec::with_capacity(META_BYTES);
        content.extend(MAGIC.to_le_bytes());
        content.extend(1u32.to_le_bytes());
        content.extend(0u64.to_le_bytes());
        content.extend((self.next * PAGE as u64).to_le_bytes());
        // Free pages, of which there are none. The size of pages stands in their place for padding, the flag of
        // integer keys is the library's.
        content.extend((PAGE as u32).to_le_bytes());
        content.extend(8u16.to_le_bytes());
        content.extend(0u16.to_le_bytes());
        content.extend([0; 32]);
        content.extend(NO_PAGE.to_le_bytes());
        content.extend([0; 6]);
        content.extend(depth.to_le_bytes());
        let [branch, leaf, overflow] = self.counts;
        for number in [branch, leaf, overflow, self.entries, root, self.next - 1, transaction] {
            content.extend(number.to_le_bytes());
        }
        page[HEADER..HEADER + content.len()].copy_from_slice(&content);
        page
    }
}
