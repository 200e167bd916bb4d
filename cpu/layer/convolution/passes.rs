//! Convolution and its ∇A as one thing: passes of correlation.
//!
//! A pass computes target pixels `first + q · step` for places `q` of a grid from source pixels
//! `q · source_step + offset(tap)`. The convolution is one pass over all taps. In ∇A with stride s the input pixels of
//! one residue modulo s see the same taps, so there are s × s passes, each with its share of the taps; a residue that
//! no tap sees gets zeros.

use std::ops::Range;

use quadrille_core::layer::Convolution;

use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::strip::{Content, Strip};

/// A tap of the kernel in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    /// Its place in the kernel, row by row.
    pub index: usize,
    /// Rows and columns between the grid's place in the source and what the tap sees.
    pub offset: [isize; 2],
}

/// One pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// The taps.
    pub taps: Vec<Tap>,
    /// Target pixel of place (0, 0).
    pub first: [isize; 2],
    /// Distance of target pixels.
    pub step: [usize; 2],
    /// The places whose target pixels exist.
    pub places: [Range<usize>; 2],
}

/// All passes of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passes {
    /// The passes.
    pub passes: Vec<Pass>,
    /// Rows and columns of the source.
    pub source: [usize; 2],
    /// Rows and columns of the target.
    pub target: [usize; 2],
    /// Distance in the source of neighbouring places.
    pub source_step: [usize; 2],
    /// Places along each axis.
    pub places: [usize; 2],
    /// Whether passes share target pixels, so that each adds to what the others made of zeros.
    pub overlap: bool,
}

impl Passes {
    /// The convolution itself.
    pub fn forward(layer: &Convolution, input: [usize; 2], output: [usize; 2]) -> Self {
        let offset = |tap: usize, a: usize| (tap * layer.dilation[a]) as isize - layer.pad[a] as isize;
        let taps = taps(layer).map(|(index, [h, w])| Tap { index, offset: [offset(h, 0), offset(w, 1)] });
        let pass = Pass {
            taps: taps.collect(),
            first: [0; 2],
            step: [1; 2],
            places: output.map(|places| 0..places),
        };
        let (source, target, source_step) = (input, output, layer.stride);
        Self { passes: vec![pass], source, target, source_step, places: output, overlap: false }
    }

    /// The gradient of the input.
    pub fn backward(layer: &Convolution, input: [usize; 2], output: [usize; 2]) -> Self {
        let [sh, sw] = layer.stride;
        let passes = (0..sh * sw).map(|phase| {
            let phase = [phase / sw, phase % sw];
            let offset = |tap: usize, a: usize| {
                let seen = (tap * layer.dilation[a]).checked_sub(phase[a])?;
                seen.is_multiple_of(layer.stride[a]).then(|| -((seen / layer.stride[a]) as isize))
            };
            let taps = taps(layer)
                .filter_map(|(index, [h, w])| Some(Tap { index, offset: [offset(h, 0)?, offset(w, 1)?] }));
            let places = |a: usize| {
                let first = layer.pad[a].saturating_sub(phase[a]).div_ceil(layer.stride[a]);
                let end = (input[a] + layer.pad[a]).saturating_sub(phase[a]).div_ceil(layer.stride[a]);
                first..end.max(first)
            };
            Pass {
                taps: taps.collect(),
                first: [0, 1].map(|a| phase[a] as isize - layer.pad[a] as isize),
                step: layer.stride,
                places: [places(0), places(1)],
            }
        });
        let places = [0, 1].map(|a| (input[a] + layer.pad[a]).div_ceil(layer.stride[a]));
        let passes = passes.collect();
        Self { passes, source: output, target: input, source_step: [1; 2], places, overlap: false }
    }

    /// The gradient of the input the other way round: one pass a tap over the output's gradient, each of whose pixels
    /// goes to the pixel of the input that the tap saw. No tap meets padding, but every pass adds to the target.
    pub fn scattered(layer: &Convolution, input: [usize; 2], output: [usize; 2]) -> Self {
        let passes = taps(layer).map(|(index, tap)| {
            let first = [0, 1].map(|a| (tap[a] * layer.dilation[a]) as isize - layer.pad[a] as isize);
            let places = [0, 1].map(|a| {
                let start = first[a].min(0).unsigned_abs().div_ceil(layer.stride[a]);
                let beyond = (input[a] as isize - first[a]).max(0).unsigned_abs().div_ceil(layer.stride[a]);
                start.min(output[a])..beyond.min(output[a]).max(start.min(output[a]))
            });
            Pass { taps: vec![Tap { index, offset: [0; 2] }], first, step: layer.stride, places }
        });
        let passes = passes.collect();
        Self { passes, source: output, target: input, source_step: [1; 2], places: output, overlap: true }
    }

    /// The cheaper of the two ways to the gradient of the input.
    pub fn cheaper_backward(
        layer: &Convolution,
        [input, output]: [[usize; 2]; 2],
        numerics: Numerics,
    ) -> Self {
        let gathered = Self::backward(layer, input, output);
        let scattered = Self::scattered(layer, input, output);
        let saved = gathered.products().saturating_sub(scattered.products());
        // Adding to the target costs a little for each pass; beside the products of AMX, much.
        let amx = numerics == Numerics { isa: Isa::AmxBf16, precision: Precision::Bf16 };
        let [worth, of] = if amx { [3, 4] } else { [1, 5] };
        if saved * of > gathered.products() * worth { scattered } else { gathered }
    }

