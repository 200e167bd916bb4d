//! The folder of one run: what was run, what came of it, and from where it can go on.

mod generations;
mod lock;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use generations::Generation;
pub use lock::RunLock;

use crate::error::IoError;
use crate::metrics::{self, MetricsWriter, TakenBack};
use crate::whole;

const WHAT: &str = "a run folder";
const CONFIG: &str = "effective.json";
const SNAPSHOTS: &str = "snapshots";

/// The folder of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Creates the folder, with those above it, for a new run.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`], also if the folder already holds a run.
    pub fn create(path: &Path) -> Result<Self, IoError> {
        if path.join(CONFIG).exists() {
            let text =
                "it already holds a run; --resume auto goes on with that, another --run begins a new one";
            let source = io::Error::new(io::ErrorKind::AlreadyExists, text);
            return Err(IoError::CannotCreate { path: path.to_owned(), what: WHAT, source });
        }
        Self::open(path)
    }

    /// The folder of a run that goes on; creates what is missing.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`].
    pub fn open(path: &Path) -> Result<Self, IoError> {
        let snapshots = path.join(SNAPSHOTS);
        let create = || {
            fs::create_dir_all(&snapshots)?;
            // What is synced later is found after a crash only if the folders above it are.
            whole::sync_folder(path)?;
            whole::sync_folder(whole::folder_of(path))
        };
        match create() {
            Ok(()) => Ok(Self { path: path.to_owned() }),
            Err(source) => Err(IoError::CannotCreate { path: snapshots, what: WHAT, source }),
        }
    }

    /// The folder, if it looks like that of a run.
    pub fn find(path: &Path) -> Option<Self> {
        path.join(SNAPSHOTS).is_dir().then(|| Self { path: path.to_owned() })
    }

    /// The folder of the run in which a snapshot lies, if it lies in one.
    pub fn around(snapshot: &Path) -> Option<Self> {
        let snapshots = snapshot.parent().filter(|folder| folder.ends_with(SNAPSHOTS))?;
        Self::find(whole::folder_of(snapshots))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps other processes out, which may take some seconds.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`] if another process trains into the folder.
    pub fn lock(&self) -> Result<RunLock, IoError> {
        RunLock::take(&self.path)
    }

    /// Stores the configuration that is in effect after file and flags; marks the folder as that of a run.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`] or [`IoError::WriteFailed`].
    pub fn store_configuration(&self, text: &str) -> Result<(), IoError> {
        whole::write_text(&self.path.join(CONFIG), "the configuration", text)
    }

    /// Opens `metrics.jsonl`.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`].
    pub fn metrics(&self) -> Result<MetricsWriter, IoError> {
        MetricsWriter::open(&self.path.join(metrics::FILE))
    }

    /// Takes back what `metrics.jsonl` says of what comes after `first` iterations, where the run goes on; `tests_again`
    /// says whether it tests before anything else.
    ///
    /// # Errors
    /// [`IoError::Missing`], [`IoError::CannotCreate`] or [`IoError::WriteFailed`].
    pub fn take_back_metrics(&self, first: u64, tests_again: bool) -> Result<TakenBack, IoError> {
        metrics::take_back(&self.path.join(metrics::FILE), first, tests_again)
    }

    fn snapshots(&self) -> PathBuf {
        self.path.join(SNAPSHOTS)
    }
}
