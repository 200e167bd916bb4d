//! Concat and Slice: a whole and its pieces along an axis, copied in runs as long as a piece of one image.
//!
//! Along the channels of blobs in blocks the same runs serve if every piece begins at a block. All lengths are in words.

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};
use quadrille_core::shape::Shape;

use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::isa::{Isa, Numerics};
use crate::layout::Layout;
use crate::machine::Machine;
use crate::memory::{Memory, Span};

/// The axis that a layer cuts, the shape of the whole and those of its pieces.
fn cut(net: &Net, id: LayerId) -> Option<(usize, Shape, Vec<Shape>)> {
    let (bottoms, tops) = (net.bottom_shapes(id), net.top_shapes(id));
    let (axis, mut whole, pieces) = match &net.layer(id).layer {
        Layer::Concat(concat) => (concat.axis, tops, bottoms),
        Layer::Slice(slice) => (slice.axis, bottoms, tops),
        _ => return None,
    };
    let whole = whole.swap_remove(0);
    let axis = whole.axis(axis, "axis").ok()?;
    Some((axis, whole, pieces))
}

/// Whether blocks of channels can do a layer: along the channels, if every piece but the last is of whole blocks.
pub(super) fn fits_blocked(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let block = Machine::of(numerics.isa).channel_block;
    cut(net, id).is_some_and(|(axis, whole, pieces)| {
        let whole_blocks = |(_, piece): &(usize, &Shape)| piece.dim(1).is_multiple_of(block);
        let others = pieces.len().saturating_sub(1);
        let aligned = pieces.iter().enumerate().take(others).all(|piece| whole_blocks(&piece));
        numerics.isa != Isa::Portable && whole.axes() == 4 && axis == 1 && aligned
    })
}

struct Copies {
    /// Product of the extents before the axis that is cut.
    outer: usize,
    /// Where each piece begins and ends in a run of the whole.
    pieces: Vec<std::ops::Range<usize>>,
    /// Words of a run of the whole.
    run: usize,
    whole: Sides,
    parts: Vec<Sides>,
    is_concat: bool,
    grains: usize,
}

/// Where a blob's values and its gradient lie.
#[derive(Clone, Copy)]
struct Sides {
    values: Option<Array>,
    gradient: Option<Array>,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let (axis, whole, pieces) = cut(binder.net, binder.id)?;
    let is_concat = matches!(binder.layer().layer, Layer::Concat(_));
    let (first, piece): (Operand, fn(usize) -> Operand) =
        if is_concat { (Operand::Top(0), Operand::Bottom) } else { (Operand::Bottom(0), Operand::Top) };
    let gradient = |operand| match operand {
        Operand::Bottom(i) => Operand::BottomGrad(i),
        Operand::Top(i) => Operand::TopGrad(i),
        other => other,
    };
    let layout = binder.arrangement(first)?.layout;
    let mut sides =
        |operand| Sides { values: binder.array(operand), gradient: binder.array(gradient(operand)) };
    let (whole_sides, parts) = (sides(first), (0..pieces.len()).map(|i| sides(piece(i))).collect());
    let mut end = 0;
    let places = pieces.iter().map(|shape| {
        let extent = shape.dim(axis);
        let blocks = || extent.div_ceil(layout.block) * layout.pixel();
        let extent = if layout == Layout::PLAIN { extent } else { blocks() };
        let start = end;
        end += extent * whole.count_from(axis + 1);
        start..end
    });
    let pieces: Vec<_> = places.collect();
    let outer = whole.count_before(axis);
    let grains = binder.stream_grains(outer * end);
    Some(Box::new(Copies { outer, pieces, run: end, whole: whole_sides, parts, is_concat, grains }))
}

impl Copies {
    /// Calls `each(piece, place in the whole, place in the piece, words)` for the runs of a grain.
    fn each(&self, grain: &Grain<'_>, mut each: impl FnMut(usize, usize, usize, usize)) {
        let share = grain.share(self.outer * self.run);
        for outer in share.start / self.run.max(1)..share.end.div_ceil(self.run.max(1)) {
            for (piece, place) in self.pieces.iter().enumerate() {
                let begin = outer * self.run + place.start;
                let (start, end) = (begin.max(share.start), (begin + place.len()).min(share.end));
                if start < end {
                    each(piece, start, outer * place.len() + start - begin, end - start);
                }
            }
        }
    }

    /// The pieces from the whole.
    fn split(&self, grain: &Grain<'_>, whole: Option<Array>, part: impl Fn(&Sides) -> Option<Array>) {
        let Some(whole) = whole else { return };
        self.each(grain, |piece, at, to, len| {
            if let Some(part) = part(&self.parts[piece]) {
                copy(grain.memory, whole.part(at..at + len), part.part(to..to + len));
            }
        });
    }

    /// The whole from the pieces; 0 for a piece that does not exist.
    fn join(&self, grain: &Grain<'_>, whole: Option<Array>, part: impl Fn(&Sides) -> Option<Array>) {
        let Some(whole) = whole else { return };
        self.each(grain, |piece, at, from, len| match part(&self.parts[piece]) {
            Some(part) => copy(grain.memory, part.part(from..from + len), whole.part(at..at + len)),
            // SAFETY: grains have elements of their own.
            None => unsafe { grain.memory.write(whole.part(at..at + len)) }.fill(0.0),
        });
    }
}

fn copy(memory: &Memory, from: Span, to: Span) {
    // SAFETY: grains have elements of their own; the whole and its pieces are different arrays.
    unsafe { memory.write(to).copy_from_slice(memory.read(from)) }
}

impl LayerKernel for Copies {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        if self.is_concat {
            self.join(grain, self.whole.values, |sides| sides.values);
        } else {
            self.split(grain, self.whole.values, |sides| sides.values);
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        if self.is_concat {
            self.split(grain, self.whole.gradient, |sides| sides.gradient);
        } else {
            self.join(grain, self.whole.gradient, |sides| sides.gradient);
        }
    }
}
