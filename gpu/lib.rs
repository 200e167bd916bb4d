//! CUDA devices behind the one scheduler.
//!
//! This build has no CUDA half: [`open`] says so and [`CudaDevice`] cannot be made. The half that can will be
//! `enabled.rs`, with the same functions, chosen by the feature `cuda`; callers will not change.

mod disabled;

pub use disabled::{CudaDevice, describe, open};
