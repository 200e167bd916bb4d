//! Tar files of images: shards of a data set. Headers are read once, images by their offset.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quadrille_core::net::Phase;

use super::classes::{Member, by_class, empty_class, hash_of, is_image, part_of};
use super::records::{Content, MAX_RECORD, Record, Records};
use crate::error::IoError;

/// Tar files consist of blocks of this many bytes.
const BLOCK: u64 = 512;
/// Links that are followed from one to the next, as Linux does.
const MOST_STEPS: usize = 40;
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
    /// a class or is a link to what is not there, if a folder of a class has no images, or if there is nothing for the phase.
    pub fn open(paths: &[PathBuf], phase: Phase, name: &str) -> Result<Self, IoError> {
        let source = paths.first().map_or(Path::new(name), PathBuf::as_path);
        let (mut shards, mut images, mut folders) = (Vec::new(), Vec::new(), Vec::new());
        for (shard, path) in paths.iter().enumerate() {
            let file = File::open(path).map_err(|error| IoError::unreadable(path, "a tar file", &error))?;
            let mut found = index(&file).map_err(|message| IoError::data(path, message))?;
            found.follow_links().map_err(|message| {
                IoError::data(path, message)
                    .hint("pack what links lead to: tar --dereference --hard-dereference")
            })?;
            let place = |at| Place { shard: shard as u32, at };
            images.extend(found.files.into_iter().map(|(name, bytes, at)| (name, bytes, place(at))));
            folders.extend(found.folders);
            shards.push((path.display().to_string(), file));
        }
        let members = members(images, &folders, phase, source)?;
        let hash = hash_of(&members);
        Ok(Self { name: name.to_owned(), shards, members, hash })
    }
}

/// Files in tars: their names, their sizes, and where they lie.
type Files<P> = Vec<(String, u64, P)>;

/// The images among `files` for `phase`, with the folders of classes as labels, sorted by path.
///
/// # Errors
/// [`IoError::Data`] naming `source` if an image lies in no folder of a class or is there twice, if one of `folders` is that of
/// a class and has none, or if there is none for the phase.
pub(super) fn members<P>(
    files: Files<P>,
    folders: &[String],
    phase: Phase,
    source: &Path,
) -> Result<Vec<Member<P>>, IoError> {
    let bare = |(name, bytes, place): (String, u64, P)| {
        is_image(&name).then(|| (name.trim_start_matches("./").to_owned(), bytes, place))
    };
    let images: Files<P> = files.into_iter().filter_map(bare).collect();
    let above = phase_folder(&images, phase).map_err(|message| IoError::data(source, message))?;
    let inside = |(path, bytes, place): (String, u64, P)| {
        path.strip_prefix(&above).map(|path| (path.to_owned(), bytes, place))
    };
    let images: Files<P> = images.into_iter().filter_map(inside).collect();
    if !images.is_empty() {
        check_no_class_is_empty(
            &images,
            folders.iter().filter_map(|path| path.strip_prefix(&above)),
            source,
        )?;
    }
    by_class(images, source)
}

/// A folder without images shifts the labels of those behind it against those of another phase, or of the folder that was packed.
fn check_no_class_is_empty<'a, P>(
    images: &Files<P>,
    folders: impl Iterator<Item = &'a str>,
    source: &Path,
) -> Result<(), IoError> {
    let classes: BTreeSet<&str> =
        images.iter().filter_map(|(path, ..)| Some(path.split_once('/')?.0)).collect();
    let is_class = |name: &&str| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    match folders.filter(is_class).find(|name| !classes.contains(name)) {
        None => Ok(()),
        Some(name) => Err(empty_class(source, name)),
    }
}

/// The folder below which the images for the phase lie, with a slash: that of the phase, if there are such folders, at the top or
/// below a single one. Empty if all are for any phase.
fn phase_folder<P>(images: &Files<P>, phase: Phase) -> Result<String, String> {
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
    Ok(part.map_or(String::new(), |part| format!("{above}{part}/")))
}

/// What the headers of a tar say. Names are paths from its top.
#[derive(Debug, Default)]
struct Index {
    /// Files with their bytes and where they begin.
    files: Files<u64>,
    folders: Vec<String>,
    /// Links, and the paths that they lead to.
    links: Vec<(String, String)>,
}

