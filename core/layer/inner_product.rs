//! A fully connected layer: `Y = X·Wᵀ + b` over everything from `axis` on.

use super::convolution::weighted_accesses;
use super::{Accesses, Arity, Filler, Inferred, Meaning, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Inner products of each image with `num_output` weights.
#[derive(Clone, Debug, PartialEq)]
pub struct InnerProduct {
    /// Outputs per image.
    pub num_output: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// First axis that is multiplied away; the axes before it are images.
    pub axis: i32,
    /// Whether the weight lies as (K, O) and not as (O, K).
    pub transpose: bool,
    /// How the weight starts.
    pub weight_filler: Filler,
    /// How the bias starts.
    pub bias_filler: Filler,
}

impl InnerProduct {
    /// Rows (images) and inputs per row of a bottom of this shape.
    ///
    /// # Errors
    /// If the axis does not exist.
    pub fn matrix(&self, bottom: &Shape) -> Result<[usize; 2], Fault> {
        let axis = bottom.axis(self.axis, "inner_product_param.axis")?;
        Ok([bottom.count_before(axis), bottom.count_from(axis)])
    }
}

impl Meaning for InnerProduct {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let field = "inner_product_param.num_output";
        if self.num_output == 0 {
            return Err(Fault::new(field, "0; expected at least 1 output"));
        }
        let axis = bottoms[0].axis(self.axis, "inner_product_param.axis")?;
        let inputs = bottoms[0].count_from(axis);
        let weight = if self.transpose { [inputs, self.num_output] } else { [self.num_output, inputs] };
        let weight = Shape::checked(&weight, field)?;
        let mut params = vec![ParamShape { shape: weight, filler: self.weight_filler.clone() }];
        if self.bias {
            params
                .push(ParamShape { shape: Shape::new([self.num_output]), filler: self.bias_filler.clone() });
        }
        let mut top = bottoms[0].dims()[..axis].to_vec();
        top.push(self.num_output);
        Ok(Inferred { tops: vec![Shape::checked(&top, field)?], params, aux: Vec::new() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        weighted_accesses(sub, self.bias)
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], tops: &[Shape]) -> u64 {
        let outputs = tops[0].count() as u64;
        let products = (bottoms[0].count() as u64).saturating_mul(self.num_output as u64);
        let twice = products.saturating_mul(2);
        match sub {
            SubTask::Forward => twice.saturating_add(if self.bias { outputs } else { 0 }),
            SubTask::GradActivation | SubTask::GradWeight => twice,
            SubTask::GradBias if self.bias => outputs,
            _ => 0,
        }
    }
}
