//! The snapshots of a run, from generation to generation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{RunFolder, WHAT};
use crate::error::IoError;
use crate::{snapshot, whole};

/// A snapshot of a run. Nothing is known of what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Iterations that were done.
    pub iteration: u64,
    /// Where it lies.
    pub path: PathBuf,
}

impl RunFolder {
    /// Where the snapshot after `iteration` iterations lies.
    pub fn snapshot_path(&self, iteration: u64) -> PathBuf {
        self.snapshots().join(format!("iteration_{iteration}"))
    }

    /// The finished snapshots, newest first.
    ///
    /// # Errors
    /// [`IoError::Missing`] if the folder cannot be read.
    pub fn generations(&self) -> Result<Vec<Generation>, IoError> {
        let named = |path: PathBuf| Some(Generation { iteration: snapshot::iteration_of(&path)?, path });
        let mut found: Vec<Generation> = entries(&self.snapshots())
            .map_err(|e| self.unreadable(&e))?
            .into_iter()
            .filter_map(named)
            .collect();
        found.sort_by_key(|generation| std::cmp::Reverse(generation.iteration));
        Ok(found)
    }

    /// Whether there ever was a finished snapshot, as far as one can see: those that were put aside count, too.
    ///
    /// # Errors
    /// [`IoError::Missing`] if the folder cannot be read.
    pub fn had_snapshots(&self) -> Result<bool, IoError> {
        let found = entries(&self.snapshots()).map_err(|error| self.unreadable(&error))?;
        Ok(found.iter().any(|path| path.is_dir() && name_of(path).starts_with("iteration_")))
    }

    /// Puts a snapshot aside under a name that ends in `.WHY`, where nobody takes it for one to go on from. Returns
    /// the new name.
    ///
    /// # Errors
    /// [`IoError::WriteFailed`].
    pub fn put_aside(&self, snapshot: &Path, why: &str) -> Result<PathBuf, IoError> {
        let name = name_of(snapshot);
        let numbered = (1u64..).map(|number| match number {
            1 => format!("{name}.{why}"),
            _ => format!("{name}.{why}-{number}"),
        });
        let mut free = numbered.map(|name| snapshot.with_file_name(name));
        // The numbers do not end, so one is free.
        let path = free.find(|path| path.symlink_metadata().is_err()).unwrap_or_else(|| snapshot.to_owned());
        let rename = || {
            fs::rename(snapshot, &path)?;
            whole::sync_folder(&self.snapshots())
        };
        rename().map_err(|source| self.failed(snapshot, source))?;
        Ok(path)
    }

    /// Removes all finished snapshots but the `keep` newest, of which there is at least one. Each loses its name first,
    /// so that a crash leaves no half of it that looks like a snapshot.
    ///
    /// # Errors
    /// [`IoError::Missing`] or [`IoError::WriteFailed`]; what could be removed until then is gone.
    pub fn keep_newest(&self, keep: usize) -> Result<(), IoError> {
        for Generation { path, .. } in self.generations()?.into_iter().skip(keep.max(1)) {
            let part = whole::part_of(&path);
            let remove = || {
                fs::rename(&path, &part)?;
                whole::sync_folder(&self.snapshots())?;
                remove(&part)
            };
            remove().map_err(|source| self.failed(&path, source))?;
        }
        Ok(())
    }

    /// Removes what dead processes did not finish; nobody else may be at work here. Returns how much it was.
    ///
    /// # Errors
    /// [`IoError::Missing`] or [`IoError::WriteFailed`].
    pub fn remove_unfinished(&self) -> Result<usize, IoError> {
        let mut removed = 0;
        for folder in [self.path.clone(), self.snapshots()] {
            let found = entries(&folder).map_err(|error| self.unreadable(&error))?;
            for path in found.iter().filter(|path| whole::is_part(&name_of(path))) {
                remove(path).map_err(|source| self.failed(path, source))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn unreadable(&self, source: &io::Error) -> IoError {
        IoError::unreadable(&self.path, WHAT, source)
    }

    fn failed(&self, path: &Path, source: io::Error) -> IoError {
        IoError::WriteFailed { path: path.to_owned(), what: "the list of snapshots", source }
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn remove(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}
