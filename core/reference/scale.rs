//! Products with repeated factors: `Y[o,s,i] = X[o,s,i] · S[s] + b[s]`.

use super::{Arrays, Context, Real};
use crate::layer::{Factors, Operand, Scale, SubTask};

pub(super) fn compute<T: Real>(layer: &Scale, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let view = layer.factors(ctx.bottoms).expect("the factors fit: checked by infer");
    let factors = if layer.bottoms == 2 { Operand::Bottom(1) } else { Operand::Param(0) };
    match sub {
        SubTask::Forward => {
            let bias = layer.bias.then(|| arrays.get(Operand::Param(layer.bias_param())));
            let (x, s) = (arrays.get(Operand::Bottom(0)), arrays.get(factors));
            let y = map(&view, |f, i| bias.map_or(x[i] * s[f], |b| x[i] * s[f] + b[f]));
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let (dy, s) = (arrays.get(Operand::TopGrad(0)), arrays.get(factors));
            let dx = map(&view, |f, i| dy[i] * s[f]);
            if layer.bottoms == 2 {
                let x = arrays.get(Operand::Bottom(0));
                let ds = sum(&view, |i| dy[i] * x[i]);
                arrays.insert(Operand::BottomGrad(1), ds);
            }
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        SubTask::GradWeight if layer.bottoms == 1 => {
            let (dy, x) = (arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Bottom(0)));
            let ds = sum(&view, |i| dy[i] * x[i]);
            arrays.insert(Operand::ParamGrad(0), ds);
        }
        SubTask::GradBias if layer.bias => {
            let dy = arrays.get(Operand::TopGrad(0));
            let db = sum(&view, |i| dy[i]);
            arrays.insert(Operand::ParamGrad(layer.bias_param()), db);
        }
        _ => {}
    }
}

/// Calls `visit` with the factor and the place of every element, in the order of memory.
fn each(view: &Factors, mut visit: impl FnMut(usize, usize)) {
    let factors = view.shape.count();
    for outer in 0..view.outer {
        for factor in 0..factors {
            for inner in 0..view.inner {
                visit(factor, (outer * factors + factor) * view.inner + inner);
            }
        }
    }
}

/// The blob whose elements are `value` of the factor and the place.
pub(super) fn map<T: Real>(view: &Factors, value: impl Fn(usize, usize) -> T) -> Vec<T> {
    let mut out = Vec::new();
    each(view, |factor, i| out.push(value(factor, i)));
    out
}

/// For each factor the sum of `value` over its elements, in the order of memory.
pub(super) fn sum<T: Real>(view: &Factors, value: impl Fn(usize) -> T) -> Vec<T> {
    let mut sums = vec![T::ZERO; view.shape.count()];
    each(view, |factor, i| sums[factor] += value(i));
    sums
}
