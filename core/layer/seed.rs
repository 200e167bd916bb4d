//! A gradient from outside: where backward begins at a blob that is no loss.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Gives its first bottom the values of its second as a gradient. No file says so: programs that look inside a network add
/// it to an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seed;

impl Meaning for Seed {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 0..=0 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let [blob, gradient] = [&bottoms[0], &bottoms[1]];
        if blob.count() != gradient.count() {
            let message = format!("a gradient of shape {gradient} for a blob of shape {blob}");
            return Err(Fault::new("bottom", message));
        }
        Ok(Inferred::default())
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        (sub == SubTask::GradActivation)
            .then(|| Accesses::new([Operand::Bottom(1)], [Operand::BottomGrad(0)]))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}
