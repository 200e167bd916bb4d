//! What can go wrong with a file, and the exit code that follows.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use quadrille_core::site::SpecError;
use thiserror::Error;

/// A file that cannot be used, read or written.
#[derive(Debug, Error)]
pub enum IoError {
    /// A network or solver that cannot be what it says.
    #[error(transparent)]
    Spec(#[from] Box<SpecError>),
    /// A file that is there, but does not hold what it should.
    #[error("{}: {message}{}", path.display(), hint_line(hint))]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong and what was expected.
        message: String,
        /// What the user could do.
        hint: Option<String>,
    },
    /// A file or folder that is not there or cannot be opened.
    #[error("{}: {message}{}", path.display(), hint_line(hint))]
    Missing {
        /// The file, as the user named it.
        path: PathBuf,
        /// Why, and where it was looked for.
        message: String,
        /// What the user could do.
        hint: Option<String>,
    },
    /// A file that holds more than the memory that there is to have.
    #[error(
        "{}: takes {} in memory, of which {} are free\n  hint: quadrille convert data, on a machine with more memory, makes an \
         LMDB of it, which is read image by image",
        path.display(), gib(*needed), gib(*room)
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there are to have.
        room: u64,
    },
    /// A file for whose content the system gives no memory.
    #[error("{}: cannot be read: {message}", path.display())]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
    /// A file or folder that cannot be created.
    #[error("{}: cannot create {what}: {source}", path.display())]
    CannotCreate {
        /// The file or folder.
        path: PathBuf,
        /// What it was for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file that could be created, but not written.
    #[error("{}: cannot write {what}: {source}", path.display())]
    WriteFailed {
        /// The file.
        path: PathBuf,
        /// What it was for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn hint_line(hint: &Option<String>) -> String {
    hint.as_ref().map_or_else(String::new, |hint| format!("\n  hint: {hint}"))
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

impl IoError {
    /// The exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Spec(_) => 64,
            Self::Data { .. } => 65,
            Self::Missing { .. } => 66,
            Self::NoRoom { .. } | Self::NoMemory { .. } => 71,
            Self::CannotCreate { .. } => 73,
            Self::WriteFailed { .. } => 74,
        }
    }

    pub(crate) fn data(path: &Path, message: impl Into<String>) -> Self {
        Self::Data { path: path.to_owned(), message: message.into(), hint: None }
    }

    pub(crate) fn missing(path: &Path, message: impl Into<String>) -> Self {
        Self::Missing { path: path.to_owned(), message: message.into(), hint: None }
    }

    pub(crate) fn no_memory(path: &Path, source: impl ToString) -> Self {
        Self::NoMemory { path: path.to_owned(), message: source.to_string() }
    }

    /// An input that the system would not open or read. `expected` says what the file should be.
    pub(crate) fn unreadable(path: &Path, expected: &str, source: &io::Error) -> Self {
        match source.kind() {
            ErrorKind::NotFound => Self::missing(path, format!("not found; expected {expected}")),
            ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                Self::data(path, format!("cannot be read: {source}; expected {expected}"))
            }
            ErrorKind::OutOfMemory => Self::no_memory(path, source),
            _ => Self::missing(path, format!("cannot be read: {source}; expected {expected}")),
        }
    }

    /// The same error with a suggestion, where the kind has room for one.
    pub(crate) fn hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Data { hint, .. } | Self::Missing { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }
}

impl From<SpecError> for IoError {
    fn from(error: SpecError) -> Self {
        Self::Spec(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quadrille_core::site::{Fault, Site};

    #[test]
    fn every_kind_has_its_exit_code() {
        let broken = || io::Error::other("broken");
        let path = PathBuf::from("f");
        let codes = [
            IoError::from(Fault::new("net", "missing").at(&Site::made("s"), "solver")),
            IoError::data(&path, "m"),
            IoError::missing(&path, "m"),
            IoError::unreadable(&path, "w", &io::ErrorKind::OutOfMemory.into()),
            IoError::CannotCreate { path: path.clone(), what: "w", source: broken() },
            IoError::WriteFailed { path: path.clone(), what: "w", source: broken() },
        ]
        .map(|e| e.exit_code());
        assert_eq!(codes, [64, 65, 66, 71, 73, 74]);
    }

    #[test]
    fn the_hint_follows_on_its_own_line() {
        let error = IoError::missing(Path::new("a/b"), "not found").hint("look elsewhere");
        assert_eq!(error.to_string(), "a/b: not found\n  hint: look elsewhere");
    }
}
