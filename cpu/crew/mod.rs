//! The crew: the pinned threads of a quadrant, its lanes, and how the two meet.

mod awaited;
mod bell;
mod home;
mod idle;
#[cfg(not(loom))]
mod log;
mod queue;
mod sync;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
// The threads are beyond what loom can model; queue and bell, on which they rest, are not.
#[cfg(not(loom))]
mod threads;

pub use awaited::Awaited;
pub use bell::Bell;
pub use home::Home;
pub use idle::Idle;
#[cfg(not(loom))]
pub use log::{Interval, Recording, ThreadRecord};
pub use queue::{Claim, LaneQueue, Offer, Reach, Ticket};
#[cfg(not(loom))]
pub use threads::CrewThread;
#[cfg(not(loom))]
pub(crate) use {
    home::homes,
    queue::MAX_GRAINS,
    threads::{Crews, Lanes, Scratch, Work},
};
