//! Reduction of the last axes to one value: a sum, a mean, or a norm, times a coefficient.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// What is made of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReductionOperation {
    /// `Σ x`.
    #[default]
    Sum,
    /// `Σ |x|`; the gradient at 0 is 0.
    AbsoluteSum,
    /// `Σ x²`.
    SumOfSquares,
    /// `Σ x / count`.
    Mean,
}

/// One value in place of all axes from `axis` on.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduction {
    /// What is made of the values.
    pub operation: ReductionOperation,
    /// First axis that goes; negative counts from the end.
    pub axis: i32,
    /// Factor of the result.
    pub coeff: f32,
}

impl Reduction {
    /// How many results there are, and of how many values each; they lie one after the other.
    ///
    /// # Errors
    /// If the axis does not exist.
    pub fn rows(&self, bottom: &Shape) -> Result<[usize; 2], Fault> {
        let axis = bottom.axis(self.axis, "reduction_param.axis")?;
        Ok([bottom.count_before(axis), bottom.count_from(axis)])
    }
}

impl Meaning for Reduction {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if !self.coeff.is_finite() {
            let message = format!("{}; expected a finite number", self.coeff);
            return Err(Fault::new("reduction_param.coeff", message));
        }
        let axis = bottoms[0].axis(self.axis, "reduction_param.axis")?;
        let top = Shape::new(&bottoms[0].dims()[..axis]);
        Ok(Inferred { tops: vec![top], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top, TopGrad};
        use ReductionOperation::{Mean, Sum};
        match (sub, self.operation) {
            (SubTask::Forward, _) => Some(Accesses::new([Bottom(0)], [Top(0)])),
            (SubTask::GradActivation, Sum | Mean) => Some(Accesses::new([TopGrad(0)], [BottomGrad(0)])),
            (SubTask::GradActivation, _) => Some(Accesses::new([TopGrad(0), Bottom(0)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match (sub, self.operation) {
            (SubTask::Forward, ReductionOperation::SumOfSquares) => 2 * values,
            (SubTask::Forward | SubTask::GradActivation, _) => values,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axes_before_stay() {
        let top = |axis, dims: &[usize]| {
            let layer = Reduction { operation: ReductionOperation::Sum, axis, coeff: 1.0 };
            let inferred = layer.infer(&[Shape::new(dims)]);
            inferred.map(|i| i.tops[0].clone()).map_err(|fault| fault.field)
        };
        assert_eq!(top(0, &[2, 3, 4]), Ok(Shape::default()));
        assert_eq!(top(2, &[2, 3, 4]), Ok(Shape::new([2, 3])));
        assert_eq!(top(-2, &[2, 3, 4]), Ok(Shape::new([2])));
        for (axis, dims) in [(3, &[2, 3, 4][..]), (-4, &[2, 3, 4]), (0, &[])] {
            assert_eq!(top(axis, dims), Err("reduction_param.axis".to_owned()));
        }
    }
}
