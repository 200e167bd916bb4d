//! Layers that put values elsewhere or several times, in plain layout: Tile, Crop, BatchReindex, Filter, Im2col. Values go
//! in rows, and each grain writes rows of its own.

use quadrille_core::layer::{BatchReindex, Layer, Operand, SubTask};

use super::{Binder, Grain, LayerKernel, Stages};
use crate::kernel::im2col::Geometry;
use crate::memory::Span;

/// The arrays of a layer with one bottom that gets a gradient, and one top.
#[derive(Clone, Copy)]
struct Ends {
    bottom: Span,
    top: Span,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

impl Ends {
    fn new(binder: &mut Binder<'_>) -> Option<Self> {
        let (bottom, top) = (binder.span(Operand::Bottom(0))?, binder.span(Operand::Top(0))?);
        Some(Self {
            bottom,
            top,
            bottom_grad: binder.span(Operand::BottomGrad(0)),
            top_grad: binder.span(Operand::TopGrad(0)),
            grains: binder.stream_grains(bottom.len().max(top.len())),
        })
    }

    fn gradients(&self) -> Option<(Span, Span)> {
        self.bottom_grad.zip(self.top_grad)
    }
}

/// Row `index` of an array of rows.
fn row(span: Span, index: usize, len: usize) -> Span {
    span.part(index * len..(index + 1) * len)
}

struct Tile {
    ends: Ends,
    tiles: usize,
    /// Elements that are repeated as one.
    len: usize,
}

pub(super) fn tile(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Tile(layer) = &binder.layer().layer else { return None };
    let bottom = binder.net.bottom_shapes(binder.id).swap_remove(0);
    let len = bottom.count_from(bottom.axis(layer.axis, "axis").ok()?);
    Some(Box::new(Tile { ends: Ends::new(binder)?, tiles: layer.tiles, len }))
}

impl LayerKernel for Tile {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.ends.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let Ends { bottom, top, .. } = self.ends;
        for copy in grain.share(top.len() / self.len) {
            // SAFETY: grains have copies of their own; bottom and top are different arrays.
            let (x, y) = unsafe {
                (
                    grain.memory.read(row(bottom, copy / self.tiles, self.len)),
                    grain.memory.write(row(top, copy, self.len)),
                )
            };
            y.copy_from_slice(x);
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some((bottom_grad, top_grad)) = self.ends.gradients() else { return };
        // By elements, since there may be only one run that is repeated.
        let share = grain.share(bottom_grad.len());
        let mut start = share.start;
        while start < share.end {
            let (run, first) = (start / self.len, start % self.len);
            let len = (self.len - first).min(share.end - start);
            // SAFETY: grains have elements of their own.
            let dx = unsafe { grain.memory.write(bottom_grad.part(start..start + len)) };
            for tile in 0..self.tiles {
                let from = (run * self.tiles + tile) * self.len + first;
                // SAFETY: only read in this task.
                let dy = unsafe { grain.memory.read(top_grad.part(from..from + len)) };
                match tile {
                    0 => dx.copy_from_slice(dy),
                    _ => dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy),
                }
            }
            start += len;
        }
    }
}

struct Crop {
    ends: Ends,
    offsets: Vec<usize>,
    /// Extents of the whole and of the part.
    whole: Vec<usize>,
    part: Vec<usize>,
}

pub(super) fn crop(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Crop(layer) = &binder.layer().layer else { return None };
    let bottoms = binder.net.bottom_shapes(binder.id);
    let (offsets, part) = layer.part(&bottoms).ok()?;
    let (whole, part) = (bottoms[0].dims().to_vec(), part.dims().to_vec());
    Some(Box::new(Crop { ends: Ends::new(binder)?, offsets, whole, part }))
}

impl Crop {
    /// Elements of a row of the whole and of the part, and where in the one the other begins.
    fn row(&self) -> Option<[usize; 3]> {
        Some([*self.whole.last()?, *self.part.last()?, *self.offsets.last()?])
    }

    /// The row of the whole that a row of the part is in.
    fn outer(&self, mut row: usize) -> usize {
        let (mut place, mut rows) = (0, 1);
        for axis in (0..self.part.len() - 1).rev() {
            place += (row % self.part[axis] + self.offsets[axis]) * rows;
            row /= self.part[axis];
            rows *= self.whole[axis];
        }
        place
    }

    /// The row of the part that lies in a row of the whole, if one does.
    fn inner(&self, mut row: usize) -> Option<usize> {
        let (mut place, mut rows) = (0, 1);
        for axis in (0..self.part.len() - 1).rev() {
            let digit = (row % self.whole[axis]).checked_sub(self.offsets[axis])?;
            if digit >= self.part[axis] {
                return None;
            }
            place += digit * rows;
            row /= self.whole[axis];
            rows *= self.part[axis];
        }
        Some(place)
    }
}

impl LayerKernel for Crop {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.ends.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let Some([whole, part, offset]) = self.row() else { return };
        for r in grain.share(self.ends.top.len() / part) {
            let from = self.outer(r) * whole + offset;
            // SAFETY: grains have rows of their own; bottom and top are different arrays.
            let (x, y) = unsafe {
                (
                    grain.memory.read(self.ends.bottom.part(from..from + part)),
                    grain.memory.write(row(self.ends.top, r, part)),
                )
            };
            y.copy_from_slice(x);
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some((bottom_grad, top_grad)), Some([whole, part, offset])) =
            (self.ends.gradients(), self.row())
        else {
            return;
        };
        for r in grain.share(bottom_grad.len() / whole) {
            // SAFETY: grains have rows of their own.
            let dx = unsafe { grain.memory.write(row(bottom_grad, r, whole)) };
            dx.fill(0.0);
            if let Some(inner) = self.inner(r) {
                // SAFETY: only read in this task.
                let dy = unsafe { grain.memory.read(row(top_grad, inner, part)) };
                dx[offset..offset + part].copy_from_slice(dy);
            }
        }
    }
}

