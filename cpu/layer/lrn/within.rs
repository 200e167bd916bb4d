//! Windows within a channel: whole planes, each of one channel or of one block of channels side by side.
//!
//! In scratch a plane has a border of zeros. A window's sum is that of its rows' sums.

use std::ops::Range;

use quadrille_core::layer::Lrn;

use super::{Cut, Part, Target, add_up};
use crate::kernel::element::Element;
use crate::layout::{Arrangement, Layout};

/// The planes of all images.
pub(super) struct Planes {
    planes: usize,
    layout: Layout,
    plane: Plane,
}

/// Extents of a plane.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    /// Channels side by side.
    block: usize,
    height: usize,
    width: usize,
    /// Neighbours above and below, and on either side. Beyond the whole plane there is nothing to see.
    reach: [usize; 2],
}

impl Planes {
    pub fn new(lrn: &Lrn, x: Arrangement, [height, width]: [usize; 2]) -> Self {
        let block = x.layout.block;
        let side = lrn.local_size / 2;
        let plane = Plane { block, height, width, reach: [side.min(height), side.min(width)] };
        Self { planes: x.images * x.channels.div_ceil(block), layout: x.layout, plane }
    }
}

impl Cut for Planes {
    type Part = Plane;

    fn parts(&self) -> usize {
        self.planes
    }

    fn part(&self, index: usize) -> (Range<usize>, Plane) {
        let len = self.plane.height * self.plane.width * self.layout.pixel();
        (index * len..(index + 1) * len, self.plane)
    }

    fn len(&self) -> usize {
        (self.plane.height + 2 * self.plane.reach[0]) * self.plane.row()
    }
}

impl Plane {
    /// Elements of a row in scratch.
    #[inline(always)]
    fn row(&self) -> usize {
        (self.width + 2 * self.reach[1]) * self.block
    }

    /// Elements of a row in memory, and where it begins in scratch.
    #[inline(always)]
    fn rows(self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let (len, border) = (self.width * self.block, self.reach[1] * self.block);
        (0..self.height).map(move |y| (y * len..(y + 1) * len, (self.reach[0] + y) * self.row() + border))
    }
}

impl Part for Plane {
    #[inline(always)]
    fn gather<E: Element>(self, image: &[E], values: &mut [f32]) {
        for (row, at) in self.rows() {
            let values = &mut values[at..at + row.len()];
            E::widen(&image[row], values);
        }
    }

    /// Rows are long enough for the memory to come by itself.
    #[inline(always)]
    fn ask_for<E: Element>(self, _: &Target<E>) {}

    #[inline(always)]
    fn scatter<E: Element>(self, values: &[f32], image: &Target<E>) {
        for (row, at) in self.rows() {
            image.store_row(row.start, &values[at..at + row.len()]);
        }
    }

    #[inline(always)]
    fn sums(self, values: &[f32], spare: &mut [f32], sums: &mut [f32]) {
        add_up(values, self.reach[1], self.block, spare);
        add_up(spare, self.reach[0], self.row(), sums);
    }

    #[inline(always)]
    fn clear_beyond(self, values: &mut [f32]) {
        let mut end = 0;
        for (row, at) in self.rows() {
            values[end..at].fill(0.0);
            end = at + row.len();
        }
        values[end..].fill(0.0);
    }
}
