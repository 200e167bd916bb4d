//! Pooling: over blocked channels, a vector at a time, or window by window over plain planes.

mod blocked;
mod windows;

pub(super) use blocked::{build as blocked, fits as fits_blocked};
pub(super) use windows::build as windows;

use quadrille_core::layer::{Pooling, Window};

/// The windows along an axis.
fn along(pooling: &Pooling, axis: usize, input: [usize; 2], count: usize) -> Vec<Window> {
    let kernel = pooling.kernel_over(input)[axis];
    (0..count).map(|at| pooling.window(axis, at, kernel, input[axis])).collect()
}
