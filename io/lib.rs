//! Every file format of Quadrille: network and solver files, data sets, snapshots, weights, and what a run writes
//! down.
//!
//! No input, however broken, makes this crate panic, hang or take memory out of proportion to the input.
#![forbid(unsafe_code)]

mod caffemodel;
pub mod data;
mod error;
mod events;
mod hash;
mod hdf5;
mod metrics;
pub mod npz;
pub mod prototxt;
mod run_folder;
mod schema;
pub mod snapshot;
mod solverstate;
mod tensors;
pub mod trace;
pub mod weights;
mod whole;

pub use caffemodel::{Blob, LayerWeights, NetWeights};
pub use error::IoError;
pub use events::EventWriter;
pub use hash::weights_hash;
pub use hdf5::{HAS_HDF5, is_hdf5};
pub use metrics::{MetricsWriter, TakenBack};
pub use run_folder::{Generation, RunFolder, RunLock};
pub use solverstate::SolverState;
pub use whole::write_text;
