//! A gradient from outside: `dX = S`.

use super::{Arrays, Real};
use crate::layer::{Operand, SubTask};

pub(super) fn compute<T: Real>(sub: SubTask, arrays: &mut Arrays<T>) {
    if sub == SubTask::GradActivation {
        let seed = arrays.get(Operand::Bottom(1)).to_vec();
        arrays.insert(Operand::BottomGrad(0), seed);
    }
}
