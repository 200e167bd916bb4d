//! Product, weighted sum or maximum of several arrays, two at a time.

use quadrille_core::layer::{Eltwise, EltwiseOperation, Operand, SubTask};

use super::Binder;
use crate::op::{Op, Span, arguments};

pub(super) fn ops(layer: &Eltwise, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let count = at.bottom(0).count();
    let bottoms = |at: &Binder<'_>| -> Result<Vec<Span>, String> {
        (0..layer.bottoms).map(|i| at.get(Operand::Bottom(i))).collect()
    };
    match sub {
        SubTask::Forward => {
            let (x, y) = (bottoms(at)?, at.get(Operand::Top(0))?);
            Ok(match &layer.operation {
                EltwiseOperation::Product { .. } => product(&x, y, count),
                EltwiseOperation::Sum { coefficients, relu } => {
                    let terms: Vec<(Span, f32)> = x.into_iter().zip(factors(coefficients)).collect();
                    sum(&terms, y, *relu, count)
                }
                EltwiseOperation::Max => max(&x, y, at.get(Operand::Aux(0))?, count),
            })
        }
        _ => backward(layer, at, count),
    }
}

fn factors(coefficients: &[f32]) -> impl Iterator<Item = f32> {
    coefficients.iter().copied().chain(std::iter::repeat(1.0))
}

/// `y = Σ a x` of two terms or more, from left to right, and perhaps a ReLU.
pub(super) fn sum(terms: &[(Span, f32)], y: Span, relu: bool, count: usize) -> Vec<Op> {
    let [(x, a), (z, b), more @ ..] = terms else { return Vec::new() };
    let ends = |behind: usize| relu && behind == more.len();
    let first = Op::each_few("sum_two", count, arguments![*x, *z, y, *a, *b, ends(0), count]);
    let add = |(i, (x, a)): (usize, &(Span, f32))| {
        Op::each_few("sum_two", count, arguments![y, *x, y, 1.0, *a, ends(i + 1), count])
    };
    std::iter::once(first).chain(more.iter().enumerate().map(add)).collect()
}

/// `y = Π x`, from left to right.
fn product(x: &[Span], y: Span, count: usize) -> Vec<Op> {
    let mut ops = Vec::new();
    for (i, pair) in x.windows(2).enumerate() {
        let first = if i == 0 { pair[0] } else { y };
        ops.push(Op::each("product_two", count, arguments![first, pair[1], y, count]));
    }
    ops
}

fn max(x: &[Span], y: Span, from: Span, count: usize) -> Vec<Op> {
    let more = x.iter().enumerate().skip(2);
    let more = more.map(|(i, x)| Op::each("max_more", count, arguments![*x, y, from, i, count]));
    std::iter::once(Op::each("max_two", count, arguments![x[0], x[1], y, from, count])).chain(more).collect()
}

/// The gradients of the bottoms that have one.
fn backward(layer: &Eltwise, at: &Binder<'_>, count: usize) -> Result<Vec<Op>, String> {
    let dy = at.get(Operand::TopGrad(0))?;
    let results = (0..layer.bottoms).filter_map(|i| Some((i, at.find(Operand::BottomGrad(i))?)));
    let mut ops = Vec::new();
    match &layer.operation {
        EltwiseOperation::Sum { coefficients, relu } => {
            // Without a ReLU nothing asks for the top.
            let y = if *relu { at.get(Operand::Top(0))? } else { dy };
            let factor = |i| factors(coefficients).nth(i).unwrap_or(1.0);
            let results: Vec<(Span, f32)> = results.map(|(i, dx)| (dx, factor(i))).collect();
            ops.extend(results.chunks(2).map(|two| {
                let ((dx, a), second) = (two[0], two.get(1));
                let (dz, b) = (second.map(|(dz, _)| *dz), second.map_or(0.0, |(_, b)| *b));
                Op::each_few("sum_backward", count, arguments![dy, y, dx, dz, a, b, *relu, count])
            }));
        }
        EltwiseOperation::Product { stable_gradient: true } => {
            for (bottom, dx) in results {
                let others = (0..layer.bottoms).filter(|other| *other != bottom);
                let x: Result<Vec<Span>, String> = others.map(|i| at.get(Operand::Bottom(i))).collect();
                ops.extend(product(&[&[dy], x?.as_slice()].concat(), dx, count));
            }
        }
        EltwiseOperation::Product { stable_gradient: false } => {
            let y = at.get(Operand::Top(0))?;
            for (bottom, dx) in results {
                let x = at.get(Operand::Bottom(bottom))?;
                ops.push(Op::each("product_backward", count, arguments![dy, y, x, dx, count]));
            }
        }
        EltwiseOperation::Max => {
            let from = at.get(Operand::Aux(0))?;
            ops.extend(results.map(|(bottom, dx)| {
                Op::each("max_backward", count, arguments![dy, from, dx, bottom, count])
            }));
        }
    }
    Ok(ops)
}
