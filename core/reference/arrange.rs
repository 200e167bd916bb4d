//! Layers that put values elsewhere, several times or not at all: Crop, Tile, BatchReindex, Filter, Im2col, Parameter,
//! DummyData, Silence. Where forward is `y[i] = x[from(i)]`, backward is `dx[from(i)] += dy[i]`, i ascending.

use super::{Arrays, Context, Real};
use crate::layer::{BatchReindex, Crop, DummyData, Im2col, Operand, Silence, SubTask, Tile};
use crate::shape::Shape;

/// Where a value of the top comes from.
enum Source {
    /// From this place of the bottom.
    Place(usize),
    /// From nowhere: it is 0.
    Nothing,
    /// From a place that does not exist: it is not a number.
    Nonsense,
}

/// Forward, and backward to bottom 0, of a layer whose top at `i` comes from `source(i)`.
fn arrange<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>, source: impl Fn(usize) -> Source) {
    let places = 0..ctx.tops[0].count();
    match sub {
        SubTask::Forward => {
            let x = arrays.get(Operand::Bottom(0));
            let value = |i| match source(i) {
                Source::Place(at) => x[at],
                Source::Nothing => T::ZERO,
                Source::Nonsense => T::NAN,
            };
            let y = places.map(value).collect();
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let mut dx = vec![T::ZERO; ctx.bottoms[0].count()];
            for (i, dy) in places.zip(arrays.get(Operand::TopGrad(0))) {
                if let Source::Place(at) = source(i) {
                    dx[at] += *dy;
                }
            }
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

/// The digits of place `index` of a shape.
fn digits(mut index: usize, shape: &Shape) -> Vec<usize> {
    let mut digits = vec![0; shape.axes()];
    for (digit, extent) in digits.iter_mut().zip(shape.dims()).rev() {
        (*digit, index) = (index % extent, index / extent);
    }
    digits
}

/// The place of some digits in a shape.
fn place(digits: &[usize], shape: &Shape) -> usize {
    digits.iter().zip(shape.dims()).fold(0, |place, (digit, extent)| place * extent + digit)
}

pub(super) fn crop<T: Real>(layer: &Crop, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let (offsets, top) = layer.part(ctx.bottoms).expect("the part fits: checked by infer");
    arrange(ctx, sub, arrays, |i| {
        let moved: Vec<usize> =
            digits(i, &top).iter().zip(&offsets).map(|(digit, offset)| digit + offset).collect();
        Source::Place(place(&moved, &ctx.bottoms[0]))
    });
}

pub(super) fn tile<T: Real>(layer: &Tile, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let (bottom, top) = (&ctx.bottoms[0], &ctx.tops[0]);
    let axis = bottom.axis(layer.axis, "axis").expect("the axis exists: checked by infer");
    arrange(ctx, sub, arrays, |i| {
        let mut digits = digits(i, top);
        digits[axis] %= bottom.dim(axis);
        Source::Place(place(&digits, bottom))
    });
}

pub(super) fn batch_reindex<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let indices: Vec<f64> = arrays.get(Operand::Bottom(1)).iter().map(|index| index.to_f64()).collect();
    let (images, each) = (ctx.bottoms[0].images(), ctx.bottoms[0].per_image());
    arrange(ctx, sub, arrays, |i| match BatchReindex::image(indices[i / each], images) {
        Some(image) => Source::Place(image * each + i % each),
        None => Source::Nonsense,
    });
}

pub(super) fn im2col<T: Real>(layer: &Im2col, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let (bottom, top) = (&ctx.bottoms[0], &ctx.tops[0]);
    let (axis, windows, _) = layer.windows_of(bottom).expect("the windows fit: checked by infer");
    let taps = Shape::new(windows.kernel.clone());
    arrange(ctx, sub, arrays, |i| {
        let mut at = digits(i, top);
        let tap = digits(at[axis] % taps.count(), &taps);
        at[axis] /= taps.count();
        for (a, tap) in tap.into_iter().enumerate() {
            let padded = at[axis + 1 + a] * windows.stride[a] + tap * windows.dilation[a];
            let extent = bottom.dim(axis + 1 + a);
            match padded.checked_sub(windows.pad[a]).filter(|x| *x < extent) {
                Some(x) => at[axis + 1 + a] = x,
                None => return Source::Nothing,
            }
        }
        Source::Place(place(&at, bottom))
    });
}

/// The images that the last bottom marks, then zeros.
pub(super) fn filter<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    if sub != SubTask::Forward {
        return;
    }
    let last = Operand::Bottom(ctx.bottoms.len() - 1);
    let marked: Vec<usize> =
        arrays.get(last).iter().enumerate().filter(|(_, mark)| **mark != T::ZERO).map(|(n, _)| n).collect();
    for (t, shape) in ctx.tops.iter().enumerate() {
        let (x, each) = (arrays.get(Operand::Bottom(t)), shape.per_image());
        let mut y: Vec<T> = marked.iter().flat_map(|n| &x[n * each..(n + 1) * each]).copied().collect();
        y.resize(shape.count(), T::ZERO);
        arrays.insert(Operand::Top(t), y);
    }
}

/// `y = w` and `dw = dy`.
pub(super) fn parameter<T: Real>(sub: SubTask, arrays: &mut Arrays<T>) {
    let (from, to) = match sub {
        SubTask::Forward => (Operand::Param(0), Operand::Top(0)),
        SubTask::GradWeight => (Operand::TopGrad(0), Operand::ParamGrad(0)),
        _ => return,
    };
    let values = arrays.get(from).to_vec();
    arrays.insert(to, values);
}

pub(super) fn dummy_data<T: Real>(layer: &DummyData, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    if sub != SubTask::Forward {
        return;
    }
    for (top, shape) in ctx.tops.iter().enumerate() {
        let mut values = vec![0.0; shape.count()];
        layer.fill(top, shape, ctx.draw, &mut values);
        arrays.insert(Operand::Top(top), values.into_iter().map(T::from_f32).collect());
    }
}

/// Nothing flows back from what nobody reads.
pub(super) fn silence<T: Real>(layer: &Silence, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    if sub == SubTask::GradActivation {
        for b in 0..layer.bottoms {
            arrays.insert(Operand::BottomGrad(b), vec![T::ZERO; ctx.bottoms[b].count()]);
        }
    }
}
