//! The convolution of images of few channels on tiles that take many words of a pixel's sources at once.
//!
//! For each row of the output, the rows of all channels that its windows see are unfolded: column after column, what a
//! column of the window sees as one run of words. The columns of a window then follow each other, so all its sources are a
//! single run, and the window of the next output begins a stride of columns further on. A run is filled up to whole
//! registers: what it has too many belongs to the columns behind it, and meets weights that are 0.

use std::ops::Range;

use super::cut::even_parts;
use super::direction::{Arrays, Setup, TILE_VECTORS};
use crate::isa::Precision;
use crate::kernel::correlate::unfold::{UnfoldKernel, unfold_kernel};
use crate::kernel::correlate::{End, Kept, Kernels, Pixel, Run, Start, Tile, kernels};
use crate::kernel::words::{LANES, word};
use crate::layer::{Grain, share};
use crate::layout::{Arrangement, Layout};
use crate::machine::Machine;
use crate::memory::Span;

/// A convolution.
pub(super) struct Unfolded {
    unfold: UnfoldKernel,
    /// The kernels by number of vectors, from 1.
    kernels: Vec<Kernels>,
    source: Arrangement,
    target: Arrangement,
    /// Rows and columns of the bottom and of the top.
    input: [usize; 2],
    output: [usize; 2],
    kernel: [usize; 2],
    pad: [usize; 2],
    stride: [usize; 2],
    dilation: usize,
    /// Words of a column of a window.
    unit: usize,
    /// All sources of a window, a register's worth each.
    runs: Vec<Run>,
    /// First column and number of columns of each register tile.
    columns: Vec<(usize, usize)>,
    image_parts: usize,
    row_parts: usize,
    relu: bool,
}

/// Most rows of all channels that a window sees.
const MOST_ROWS: usize = 96;

/// Rows of the output whose sources are copied at once.
const TOGETHER: usize = 8;

impl Unfolded {
    /// Prepares the convolution; `None` if the tier cannot do it this way, or it is none of plain images to blocks in bf16.
    pub fn new(setup: &Setup<'_>) -> Option<Self> {
        let unfold = unfold_kernel(setup.numerics)?;
        let (layer, source, target) = (setup.layer, setup.source, setup.target);
        let blocks = Layout { block: LANES, precision: Precision::Bf16 };
        if source.layout != Layout::PLAIN
            || target.layout != blocks
            || layer.group > 1
            || layer.dilation[1] > 1
        {
            return None;
        }
        let kernels = (1..=TILE_VECTORS)
            .map(|v| kernels(setup.numerics, v, Pixel::Vector))
            .collect::<Option<Vec<_>>>()?;
        let machine = Machine::of(setup.numerics.isa);
        let unit = (source.channels * layer.kernel[0]).div_ceil(2);
        if 2 * unit > MOST_ROWS {
            return None;
        }
        let runs = (0..(unit * layer.kernel[1]).div_ceil(LANES))
            .map(|i| Run { offset: (i * LANES) as u32, len: LANES as u32, first: (i * LANES) as u32 })
            .collect();
        let most = kernels[TILE_VECTORS - 1].tiles.len();
        let wanted = machine.grains(setup.flops, machine.task_grains);
        let image_parts = wanted.min(source.images);
        Some(Self {
            unfold,
            kernels,
            source,
            target,
            input: setup.input,
            output: setup.output,
            kernel: layer.kernel,
            pad: layer.pad,
            stride: layer.stride,
            dilation: layer.dilation[0],
            unit,
            runs,
            columns: even_parts(&(0..setup.output[1]), most).collect(),
            image_parts,
            row_parts: wanted.div_ceil(image_parts).min(setup.output[0]),
            relu: layer.relu,
        })
    }

    /// Tiles of output channels.
    pub fn packing_grains(&self) -> usize {
        self.target.channels.div_ceil(LANES).div_ceil(TILE_VECTORS)
    }

