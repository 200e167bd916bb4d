//! Concat and its mirror, Slice: with extents (outer, K, inner), where K are those of the pieces along the axis,
//! whole and pieces hold the same values: `whole[o, start_p + k, i] = piece_p[o, k, i]`.

use super::{Arrays, Context, Real};
use crate::layer::{Concat, Operand, Slice, SubTask};
use crate::shape::Shape;

pub(super) fn compute_concat<T: Real>(layer: &Concat, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let cut = Cut::new(&ctx.tops[0], layer.axis, ctx.bottoms);
    match sub {
        SubTask::Forward => {
            let whole = cut.join(|p| Some(arrays.get(Operand::Bottom(p))));
            arrays.insert(Operand::Top(0), whole);
        }
        SubTask::GradActivation => {
            let pieces = cut.split(arrays.get(Operand::TopGrad(0)));
            pieces.into_iter().enumerate().for_each(|(p, dx)| arrays.insert(Operand::BottomGrad(p), dx));
        }
        _ => {}
    }
}

pub(super) fn compute_slice<T: Real>(layer: &Slice, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let cut = Cut::new(&ctx.bottoms[0], layer.axis, ctx.tops);
    match sub {
        SubTask::Forward => {
            let pieces = cut.split(arrays.get(Operand::Bottom(0)));
            pieces.into_iter().enumerate().for_each(|(p, y)| arrays.insert(Operand::Top(p), y));
        }
        SubTask::GradActivation => {
            // A top that leads to no loss has no gradient.
            let dx = cut.join(|p| arrays.find(Operand::TopGrad(p)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

/// A whole and its pieces along one axis.
struct Cut {
    /// Product of the axes before the one that is cut.
    outer: usize,
    /// Extent of each piece along that axis.
    pieces: Vec<usize>,
    /// Product of the axes after it.
    inner: usize,
}

impl Cut {
    fn new(whole: &Shape, axis: i32, pieces: &[Shape]) -> Self {
        let axis = whole.axis(axis, "axis").expect("the axis exists: checked by infer");
        Self {
            outer: whole.count_before(axis),
            pieces: pieces.iter().map(|piece| piece.dim(axis)).collect(),
            inner: whole.count_from(axis + 1),
        }
    }

    /// Piece and place in it of each element of the whole, in the order of memory.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.outer).flat_map(move |o| {
            self.pieces.iter().enumerate().flat_map(move |(p, extent)| {
                let len = extent * self.inner;
                (0..len).map(move |i| (p, o * len + i))
            })
        })
    }

    /// The whole of its pieces; 0 for a piece that does not exist.
    fn join<'a, T: Real + 'a>(&self, piece: impl Fn(usize) -> Option<&'a [T]>) -> Vec<T> {
        let pieces: Vec<Option<&[T]>> = (0..self.pieces.len()).map(piece).collect();
        self.places().map(|(p, i)| pieces[p].map_or(T::ZERO, |values| values[i])).collect()
    }

    /// The pieces of a whole.
    fn split<T: Real>(&self, whole: &[T]) -> Vec<Vec<T>> {
        let mut pieces = vec![Vec::new(); self.pieces.len()];
        self.places().zip(whole).for_each(|((p, _), value)| pieces[p].push(*value));
        pieces
    }
}
