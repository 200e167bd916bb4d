//! Product, weighted sum or maximum of blobs of one shape, element by element.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// What is done with the elements.
#[derive(Clone, Debug, PartialEq)]
pub enum EltwiseOperation {
    /// `y = Π x_i`.
    Product {
        /// Whether the gradient of a bottom is the product of the others; it is `y / x_i` otherwise, which costs less
        /// for many bottoms and is NaN at 0.
        stable_gradient: bool,
    },
    /// `y = Σ c_i · x_i`.
    Sum {
        /// The `c_i`, one for each bottom, or none if all are 1.
        coefficients: Vec<f32>,
        /// Whether a ReLU with slope 0 follows; only [`crate::net::Net::fused`] says so.
        relu: bool,
    },
    /// `y = max x_i`. Of equal bottoms 0 and 1 the second gets the gradient; later bottoms only what is larger.
    Max,
}

/// An operation on the elements of several blobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Eltwise {
    /// Number of bottoms, at least 2.
    pub bottoms: usize,
    /// What is done.
    pub operation: EltwiseOperation,
}

impl Meaning for Eltwise {
    fn arity(&self) -> Arity {
        Arity { bottoms: self.bottoms..=self.bottoms, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if bottoms.len() < 2 {
            let given = bottoms.len();
            return Err(Fault::new(
                "bottom",
                format!("{given} given; a layer of type Eltwise has at least 2"),
            ));
        }
        if let Some(i) = bottoms.iter().position(|shape| *shape != bottoms[0]) {
            return Err(Fault::new(
                "bottom",
                format!(
                    "bottom {i} has shape {}, but bottom 0 has {}; expected one shape",
                    bottoms[i], bottoms[0]
                ),
            ));
        }
        let mut aux = Vec::new();
        match &self.operation {
            EltwiseOperation::Sum { coefficients, .. } => check_coefficients(coefficients, bottoms.len())?,
            // Which bottom each maximum comes from.
            EltwiseOperation::Max => aux.push(bottoms[0].clone()),
            EltwiseOperation::Product { .. } => {}
        }
        Ok(Inferred { tops: vec![bottoms[0].clone()], params: Vec::new(), aux })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use EltwiseOperation::{Max, Product, Sum};
        use Operand::{Aux, Bottom, BottomGrad, Top, TopGrad};
        let bottoms = || (0..self.bottoms).map(Bottom);
        match (sub, &self.operation) {
            (SubTask::Forward, Max) => Some(Accesses::new(bottoms().collect::<Vec<_>>(), [Top(0), Aux(0)])),
            (SubTask::Forward, _) => Some(Accesses::new(bottoms().collect::<Vec<_>>(), [Top(0)])),
            (SubTask::GradActivation, operation) => {
                let mut reads = vec![TopGrad(0)];
                match operation {
                    Product { stable_gradient: true } => reads.extend(bottoms()),
                    Product { stable_gradient: false } => reads.extend(bottoms().chain([Top(0)])),
                    Max => reads.push(Aux(0)),
                    // Its sign tells on which side of the ReLU.
                    Sum { relu: true, .. } => reads.push(Top(0)),
                    Sum { relu: false, .. } => {}
                }
                Some(Accesses::new(reads, (0..self.bottoms).map(BottomGrad).collect::<Vec<_>>()))
            }
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        use EltwiseOperation::{Max, Product, Sum};
        let (values, inputs) = (bottoms[0].count() as u64, self.bottoms as u64);
        match (sub, &self.operation) {
            (SubTask::Forward, Sum { relu, .. }) => 2 * inputs * values + if *relu { values } else { 0 },
            (SubTask::Forward, _) => inputs.saturating_sub(1) * values,
            (SubTask::GradActivation, Product { stable_gradient: true }) => {
                inputs.saturating_mul(inputs).saturating_mul(values)
            }
            (SubTask::GradActivation, Product { stable_gradient: false }) => 2 * inputs * values,
            (SubTask::GradActivation, Sum { relu: true, .. }) => (1 + inputs) * values,
            (SubTask::GradActivation, Sum { relu: false, .. } | Max) => inputs * values,
            _ => 0,
        }
    }
}

/// Coefficients are none, or one finite number for each bottom.
fn check_coefficients(coefficients: &[f32], bottoms: usize) -> Result<(), Fault> {
    let fault = |message: String| Err(Fault::new("eltwise_param.coeff", message));
    if !coefficients.is_empty() && coefficients.len() != bottoms {
        let given = coefficients.len();
        return fault(format!("{given} given for {bottoms} bottoms; expected none, or one for each"));
    }
    match coefficients.iter().find(|c| !c.is_finite()) {
        Some(wrong) => fault(format!("{wrong}; expected a finite number")),
        None => Ok(()),
    }
}
