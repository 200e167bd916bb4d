//! The quadrant engine: a crew of pinned threads, prioritised lanes and events, and the kernels of every layer.

#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
pub mod isa;
#[cfg(not(loom))]
pub mod kernel;
#[cfg(not(loom))]
mod layer;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
pub mod machine;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod program;

mod crew;

#[cfg(not(loom))]
pub use device::{CpuDevice, CpuEvent, CpuWorker, CrewSpec, EngineError, EngineOptions, Program};
#[cfg(not(loom))]
pub use layer::{Choice, adders, implementations, stepping_layers, storage_needs};
#[cfg(not(loom))]
pub use memory::{BlobBytes, NAN_HALVES};

/// The queue and the bell of a crew, for the models in `tests/loom.rs`.
#[doc(hidden)]
pub mod model {
    pub use crate::crew::{Bell, Claim, LaneQueue, Offer, Ticket};
}