    /// Grains of the computation.
    pub fn grains(&self) -> usize {
        self.image_parts * self.row_parts
    }

    /// Words of the packed weights of a tile.
    fn tile_len(&self) -> usize {
        self.runs.len() * LANES * TILE_VECTORS * LANES
    }

    /// Words of all packed weights.
    pub fn packed_len(&self) -> usize {
        self.packing_grains() * self.tile_len()
    }

    /// Columns of the padded source that an output row sees, and numbers of a copied row.
    fn seen(&self) -> [usize; 2] {
        let seen = (self.output[1] - 1) * self.stride[1] + self.kernel[1];
        [seen, seen.next_multiple_of(LANES)]
    }

    /// Rows of a channel that so many rows of the output see.
    fn tall(&self, rows: usize) -> usize {
        (rows - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation + 1
    }

    /// Numbers of the copied rows: those of all channels, and one of zeros.
    fn rows_len(&self) -> usize {
        (self.source.channels * self.tall(TOGETHER) + 1) * self.seen()[1]
    }

    /// Words of an unfolded row, and what the last window's run sees beyond it.
    fn unfolded_len(&self) -> usize {
        self.seen()[1] * self.unit + self.runs.len() * LANES
    }

    /// Elements of scratch for a grain.
    pub fn scratch(&self) -> usize {
        self.rows_len() + self.unfolded_len()
    }

    /// Packs the weights of the grain's tile: source by source, those of each output in a word with those of the row of
    /// sources that shares its word.
    pub fn pack(&self, grain: &mut Grain<'_>, weights: Span, packed: Span) {
        let place = grain.index * self.tile_len();
        // SAFETY: grains have tiles of their own; weights are only read in this task.
        let (weights, packed) = unsafe {
            (grain.memory.read(weights), grain.memory.write(packed.part(place..place + self.tile_len())))
        };
        let rows = self.source.channels * self.kernel[0];
        let first = grain.index * TILE_VECTORS * LANES;
        let width = self.vectors(grain.index) * LANES;
        packed.fill(0.0);
        for source in 0..self.unit * self.kernel[1] {
            let (column, pair) = (source / self.unit, source % self.unit);
            let outputs = first..(first + width).min(self.target.channels);
            for (output, to) in outputs.zip(&mut packed[source * width..]) {
                let weight = |row: usize| match row < rows {
                    true => weights[(output * rows + row) * self.kernel[1] + column],
                    false => 0.0,
                };
                *to = word(weight(2 * pair), weight(2 * pair + 1));
            }
        }
    }

    /// Vectors of a tile.
    fn vectors(&self, tile: usize) -> usize {
        (self.target.channels.div_ceil(LANES) - tile * TILE_VECTORS).min(TILE_VECTORS)
    }

    /// Computes a grain.
    pub fn run(&self, grain: &mut Grain<'_>, arrays: &Arrays) {
        let (image_part, row_part) = (grain.index / self.row_parts, grain.index % self.row_parts);
        let all = share(self.output[0], row_part, self.row_parts);
        for image in share(self.source.images, image_part, self.image_parts) {
            for first in all.clone().step_by(TOGETHER) {
                let rows = first..(first + TOGETHER).min(all.end);
                self.copy_rows(grain, arrays.source, image, &rows);
                for row in rows.clone() {
                    self.unfold_row(grain, row - rows.start);
                    self.run_row(grain, arrays, image, row);
                }
            }
        }
    }

    /// Copies the rows of all channels that some rows of the output see, with their padding.
    fn copy_rows(&self, grain: &mut Grain<'_>, source: Span, image: usize, rows: &Range<usize>) {
        let [height, width] = self.input;
        let [_, len] = self.seen();
        let start = image * self.source.image_stride();
        // SAFETY: only read in this task.
        let planes =
            unsafe { grain.memory.read(source.part(start..start + self.source.channels * height * width)) };
        let tall = self.tall(rows.len());
        let inside = width.min(len.saturating_sub(self.pad[1]));
        let (copies, zeros) =
            grain.scratch[..self.rows_len()].split_at_mut(self.source.channels * self.tall(TOGETHER) * len);
        zeros.fill(0.0);
        for (c, plane) in planes.chunks_exact(height * width).enumerate() {
            for i in 0..tall {
                let to = &mut copies[(c * self.tall(TOGETHER) + i) * len..][..len];
                let row = (rows.start * self.stride[0] + i).checked_sub(self.pad[0]).filter(|r| *r < height);
                let Some(row) = row else {
                    to.fill(0.0);
                    continue;
                };
                to[..self.pad[1].min(len)].fill(0.0);
                to[self.pad[1].min(len)..][..inside].copy_from_slice(&plane[row * width..][..inside]);
                to[(self.pad[1] + inside).min(len)..].fill(0.0);
            }
        }
    }

    /// Unfolds what row `row` of the copied ones sees.
    fn unfold_row(&self, grain: &mut Grain<'_>, row: usize) {
        let [_, len] = self.seen();
        let (copies, unfolded) = grain.scratch.split_at_mut(self.rows_len());
        let zeros = self.source.channels * self.tall(TOGETHER);
        let place = |i: usize| {
            let (channel, tap) = (i / self.kernel[0], i % self.kernel[0]);
            let seen = row * self.stride[0] + tap * self.dilation;
            if channel < self.source.channels { channel * self.tall(TOGETHER) + seen } else { zeros }
        };
        let mut rows = [std::ptr::null(); MOST_ROWS];
        let rows = &mut rows[..2 * self.unit];
        rows.iter_mut().enumerate().for_each(|(i, to)| *to = copies[place(i) * len..][..len].as_ptr());
        let unfolded = &mut unfolded[..self.unfolded_len()];
        unfolded[len * self.unit..].fill(0.0);
        // SAFETY: the tier has the kernel; all rows, and the room, are of `len` columns, which are whole vectors.
        unsafe { (self.unfold)(rows, len, unfolded.as_mut_ptr()) }
    }

    /// Computes a row of the output.
    fn run_row(&self, grain: &mut Grain<'_>, arrays: &Arrays, image: usize, row: usize) {
        let x = grain.scratch[self.rows_len()..].as_ptr();
        // SAFETY: weights were packed, and the bias copied, in the stage before, with a full tile for each tile.
        let (packed, bias) =
            unsafe { (grain.memory.read(arrays.packed), arrays.bias.map(|bias| grain.memory.read(bias))) };
        let start = image * self.target.image_stride();
        let target = grain.memory.pointer(arrays.target.part(start..start + self.target.image_len()));
        let (pixel, plane) = (self.target.layout.pixel(), self.target.plane_len());
        for tile in 0..self.packing_grains() {
            let vectors = self.vectors(tile);
            let target = target.wrapping_add(tile * TILE_VECTORS * plane);
            for (column, count) in &self.columns {
                let y = target.wrapping_add((row * self.output[1] + column) * pixel);
                let tile = Tile {
                    runs: &self.runs,
                    x: x.wrapping_add(column * self.stride[1] * self.unit),
                    x_pixel: self.stride[1] * self.unit,
                    w: packed[tile * self.tile_len()..].as_ptr(),
                    y,
                    y_pixel: LANES,
                    y_vector: LANES,
                    below: None,
                    start: bias.map_or(Start::Zero, |bias| {
                        Start::Bias(bias[tile * TILE_VECTORS * LANES..].as_ptr())
                    }),
                    end: End::Kept(Kept { y, pixel, vector: plane }),
                    relu: self.relu,
                    sign: None,
                    ahead: std::ptr::null(),
                    ahead_lines: 0,
                };
                // SAFETY: windows lie in the unfolded row, and what their runs see beyond it is there; rows of images are
                // the grain's own, and blocks in bf16 take the sums.
                unsafe { self.kernels[vectors - 1].tiles[count - 1](&tile) }
            }
        }
    }
}
