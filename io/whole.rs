//! Files that are read whole, and files that are either written whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::IoError;

/// What stands between a name and the number of the process in the name of something unfinished.
const PART: &str = ".part-";

/// Whether a name is that of something that was never finished.
pub(crate) fn is_part(name: &str) -> bool {
    let number = name.rsplit_once(PART).map(|(_, number)| number);
    name.starts_with('.') && number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Opens a file, and says how long it is. `expected` says what it should be. A device or a pipe, which may never end, is refused.
///
/// # Errors
/// [`IoError::Missing`].
pub(crate) fn open(path: &Path, expected: &str) -> Result<(File, u64), IoError> {
    let unreadable = |error| IoError::unreadable(path, expected, &error);
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(IoError::missing(path, format!("is not a file; expected {expected}")));
    }
    Ok((file, metadata.len()))
}

/// Reads a file, as [`open`] opens it.
///
/// # Errors
/// [`IoError::Missing`].
pub(crate) fn read(path: &Path, expected: &str) -> Result<Vec<u8>, IoError> {
    let (mut file, _) = open(path, expected)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| IoError::unreadable(path, expected, &error))?;
    Ok(bytes)
}

/// Writes a file under another name in the same folder, brings it to the disk, and only then gives it its name. If
/// anything fails, a file that had the name before is untouched.
///
/// # Errors
/// [`IoError::CannotCreate`] or [`IoError::WriteFailed`], naming `path` and `what`.
pub(crate) fn write(
    path: &Path,
    what: &'static str,
    content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), IoError> {
    let part = part_of(path);
    let file = File::create(&part).map_err(|source| IoError::CannotCreate {
        path: path.to_owned(),
        what,
        source,
    })?;
    let finish = || -> io::Result<()> {
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        content(&mut writer)?;
        writer.flush()?;
        writer.get_ref().sync_all()?;
        fs::rename(&part, path)?;
        // The new name is on the disk only once its folder is.
        sync_folder(folder_of(path))
    };
    finish().map_err(|source| {
        // Nothing is left to do if the remains cannot be removed either.
        let _ = fs::remove_file(&part);
        IoError::WriteFailed { path: path.to_owned(), what, source }
    })
}

/// Writes a text under another name in the same folder, brings it to the disk, and only then gives it its name. If anything
/// fails, a file that had the name before is untouched.
///
/// # Errors
/// [`IoError::CannotCreate`] or [`IoError::WriteFailed`], naming `path` and `what`.
pub fn write_text(path: &Path, what: &'static str, text: &str) -> Result<(), IoError> {
    write(path, what, |file| file.write_all(text.as_bytes()))
}

/// Brings the names in a folder to the disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some network file systems know no such thing; their names are on the disk at once or never.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}

/// The folder in which something lies.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A hidden name beside `path` that no other process uses.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!("{PART}{}", std::process::id()));
    folder_of(path).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect()
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, "a test", |w| w.write_all(b"old")).unwrap();
        let error = write(&path, "a test", |w| {
            w.write_all(&[7; 3 << 20])?;
            Err(io::Error::other("disk full"))
        })
        .unwrap_err();
        assert_eq!(error.exit_code(), 74);
        assert!(error.to_string().contains("file: cannot write a test: disk full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["file"]);
        // Who has the old file open keeps it: the name moved, the content was not overwritten.
        let mut old = File::open(&path).unwrap();
        write(&path, "a test", |w| w.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(io::read_to_string(&mut old).unwrap(), "old");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_device_without_end_is_not_read() {
        let error = read(Path::new("/dev/zero"), "weights").unwrap_err();
        assert_eq!(error.exit_code(), 66);
        assert_eq!(read(Path::new("/"), "weights").unwrap_err().exit_code(), 66);
    }

    #[test]
    fn a_name_that_is_a_folder_is_refused_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("taken")).unwrap();
        let error = write(&folder.path().join("taken"), "a test", |_| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), 74);
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let error = write(Path::new("/nonexistent/folder/file"), "a test", |_| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), 73);
        assert!(error.to_string().contains("/nonexistent/folder/file"));
    }
}
