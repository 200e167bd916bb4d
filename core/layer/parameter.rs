//! A parameter as a blob.

use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// A parameter of the layer's own as its top. It starts at 0, as in Caffe, unless another layer with which it shares the
/// parameter says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its extents.
    pub shape: Vec<usize>,
}

impl Meaning for Parameter {
    fn arity(&self) -> Arity {
        Arity { bottoms: 0..=0, tops: 1..=1 }
    }

    fn infer(&self, _: &[Shape]) -> Result<Inferred, Fault> {
        let shape = Shape::checked(&self.shape, "parameter_param.shape")?;
        let param = ParamShape { shape: shape.clone(), filler: Filler::default() };
        Ok(Inferred { tops: vec![shape], params: vec![param], aux: Vec::new() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        match sub {
            SubTask::Forward => Some(Accesses::new([Operand::Param(0)], [Operand::Top(0)])),
            SubTask::GradWeight => Some(Accesses::new([Operand::TopGrad(0)], [Operand::ParamGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}
