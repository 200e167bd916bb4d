//! NumPy's arrays: `.npy` holds one, `.npz` several by name (a zip of `.npy` files).
//!
//! Single and double precision, integers and bytes, little-endian, in C order: what frameworks exchange weights, activations
//! and samples in. The rest is refused with what to call in NumPy.

mod npy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, BufReader, Cursor, Read, Seek};
use std::path::Path;

use quadrille_core::shape::MAX_AXES;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::error::IoError;
use crate::whole;

/// Deflate makes at most 1,032 bytes of one: a file that promises more lies.
pub(crate) const MAX_EXPANSION: u64 = 1032;
/// Arrays in an archive; bounds what a small file can ask for.
const MAX_ARRAYS: usize = 100_000;
const SUFFIX: &str = ".npy";
const EXPECTED: &str = "arrays of NumPy (.npz)";

/// Values in C order, the last axis being the fastest.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Single precision, `<f4`.
    F32(Vec<f32>),
    /// Double precision, `<f8`.
    F64(Vec<f64>),
    /// Integers, `<i4`; also what `<i8` holds, if it fits.
    I32(Vec<i32>),
    /// Bytes, `|u1`.
    U8(Vec<u8>),
}

impl Values {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::U8(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An array.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Extents; none for a single value.
    pub shape: Vec<usize>,
    /// As many values as the extents say.
    pub values: Values,
}

/// Arrays by name.
pub type Archive = BTreeMap<String, Array>;

/// Reads one array (`.npy`).
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged or holds something else.
pub fn read_npy(path: &Path) -> Result<Array, IoError> {
    let bytes = whole::read(path, "an array of NumPy (.npy)")?;
    decode_npy(&bytes).map_err(|message| IoError::data(path, message))
}

/// Reads one array from what a `.npy` holds.
///
/// # Errors
/// What is wrong with it.
pub fn decode_npy(bytes: &[u8]) -> Result<Array, String> {
    npy::decode(&mut { bytes }, bytes.len() as u64)
}

/// Reads all arrays of an archive (`.npz`), compressed or not.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] naming the array that is damaged or of another
/// kind.
pub fn read_npz(path: &Path) -> Result<Archive, IoError> {
    let (file, bytes) = whole::open(path, EXPECTED)?;
    decode(BufReader::with_capacity(1 << 20, file), bytes).map_err(|message| IoError::data(path, message))
}

/// Bytes that all arrays of an archive take in memory, by what the archive says of itself.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is no archive.
pub fn unpacked_bytes(path: &Path) -> Result<u64, IoError> {
    let (file, bytes) = whole::open(path, EXPECTED)?;
    let archive = archive_of(BufReader::new(file)).map_err(|message| IoError::data(path, message))?;
    // Whoever promises more than the file can hold is told so when it is read.
    let promised = archive.decompressed_size().and_then(|bytes| u64::try_from(bytes).ok());
    Ok(promised.filter(|promised| *promised <= bytes.saturating_mul(MAX_EXPANSION)).unwrap_or(bytes))
}

/// Reads all arrays from what a `.npz` holds.
///
/// # Errors
/// What is wrong with it, naming the array.
pub fn decode_npz(bytes: &[u8]) -> Result<Archive, String> {
    decode(Cursor::new(bytes), bytes.len() as u64)
}

fn archive_of<R: Read + Seek>(source: R) -> Result<ZipArchive<R>, String> {
    ZipArchive::new(source).map_err(|error| format!("is no whole archive: {error}"))
}

/// Reads all arrays from an archive of so many bytes.
fn decode(source: impl Read + Seek, bytes: u64) -> Result<Archive, String> {
    let mut archive = archive_of(source)?;
    if archive.len() > MAX_ARRAYS {
        return Err(format!("{} arrays; at most {MAX_ARRAYS} are read", archive.len()));
    }
    let mut arrays = Archive::new();
    let mut left = bytes.saturating_mul(MAX_EXPANSION);
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| format!("array {index}: {error}"))?;
        let name = entry.name().map_err(|error| format!("array {index}: {error}"))?.into_owned();
        let within = |message| format!("array {name:?}: {message}");
        let length = entry.size();
        left = left
            .checked_sub(length)
            .ok_or_else(|| within(format!("{length} bytes, more than the file can hold")))?;
        let array = npy::decode(&mut entry, length).map_err(within)?;
        let key = name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned();
        if arrays.insert(key, array).is_some() {
            return Err(format!("there are two arrays {name:?}"));
        }
    }
    Ok(arrays)
}

/// Writes one array (`.npy`), whole or not at all.
///
/// # Errors
/// [`IoError::CannotCreate`], [`IoError::WriteFailed`], or [`IoError::Data`] if the extents do not fit the values.
pub fn write_npy(path: &Path, array: &Array) -> Result<(), IoError> {
    check(array).map_err(|message| IoError::data(path, message))?;
    whole::write(path, "an array", |file| npy::encode(array, file))
}

/// Writes arrays into a compressed archive (`.npz`), whole or not at all. The same arrays give the same bytes.
///
/// # Errors
/// As [`write_npy`].
pub fn write_npz(path: &Path, arrays: &Archive) -> Result<(), IoError> {
    for (name, array) in arrays {
        check(array).map_err(|message| IoError::data(path, format!("array {name:?}: {message}")))?;
    }
    whole::write(path, "arrays", |file| {
        let mut archive = ZipWriter::new(file);
        for (name, array) in arrays {
            let large = npy::encoded_len(array) as u64 >= zip::ZIP64_BYTES_THR;
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Deflated)
                .large_file(large);
            archive.start_file(format!("{name}{SUFFIX}"), options).map_err(io::Error::other)?;
            npy::encode(array, &mut archive)?;
        }
        archive.finish().map_err(io::Error::other)?;
        Ok(())
    })
}

fn check(array: &Array) -> Result<(), String> {
    let (shape, count) = (&array.shape, array.values.len());
    if shape.len() > MAX_AXES {
        return Err(format!("{} axes; at most {MAX_AXES} are possible", shape.len()));
    }
    if shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent)) == Some(count) {
        return Ok(());
    }
    Err(format!("{count} values for extents {shape:?}"))
}
