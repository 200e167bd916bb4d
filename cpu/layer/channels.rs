//! How a layer with numbers for each channel walks over a blob, in plain and in blocked layout.
//!
//! The blob is cut into cells: a plane (a block of channels, or one channel) of a part of the images. A grain has some
//! cells. What is summed over images and pixels is first summed over each cell and then over a plane's parts, always in
//! their order, by whoever needs the sum.

use std::ops::Range;

use super::{Binder, Grain, share};
use crate::isa::Isa;
use crate::kernel::channels::Lanes;
use crate::layout::Arrangement;
use crate::memory::Span;

/// Lanes where they are the pixels of one channel.
const PIXELS: usize = 16;

/// The walk over a blob.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    pub isa: Isa,
    /// Lanes of a vector: 8 or 16.
    pub lanes: usize,
    /// Whether all lanes are one channel.
    pub together: bool,
    images: usize,
    channels: usize,
    planes: usize,
    /// Elements of a plane of one image.
    plane: usize,
    parts: usize,
    grains: usize,
}

/// A plane of a part of the images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub plane: usize,
    pub part: usize,
}

impl Channels {
    pub fn new(arrangement: &Arrangement, binder: &Binder<'_>) -> Self {
        let Arrangement { images, channels, pixels, layout } = *arrangement;
        // Without pixels, whole blocks lie as they would in the blocked layout.
        let block = match layout.block {
            1 if pixels == 1 => [16, 8].into_iter().find(|b| channels.is_multiple_of(*b)).unwrap_or(1),
            block => block,
        };
        let planes = channels.div_ceil(block);
        let most = binder.stream_grains(arrangement.len()).min(binder.machine.task_grains);
        let parts = most.div_ceil(planes).clamp(1, images);
        Self {
            isa: binder.isa,
            lanes: if block == 1 { PIXELS } else { block },
            together: block == 1,
            images,
            channels,
            planes,
            plane: block * pixels,
            parts,
            grains: most.min(planes * parts),
        }
    }

    /// Grains of a stage that goes through all cells.
    pub fn grains(&self) -> usize {
        self.grains
    }

    /// Number of planes.
    pub fn planes(&self) -> usize {
        self.planes
    }

    /// Values of a channel.
    pub fn values(&self) -> usize {
        self.images * self.pixels()
    }

    fn pixels(&self) -> usize {
        if self.together { self.plane } else { self.plane / self.lanes }
    }

    /// The cells of a grain.
    pub fn cells(&self, grain: &Grain<'_>) -> impl Iterator<Item = Cell> + use<> {
        let planes = self.planes;
        grain.share(planes * self.parts).map(move |i| Cell { plane: i % planes, part: i / planes })
    }

    /// Where the plane of each image of a cell lies.
    pub fn places(&self, cell: Cell) -> impl Iterator<Item = Range<usize>> + use<> {
        let Self { planes, plane, .. } = *self;
        share(self.images, cell.part, self.parts).map(move |image| {
            let first = (image * planes + cell.plane) * plane;
            first..first + plane
        })
    }

    /// The channels of a plane.
    pub fn channels(&self, plane: usize) -> Range<usize> {
        let each = if self.together { 1 } else { self.lanes };
        plane * each..((plane + 1) * each).min(self.channels)
    }

    /// A number of each channel in its lane, 0 for padding.
    pub fn spread<const L: usize>(&self, plane: usize, number: impl Fn(usize) -> f32) -> Lanes<L> {
        let channels = self.channels(plane);
        std::array::from_fn(|lane| {
            let channel = channels.start + if self.together { 0 } else { lane };
            if channel < channels.end { number(channel) } else { 0.0 }
        })
    }

    /// Elements of a workspace for a pair of lanes for each cell.
    pub fn workspace(&self) -> usize {
        self.planes * self.parts * 2 * self.lanes
    }

    fn place_of_pair(&self, cell: Cell) -> Range<usize> {
        let first = (cell.plane * self.parts + cell.part) * 2 * self.lanes;
        first..first + 2 * self.lanes
    }

    /// Leaves a pair of a cell, sums or the mean and the squared distances from it, in a workspace.
    pub fn leave<const L: usize>(
        &self,
        grain: &Grain<'_>,
        workspace: Span,
        cell: Cell,
        pair: &[Lanes<L>; 2],
    ) {
        // SAFETY: each cell has a place of its own.
        let place = unsafe { grain.memory.write(workspace.part(self.place_of_pair(cell))) };
        place.copy_from_slice(pair.as_flattened());
    }

    /// The pairs of a plane's cells and how many values of a channel each is of, in the order of the parts.
    fn pairs<'a, const L: usize>(
        &self,
        grain: &Grain<'a>,
        workspace: Span,
        plane: usize,
    ) -> impl Iterator<Item = (f64, &'a [Lanes<L>])> + Clone + use<'a, L> {
        let (whole, memory) = (*self, grain.memory);
        (0..self.parts).map(move |part| {
            let place = workspace.part(whole.place_of_pair(Cell { plane, part }));
            // SAFETY: written in the stage before, only read in this one.
            let pair = unsafe { memory.read(place) }.as_chunks::<L>().0;
            ((share(whole.images, part, whole.parts).len() * whole.pixels()) as f64, pair)
        })
    }

    /// The sums of a plane's pairs.
    pub fn sums<const L: usize>(&self, grain: &Grain<'_>, workspace: Span, plane: usize) -> [[f64; L]; 2] {
        let mut sums = [[0.0; L]; 2];
        for (_, pair) in self.pairs::<L>(grain, workspace, plane) {
            for (sums, lanes) in sums.iter_mut().zip(pair) {
                sums.iter_mut().zip(lanes).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
        sums
    }

    /// Mean and variance of a plane's channels from those of its cells.
    pub fn statistics<const L: usize>(
        &self,
        grain: &Grain<'_>,
        workspace: Span,
        plane: usize,
    ) -> [Lanes<L>; 2] {
        let count = self.values() as f64;
        let parts = self.pairs::<L>(grain, workspace, plane);
        let mut means = [0.0f64; L];
        for (values, pair) in parts.clone() {
            means.iter_mut().zip(&pair[0]).for_each(|(sum, mean)| *sum += values * f64::from(*mean));
        }
        means.iter_mut().for_each(|sum| *sum /= count);
        let mut squares = [0.0f64; L];
        for (values, pair) in parts {
            for lane in 0..L {
                let distance = f64::from(pair[0][lane]) - means[lane];
                squares[lane] += f64::from(pair[1][lane]) + values * distance * distance;
            }
        }
        [means.map(|mean| mean as f32), squares.map(|sum| (sum / count) as f32)]
    }

    /// Writes a number of each of a plane's channels.
    pub fn write<const L: usize>(&self, grain: &Grain<'_>, to: Span, plane: usize, numbers: &Lanes<L>) {
        let channels = self.channels(plane);
        let count = channels.len();
        // SAFETY: callers write each plane in one grain.
        let to = unsafe { grain.memory.write(to.part(channels)) };
        to.copy_from_slice(&numbers[..count]);
    }
}
