//! HDF5, as Caffe uses it: weights (`.caffemodel.h5`), states of solvers (`.solverstate.h5`) and arrays of samples.
//!
//! The feature `hdf5` of the crate; without it files of HDF5 are refused with what to do. The library is written in Rust and
//! needs nothing from the system. What we write HDF5 1.8 reads, the version of Caffe's time.

#[cfg(feature = "hdf5")]
mod arrays;
#[cfg(not(feature = "hdf5"))]
mod disabled;
#[cfg(feature = "hdf5")]
mod rows;
#[cfg(feature = "hdf5")]
mod state;
#[cfg(all(test, feature = "hdf5"))]
mod tests;
#[cfg(feature = "hdf5")]
mod weights;

use std::path::Path;

#[cfg(not(feature = "hdf5"))]
pub(crate) use disabled::{read_rows, read_state, read_weights, row_shapes, write_state, write_weights};
#[cfg(feature = "hdf5")]
pub(crate) use rows::{read_rows, row_shapes};
#[cfg(feature = "hdf5")]
pub(crate) use state::{read_state, write_state};
#[cfg(feature = "hdf5")]
pub(crate) use weights::{read_weights, write_weights};

/// Whether this program was built with HDF5.
pub const HAS_HDF5: bool = cfg!(feature = "hdf5");

/// Whether a file is one of HDF5, by the ending of its name.
pub fn is_hdf5(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "h5" || ending == "hdf5")
}
