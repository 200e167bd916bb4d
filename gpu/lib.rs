//! CUDA devices behind the one scheduler.
//!
//! The cargo feature `cuda` selects `enabled.rs`; without it `disabled.rs` has the same functions and says that CUDA is not
//! there. With the feature, too, nothing of CUDA is needed to build: the driver and its libraries are loaded at run time, and
//! where there are none [`Cuda::open`] says so.
//!
//! A net becomes lists of operations for each sub-task (`layer`, plain data), which are bound to
//! one arena on the GPU; a lane is a stream, and submitting a task puts its operations there. Only `driver` calls CUDA.

#![deny(unsafe_code)]

mod spec;

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod driver;
#[cfg(feature = "cuda")]
mod enabled;
#[cfg(feature = "cuda")]
mod layer;
#[cfg(feature = "cuda")]
mod layout;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod op;
#[cfg(feature = "cuda")]
mod profile;
#[cfg(feature = "cuda")]
mod program;
#[cfg(feature = "cuda")]
mod source;
#[cfg(feature = "cuda")]
mod step;
#[cfg(feature = "cuda")]
pub use enabled::{Cuda, CudaDevice, CudaEvent, CudaWorker, count, describe};

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(not(feature = "cuda"))]
pub use disabled::{Cuda, CudaDevice, CudaEvent, CudaWorker, count, describe};

pub use spec::{Arithmetic, CudaError, Libraries, Options, Order, Program, Sighting};
