//! A sum over everything, such as a loss: things in a row are cut into parts, the parts are summed by many grains, and
//! then one adds up their sums in order. The cut depends on shapes and on the machine's table only.

use std::ops::Range;

use quadrille_core::layer::SubTask;

use super::{Binder, Grain, Stages};
use crate::memory::Span;

/// Two sums over things in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    count: usize,
    /// Things of a part.
    part: usize,
    parts: usize,
    /// Two sums of each part.
    sums: Span,
}

impl Tally {
    /// Sums over `count` things of `each` elements, in forward.
    pub fn new(binder: &mut Binder<'_>, count: usize, each: usize) -> Self {
        let part = (binder.machine.grain_elements / each.max(1)).max(1);
        let parts = count.div_ceil(part).max(1);
        Self { count, part, parts, sums: binder.workspace(SubTask::Forward, 2 * parts) }
    }

    /// A stage for the sums of the parts, and one for their sums.
    pub fn stages(&self) -> Stages {
        Stages::one(self.parts).then(1)
    }

    /// Leaves the sums of each of a grain's parts, as `sums` finds them.
    pub fn leave(&self, grain: &Grain<'_>, mut sums: impl FnMut(Range<usize>) -> [f64; 2]) {
        for part in grain.share(self.parts) {
            let things = part * self.part..((part + 1) * self.part).min(self.count);
            let found = sums(things).map(|sum| sum as f32);
            // SAFETY: each part has a place of its own.
            unsafe { grain.memory.write(self.sums.part(2 * part..2 * part + 2)) }.copy_from_slice(&found);
        }
    }

    /// The sums of all parts; in the second stage.
    pub fn total(&self, grain: &Grain<'_>) -> [f64; 2] {
        // SAFETY: written in the stage before, only read in this one.
        let sums = unsafe { grain.memory.read(self.sums) };
        let mut total = [0.0; 2];
        for pair in sums.chunks_exact(2) {
            (0..2).for_each(|i| total[i] += f64::from(pair[i]));
        }
        total
    }
}
