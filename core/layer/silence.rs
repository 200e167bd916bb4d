//! Readers that make nothing: what they read is no output of the net, and nothing flows back from them.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Any number of bottoms and no tops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Number of bottoms.
    pub bottoms: usize,
}

impl Meaning for Silence {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=self.bottoms.max(1), tops: 0..=0 }
    }

    fn infer(&self, _: &[Shape]) -> Result<Inferred, Fault> {
        Ok(Inferred::default())
    }

    /// Gradients of 0, where a net that forces backward asks for them.
    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        let gradients = || (0..self.bottoms).map(Operand::BottomGrad).collect::<Vec<_>>();
        (sub == SubTask::GradActivation).then(|| Accesses::new([], gradients()))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}
