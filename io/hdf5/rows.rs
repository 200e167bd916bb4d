//! Arrays of samples: the first axis counts them.

use std::path::Path;

use super::arrays::Hdf5;
use crate::error::IoError;

/// Samples of a file, and the extents of one of each of the arrays `names`. Reads no values.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged, or lacks an array, or its arrays have
/// different numbers of samples.
pub(crate) fn row_shapes(path: &Path, names: &[String]) -> Result<(usize, Vec<Vec<usize>>), IoError> {
    let file = Hdf5::open(path, "arrays of samples in HDF5")?;
    let mut found: Option<(usize, &str)> = None;
    let mut shapes = Vec::new();
    for name in names {
        let shape = file.extents_of(name)?;
        let [rows, sample @ ..] = &shape[..] else {
            return Err(file.refuse(format!("array {name:?} is one value; expected a first axis of samples")));
        };
        if let Some((other, first)) = found.filter(|(other, _)| other != rows) {
            let text = format!("array {name:?} has {rows} samples, but {first:?} has {other}");
            return Err(file.refuse(text));
        }
        found = Some((*rows, name));
        shapes.push(sample.to_vec());
    }
    Ok((found.map_or(0, |(rows, _)| rows), shapes))
}

/// The values of the arrays `names`.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged or lacks an array.
pub(crate) fn read_rows(path: &Path, names: &[String]) -> Result<Vec<Vec<f32>>, IoError> {
    let file = Hdf5::open(path, "arrays of samples in HDF5")?;
    let root = file.root();
    names.iter().map(|name| file.numbers(&root, name).map(|(_, values)| values)).collect()
}
