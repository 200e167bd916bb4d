//! How a layer with numbers for each channel walks over a blob, in plain and in blocked layout.
//!
//! The blob is cut into cells: a plane (a block of channels, or one channel) of a part of the images. A grain has some
//! cells. What is summed over images and pixels is first summed over each cell and then over a plane's parts, always in
//! their order, by whoever needs the sum.
//!
//! A layer that goes through its blob twice ([`Channels::twice`]) finds what it has just read in a cache: with many
//! planes a grain goes through one plane twice before it turns to the next, and otherwise the second stage goes through
//! the cells backwards.

use std::ops::Range;

use quadrille_core::layer::SubTask;

use super::{Array, Binder, Grain, Stages, share};
use crate::kernel::channels::{Numbers, Planes, WIDEST, joined};
use crate::layout::Arrangement;
use crate::memory::Span;

/// The walk over a blob.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    /// How its planes are gone through.
    pub passes: Planes,
    images: usize,
    channels: usize,
    planes: usize,
    /// Words of a plane of one image.
    words: usize,
    parts: usize,
    grains: usize,
    /// Whether a grain of a task that goes through the blob twice has whole planes.
    whole_planes: bool,
}

/// A plane of a part of the images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub plane: usize,
    pub part: usize,
}

impl Channels {
    pub fn new(arrangement: &Arrangement, binder: &Binder<'_>) -> Self {
        let Arrangement { images, channels, pixels, layout, .. } = *arrangement;
        // Without pixels, whole blocks lie as they would in the blocked layout.
        let block = match layout.block {
            1 if pixels == 1 => [16, 8].into_iter().find(|b| channels.is_multiple_of(*b)).unwrap_or(1),
            block => block,
        };
        let planes = channels.div_ceil(block);
        let most = binder.stream_grains(arrangement.len()).min(binder.machine.task_grains);
        let parts = most.div_ceil(planes).clamp(1, images);
        Self {
            passes: Planes { isa: binder.isa, precision: layout.precision, block, pixels },
            images,
            channels,
            planes,
            words: block * pixels / layout.precision.in_word(),
            parts,
            grains: most.min(planes * parts),
            whole_planes: planes >= binder.machine.normalised_planes,
        }
    }

    /// The stage of a task that goes through all cells once.
    pub fn once(&self) -> Stages {
        Stages::one(self.grains)
    }

    /// The stages of a task that goes through all cells twice.
    pub fn twice(&self) -> Stages {
        if self.whole_planes {
            Stages::one(self.grains.min(self.planes))
        } else {
            self.once().then(self.grains)
        }
    }

    /// Number of planes.
    pub fn planes(&self) -> usize {
        self.planes
    }

    /// Values of a channel.
    pub fn values(&self) -> usize {
        self.images * self.passes.pixels
    }

    /// The cells of a grain of [`Channels::once`].
    pub fn cells(&self, grain: &Grain<'_>) -> impl Iterator<Item = Cell> + use<> {
        let planes = self.planes;
        grain.share(planes * self.parts).map(move |i| Cell { plane: i % planes, part: i / planes })
    }

    /// Calls `pass` with each cell of a grain of [`Channels::twice`], and with whether it is the second pass. All cells
    /// of a plane have had their first when one has its second.
    pub fn for_cells_twice(&self, grain: &Grain<'_>, mut pass: impl FnMut(bool, Cell)) {
        let parts = self.parts;
        if self.whole_planes {
            for plane in grain.share(self.planes) {
                (0..parts).for_each(|part| pass(false, Cell { plane, part }));
                (0..parts).rev().for_each(|part| pass(true, Cell { plane, part }));
            }
            return;
        }
        let (count, second) = (self.planes * parts, grain.stage > 0);
        for i in grain.share(count) {
            let i = if second { count - 1 - i } else { i };
            pass(second, Cell { plane: i % self.planes, part: i / self.planes });
        }
    }

    /// The words that are the plane of each image of a cell.
    pub fn places(&self, cell: Cell) -> impl Iterator<Item = Range<usize>> + use<> {
        let Self { planes, words, .. } = *self;
        share(self.images, cell.part, self.parts).map(move |image| {
            let first = (image * planes + cell.plane) * words;
            first..first + words
        })
    }

    /// The channels of a plane.
    pub fn channels(&self, plane: usize) -> Range<usize> {
        let block = self.passes.block;
        plane * block..((plane + 1) * block).min(self.channels)
    }

    /// A number of each channel of a plane, and 0 for padding.
    pub fn numbers(&self, plane: usize, number: impl Fn(usize) -> f32) -> Numbers {
        let mut numbers = [0.0; WIDEST];
        numbers.iter_mut().zip(self.channels(plane)).for_each(|(to, channel)| *to = number(channel));
        numbers
    }

