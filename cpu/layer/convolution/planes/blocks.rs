//! Planes of blocks of channels, at stride 1: one for each channel. Rows have zeros behind them that serve as the padding
//! of their right side and of the next row's left side, so in a plane output pixel q of a row-by-row walk sees
//! `q + place(tap)`, whatever its row.

use std::ops::Range;

use super::{Geometry, Sources};
use crate::kernel::correlate::planes::{PLANES, PlaneKernels, STEP};
use crate::layer::convolution::direction::Setup;
use crate::layer::convolution::passes::Passes;
use crate::layout::Arrangement;
use crate::memory::{Memory, Span};

/// Which channels and pixels the planes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Channels of a group.
    channels: usize,
    /// Rows and columns of the source.
    input: [usize; 2],
    pad: [usize; 2],
    kernel: [usize; 2],
    dilation: [usize; 2],
    /// Rows between the first and the last tap.
    reach: usize,
}

impl Blocks {
    /// And rows and columns of the gradients.
    pub fn new(setup: &Setup<'_>, channels: usize) -> (Self, [usize; 2]) {
        let layer = setup.layer;
        let pointwise = Passes::forward(layer, setup.input, setup.output).is_pointwise();
        // Without taps beside each other rows need no zeros between them, and an odd length none behind it.
        let one_row = |[h, w]: [usize; 2]| if pointwise && w % 2 == 1 { [1, h * w] } else { [h, w] };
        let (kernel, dilation) = (layer.kernel, layer.dilation);
        let reach = (kernel[0] - 1) * dilation[0];
        let blocks = Self { channels, input: one_row(setup.input), pad: layer.pad, kernel, dilation, reach };
        (blocks, one_row(setup.output))
    }

    /// How they lie, for a gradient of `output` rows and columns.
    pub fn geometry(&self, output: [usize; 2]) -> Geometry {
        let row_len = (self.input[1] + self.pad[1]).max(output[1]).next_multiple_of(2);
        let image_rows = (self.input[0] + self.pad[0]).max(output[0]);
        let reach = [self.reach, (self.kernel[1] - 1) * self.dilation[1]];
        Geometry { output, reach, overlap: self.pad[1], row_len, image_rows }
    }

    /// Blocks of a group.
    fn blocks(&self) -> usize {
        self.channels.div_ceil(PLANES)
    }

    /// All planes of a group.
    pub fn planes(&self) -> usize {
        self.blocks() * PLANES
    }

    /// The tiles of sources: those of one block through one tap each.
    pub fn sources(&self, row_len: usize, plane_len: usize) -> Vec<Sources> {
        let [rows, columns] = self.kernel;
        let of_block = |block: usize| {
            let count = PLANES.min(self.channels - block * PLANES);
            (0..rows * columns).map(move |tap| {
                let seen = tap / columns * self.dilation[0] * row_len + tap % columns * self.dilation[1];
                let place = block * PLANES * plane_len + seen;
                Sources { place, count, first: block * PLANES * rows * columns + tap * count }
            })
        };
        (0..self.blocks()).flat_map(of_block).collect()
    }

    /// Copies what a band of rows of the gradients of some images sees of some blocks of a group's channels to their planes, whose
    /// padding is 0.
    pub fn fill(
        &self,
        memory: &Memory,
        (source, lies): (Span, &Arrangement),
        (group, images): (usize, Range<usize>),
        band: &(usize, usize),
        (kernels, geometry): (&PlaneKernels, &Geometry),
        (those, planes): (Range<usize>, &mut [u16]),
    ) {
        let ([height, width], pad, row_len) = (self.input, self.pad, geometry.row_len);
        let (pixel, plane) = (lies.layout.pixel(), lies.plane_len());
        let plane_len = planes.len() / (those.len() * PLANES);
        // Rows of the source that the band sees, and where the first of them lies in a plane.
        let end = (band.0 + band.1 + self.reach).saturating_sub(pad[0]).min(height);
        let seen = band.0.saturating_sub(pad[0]).min(end)..end;
        let above = pad[0].saturating_sub(band.0);
        let (runs, run) = if row_len == width { (1, seen.len()) } else { (seen.len(), 1) };
        for (block, to) in those.zip(planes.chunks_exact_mut(PLANES * plane_len)) {
            for (i, image) in images.clone().enumerate() {
                let start = image * lies.image_stride() + (group * self.blocks() + block) * plane;
                // SAFETY: only read in this task.
                let from = unsafe { memory.read(source.part(start..start + plane)) };
                for r in 0..runs {
                    let pixels = &from[(seen.start + r) * width * pixel..][..run * width * pixel];
                    let place = (i * geometry.image_rows + above + r) * row_len + pad[1];
                    let end = place + (run * width).next_multiple_of(2 * STEP);
                    assert!(end <= plane_len, "a run beyond its plane");
                    // SAFETY: the tier has the kernel; each plane has room for the whole steps of the run, as asserted.
                    unsafe { (kernels.fill)(pixels, to[place..].as_mut_ptr(), plane_len) }
                }
            }
        }
    }
}