struct Reindex {
    ends: Ends,
    indices: Span,
    images: usize,
    /// Elements of an image.
    len: usize,
}

pub(super) fn batch_reindex(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::BatchReindex(_) = &binder.layer().layer else { return None };
    let bottom = binder.net.bottom_shapes(binder.id).swap_remove(0);
    let indices = binder.span(Operand::Bottom(1))?;
    let (images, len) = (bottom.images(), bottom.per_image());
    Some(Box::new(Reindex { ends: Ends::new(binder)?, indices, images, len }))
}

impl Reindex {
    /// The image that each index names.
    fn named<'a>(&self, grain: &Grain<'a>) -> impl Iterator<Item = Option<usize>> + use<'a> {
        let images = self.images;
        // SAFETY: only read in this task.
        let indices = unsafe { grain.memory.read(self.indices) };
        indices.iter().map(move |index| BatchReindex::image(f64::from(*index), images))
    }
}

impl LayerKernel for Reindex {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.ends.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let share = grain.share(self.indices.len());
        for (n, image) in self.named(grain).enumerate().skip(share.start).take(share.len()) {
            // SAFETY: grains have images of their own.
            let y = unsafe { grain.memory.write(row(self.ends.top, n, self.len)) };
            match image {
                Some(image) => {
                    // SAFETY: another array, only read in this task.
                    let x = unsafe { grain.memory.read(row(self.ends.bottom, image, self.len)) };
                    y.copy_from_slice(x);
                }
                None => y.fill(f32::NAN),
            }
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some((bottom_grad, top_grad)) = self.ends.gradients() else { return };
        for image in grain.share(self.images) {
            // SAFETY: grains have images of their own.
            let dx = unsafe { grain.memory.write(row(bottom_grad, image, self.len)) };
            dx.fill(0.0);
            for (n, _) in self.named(grain).enumerate().filter(|(_, named)| *named == Some(image)) {
                // SAFETY: only read in this task.
                let dy = unsafe { grain.memory.read(row(top_grad, n, self.len)) };
                dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy);
            }
        }
    }
}

struct Filter {
    /// Bottoms and tops that belong together, with the elements of an image.
    pairs: Vec<(Span, Span, usize)>,
    selector: Span,
    grains: usize,
}

pub(super) fn filter(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Filter(layer) = &binder.layer().layer else { return None };
    let (last, shapes) = (layer.bottoms - 1, binder.net.top_shapes(binder.id));
    let mut pair = |(i, len)| Some((binder.span(Operand::Bottom(i))?, binder.span(Operand::Top(i))?, len));
    let pairs = shapes
        .iter()
        .map(|shape| shape.per_image())
        .enumerate()
        .map(&mut pair)
        .collect::<Option<Vec<_>>>()?;
    let all = pairs.iter().map(|(bottom, ..)| bottom.len()).sum();
    let (selector, grains) = (binder.span(Operand::Bottom(last))?, binder.stream_grains(all));
    Some(Box::new(Filter { pairs, selector, grains }))
}

impl LayerKernel for Filter {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        // SAFETY: only read in this task.
        let marks = unsafe { grain.memory.read(self.selector) };
        let share = grain.share(marks.len());
        let mut marked =
            marks.iter().enumerate().filter(|(_, mark)| **mark != 0.0).map(|(n, _)| n).skip(share.start);
        for to in share {
            let from = marked.next();
            for &(bottom, top, len) in &self.pairs {
                // SAFETY: grains have images of their own.
                let y = unsafe { grain.memory.write(row(top, to, len)) };
                match from {
                    // SAFETY: another array, only read in this task.
                    Some(from) => y.copy_from_slice(unsafe { grain.memory.read(row(bottom, from, len)) }),
                    None => y.fill(0.0),
                }
            }
        }
    }
}

struct Im2col {
    ends: Ends,
    geometry: Geometry,
    images: usize,
}

pub(super) fn im2col(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Im2col(layer) = &binder.layer().layer else { return None };
    let bottom = binder.net.bottom_shapes(binder.id).swap_remove(0);
    let (axis, windows, output) = layer.windows_of(&bottom).ok()?;
    let (channels, input) = (bottom.dim(axis), bottom.dims()[axis + 1..].to_vec());
    let geometry = Geometry { channels, input, output, windows };
    Some(Box::new(Im2col { ends: Ends::new(binder)?, geometry, images: bottom.count_before(axis) }))
}

impl LayerKernel for Im2col {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.ends.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let matrix = self.geometry.rows() * self.geometry.columns();
        for n in grain.share(self.images) {
            // SAFETY: grains have images of their own; bottom and top are different arrays.
            let (x, y) = unsafe {
                (
                    grain.memory.read(row(self.ends.bottom, n, self.geometry.image())),
                    grain.memory.write(row(self.ends.top, n, matrix)),
                )
            };
            self.geometry.unfold(x, y);
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let Some((bottom_grad, top_grad)) = self.ends.gradients() else { return };
        let matrix = self.geometry.rows() * self.geometry.columns();
        for n in grain.share(self.images) {
            // SAFETY: grains have images of their own; the gradients are different arrays.
            let (dx, dy) = unsafe {
                (
                    grain.memory.write(row(bottom_grad, n, self.geometry.image())),
                    grain.memory.read(row(top_grad, n, matrix)),
                )
            };
            self.geometry.fold(dy, dx);
        }
    }
}
