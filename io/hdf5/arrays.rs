//! Arrays of an HDF5 file by path.

use std::fs;
use std::path::{Path, PathBuf};

use hdf5_pure::{Chunk, DType, Dataset, File, FileBuilder, Group, LibVer};
use quadrille_core::shape::MAX_AXES;
use quadrille_core::site::did_you_mean;

use crate::error::IoError;
use crate::whole;

/// Deflate makes at most 1,032 bytes of one: a file that promises more lies.
const MAX_EXPANSION: u64 = 1032;
/// Groups and arrays of a file, and how deep they lie; bounds what a small file can ask for.
pub(super) const MAX_ENTRIES: usize = 100_000;
pub(super) const MAX_DEPTH: usize = 32;

/// A file that was read.
pub(super) struct Hdf5 {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Hdf5 {
    /// Reads a file; `expected` says what it should be.
    pub(super) fn read(path: &Path, expected: &str) -> Result<Self, IoError> {
        let bytes = whole::read(path, expected)?;
        let length = bytes.len() as u64;
        let file = File::from_bytes(bytes);
        let file = file.map_err(|error| {
            IoError::data(path, error.to_string()).hint(format!("expected {expected}; is the file whole?"))
        })?;
        Ok(Self { path: path.to_owned(), file, bytes: length })
    }

    /// Opens a file to read parts of it.
    pub(super) fn open(path: &Path, expected: &str) -> Result<Self, IoError> {
        let unreadable = |error| IoError::unreadable(path, expected, &error);
        let found = fs::metadata(path).map_err(unreadable)?;
        if !found.is_file() {
            return Err(IoError::missing(path, format!("is not a file; expected {expected}")));
        }
        let file = File::open_streaming(path);
        let file = file.map_err(|error| {
            IoError::data(path, error.to_string()).hint(format!("expected {expected}; is the file whole?"))
        })?;
        Ok(Self { path: path.to_owned(), file, bytes: found.len() })
    }

    /// A complaint about the file.
    pub(super) fn refuse(&self, message: impl std::fmt::Display) -> IoError {
        IoError::data(&self.path, message.to_string())
    }

    /// The group of everything.
    pub(super) fn root(&self) -> Group {
        self.file.root()
    }

    /// The names of the groups, and those of the arrays, of a group.
    pub(super) fn names(&self, group: &Group, path: &str) -> Result<(Vec<String>, Vec<String>), IoError> {
        let failed = |error| self.refuse(format!("group {path:?}: {error}"));
        let (groups, arrays) = (group.groups().map_err(failed)?, group.datasets().map_err(failed)?);
        if groups.len() + arrays.len() > MAX_ENTRIES {
            return Err(self.refuse(format!("group {path:?} has more than {MAX_ENTRIES} entries")));
        }
        Ok((groups, arrays))
    }

    /// A group of another.
    pub(super) fn group(&self, above: &Group, name: &str) -> Result<Group, IoError> {
        above.group(name).map_err(|error| self.refuse(format!("group {name:?}: {error}")))
    }

    /// Extents of an array, checked against what a file of this size can hold.
    fn shape(&self, array: &Dataset, name: &str) -> Result<Vec<usize>, IoError> {
        let failed = |error| self.refuse(format!("array {name:?}: {error}"));
        let extents = array.shape().map_err(failed)?;
        if extents.len() > MAX_AXES {
            let axes = extents.len();
            return Err(
                self.refuse(format!("array {name:?} has {axes} axes; at most {MAX_AXES} are possible"))
            );
        }
        let size = array.element_size().map_err(failed)?;
        let promised = |extents: &[u64]| extents.iter().try_fold(size, |n, extent| n.checked_mul(*extent));
        let holds = |extents: &[u64]| {
            promised(extents).is_some_and(|bytes| bytes <= self.bytes.saturating_mul(MAX_EXPANSION))
        };
        if !holds(&extents) {
            return Err(self.refuse(format!("array {name:?} promises more values than the file can hold")));
        }
        self.check_pieces(array, name, holds)?;
        let extents = extents.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
        extents.map_err(|error| self.refuse(format!("array {name:?}: {error}")))
    }