impl Index {
    /// Makes links to files these files.
    ///
    /// # Errors
    /// The first image that is a link to something else, or the first link to a folder.
    fn follow_links(&mut self) -> Result<(), String> {
        if self.links.is_empty() {
            return Ok(());
        }
        let place = |(name, bytes, at): &(String, u64, u64)| (name.clone(), (*bytes, *at));
        let places: HashMap<String, (u64, u64)> = self.files.iter().map(place).collect();
        let links: HashMap<&str, &str> =
            self.links.iter().map(|(name, target)| (name.as_str(), target.as_str())).collect();
        let folders: HashSet<&str> = self.files.iter().flat_map(|(name, ..)| above(name)).collect();
        let mut followed = Vec::new();
        for (name, target) in &self.links {
            // A link may lead to another one.
            let steps = std::iter::successors(Some(target.as_str()), |step| links.get(step).copied());
            match steps.take(MOST_STEPS).find_map(|step| places.get(step)) {
                Some((bytes, at)) => followed.push((name.clone(), *bytes, *at)),
                None if is_image(name) => {
                    return Err(format!(
                        "image {name:?} is a link to {target:?}, which is no file in this tar"
                    ));
                }
                None if folders.contains(target.as_str()) => {
                    return Err(format!("{name:?} is a link to the folder {target:?}"));
                }
                None => {}
            }
        }
        self.files.extend(followed);
        Ok(())
    }
}

/// The folders that a file lies in.
fn above(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(name.rsplit_once('/'), |(folder, _)| folder.rsplit_once('/'))
        .map(|(folder, _)| folder)
}

/// A path from the top, without what leads nowhere; one that leads out of the tar keeps its `..`.
fn from_top(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match parts.last() {
            Some(last) if part == ".." && *last != ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Where a symbolic link leads.
fn target_of(name: &str, target: &str) -> String {
    if target.starts_with('/') {
        return target.to_owned();
    }
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    from_top(&format!("{folder}/{target}"))
}

/// Reads all headers of a tar.
fn index(file: &File) -> Result<Index, String> {
    let end = file.metadata().map_err(|error| format!("cannot be read: {error}"))?.len();
    let (mut found, mut at) = (Index::default(), 0);
    // What headers before the one of a file say of it.
    let (mut long, mut long_size) = ([None, None], None);
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
            b'L' => long[0] = Some(text(&extra(file, content, bytes, at)?)),
            b'K' => long[1] = Some(text(&extra(file, content, bytes, at)?)),
            b'x' => (long, long_size) = extended(&extra(file, content, bytes, at)?),
            // What holds for all files behind it.
            b'g' => {}
            kind => {
                let [name, target] = std::mem::take(&mut long);
                let given = name.unwrap_or_else(|| name_of(&header));
                let (name, target) = (from_top(&given), target.unwrap_or_else(|| text(&header[157..257])));
                match kind {
                    b'1' => found.links.push((name, from_top(&target))),
                    b'2' => found.links.push((name.clone(), target_of(&name, &target))),
                    // A folder of the oldest tars; a file of PAX with holes has its map in front and is no image.
                    b'0' | b'7' | 0 if !given.ends_with('/') => found.files.push((name, bytes, content)),
                    b'0' | b'7' | 0 | b'5' => found.folders.push(name),
                    // Devices and pipes.
                    _ => {}
                }
            }
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

/// Path, target of a link and size of a PAX header: lines of a length, a space, a key, `=` and a value.
fn extended(mut bytes: &[u8]) -> ([Option<String>; 2], Option<u64>) {
    let (mut path, mut target, mut size) = (None, None, None);
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let length = std::str::from_utf8(&bytes[..space]).ok().and_then(|n| n.parse::<usize>().ok());
        let Some(length) = length.filter(|n| *n > space && *n <= bytes.len()) else { break };
        let line = String::from_utf8_lossy(&bytes[space + 1..length]).into_owned();
        match line.trim_end_matches('\n').split_once('=') {
            Some(("path", value)) => path = Some(value.to_owned()),
            Some(("linkpath", value)) => target = Some(value.to_owned()),
            Some(("size", value)) => size = value.parse().ok(),
            _ => {}
        }
        bytes = &bytes[length..];
    }
    ([path, target], size)
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
