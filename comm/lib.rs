//! Who tells whom what, and when: communication between workers.
//!
//! From the bottom up: [`transport`] moves owned packed buffers between ranks (threads of one process, a
//! simulated network, virtual time, MPI); [`collective`] writes broadcast and sum once over any transport, in orders of
//! addition that follow from ranks alone ([`choice`] says which); [`protocol`] holds the methods of the SGD and EASGD families;
//! [`overlap`] hides an exchange behind forward and backward; [`handshake`] makes sure, before the first exchange, that all
//! ranks run the same job; [`clock`] says what time it is.
//!
//! Two rules hold everywhere. *Nothing hangs*: every wait is bounded by the peer timeout, and a rank that meets an
//! error drops its transport, which makes the others fail too, within one timeout each. *Same bits*: what is added
//! to what, and in which order, follows from ranks alone, never from arrival.
// With MPI only `transport/mpi/raw.rs` is allowed some: the calls.
#![cfg_attr(not(feature = "mpi"), forbid(unsafe_code))]
#![cfg_attr(feature = "mpi", deny(unsafe_code))]

pub mod choice;
pub mod clock;
pub mod collective;
mod doubling;
pub mod error;
pub mod handshake;
pub mod overlap;
mod pool;
pub mod protocol;
mod ring;
pub mod transport;
mod tree;

pub use clock::{Moment, Work};
pub use error::{CommError, Doing, Peer};
