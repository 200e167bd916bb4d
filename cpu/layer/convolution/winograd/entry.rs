//! Forward of images of a few channels ([`crate::kernel::winograd::EntryOutputs`]).
//!
//! A grain goes over rows of tiles of some images: what a row sees is transformed once for all targets, whose weights then stay in the
//! first-level cache while the tiles pass by. ∇W is left to tiles: there each point's products, 147 of three channels, would read the
//! transformed gradients, 49 vectors of 16 pixels, which had to be stored first.

use quadrille_core::layer::SubTask;

use super::super::direction::{Arrays, Setup};
use super::{ALIGNMENT, can};
use crate::isa::{Isa, Precision};
use crate::kernel::simd::settle;
use crate::kernel::stored::Origin;
use crate::kernel::vectorised::with_vectors;
use crate::kernel::winograd::{EntryInputs, EntryOutputs, Filter, MOST_SOURCES, Weights};
use crate::layer::{Grain, share};
use crate::layout::{Arrangement, Layout};
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// Forward.
pub(in crate::layer::convolution) struct EntryWinograd {
    isa: Isa,
    filter: Filter,
    source: Arrangement,
    target: Arrangement,
    /// Rows and columns of the bottom and of the top.
    input: [usize; 2],
    output: [usize; 2],
    pad: [usize; 2],
    relu: bool,
    /// Whether the top is stored past the caches, which it would not stay in.
    past: bool,
    /// Parts of the images, and of the rows of tiles of one.
    image_parts: usize,
    row_parts: usize,
}

impl EntryWinograd {
    /// Prepares it; `None` if the filter cannot do the layer, or the layouts are not those of an entry.
    pub fn new(setup: &Setup<'_>, filter: Filter) -> Option<Self> {
        let (layer, source, target) = (setup.layer, setup.source, setup.target);
        let machine = Machine::of(setup.numerics.isa);
        let blocks = Layout { block: machine.channel_block, precision: Precision::F32 };
        let fits = can(layer, filter)
            && layer.group == 1
            && source.channels <= MOST_SOURCES
            && source.layout == Layout::PLAIN
            && target.layout == blocks
            && setup.numerics.precision == Precision::F32
            && setup.sub == SubTask::Forward;
        let wanted = machine.grains(setup.flops, machine.task_grains);
        let image_parts = wanted.min(source.images);
        let rows = setup.output[0].div_ceil(filter.outputs());
        fits.then(|| Self {
            isa: setup.numerics.isa,
            filter,
            source,
            target,
            input: setup.input,
            output: setup.output,
            pad: layer.pad,
            relu: layer.relu,
            past: size_of::<f32>() * target.len() >= machine.past_bytes,
            image_parts,
            row_parts: wanted.div_ceil(image_parts).min(rows),
        })
    }

    /// Targets of a block, and tiles that are transformed together.
    fn lanes(&self) -> usize {
        self.target.layout.block
    }

    /// Blocks of targets.
    fn vectors(&self) -> usize {
        self.target.channels.div_ceil(self.lanes())
    }

    /// Rows and columns of tiles of an image.
    fn tiles(&self) -> [usize; 2] {
        self.output.map(|extent| extent.div_ceil(self.filter.outputs()))
    }

    /// Elements of all points of all channels, of a vector of tiles or of targets.
    fn block_len(&self) -> usize {
        self.source.channels * self.filter.points() * self.lanes()
    }