    /// Elements of a workspace for two numbers of each channel of each cell.
    pub fn workspace(&self) -> usize {
        self.planes * self.parts * 2 * WIDEST
    }

    fn place_of_pair(&self, cell: Cell) -> Range<usize> {
        let first = (cell.plane * self.parts + cell.part) * 2 * WIDEST;
        first..first + 2 * WIDEST
    }

    /// Leaves two numbers of each channel of a cell in a workspace: sums, or means and the squared distances from them.
    pub fn leave(&self, grain: &Grain<'_>, workspace: Span, cell: Cell, pair: [Numbers; 2]) {
        // SAFETY: each cell has a place of its own.
        let place = unsafe { grain.memory.write(workspace.part(self.place_of_pair(cell))) };
        place.copy_from_slice(pair.as_flattened());
    }

    /// The pairs of a plane's cells and how many values of a channel each is of, in the order of the parts.
    fn pairs<'a>(
        &self,
        grain: &Grain<'a>,
        workspace: Span,
        plane: usize,
    ) -> impl Iterator<Item = (f64, &'a [f32])> + Clone + use<'a> {
        let (whole, memory) = (*self, grain.memory);
        (0..self.parts).map(move |part| {
            let place = workspace.part(whole.place_of_pair(Cell { plane, part }));
            // SAFETY: written in the stage before, or by this grain, which then has all of the plane.
            let pair = unsafe { memory.read(place) };
            ((share(whole.images, part, whole.parts).len() * whole.passes.pixels) as f64, pair)
        })
    }

    /// The sums of a plane over its cells.
    pub fn sums(&self, grain: &Grain<'_>, workspace: Span, plane: usize) -> [[f64; WIDEST]; 2] {
        let mut sums = [[0.0; WIDEST]; 2];
        for (_, pair) in self.pairs(grain, workspace, plane) {
            let values = sums.as_flattened_mut().iter_mut().zip(pair);
            values.for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sums
    }

    /// Mean and variance of a plane's channels over its cells.
    pub fn statistics(&self, grain: &Grain<'_>, workspace: Span, plane: usize) -> [Numbers; 2] {
        let values = self.values() as f64;
        let (mut means, mut variances) = ([0.0; WIDEST], [0.0; WIDEST]);
        for channel in 0..self.channels(plane).len() {
            let parts = self
                .pairs(grain, workspace, plane)
                .map(|(count, pair)| (count, f64::from(pair[channel]), f64::from(pair[WIDEST + channel])));
            let [mean, squares] = joined(parts);
            (means[channel], variances[channel]) = (mean as f32, (squares / values) as f32);
        }
        [means, variances]
    }

    /// Writes a number of each of a plane's channels.
    pub fn write(&self, grain: &Grain<'_>, to: Span, plane: usize, numbers: &Numbers) {
        let channels = self.channels(plane);
        let count = channels.len();
        // SAFETY: callers write each plane in one grain.
        let to = unsafe { grain.memory.write(to.part(channels)) };
        to.copy_from_slice(&numbers[..count]);
    }
}

/// The sums of each channel of an array over images and pixels, such as the gradient of a bias. Grains have parts of the images
/// rather than channels, so that a thread reads the images whose gradients it wrote.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    channels: Channels,
    from: Array,
    /// Sums of the cells.
    parts: Span,
    to: Span,
}

impl Totals {
    /// Those of `from`, found by a sub-task.
    pub fn new(binder: &mut Binder<'_>, sub: SubTask, from: Array, to: Span) -> Self {
        let channels = Channels::new(&from.lies, binder);
        Self { channels, from, parts: binder.workspace(sub, channels.workspace()), to }
    }

    /// First the sums of the cells, then those of the planes.
    pub fn stages(&self) -> Stages {
        if self.channels.parts > 1 { self.channels.once().then(1) } else { self.channels.once() }
    }

    /// Finds a grain's.
    pub fn run(&self, grain: &Grain<'_>) {
        let channels = &self.channels;
        if grain.stage == 1 {
            for plane in grain.share(channels.planes()) {
                let [sums, _] = channels.sums(grain, self.parts, plane);
                channels.write(grain, self.to, plane, &sums.map(|sum| sum as f32));
            }
            return;
        }
        for cell in channels.cells(grain) {
            // SAFETY: only read in this task.
            let planes =
                channels.places(cell).map(|place| unsafe { grain.memory.read(self.from.part(place)) });
            let sums = channels.passes.total(planes);
            match channels.parts {
                1 => channels.write(grain, self.to, cell.plane, &sums),
                _ => channels.leave(grain, self.parts, cell, [sums, [0.0; WIDEST]]),
            }
        }
    }
}
