//! Who trains into a run folder: one process at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::IoError;

const NAME: &str = ".lock";
/// A process that was killed a moment ago may still be on its way out.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// A run folder that is this process's own until the lock is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
    /// Why there is no lock, if the file system has none.
    refusal: Option<String>,
}

impl RunLock {
    /// Why nobody is kept out, if the file system has no locks. What a dead process left cannot be told from what a
    /// living one writes then.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Locks a folder; waits for some seconds if another process has it.
    pub(super) fn take(folder: &Path) -> Result<Self, IoError> {
        Self::take_within(folder, PATIENCE)
    }

    fn take_within(folder: &Path, patience: Duration) -> Result<Self, IoError> {
        let cannot = |source| IoError::CannotCreate { path: folder.to_owned(), what: super::WHAT, source };
        let path = folder.join(NAME);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(cannot)?;
        let end = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file, refusal: None }),
                Err(TryLockError::Error(error)) => {
                    return Ok(Self { _file: file, refusal: Some(error.to_string()) });
                }
                Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let kind = io::ErrorKind::ResourceBusy;
                    return Err(cannot(io::Error::new(kind, "another process trains into it")));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_belongs_to_one_until_he_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let lock = RunLock::take(folder.path()).unwrap();
        if let Some(reason) = lock.refusal() {
            println!("skipped: this file system has no locks: {reason}");
            return;
        }
        let error = RunLock::take_within(folder.path(), Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.exit_code(), 73);
        assert!(error.to_string().contains("another process trains into it"), "{error}");
        drop(lock);
        RunLock::take_within(folder.path(), Duration::ZERO).unwrap();
    }
}
