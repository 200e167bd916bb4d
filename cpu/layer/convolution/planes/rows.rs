//! Planes of plain images of few channels: one for each row of the kernel's window and each phase of its columns, in which
//! row y has what that row of the window sees at row y of the output. All sources of one column then lie as far apart as
//! those of any other, and what a stride jumps over lies in other phases.

use std::ops::Range;

use super::{Geometry, Sources};
use crate::kernel::correlate::planes::PLANES;
use crate::kernel::words::{round_vectors, rounded};
use crate::layer::convolution::direction::Setup;
use crate::layout::Arrangement;
use crate::memory::{Memory, Span};

/// Which rows and columns of the images the planes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    channels: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    pad: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    /// Columns of a phase that some output pixel sees.
    seen: usize,
    /// Distances of the columns of a phase, and so their number.
    phases: usize,
}

impl Rows {
    pub fn new(setup: &Setup<'_>) -> Self {
        let layer = setup.layer;
        let phases = layer.stride[1];
        Self {
            channels: setup.source.channels,
            input: setup.input,
            kernel: layer.kernel,
            pad: layer.pad,
            stride: layer.stride,
            dilation: layer.dilation,
            seen: setup.output[1] + (layer.kernel[1] - 1) * layer.dilation[1] / phases,
            phases,
        }
    }

    /// How they lie, for a gradient of `output` rows and columns.
    pub fn geometry(&self, output: [usize; 2]) -> Geometry {
        let row_len = self.seen.next_multiple_of(2);
        let reach = [0, self.seen - output[1]];
        Geometry { output, reach, overlap: 0, row_len, image_rows: output[0] }
    }

    /// Planes of a phase.
    fn windows(&self) -> usize {
        self.channels * self.kernel[0]
    }

    /// All planes.
    pub fn planes(&self) -> usize {
        self.phases * self.windows()
    }

    /// The tiles of sources: those of one column of the window each.
    pub fn sources(&self, plane_len: usize) -> Vec<Sources> {
        let of_column = |column: usize| {
            let seen = column * self.dilation[1];
            let (phase, place) = (seen % self.phases, seen / self.phases);
            (0..self.windows()).step_by(PLANES).map(move |first| Sources {
                place: (phase * self.windows() + first) * plane_len + place,
                count: PLANES.min(self.windows() - first),
                first: first * self.kernel[1] + column,
            })
        };
        (0..self.kernel[1]).flat_map(of_column).collect()
    }

    /// Sums between those of neighbouring sources.
    pub fn step(&self) -> usize {
        self.kernel[1]
    }

    /// Numbers of a row on its way: in the order of the image, and by phases.
    pub fn on_the_way(&self) -> usize {
        self.input[1] + self.planes_row()
    }

    fn planes_row(&self) -> usize {
        self.phases * self.seen
    }

    /// Copies what a band of rows of the gradients of an image sees. Row 0 of the band lies at `row` of the planes,
    /// whose padding is 0; `way` has room for a row on its way.
    pub fn fill(
        &self,
        memory: &Memory,
        (source, lies): (Span, &Arrangement),
        (image, row): (usize, usize),
        band: &(usize, usize),
        planes: &mut Planes<'_>,
        way: &mut [u16],
    ) {
        let [height, width] = self.input;
        let start = image * lies.image_stride();
        // SAFETY: only read in this task.
        let images = unsafe { memory.read(source.part(start..start + self.channels * height * width)) };
        let (whole, by_phase) = way[..self.on_the_way()].split_at_mut(width);
        let reach = (self.kernel[0] - 1) * self.dilation[0];
        let first = band.0 * self.stride[0];
        let end = (band.0 + band.1 - 1) * self.stride[0] + reach + 1;
        let rows = first.saturating_sub(self.pad[0])..end.saturating_sub(self.pad[0]).min(height);
        for (channel, y) in (0..self.channels).flat_map(|c| rows.clone().map(move |y| (c, y))) {
            let from = &images[(channel * height + y) * width..][..width];
            round(from, whole);
            self.split(whole, by_phase);
            for tap in 0..self.kernel[0] {
                let Some(seen) = (y + self.pad[0]).checked_sub(tap * self.dilation[0]) else { continue };
                let of_band = (seen / self.stride[0]).wrapping_sub(band.0);
                if seen % self.stride[0] > 0 || of_band >= band.1 {
                    continue;
                }
                for (phase, from) in by_phase.chunks_exact(self.seen).enumerate() {
                    let plane = phase * self.windows() + channel * self.kernel[0] + tap;
                    planes.row(plane, row + of_band)[..self.seen].copy_from_slice(from);
                }
            }
        }
    }

    /// Shares the columns of a row out among the phases, with zeros where a window sees padding.
    fn split(&self, row: &[u16], by_phase: &mut [u16]) {
        for (phase, to) in by_phase.chunks_exact_mut(self.seen).enumerate() {
            let inside = self.inside(phase, row.len());
            to[..inside.start].fill(0);
            to[inside.end..].fill(0);
            if inside.is_empty() {
                continue;
            }
            let from = &row[inside.start * self.phases + phase - self.pad[1]..];
            let to = &mut to[inside];
            match self.phases {
                1 => to.copy_from_slice(&from[..to.len()]),
                apart => to.iter_mut().zip(from.iter().step_by(apart)).for_each(|(to, from)| *to = *from),
            }
        }
    }

    /// Which columns of a phase lie inside a row of `width` columns.
    fn inside(&self, phase: usize, width: usize) -> Range<usize> {
        let start = self.pad[1].saturating_sub(phase).div_ceil(self.phases).min(self.seen);
        let end = (width + self.pad[1]).saturating_sub(phase).div_ceil(self.phases);
        start..end.clamp(start, self.seen)
    }
}

/// Rounds a row to bf16.
fn round(from: &[f32], to: &mut [u16]) {
    assert!(from.len() <= to.len(), "a row longer than its room");
    // SAFETY: planes are of tiers with bf16, and there is room, as asserted.
    let whole = unsafe { round_vectors(from, to.as_mut_ptr()) };
    from[whole..].iter().zip(&mut to[whole..]).for_each(|(from, to)| *to = rounded(*from));
}

/// Planes of numbers in bf16.
pub(super) struct Planes<'a> {
    pub pixels: &'a mut [u16],
    pub plane_len: usize,
    pub row_len: usize,
}

impl Planes<'_> {
    /// A row of a plane.
    fn row(&mut self, plane: usize, row: usize) -> &mut [u16] {
        &mut self.pixels[plane * self.plane_len + row * self.row_len..][..self.row_len]
    }
}
