//! A blob that is a part of the loss: the gradient of each value is the weight.

use super::{Arrays, Context, Real};
use crate::layer::{Operand, SubTask};

pub(super) fn compute<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    if sub == SubTask::GradActivation {
        let dx = vec![T::from_f32(ctx.loss_weights[0]); ctx.bottoms[0].count()];
        arrays.insert(Operand::BottomGrad(0), dx);
    }
}
