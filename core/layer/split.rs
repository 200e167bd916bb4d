//! One blob for several readers. Forward costs nothing (the tops lie in the bottom's memory); backward adds the
//! gradients of the tops, always in their order.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// One bottom for `tops` readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Number of readers.
    pub tops: usize,
}

impl Meaning for Split {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: self.tops..=self.tops }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if self.tops == 0 {
            return Err(Fault::new("top", "0 given; a layer of type Split has at least 1"));
        }
        Ok(Inferred { tops: vec![bottoms[0].clone(); self.tops], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        (sub == SubTask::GradActivation).then(|| {
            Accesses::new((0..self.tops).map(Operand::TopGrad).collect::<Vec<_>>(), [Operand::BottomGrad(0)])
        })
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        if sub == SubTask::GradActivation {
            (self.tops.max(1) - 1) as u64 * bottoms[0].count() as u64
        } else {
            0
        }
    }
}
