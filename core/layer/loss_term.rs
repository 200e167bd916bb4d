//! What makes a blob a part of the loss that no loss layer made: `loss_weight` in a layer of any type.
//!
//! The net inserts one behind the blob, as it does Splits. Its top is the blob itself; what it adds to the loss is the sum
//! of the blob's values times the weight, so that the gradient of each of them is the weight.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// A blob as a term of the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LossTerm;

impl Meaning for LossTerm {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        Ok(Inferred { tops: vec![bottoms[0].clone()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        (sub == SubTask::GradActivation).then(|| Accesses::new(Vec::new(), [Operand::BottomGrad(0)]))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}
