//! Dropout: `y_i = x_i · m_i` and `dx_i = dy_i · m_i` with the same `m_i`, drawn anew. What is not a number stays so.

use super::{Arrays, Context, Real};
use crate::layer::{Dropout, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Dropout, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let (from, to) = match sub {
        SubTask::Forward => (Operand::Bottom(0), Operand::Top(0)),
        SubTask::GradActivation => (Operand::TopGrad(0), Operand::BottomGrad(0)),
        _ => return,
    };
    let (stream, per_image) = (ctx.draw.stream(), ctx.bottoms[0].per_image() as u64);
    let first = ctx.draw.first_image * per_image;
    let factor = |i: usize| if layer.active { layer.factor(&stream, first + i as u64) } else { 1.0 };
    let values = arrays.get(from).iter().enumerate().map(|(i, v)| *v * T::from_f32(factor(i))).collect();
    arrays.insert(to, values);
}
