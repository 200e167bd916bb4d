//! What the machine looks like, which CPUs this process may use, and how they are cut
//! into quadrants.
//!
//! Three steps, each plain data: [`topology::detect`] reads the machine, [`quadrant::quadrants`] decides the
//! cut, [`describe::describe`] says both in words. [`pin::pin_current_thread`] changes one thread, and
//! [`memory::Mapping`] its own pages; nothing else here changes anything.

// Allowed in one file, `memory/system.rs`.
#![deny(unsafe_code)]

mod caches;
pub mod cpu_list;
pub mod describe;
mod drawing;
mod environment;
mod handover;
mod json;
pub mod memory;
pub mod parts;
pub mod pin;
pub mod quadrant;
mod strictness;
pub mod threads;
pub mod topology;
pub mod verify;

pub use caches::Caches;
pub use describe::describe;
pub use handover::handover;
pub use json::to_json;
pub use pin::{Pinning, pin_current_thread, refusals, release_current_thread};
pub use quadrant::{Cut, Partition, PartitionError, Quadrant, Wishes, cut, quadrants, third_level_caches};
pub use strictness::Strictness;
pub use threads::{Reserve, Role, Thread};
pub use topology::{Core, Machine, TopologyError, detect, survey};
