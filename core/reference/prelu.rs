//! Parametric ReLU: `y = max(x, 0) + a_c · min(x, 0)`; `dx = dy · (1 or a_c)`, `da_c = Σ dy · min(x, 0)`. At 0 the side is
//! the negative one.

use super::{Arrays, Context, Real};
use crate::layer::{Operand, Prelu, SubTask};

pub(super) fn compute<T: Real>(layer: &Prelu, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let shape = &ctx.bottoms[0];
    let (channels, pixels) = (shape.dim(1), shape.count_from(2));
    let slope_of = |i: usize| if layer.channel_shared { 0 } else { i / pixels % channels };
    let x = arrays.get(Operand::Bottom(0));
    match sub {
        SubTask::Forward => {
            let a = arrays.get(Operand::Param(0));
            let y = |(i, x): (usize, &T)| x.larger(T::ZERO) + a[slope_of(i)] * x.smaller(T::ZERO);
            let y = x.iter().enumerate().map(y).collect();
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let (dy, a) = (arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Param(0)));
            let factor = |i: usize| if x[i] > T::ZERO { T::ONE } else { a[slope_of(i)] };
            let dx = dy.iter().enumerate().map(|(i, dy)| *dy * factor(i)).collect();
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        SubTask::GradWeight => {
            let dy = arrays.get(Operand::TopGrad(0));
            let mut da = vec![T::ZERO; if layer.channel_shared { 1 } else { channels }];
            for (i, (dy, x)) in dy.iter().zip(x).enumerate() {
                da[slope_of(i)] += *dy * x.smaller(T::ZERO);
            }
            arrays.insert(Operand::ParamGrad(0), da);
        }
        _ => {}
    }
}
