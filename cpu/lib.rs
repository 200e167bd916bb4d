//! The quadrant engine: a crew of pinned threads, prioritised lanes and events, and the kernels of every layer.

#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
pub mod isa;
#[cfg(not(loom))]
pub mod kernel;
#[cfg(not(loom))]
mod lanes;
#[cfg(not(loom))]
mod layer;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
pub mod machine;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod program;
#[cfg(not(loom))]
mod worker;

mod crew;

#[cfg(not(loom))]
pub use arena::{ArenaPlace, Homes, Purpose};
#[cfg(not(loom))]
pub use crew::{CrewThread, Interval, Recording, ThreadRecord, Ticket};
#[cfg(not(loom))]
pub use device::{CpuDevice, CpuEvent};
#[cfg(not(loom))]
pub use layer::{
    Choice, adders, implementations, passing_layers, rectifying_layers, stepping_layers, storage_needs,
};
#[cfg(not(loom))]
pub use memory::{BlobBytes, NAN_HALVES};
#[cfg(not(loom))]
pub use worker::{CpuWorker, CrewSpec, EngineError, EngineOptions, MappedWorker, Program};

/// The queue, the bell and what the host waits for of a crew, for the models in `tests/loom.rs`.
#[doc(hidden)]
pub mod model {
    pub use crate::crew::{Awaited, Bell, Claim, Home, Idle, LaneQueue, Offer, Reach, Ticket};
}
