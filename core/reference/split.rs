//! Split: forward is nothing (the tops lie in the bottom's memory); backward is `dX = Σ dY_t`, tops ascending.

use super::{Arrays, Context, Real};
use crate::layer::{Operand, Split, SubTask};

pub(super) fn compute<T: Real>(layer: &Split, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    if sub == SubTask::GradActivation {
        let mut dx = vec![T::ZERO; ctx.bottoms[0].count()];
        // A top that leads to no loss has no gradient.
        for dy in (0..layer.tops).filter_map(|t| arrays.find(Operand::TopGrad(t))) {
            dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += *dy);
        }
        arrays.insert(Operand::BottomGrad(0), dx);
    }
}
