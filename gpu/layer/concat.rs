//! Concat and its mirror, Slice: rows of a whole are rows of its pieces, side by side.

use quadrille_core::layer::{Concat, Operand, Slice, SubTask};
use quadrille_core::shape::Shape;

use super::Binder;
use crate::op::{Op, Span, arguments};

/// Which way the values go.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Join,
    Cut,
}

/// Copies between a whole and its pieces. What is joined of a piece that does not exist is 0; what would be cut for one is
/// left out.
fn copies(
    way: Way,
    whole: (&Shape, Span),
    axis: i32,
    pieces: &[(Shape, Option<Span>)],
    channels_last: bool,
) -> Result<Vec<Op>, String> {
    let (shape, whole) = whole;
    let axis = shape.axis(axis, "axis").map_err(|fault| fault.message)?;
    // Where channels lie last, a pixel has its rows side by side, not an image.
    let rows = |shape: &Shape| match channels_last {
        true => [shape.images() * shape.dim(2) * shape.dim(3), shape.dim(1)],
        false => [shape.count_before(axis), shape.count_from(axis)],
    };
    let [outer, step] = rows(shape);
    let (mut ops, mut start) = (Vec::new(), 0);
    for (piece, span) in pieces {
        let [_, row] = rows(piece);
        let count = outer * row;
        // From the first of its values to the end.
        let own = whole.part(start, whole.len - start);
        match (way, span) {
            (Way::Join, Some(piece)) => {
                ops.push(Op::each("copy_rows", count, arguments![*piece, own, row, row, step, count]));
            }
            (Way::Join, None) => {
                ops.push(Op::each("zero_rows", count, arguments![own, row, step, count]));
            }
            (Way::Cut, Some(piece)) => {
                ops.push(Op::each("copy_rows", count, arguments![own, *piece, row, step, row, count]));
            }
            (Way::Cut, None) => {}
        }
        start += row;
    }
    Ok(ops)
}

pub(super) fn ops(layer: &Concat, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (way, whole, piece): (Way, Operand, fn(usize) -> Operand) = match sub {
        SubTask::Forward => (Way::Join, Operand::Top(0), Operand::Bottom),
        _ => (Way::Cut, Operand::TopGrad(0), Operand::BottomGrad),
    };
    let pieces = at.bottoms().into_iter().enumerate().map(|(i, shape)| (shape, at.find(piece(i))));
    copies(way, (&at.top(0), at.get(whole)?), layer.axis, &pieces.collect::<Vec<_>>(), at.has_channels_last())
}

pub(super) fn slice_ops(layer: &Slice, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (way, whole, piece): (Way, Operand, fn(usize) -> Operand) = match sub {
        SubTask::Forward => (Way::Cut, Operand::Bottom(0), Operand::Top),
        _ => (Way::Join, Operand::BottomGrad(0), Operand::TopGrad),
    };
    let tops = at.net.top_shapes(at.id);
    let pieces = tops.into_iter().enumerate().map(|(i, shape)| (shape, at.find(piece(i))));
    copies(
        way,
        (&at.bottom(0), at.get(whole)?),
        layer.axis,
        &pieces.collect::<Vec<_>>(),
        at.has_channels_last(),
    )
}
