//! Flatten and Reshape: forward is nothing (the top lies in the bottom's memory); backward is `dX = dY`.

use super::{Arrays, Real};
use crate::layer::{Operand, SubTask};

pub(super) fn compute<T: Real>(sub: SubTask, arrays: &mut Arrays<T>) {
    if sub == SubTask::GradActivation {
        let dx = arrays.get(Operand::TopGrad(0)).to_vec();
        arrays.insert(Operand::BottomGrad(0), dx);
    }
}