    /// The vectors of tiles of a row: first tile and number of each.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ([_, tiles], lanes) = (self.tiles(), self.lanes());
        (0..tiles).step_by(lanes).map(move |first| (first, lanes.min(tiles - first)))
    }

    /// Elements of a padded row of a channel.
    fn row(&self) -> usize {
        let tiles = self.tiles()[1].next_multiple_of(self.lanes());
        ((tiles - 1) * self.filter.outputs() + self.filter.seen()).next_multiple_of(self.lanes())
    }

    fn inputs_len(&self) -> usize {
        self.tiles()[1].div_ceil(self.lanes()) * self.block_len()
    }

    /// Transforms what a row of tiles sees of an image, a vector of tiles after the other.
    fn transform<'a>(
        &self,
        memory: &Memory,
        source: Span,
        [image, row_of_tiles]: [usize; 2],
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        let aligned = scratch.as_ptr().align_offset(64).min(ALIGNMENT);
        let (inputs, rest) = scratch[aligned..].split_at_mut(self.inputs_len());
        let (rows, points) = rest.split_at_mut(self.filter.seen() * self.row());
        let (start, plane) = (image * self.source.image_stride(), self.source.plane_len());
        for channel in 0..self.source.channels {
            let first = start + channel * plane;
            // SAFETY: only read in this task.
            let plane = unsafe { memory.read(source.part(first..first + plane)) };
            self.copy_rows(plane, row_of_tiles, rows);
            let to = &mut inputs[channel * self.filter.points() * self.lanes()..];
            let (filter, row, block) = (self.filter, self.row(), self.block_len());
            with_vectors(self.isa, EntryInputs { filter, rows, row, points: &mut *points, to, block });
        }
        inputs
    }

    /// Copies the rows of a plane that a row of tiles sees, with zeros around.
    fn copy_rows(&self, plane: &[f32], row_of_tiles: usize, rows: &mut [f32]) {
        let ([height, width], [above, before]) = (self.input, self.pad);
        for (i, to) in rows.chunks_exact_mut(self.row()).enumerate() {
            let row = (row_of_tiles * self.filter.outputs() + i).checked_sub(above).filter(|r| *r < height);
            let Some(row) = row else {
                to.fill(0.0);
                continue;
            };
            let (padding, rest) = to.split_at_mut(before);
            let (to, more) = rest.split_at_mut(width);
            padding.fill(0.0);
            to.copy_from_slice(&plane[row * width..][..width]);
            more.fill(0.0);
        }
    }

    /// Elements of the transformed weights.
    pub fn packed_len(&self) -> usize {
        self.vectors() * self.block_len()
    }

    /// Vectors of targets.
    pub fn packing_grains(&self) -> usize {
        self.vectors()
    }

    /// Grains of the computation.
    pub fn grains(&self) -> usize {
        self.image_parts * self.row_parts
    }

    /// Elements of scratch for a grain: a row's inputs, then the rows of a channel and their points; or taps.
    pub fn scratch(&self) -> usize {
        let rows = self.filter.seen() + self.filter.points_of_axis();
        let row = ALIGNMENT + self.inputs_len() + rows * self.row();
        row.max(self.filter.taps() * self.lanes())
    }

    /// Transforms the weights of the grain's targets.
    pub fn pack(&self, grain: &mut Grain<'_>, weights: Span, packed: Span) {
        let (filter, lanes, sources) = (self.filter, self.lanes(), self.source.channels);
        let each = sources * filter.taps();
        let targets = grain.index * lanes..((grain.index + 1) * lanes).min(self.target.channels);
        // SAFETY: weights are only read in this task.
        let weights = unsafe { grain.memory.read(weights.part(targets.start * each..targets.end * each)) };
        let start = grain.index * self.block_len();
        let packed = packed.part(start..start + self.block_len());
        let taps = &mut grain.scratch[..filter.taps() * lanes];
        for source in 0..sources {
            taps.fill(0.0);
            for (target, weights) in weights.chunks_exact(each).enumerate() {
                for (tap, weight) in weights[source * filter.taps()..][..filter.taps()].iter().enumerate() {
                    taps[tap * lanes + target] = *weight;
                }
            }
            // SAFETY: grains have targets of their own.
            let to =
                unsafe { Origin::new(grain.memory.pointer(packed).add(source * filter.points() * lanes)) };
            let taps = &*taps;
            with_vectors(self.isa, Weights { filter, taps, tap: lanes, to, point: lanes, count: lanes });
        }
    }

    /// Computes a grain.
    pub fn run(&self, grain: &mut Grain<'_>, arrays: &Arrays) {
        let (image_part, row_part) = (grain.index / self.row_parts, grain.index % self.row_parts);
        for image in share(self.source.images, image_part, self.image_parts) {
            for row in share(self.tiles()[0], row_part, self.row_parts) {
                self.run_row(grain, arrays, [image, row]);
            }
        }
        if self.past {
            settle();
        }
    }

    /// Computes a row of tiles of an image.
    fn run_row(&self, grain: &mut Grain<'_>, arrays: &Arrays, [image, row]: [usize; 2]) {
        let (memory, lanes, plane) = (grain.memory, self.lanes(), self.target.plane_len());
        let inputs = self.transform(memory, arrays.source, [image, row], grain.scratch);
        for vector in 0..self.vectors() {
            let packed = vector * self.block_len();
            // SAFETY: packed, and the bias copied, in the stage before, with whole vectors for all targets.
            let (weights, bias) = unsafe {
                let weights = memory.read(arrays.packed.part(packed..packed + self.block_len()));
                let bias =
                    arrays.bias.map(|bias| memory.read(bias.part(vector * lanes..(vector + 1) * lanes)));
                (weights, bias)
            };
            let start = image * self.target.image_stride() + vector * plane;
            let to = arrays.target.part(start..start + plane);
            for ((first, tiles), inputs) in self.blocks().zip(inputs.chunks(self.block_len())) {
                let outputs = EntryOutputs {
                    filter: self.filter,
                    sources: self.source.channels,
                    inputs,
                    weights,
                    bias,
                    relu: self.relu,
                    past: self.past,
                    first: [row, first].map(|tile| tile * self.filter.outputs()),
                    tiles,
                    // SAFETY: the part is the whole plane; rows of tiles are the grain's own.
                    plane: unsafe { Origin::new(memory.pointer(to)) },
                    extents: self.output,
                };
                with_vectors(self.isa, outputs);
            }
        }
    }
}
