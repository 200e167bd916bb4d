//! Ranks that are MPI processes.
//!
//! This build has the disabled half only: it says that MPI is not there and what to do. A cargo feature `mpi` will
//! select `enabled.rs`, with the same functions over rsmpi, instead of `disabled.rs`; callers will not change.
//! Only `MPI_THREAD_FUNNELED` may be required, so [`connect`] is to be called on the thread that will communicate
//! (see [`crate::overlap`]).

mod disabled;

pub use disabled::{MpiTransport, available, connect, describe};
