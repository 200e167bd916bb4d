//! Passes over the planes of an array whose channels have numbers of their own, such as a mean.
//!
//! A plane is what one image has of a block of channels, or of one channel. Where a block is a vector, which it is but for
//! plain layouts and tiers without vectors, the passes are made of vectors ([`blocks`]) on f32 and bf16 alike; otherwise of
//! rows of numbers ([`rows`]).

mod blocks;
mod rows;

pub(crate) use rows::{ROW, Row, folded, row};

use crate::isa::{Isa, Precision};
use crate::kernel::stored::{OnStored, with_stored};
use crate::kernel::vectorised::on;
use crate::machine::Machine;

/// Channels of the widest block.
pub(crate) const WIDEST: usize = 16;

/// A number for each channel of a block; the rest is 0.
pub(crate) type Numbers = [f32; WIDEST];

/// `(x − mean) · factor + bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    pub mean: Numbers,
    pub factor: Numbers,
    pub bias: Numbers,
}

impl Affine {
    /// `x` itself.
    pub const IDENTITY: Self = Self { mean: [0.0; WIDEST], factor: [1.0; WIDEST], bias: [0.0; WIDEST] };
}

/// How a gradient goes back: `dx = dy · factor − (x − mean) · slope − offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slope {
    pub factor: Numbers,
    pub slope: Numbers,
    pub offset: Numbers,
}

/// How the planes of an array are gone through. What the passes are given as words holds whole planes of `precision`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    pub isa: Isa,
    pub precision: Precision,
    /// Channels of a plane.
    pub block: usize,
    /// Pixels of a plane.
    pub pixels: usize,
}

impl Planes {
    /// Whether each pixel is a vector.
    fn has_vectors(&self) -> bool {
        self.block > 1 && self.block == Machine::of(self.isa).channel_block
    }

    /// Means, and sums of the squared distances from them, of the values of some planes' channels.
    pub fn measure<'a>(&self, planes: impl Iterator<Item = &'a [f32]>) -> [Numbers; 2] {
        if self.has_vectors() {
            let mut moments = [[0.0; WIDEST]; 2];
            self.by_vectors(blocks::Measure { planes, moments: &mut moments });
            return moments;
        }
        let mut moments = rows::Moments::new(self.block * self.pixels);
        for x in planes {
            on(self.isa, rows::Measure { x, moments: &mut moments });
        }
        moments.joined(self.block)
    }

    /// `y ← affine(x)`, with a ReLU behind it or not, for pairs of `x` and `y`; of `y` itself without `x`.
    pub fn apply<'a>(
        &self,
        affine: &Affine,
        relu: bool,
        planes: impl Iterator<Item = (Option<&'a [f32]>, &'a mut [f32])>,
    ) {
        if self.has_vectors() {
            return self.by_vectors(blocks::Apply { affine, relu, planes });
        }
        let affine = &rows::Affine::of_blocks(affine, self.block);
        for (x, y) in planes {
            on(self.isa, rows::Apply { affine, relu, x, y });
        }
    }

    /// `y ← affine(x) + z`, with a ReLU behind it or not, for `x`, `z` and `y`.
    pub fn add<'a>(
        &self,
        affine: &Affine,
        relu: bool,
        planes: impl Iterator<Item = (&'a [f32], &'a [f32], &'a mut [f32])>,
    ) {
        if self.has_vectors() {
            return self.by_vectors(blocks::Add { affine, relu, planes });
        }
        let affine = &rows::Affine::of_blocks(affine, self.block);
        for (x, z, y) in planes {
            on(self.isa, rows::Add { affine, relu, x, z, y });
        }
    }

    /// Writes `dy`, or what is there without it, as a ReLU with the top `y` lets it pass, and finds the sums of
    /// [`Planes::correlate`] of that: for `dy`, `y`, `x` and where it goes. Without a ReLU `y` is not looked at.
    pub fn pass_on<'a>(
        &self,
        affine: &Affine,
        relu: bool,
        planes: impl Iterator<Item = (Option<&'a [f32]>, &'a [f32], &'a [f32], &'a mut [f32])>,
    ) -> [Numbers; 2] {
        if self.has_vectors() {
            let mut sums = [[0.0; WIDEST]; 2];
            self.by_vectors(blocks::PassOn { affine, relu, planes, sums: &mut sums });
            return sums;
        }
        let (affine, mut sums) = (&rows::Affine::of_blocks(affine, self.block), [[0.0; ROW]; 2]);
        for (dy, y, x, to) in planes {
            on(self.isa, rows::PassOn { relu, dy, y, to: &mut *to });
            on(self.isa, rows::Correlate { affine, relu: false, dy: to, x, sums: &mut sums });
        }
        sums.map(|row| folded(&row, self.block))
    }

    /// The sums of the values of some planes' channels.
    pub fn total<'a>(&self, planes: impl Iterator<Item = &'a [f32]>) -> Numbers {
        if self.has_vectors() {
            let mut sums = [0.0; WIDEST];
            self.by_vectors(blocks::Total { planes, sums: &mut sums });
            return sums;
        }
        let mut sums = [0.0; ROW];
        for x in planes {
            on(self.isa, rows::Total { x, sums: &mut sums });
        }
        folded(&sums, self.block)
    }

    /// Σ dy and Σ dy · (x − mean), with dy as a ReLU of `affine` lets it pass, over pairs of `dy` and `x`.
    pub fn correlate<'a>(
        &self,
        affine: &Affine,
        relu: bool,
        planes: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    ) -> [Numbers; 2] {
        if self.has_vectors() {
            let mut sums = [[0.0; WIDEST]; 2];
            self.by_vectors(blocks::Correlate { affine, relu, planes, sums: &mut sums });
            return sums;
        }
        let (affine, mut sums) = (&rows::Affine::of_blocks(affine, self.block), [[0.0; ROW]; 2]);
        for (dy, x) in planes {
            on(self.isa, rows::Correlate { affine, relu, dy, x, sums: &mut sums });
        }
        sums.map(|row| folded(&row, self.block))
    }

    /// `dx` from `dy`, or from itself without `dy`, and from `x`, with dy as a ReLU of `affine` lets it pass: for `dy`,
    /// `x` and `dx`.
    pub fn back<'a>(
        &self,
        (affine, slope): (&Affine, &Slope),
        relu: bool,
        planes: impl Iterator<Item = (Option<&'a [f32]>, &'a [f32], &'a mut [f32])>,
    ) {
        if self.has_vectors() {
            return self.by_vectors(blocks::Back { affine, slope, relu, planes });
        }
        let affine = &rows::Affine::of_blocks(affine, self.block);
        let slope = &rows::Slope::of_blocks(slope, self.block);
        for (dy, x, dx) in planes {
            on(self.isa, rows::Back { affine, relu, slope, dy, x, dx });
        }
    }

    fn by_vectors(&self, work: impl OnStored) {
        with_stored(self.isa, self.precision, work);
    }
}

/// Mean, and sum of the squared distances from it, of several parts: number, mean and squared distances of each.
pub(crate) fn joined(parts: impl Iterator<Item = (f64, f64, f64)> + Clone) -> [f64; 2] {
    let (mut sum, mut values) = (0.0, 0.0);
    for (count, mean, _) in parts.clone() {
        sum += count * mean;
        values += count;
    }
    let mean = sum / values;
    let distances = |(count, own, squares): (f64, f64, f64)| squares + count * (own - mean) * (own - mean);
    [mean, parts.map(distances).sum()]
}

#[cfg(test)]
mod tests;
