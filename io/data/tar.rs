//! Tar files of images: shards of a data set. Headers are read once, images by their offset.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quadrille_core::net::Phase;

use super::classes::{Member, by_class, hash_of, is_image, part_of};
use super::records::{Content, MAX_RECORD, Record, Records};
use crate::error::IoError;

/// Tar files consist of blocks of this many bytes.
const BLOCK: u64 = 512;
/// Longest name that a header of its own may carry.
const LONGEST_NAME: u64 = 1 << 16;

/// Images in tar files.
#[derive(Debug)]
pub struct TarImages {
    name: String,
    shards: Vec<(String, File)>,
    members: Vec<Member<Place>>,
    hash: String,
}

/// Where an image lies.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    shard: u32,
    at: u64,
}

impl TarImages {
    /// The images of all shards for `phase`, with the folders of classes as labels, sorted by path over all shards.
    ///
    /// # Errors
    /// [`IoError::Missing`] if a shard cannot be opened, [`IoError::Data`] if it is damaged, if an image lies in no folder of
    /// a class, or if there is nothing for the phase.
    pub fn open(paths: &[PathBuf], phase: Phase, name: &str) -> Result<Self, IoError> {
        let source = paths.first().map_or(Path::new(name), PathBuf::as_path);
        let (mut shards, mut images) = (Vec::new(), Vec::new());
        for (shard, path) in paths.iter().enumerate() {
            let file = File::open(path).map_err(|error| IoError::unreadable(path, "a tar file", &error))?;
            let found = index(&file).map_err(|message| IoError::data(path, message))?.into_iter();
            images.extend(found.map(|(name, at, bytes)| (name, bytes, Place { shard: shard as u32, at })));
            shards.push((path.display().to_string(), file));
        }
        let members = members(images, phase, source)?;
        let hash = hash_of(&members);
        Ok(Self { name: name.to_owned(), shards, members, hash })
    }
}

/// Files in tars: their names, their sizes, and where they lie.
type Files<P> = Vec<(String, u64, P)>;

/// The images among `files` for `phase`, with the folders of classes as labels, sorted by path.
///
/// # Errors
/// [`IoError::Data`] naming `source` if an image lies in no folder of a class or is there twice, or if there is none for the
/// phase.
pub(super) fn members<P>(files: Files<P>, phase: Phase, source: &Path) -> Result<Vec<Member<P>>, IoError> {
    let bare = |(name, bytes, place): (String, u64, P)| {
        let name = name.trim_start_matches("./").to_owned();
        is_image(&name).then_some((name, bytes, place))
    };
    let images = of_phase(files.into_iter().filter_map(bare).collect(), phase);
    by_class(images.map_err(|message| IoError::data(source, message))?, source)
}

/// The images below the folder of the phase, if there are such folders, at the top or below a single one.
fn of_phase<P>(images: Files<P>, phase: Phase) -> Result<Files<P>, String> {
    let first = |path: &str| path.split_once('/').map(|(first, _)| first.to_owned());
    let tops: BTreeSet<String> = images.iter().filter_map(|(path, ..)| first(path)).collect();
    let mut above = String::new();
    let mut part = part_of(tops.iter().map(String::as_str), phase)?;
    if let (None, 1, Some(top)) = (part, tops.len(), tops.first()) {
        above = format!("{top}/");
        let below = images.iter().filter_map(|(path, ..)| first(path.strip_prefix(&above)?));
        let below: BTreeSet<String> = below.collect();
        part = part_of(below.iter().map(String::as_str), phase)?;
    }
    let Some(part) = part else { return Ok(images) };
    let folder = format!("{above}{part}/");
    let inside = |(path, bytes, place): (String, u64, P)| {
        path.strip_prefix(&folder).map(|path| (path.to_owned(), bytes, place))
    };
    Ok(images.into_iter().filter_map(inside).collect())
}

/// Names, offsets and sizes of the files in a tar.
fn index(file: &File) -> Result<Vec<(String, u64, u64)>, String> {
    let end = file.metadata().map_err(|error| format!("cannot be read: {error}"))?.len();
    let (mut found, mut at) = (Vec::new(), 0);
    // What headers before the one of a file say of it.
    let (mut long_name, mut long_size) = (None, None);
    while at < end {
        let mut header = [0; BLOCK as usize];
        file.read_exact_at(&mut header, at).map_err(|_| cut_off(at))?;
        if header == [0; BLOCK as usize] {
            return Ok(found);
        }
        check_sum(&header, at)?;
        let bytes = match long_size.take() {
            Some(bytes) => bytes,
            None => number(&header[124..136]).ok_or_else(|| damaged(at, "has no size"))?,
        };
        let content = at + BLOCK;
        let after = bytes.div_ceil(BLOCK).checked_mul(BLOCK).and_then(|b| b.checked_add(content));
        let after = after.filter(|_| content.checked_add(bytes).is_some_and(|stop| stop <= end));
        let after = after.ok_or_else(|| cut_off(at))?;
        match header[156] {
            b'L' => long_name = Some(text(&extra(file, content, bytes, at)?)),
            b'x' => (long_name, long_size) = extended(&extra(file, content, bytes, at)?),
            b'0' | b'7' | 0 => {
                let name = long_name.take().unwrap_or_else(|| name_of(&header));
                // A folder of the oldest tars; a file of PAX with holes has its map in front and is no image.
                if !name.ends_with('/') {
                    found.push((name, content, bytes));
                }
            }
            // Folders, links, devices and what holds for all files.
            _ => long_name = None,
        }
        at = after;
    }
    Ok(found)
}

