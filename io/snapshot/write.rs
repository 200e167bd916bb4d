//! Writing a snapshot: each byte is hashed on its way to the file, so that the state is gone through once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::manifest::{FileEntry, Manifest};
use super::{MANIFEST, WEIGHTS};
use crate::error::IoError;
use crate::{tensors, whole};

const WHAT: &str = "a snapshot";

/// An array as it lies in memory.
#[derive(Clone, Debug)]
pub struct Array<'a> {
    /// Its name.
    pub name: String,
    /// Extents.
    pub shape: &'a [usize],
    /// As many values as the extents say.
    pub values: &'a [f32],
}

/// A file of a snapshot.
#[derive(Clone, Debug)]
pub struct FileContent<'a> {
    /// Its name.
    pub name: String,
    /// What it holds, in this order.
    pub arrays: Vec<Array<'a>>,
}

/// Writes a snapshot as the folder `path`, whole or not at all; the list of files in the manifest is made here. When this
/// returns the snapshot is on the disk. The same content gives the same bytes.
///
/// # Errors
/// [`IoError::CannotCreate`] or [`IoError::WriteFailed`], also if there is something of that name; [`IoError::Data`] if
/// an array does not have as many values as its extents say, or the manifest contradicts itself.
pub fn write(path: &Path, manifest: Manifest, files: &[FileContent<'_>]) -> Result<(), IoError> {
    let draft = Draft::begin(path)?;
    let entries = files.iter().map(|file| write_file(draft.folder(), file)).collect::<Result<_, _>>()?;
    draft.finish(manifest, entries)
}

/// A snapshot that is being written, perhaps by several processes. If it is dropped before it is finished nothing is left.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    part: PathBuf,
    finished: bool,
}

impl Draft {
    /// Begins a snapshot that will be the folder `path`.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`].
    pub fn begin(path: &Path) -> Result<Self, IoError> {
        let part = whole::part_of(path);
        let create = || {
            // Whoever had the number of this process before is dead.
            match fs::remove_dir_all(&part) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            fs::create_dir(&part)
        };
        create().map_err(|source| IoError::CannotCreate { path: path.to_owned(), what: WHAT, source })?;
        Ok(Self { path: path.to_owned(), part, finished: false })
    }

    /// The folder in which its files are written until it is finished.
    pub fn folder(&self) -> &Path {
        &self.part
    }

    /// Writes the manifest with the list of `files`, which are there, and gives the folder its name.
    ///
    /// # Errors
    /// [`IoError::WriteFailed`], also if there is something of that name; [`IoError::Data`] if the manifest contradicts
    /// itself.
    pub fn finish(mut self, mut manifest: Manifest, files: Vec<FileEntry>) -> Result<(), IoError> {
        let Self { path, part, .. } = &self;
        manifest.files = files;
        let bytes = manifest.to_bytes().map_err(|message| IoError::data(&path.join(MANIFEST), message))?;
        let on_disk = || {
            let mut file = File::create_new(part.join(MANIFEST))?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            whole::sync_folder(part)?;
            fs::rename(part, path)?;
            whole::sync_folder(whole::folder_of(path))
        };
        on_disk().map_err(|source| IoError::WriteFailed { path: path.clone(), what: WHAT, source })?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing is left to do if the remains cannot be removed either.
            let _ = fs::remove_dir_all(&self.part);
        }
    }
}

/// Writes a file of a snapshot into the folder of its [`Draft`]. When this returns it is on the disk.
///
/// # Errors
/// [`IoError::WriteFailed`]; [`IoError::Data`] if an array does not have as many values as its extents say.
pub fn write_file(folder: &Path, content: &FileContent<'_>) -> Result<FileEntry, IoError> {
    let named = folder.join(&content.name);
    let meta =
        if content.name == WEIGHTS { BTreeMap::from([("content", "weights")]) } else { BTreeMap::new() };
    let arrays = content.arrays.iter().map(|array| (array.name.as_str(), array.shape, array.values.len()));
    let header = tensors::header(&meta, arrays).map_err(|message| IoError::data(&named, message))?;
    let write = || -> io::Result<FileEntry> {
        let mut file = File::create_new(&named)?;
        let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
        let mut sink = |piece: &[u8]| {
            hasher.update(piece);
            bytes += piece.len() as u64;
            file.write_all(piece)
        };
        sink(&header)?;
        let mut memory = Vec::new();
        content.arrays.iter().try_for_each(|array| tensors::put(array.values, &mut memory, &mut sink))?;
        file.sync_all()?;
        let blake3 = hasher.finalize().to_hex().to_string();
        Ok(FileEntry { name: content.name.clone(), bytes, blake3 })
    };
    write().map_err(|source| IoError::WriteFailed { path: named, what: WHAT, source })
}
