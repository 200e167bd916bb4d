//! Rectified linear unit: `y = max(x, 0) + slope · min(x, 0)`.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Rectified linear unit; the gradient at 0 is that of the negative side, as in Caffe.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Relu {
    /// Slope for negative inputs.
    pub negative_slope: f32,
    /// Whether the layer below has done the forward already ([`super::Convolution::relu`]). No file says so.
    pub applied: bool,
}

impl Relu {
    /// The operand whose sign tells the side in backward: the top, so that the layer can work in place, unless a
    /// negative slope turns the sign around.
    pub fn sign(&self) -> Operand {
        if self.negative_slope >= 0.0 { Operand::Top(0) } else { Operand::Bottom(0) }
    }
}

impl Meaning for Relu {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if !self.negative_slope.is_finite() {
            return Err(Fault::new("relu_param.negative_slope", "expected a finite number"));
        }
        Ok(Inferred { tops: vec![bottoms[0].clone()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        match sub {
            SubTask::Forward if self.applied => None,
            SubTask::Forward => Some(Accesses::new([Operand::Bottom(0)], [Operand::Top(0)])),
            SubTask::GradActivation => {
                Some(Accesses::new([Operand::TopGrad(0), self.sign()], [Operand::BottomGrad(0)]))
            }
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        match sub {
            SubTask::Forward if self.applied => 0,
            SubTask::Forward | SubTask::GradActivation => bottoms[0].count() as u64,
            _ => 0,
        }
    }

    fn works_in_place(&self) -> bool {
        self.negative_slope >= 0.0
    }
}
