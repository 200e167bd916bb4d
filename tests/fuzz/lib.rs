//! Fuzz targets: readers of every file format, on whatever bytes. `scripts/fuzz` runs them, `tests/mutations` runs their
//! bodies on the seeds and on mutations of these.

pub mod bodies;
pub mod seeds;
