//! A program that was built without HDF5.

use std::path::Path;

use crate::caffemodel::NetWeights;
use crate::error::IoError;
use crate::solverstate::SolverState;

fn refuse(path: &Path) -> IoError {
    IoError::data(path, "is HDF5, and this program is built without HDF5")
        .hint("build it with --features hdf5, or write snapshot_format: BINARYPROTO in Caffe's solver")
}

pub(crate) fn read_weights(path: &Path) -> Result<NetWeights, IoError> {
    Err(refuse(path))
}

pub(crate) fn write_weights(path: &Path, _: &NetWeights) -> Result<(), IoError> {
    Err(refuse(path))
}

pub(crate) fn row_shapes(path: &Path, _: &[String]) -> Result<(usize, Vec<Vec<usize>>), IoError> {
    Err(refuse(path))
}

pub(crate) fn read_rows(path: &Path, _: &[String]) -> Result<Vec<Vec<f32>>, IoError> {
    Err(refuse(path))
}

pub(crate) fn read_state(path: &Path) -> Result<SolverState, IoError> {
    Err(refuse(path))
}

pub(crate) fn write_state(path: &Path, _: &SolverState) -> Result<(), IoError> {
    Err(refuse(path))
}
