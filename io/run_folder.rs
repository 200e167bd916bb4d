//! The folder of one run: what was run, what came of it, and from where it can go on.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::IoError;
use crate::metrics::MetricsWriter;
use crate::{metrics, whole};

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
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "it already holds a run");
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
        match fs::create_dir_all(&snapshots) {
            Ok(()) => Ok(Self { path: path.to_owned() }),
            Err(source) => Err(IoError::CannotCreate { path: snapshots, what: WHAT, source }),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stores the configuration that is in effect after file and flags; marks the folder as that of a run.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`] or [`IoError::WriteFailed`].
    pub fn store_configuration(&self, text: &str) -> Result<(), IoError> {
        whole::write(&self.path.join(CONFIG), "the configuration", |file| file.write_all(text.as_bytes()))
    }

    /// Opens `metrics.jsonl`.
    ///
    /// # Errors
    /// [`IoError::CannotCreate`].
    pub fn metrics(&self) -> Result<MetricsWriter, IoError> {
        MetricsWriter::open(&self.path.join(metrics::FILE))
    }

    /// Where the snapshot after `iteration` iterations lies.
    pub fn snapshot_path(&self, iteration: u64) -> PathBuf {
        self.path.join(SNAPSHOTS).join(format!("iteration_{iteration}.safetensors"))
    }

    /// The snapshot with the highest iteration, if there is any.
    pub fn latest_snapshot(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.path.join(SNAPSHOTS)).ok()?;
        let iteration =
            |name: &str| name.strip_prefix("iteration_")?.strip_suffix(".safetensors")?.parse().ok();
        let latest: Option<u64> =
            entries.flatten().filter_map(|entry| iteration(entry.file_name().to_str()?)).max();
        latest.map(|iteration| self.snapshot_path(iteration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_its_files_and_is_not_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("runs/first");
        let run = RunFolder::create(&path).unwrap();
        run.store_configuration("max_iter: 5\n").unwrap();
        run.metrics().unwrap().write(&serde_json::json!({"iteration": 0})).unwrap();
        assert_eq!(fs::read_to_string(path.join(CONFIG)).unwrap(), "max_iter: 5\n");
        assert!(path.join("metrics.jsonl").exists());
        assert_eq!(RunFolder::create(&path).unwrap_err().exit_code(), 73);
        assert_eq!(RunFolder::open(&path).unwrap(), run);
    }

    #[test]
    fn the_latest_snapshot_is_the_one_of_the_highest_iteration() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunFolder::create(parent.path()).unwrap();
        assert_eq!(run.latest_snapshot(), None);
        for iteration in [500, 1000, 90] {
            fs::write(run.snapshot_path(iteration), "").unwrap();
        }
        fs::write(parent.path().join("snapshots/.iteration_2000.safetensors.1.part"), "").unwrap();
        assert_eq!(run.latest_snapshot(), Some(run.snapshot_path(1000)));
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        let error = RunFolder::create(&parent.path().join("file/run")).unwrap_err();
        assert_eq!(error.exit_code(), 73);
        assert!(error.to_string().contains("file/run"), "{error}");
    }
}