    /// Products of one channel with one: those of every pixel of a row, of rows that are inside the source.
    pub fn products(&self) -> usize {
        let of = |pass: &Pass| {
            let inside = |row: usize, tap: &&Tap| {
                let seen = (row * self.source_step[0]) as isize + tap.offset[0];
                (0..self.source[0] as isize).contains(&seen)
            };
            let seen = |row| pass.taps.iter().filter(|tap| inside(row, tap)).count();
            pass.places[0].clone().map(seen).sum::<usize>() * pass.places[1].len()
        };
        self.passes.iter().map(of).sum()
    }

    /// Whether every tap sees the source where it lies, at the place's own pixel. Rows below the source are left out of what a row of
    /// places sees, but columns beside it are not: only a strip has zeros there.
    pub fn sees_in_place(&self) -> bool {
        let inside = |pass: &Pass| pass.taps.is_empty() || pass.places[1].end <= self.source[1];
        let at_places = [0, 1].into_iter().all(|a| self.reach(a) == [0; 2]);
        self.source_step == [1; 2] && at_places && self.passes.iter().all(inside)
    }

    /// The smallest and the largest offset of a tap along an axis.
    pub fn reach(&self, axis: usize) -> [isize; 2] {
        let offsets = || self.passes.iter().flat_map(|p| &p.taps).map(|t| t.offset[axis]);
        [offsets().min().unwrap_or(0), offsets().max().unwrap_or(0)]
    }

    /// The largest step along an axis that leaves out nothing that some place's taps see.
    pub fn lattice(&self, axis: usize) -> usize {
        let gcd = |mut a: usize, mut b: usize| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let [least, _] = self.reach(axis);
        let offsets = self.passes.iter().flat_map(|p| &p.taps).map(|t| (t.offset[axis] - least) as usize);
        offsets.fold(self.source_step[axis], gcd)
    }

    /// The strip of `places` rows of places, for `planes` planes of pixels of `pixel` elements.
    pub fn strip(&self, content: Content, planes: usize, pixel: usize, places: usize) -> Strip {
        let [least, most] = self.reach(0);
        let [left, right] = self.reach(1);
        let step = [self.lattice(0), self.lattice(1)];
        let span = |places: usize, a: usize, reach: isize| {
            (places.saturating_sub(1) * self.source_step[a] + reach as usize) / step[a] + 1
        };
        let phases = self.source_step[1] / step[1];
        Strip {
            content,
            pixel,
            planes,
            rows: span(places, 0, most - least),
            step,
            phases,
            phase_len: span(self.places[1], 1, right - left).div_ceil(phases),
            first_column: left,
            source: self.source,
        }
    }

    /// The first row of the target that rows of places from `row` on reach.
    pub fn first_target_row(&self, row: usize) -> usize {
        let first = self.passes.iter().map(|p| (row * p.step[0]) as isize + p.first[0]).min();
        first.unwrap_or(0).max(0).unsigned_abs()
    }

    /// Most rows of the target between the first and the last that `rows` rows of places reach.
    pub fn target_rows(&self, rows: usize) -> usize {
        let first = |p: &Pass| p.first[0];
        let spread = self.passes.iter().map(first).max().unwrap_or(0)
            - self.passes.iter().map(first).min().unwrap_or(0);
        let step = self.passes.iter().map(|p| p.step[0]).max().unwrap_or(1);
        (rows.saturating_sub(1) * step + spread.unsigned_abs() + 1).min(self.target[0])
    }

    /// Whether each target pixel is summed up at once, so that it may start from what is there.
    pub fn sum_at_once(&self) -> bool {
        !self.overlap && self.passes.len() == 1
    }

    /// Whether each target pixel sees the source pixel at its own place and nothing else.
    pub fn is_pointwise(&self) -> bool {
        let alone = |p: &Pass| p.taps.len() == 1 && p.step == [1; 2] && p.first == [0; 2];
        self.passes.iter().all(alone) && self.source == self.target && self.sees_in_place()
    }

    /// The same passes with the taps of a row in the order of the phases of a strip ([`Strip::tap`]): of plain planes, those of one
    /// phase see elements that lie side by side.
    pub fn by_phase(mut self) -> Self {
        let (least, lattice) = (self.reach(1)[0], self.lattice(1) as isize);
        let phases = self.source_step[1] as isize / lattice;
        let phase = |tap: &Tap| (tap.offset[1] - least) / lattice % phases;
        for pass in &mut self.passes {
            pass.taps.sort_by_key(|tap| (tap.offset[0], phase(tap), tap.offset[1]));
        }
        self
    }

    /// The same passes of a convolution of kernels of `columns` columns, with only the first of each two taps of a row.
    pub fn paired_taps(mut self, columns: usize) -> Self {
        self.passes.iter_mut().for_each(|p| p.taps.retain(|tap| (tap.index % columns).is_multiple_of(2)));
        self
    }

    /// The same passes of a convolution with two neighbouring places of a row as one, of which the last of an odd number
    /// lacks its second.
    pub fn in_pairs(mut self) -> Self {
        self.places[1] = self.places[1].div_ceil(2);
        self.source_step[1] *= 2;
        self.passes.iter_mut().for_each(|p| p.places[1] = 0..self.places[1]);
        self
    }

    /// The same pointwise passes with all pixels in one row.
    pub fn in_one_row(mut self) -> Self {
        let pixels = self.source[0] * self.source[1];
        let row = [1, pixels];
        (self.source, self.target, self.places) = (row, row, row);
        self.passes.iter_mut().for_each(|p| p.places = [0..1, 0..pixels]);
        self
    }
}

/// The kernel's taps: place, row and column.
fn taps(layer: &Convolution) -> impl Iterator<Item = (usize, [usize; 2])> {
    let [kh, kw] = layer.kernel;
    (0..kh * kw).map(move |index| (index, [index / kw, index % kw]))
}
