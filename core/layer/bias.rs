//! Sums with a bias that is repeated over the other axes: `y = x + b`.

use super::{Accesses, Arity, Factors, Filler, Inferred, Meaning, Operand, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Bottom 0 plus a bias: a parameter, or bottom 1 if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Bias {
    /// Number of bottoms: 1, or 2 if the bias is the second.
    pub bottoms: usize,
    /// First axis of bottom 0 that the bias has; negative counts from the end.
    pub axis: i32,
    /// Number of axes that the bias has; −1 for all from `axis` on, 0 for a single number. Without meaning if the bias is
    /// a bottom.
    pub num_axes: i32,
    /// How the bias starts.
    pub filler: Filler,
}

impl Bias {
    /// Where bottom 0 meets the bias.
    ///
    /// # Errors
    /// If an axis does not exist, or bottom 1 does not fit bottom 0.
    pub fn factors(&self, bottoms: &[Shape]) -> Result<Factors, Fault> {
        Factors::new(bottoms, self.axis, self.num_axes, "bias_param")
    }
}

impl Meaning for Bias {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=2, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if bottoms.len() != self.bottoms {
            return Err(Fault::new(
                "bottom",
                format!("{} given; the layer was made for {}", bottoms.len(), self.bottoms),
            ));
        }
        let shape = self.factors(bottoms)?.shape;
        let own = (self.bottoms == 1).then(|| ParamShape { shape, filler: self.filler.clone() });
        Ok(Inferred { tops: vec![bottoms[0].clone()], params: own.into_iter().collect(), aux: Vec::new() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
        let is_bottom = self.bottoms == 2;
        match sub {
            SubTask::Forward => {
                let bias = if is_bottom { Bottom(1) } else { Param(0) };
                Some(Accesses::new([Bottom(0), bias], [Top(0)]))
            }
            SubTask::GradActivation if is_bottom => {
                Some(Accesses::new([TopGrad(0)], [BottomGrad(0), BottomGrad(1)]))
            }
            SubTask::GradActivation => Some(Accesses::new([TopGrad(0)], [BottomGrad(0)])),
            SubTask::GradBias if !is_bottom => Some(Accesses::new([TopGrad(0)], [ParamGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match sub {
            SubTask::Forward => values,
            SubTask::GradActivation if self.bottoms == 2 => values,
            SubTask::GradBias if self.bottoms == 1 => values,
            _ => 0,
        }
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_a_parameter_or_a_bottom() {
        let x = Shape::new([2, 3, 4]);
        let bias = |bottoms, axis, num_axes| Bias { bottoms, axis, num_axes, filler: Filler::default() };
        let shape = |layer: Bias| layer.infer(std::slice::from_ref(&x)).map(|i| i.params[0].shape.clone());
        assert_eq!(shape(bias(1, 1, 1)), Ok(Shape::new([3])));
        assert_eq!(shape(bias(1, -2, -1)), Ok(Shape::new([3, 4])));
        assert_eq!(shape(bias(1, 2, 0)), Ok(Shape::default()));
        assert_eq!(shape(bias(1, 3, 1)).map_err(|f| f.field), Err("bias_param.axis".to_owned()));
        assert_eq!(shape(bias(1, 1, 3)).map_err(|f| f.field), Err("bias_param.num_axes".to_owned()));
        let second = bias(2, 1, 1).infer(&[x.clone(), Shape::new([3, 4])]).map(|i| i.params);
        assert_eq!(second, Ok(Vec::new()));
        let fault = bias(2, 1, 1).infer(&[x, Shape::new([4])]).expect_err("it does not fit");
        assert!(
            fault.field == "bottom" && fault.message.contains("bottom 1 has shape 4"),
            "{}",
            fault.message
        );
    }
}