fn damaged(at: u64, what: &str) -> String {
    format!("is not a whole tar file: the header at byte {at} {what}; gzipped tars must be unpacked first")
}

fn cut_off(at: u64) -> String {
    format!("is cut off: the member at byte {at} goes on behind its end")
}

fn check_sum(header: &[u8; BLOCK as usize], at: u64) -> Result<(), String> {
    let field = 148..156;
    let byte = |(i, byte): (usize, &u8)| u64::from(if field.contains(&i) { b' ' } else { *byte });
    let sum: u64 = header.iter().enumerate().map(byte).sum();
    match number(&header[field.clone()]) == Some(sum) {
        true => Ok(()),
        false => Err(damaged(at, "does not have the right sum")),
    }
}

/// A number in octal or, with the highest bit set, in binary.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // What is left of the first byte are the highest digits; what is too large, as negative numbers are, is none.
        return field[1..].iter().try_fold(u64::from(field[0] & 0x7f), |n, byte| {
            n.checked_mul(256).map(|n| n | u64::from(*byte))
        });
    }
    let digits = text(field);
    u64::from_str_radix(digits.trim_matches(' '), 8).ok()
}

/// The text before the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn name_of(header: &[u8; BLOCK as usize]) -> String {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    if &header[257..262] == b"ustar" && header[262] == 0 && !prefix.is_empty() {
        format!("{prefix}/{name}")
    } else {
        name
    }
}

/// What a header that belongs to the next one holds.
fn extra(file: &File, content: u64, bytes: u64, at: u64) -> Result<Vec<u8>, String> {
    if bytes > LONGEST_NAME {
        return Err(damaged(at, "has a name that is too long"));
    }
    let mut extra = vec![0; bytes as usize];
    file.read_exact_at(&mut extra, content).map_err(|_| cut_off(at))?;
    Ok(extra)
}

/// Path and size of a PAX header: lines of a length, a space, a key, `=` and a value.
fn extended(mut bytes: &[u8]) -> (Option<String>, Option<u64>) {
    let (mut path, mut size) = (None, None);
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let length = std::str::from_utf8(&bytes[..space]).ok().and_then(|n| n.parse::<usize>().ok());
        let Some(length) = length.filter(|n| *n > space && *n <= bytes.len()) else { break };
        let line = String::from_utf8_lossy(&bytes[space + 1..length]).into_owned();
        match line.trim_end_matches('\n').split_once('=') {
            Some(("path", value)) => path = Some(value.to_owned()),
            Some(("size", value)) => size = value.parse().ok(),
            _ => {}
        }
        bytes = &bytes[length..];
    }
    (path, size)
}

impl Records for TarImages {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    fn hash(&self) -> &str {
        &self.hash
    }

    fn label(&self, index: usize) -> Option<i32> {
        Some(self.members[index].label)
    }

    fn path(&self, index: usize) -> Option<&str> {
        Some(&self.members[index].path)
    }

    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn shard(&self, index: usize) -> usize {
        self.members[index].place.shard as usize
    }

    fn record_name(&self, index: usize) -> String {
        let Member { path, place, .. } = &self.members[index];
        format!("image {path:?} in {}", self.shards[place.shard as usize].0)
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Vec<u8>) -> Result<Record<'a>, String> {
        let Member { label, bytes, place, .. } = &self.members[index];
        if *bytes > MAX_RECORD as u64 {
            return Err(format!("has more than {MAX_RECORD} bytes"));
        }
        // No more than the file has: the index made sure of it.
        scratch.resize(*bytes as usize, 0);
        let file = &self.shards[place.shard as usize].1;
        file.read_exact_at(scratch, place.at).map_err(|error| format!("cannot be read: {error}"))?;
        Ok(Record { label: *label, content: Content::Encoded { file: scratch, native: false } })
    }
}

/// Writes a tar file (ustar) that any tar reads; the same members give the same bytes.
#[derive(Debug)]
pub struct TarWriter<W> {
    to: W,
}

impl<W: Write> TarWriter<W> {
    /// Starts a tar.
    pub fn new(to: W) -> Self {
        Self { to }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// What the system says; a name of more than 255 bytes that no header can hold.
    pub fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let split = |name: &str| match name.len() {
            0..=100 => Some(0),
            _ => {
                name.match_indices('/').map(|(at, _)| at).find(|at| *at <= 155 && name.len() - at - 1 <= 100)
            }
        };
        let at = split(name).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the name {name:?} is too long for a tar file"),
            )
        })?;
        let mut header = [0; BLOCK as usize];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        match at {
            0 => put(0, name.as_bytes()),
            at => {
                put(0, &name.as_bytes()[at + 1..]);
                put(345, &name.as_bytes()[..at]);
            }
        }
        put(100, b"0000644\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.to.write_all(&header)?;
        self.to.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK as usize) - content.len();
        self.to.write_all(&[0; BLOCK as usize][..rest])
    }

    /// Writes the end and gives back what was written to.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.write_all(&[0; 2 * BLOCK as usize])?;
        Ok(self.to)
    }
}
