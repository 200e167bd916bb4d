//! Reading a snapshot: nothing of it is used before all of it was found to be what was written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::MANIFEST;
use super::manifest::{FileEntry, Manifest};
use crate::error::IoError;
use crate::tensors::{self, Tensors};

/// No manifest is longer.
const LONGEST_MANIFEST: u64 = 1 << 26;
const FOLDER: &str = "a snapshot (a folder)";

/// All of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Where the run stands.
    pub manifest: Manifest,
    /// The arrays of each file.
    pub files: BTreeMap<String, Tensors>,
}

impl Snapshot {
    /// Reads a snapshot and verifies all of it.
    ///
    /// # Errors
    /// [`IoError::Missing`] if there is nothing of that name or it cannot be read; [`IoError::NoMemory`] if there is none for
    /// its content; [`IoError::Data`], naming the file, if anything is not what was written, and only then.
    pub fn read(folder: &Path) -> Result<Self, IoError> {
        let manifest = read_manifest(folder)?;
        let files = manifest.files.iter().map(|file| Ok((file.name.clone(), read_entry(folder, file)?)));
        let files = files.collect::<Result<_, IoError>>()?;
        Ok(Self { manifest, files })
    }

    /// Reads the manifest and one file of a snapshot. Of the others only names and lengths are verified.
    ///
    /// # Errors
    /// As [`Snapshot::read`].
    pub fn read_file(folder: &Path, name: &str) -> Result<(Manifest, Tensors), IoError> {
        let manifest = read_manifest(folder)?;
        let file = manifest.file(name).ok_or_else(|| missing(folder, name))?;
        let tensors = read_entry(folder, file)?;
        Ok((manifest, tensors))
    }
}

fn missing(folder: &Path, name: &str) -> IoError {
    IoError::data(&folder.join(name), "is missing from the snapshot")
}

/// Reads the manifest, and compares what it lists with what is there.
fn read_manifest(folder: &Path) -> Result<Manifest, IoError> {
    let lengths = lengths(folder)?;
    let path = folder.join(MANIFEST);
    let length = *lengths.get(MANIFEST).ok_or_else(|| missing(folder, MANIFEST))?;
    if length > LONGEST_MANIFEST {
        return Err(IoError::data(&path, format!("has {length} bytes, more than any manifest")));
    }
    let manifest = Manifest::of_bytes(&path, &read_bytes(&path, length)?)?;
    let renamed = iteration_of(folder).filter(|named| *named != manifest.iteration);
    if let Some(named) = renamed {
        let message = format!("was renamed: it is of iteration {}, not {named}", manifest.iteration);
        return Err(IoError::data(folder, message));
    }
    for FileEntry { name, bytes, .. } in &manifest.files {
        match lengths.get(name) {
            None => return Err(missing(folder, name)),
            Some(length) if length != bytes => {
                let message = format!("has {length} bytes; {bytes} were written");
                return Err(IoError::data(&folder.join(name), message));
            }
            Some(_) => {}
        }
    }
    let listed: BTreeSet<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    let added = lengths.keys().find(|name| *name != MANIFEST && !listed.contains(name.as_str()));
    match added {
        Some(name) => Err(IoError::data(&folder.join(name), "was added: it does not belong to the snapshot")),
        None => Ok(manifest),
    }
}

/// The iteration in the usual name of a snapshot.
pub(crate) fn iteration_of(folder: &Path) -> Option<u64> {
    let name = folder.file_name()?.to_str()?;
    let iteration: u64 = name.strip_prefix("iteration_")?.parse().ok()?;
    (name == format!("iteration_{iteration}")).then_some(iteration)
}

/// The lengths of everything in the folder, which must be files.
fn lengths(folder: &Path) -> Result<BTreeMap<String, u64>, IoError> {
    if folder.is_file() {
        return Err(IoError::data(folder, format!("is a file; expected {FOLDER}"))
            .hint("a run in one file, as early versions wrote it, can be given as --weights"));
    }
    let unreadable = |error| IoError::unreadable(folder, FOLDER, &error);
    let mut lengths = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // A link or a folder would be a file to whoever only opens it.
        let metadata = entry.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(IoError::data(&entry.path(), "is no file: it does not belong to the snapshot"));
        }
        lengths.insert(entry.file_name().to_string_lossy().into_owned(), metadata.len());
    }
    Ok(lengths)
}

/// Reads a file of which the length is known, and no more of it.
fn read_bytes(path: &Path, length: u64) -> Result<Vec<u8>, IoError> {
    let unreadable = |error| IoError::unreadable(path, "a file of a snapshot", &error);
    let mut bytes = Vec::new();
    let room = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(1);
    bytes.try_reserve_exact(room).map_err(|error| IoError::no_memory(path, error))?;
    File::open(path).and_then(|file| file.take(length + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 != length {
        return Err(IoError::data(path, "changes while it is read"));
    }
    Ok(bytes)
}

fn read_entry(folder: &Path, file: &FileEntry) -> Result<Tensors, IoError> {
    let path = folder.join(&file.name);
    let bytes = read_bytes(&path, file.bytes)?;
    if blake3::hash(&bytes).to_hex().as_str() != file.blake3 {
        return Err(IoError::data(&path, "is not what was written: its BLAKE3 is another"));
    }
    let (_, tensors) = tensors::parse(&bytes).map_err(|message| IoError::data(&path, message))?;
    Ok(tensors)
}
