//! Sums with a repeated bias: `Y[o,s,i] = X[o,s,i] + b[s]`.

use super::scale::{map, sum};
use super::{Arrays, Context, Real};
use crate::layer::{Bias, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Bias, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let view = layer.factors(ctx.bottoms).expect("the bias fits: checked by infer");
    let is_bottom = layer.bottoms == 2;
    match sub {
        SubTask::Forward => {
            let bias = if is_bottom { Operand::Bottom(1) } else { Operand::Param(0) };
            let (x, b) = (arrays.get(Operand::Bottom(0)), arrays.get(bias));
            let y = map(&view, |f, i| x[i] + b[f]);
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let dy = arrays.get(Operand::TopGrad(0)).to_vec();
            if is_bottom {
                let db = sum(&view, |i| dy[i]);
                arrays.insert(Operand::BottomGrad(1), db);
            }
            arrays.insert(Operand::BottomGrad(0), dy);
        }
        SubTask::GradBias if !is_bottom => {
            let dy = arrays.get(Operand::TopGrad(0));
            let db = sum(&view, |i| dy[i]);
            arrays.insert(Operand::ParamGrad(0), db);
        }
        _ => {}
    }
}