    /// Whether the file can hold the pieces that an array is stored in: the library walks over all of a piece, and takes memory
    /// for it before it knows that the file ends earlier.
    fn check_pieces(
        &self,
        array: &Dataset,
        name: &str,
        holds: impl Fn(&[u64]) -> bool,
    ) -> Result<(), IoError> {
        let failed = |error| self.refuse(format!("array {name:?}: {error}"));
        let Some(piece) = array.chunk_shape().map_err(failed)? else { return Ok(()) };
        let inside = |chunk: &Chunk| {
            chunk.address.checked_add(chunk.storage_size).is_some_and(|end| end <= self.bytes)
        };
        // Of one kind of index the library cannot list them. A piece that was never written may have any size.
        let stored = array.chunks().ok();
        let is_empty = stored.as_ref().is_some_and(Vec::is_empty);
        if is_empty || holds(&piece) && stored.iter().flatten().all(inside) {
            return Ok(());
        }
        Err(self.refuse(format!("array {name:?} has a piece that the file cannot hold")))
    }

    /// An array of numbers, with its extents.
    fn array(&self, group: &Group, name: &str) -> Result<(Vec<usize>, Dataset), IoError> {
        let failed = |error| self.refuse(format!("array {name:?}: {error}"));
        let array = group.dataset(name).map_err(|error| {
            let known = group.datasets().unwrap_or_default();
            let refusal = self.refuse(format!("array {name:?}: {error}"));
            match did_you_mean(name, known.iter().map(String::as_str)) {
                Some(close) => refusal.hint(format!("did you mean {close:?}?")),
                None => refusal,
            }
        })?;
        let kind = array.dtype().map_err(failed)?;
        if !is_number(&kind) {
            return Err(self.refuse(format!("array {name:?} holds values of type {kind}; expected numbers")));
        }
        Ok((self.shape(&array, name)?, array))
    }

    /// The extents of an array of numbers that no group holds.
    pub(super) fn extents_of(&self, name: &str) -> Result<Vec<usize>, IoError> {
        self.array(&self.root(), name).map(|(extents, _)| extents)
    }

    /// Extents and values of an array of numbers.
    pub(super) fn numbers(&self, group: &Group, name: &str) -> Result<(Vec<usize>, Vec<f32>), IoError> {
        let failed = |error| self.refuse(format!("array {name:?}: {error}"));
        let (shape, array) = self.array(group, name)?;
        let values = array.read_f32().map_err(failed)?;
        if values.len() != shape.iter().product::<usize>() {
            let count = values.len();
            return Err(self.refuse(format!("array {name:?} has {count} values for extents {shape:?}")));
        }
        Ok((shape, values))
    }

    /// A whole number, if there is one of this name.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, IoError> {
        let Ok(array) = self.file.dataset(name) else { return Ok(None) };
        self.shape(&array, name)?;
        let numbers = array.read_i64().map_err(|error| self.refuse(format!("{name}: {error}")))?;
        match numbers[..] {
            [number] => Ok(Some(number)),
            _ => Err(self.refuse(format!("{name}: {} numbers; expected one", numbers.len()))),
        }
    }

    /// A text, if there is one of this name.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, IoError> {
        let Ok(array) = self.file.dataset(name) else { return Ok(None) };
        self.shape(&array, name)?;
        let mut texts = array.read_string().map_err(|error| self.refuse(format!("{name}: {error}")))?;
        match texts.len() {
            1 => Ok(texts.pop()),
            count => Err(self.refuse(format!("{name}: {count} texts; expected one"))),
        }
    }
}

fn is_number(kind: &DType) -> bool {
    use DType::{F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(kind, F32 | F64 | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
}

/// A new file that HDF5 1.8 reads.
pub(super) fn builder() -> FileBuilder {
    let mut builder = FileBuilder::new();
    builder.with_libver_bounds(LibVer::Earliest, LibVer::V18);
    builder
}

/// Extents as the library wants them.
pub(super) fn extents(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|extent| *extent as u64).collect()
}

/// Writes a file, whole or not at all.
pub(super) fn write(path: &Path, what: &'static str, builder: FileBuilder) -> Result<(), IoError> {
    use std::io::Write;
    let bytes = builder.finish().map_err(|error| IoError::data(path, format!("as HDF5: {error}")))?;
    whole::write(path, what, |file| file.write_all(&bytes))
}
