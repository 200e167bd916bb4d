//! Mean-variance normalisation: every channel of every image, or every image, by its own statistics.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Mean-variance normalisation: `y = (x − mean) / (√variance + eps)`, or only `x − mean`.
///
/// Its gradient is Caffe's, in which eps is no part of the deviation's derivative.
#[derive(Clone, Debug, PartialEq)]
pub struct Mvn {
    /// Whether it divides by the deviation.
    pub normalize_variance: bool,
    /// Whether statistics are those of a whole image and not of each of its channels.
    pub across_channels: bool,
    /// Added to the deviation, not to the variance.
    pub eps: f32,
}

impl Mvn {
    /// Parts of a blob that have statistics of their own; they lie one after the other.
    pub fn rows(&self, bottom: &Shape) -> usize {
        bottom.dim(0) * if self.across_channels { 1 } else { bottom.dim(1) }
    }
}

impl Meaning for Mvn {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if !self.eps.is_finite() {
            return Err(Fault::new("mvn_param.eps", format!("{}; expected a finite number", self.eps)));
        }
        // Deviation plus eps.
        let divisors = self.normalize_variance.then(|| Shape::new([self.rows(&bottoms[0])]));
        Ok(Inferred {
            tops: vec![bottoms[0].clone()],
            params: Vec::new(),
            aux: divisors.into_iter().collect(),
        })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Top, TopGrad};
        match (sub, self.normalize_variance) {
            (SubTask::Forward, true) => Some(Accesses::new([Bottom(0)], [Top(0), Aux(0)])),
            (SubTask::Forward, false) => Some(Accesses::new([Bottom(0)], [Top(0)])),
            // The top and not the bottom, so that the layer can work in place.
            (SubTask::GradActivation, true) => {
                Some(Accesses::new([TopGrad(0), Top(0), Aux(0)], [BottomGrad(0)]))
            }
            (SubTask::GradActivation, false) => Some(Accesses::new([TopGrad(0)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match (sub, self.normalize_variance) {
            (SubTask::Forward, true) => 5 * values,
            (SubTask::GradActivation, true) => 7 * values,
            (SubTask::Forward | SubTask::GradActivation, false) => 2 * values,
            _ => 0,
        }
    }

    fn works_in_place(&self) -> bool {
        true
    }
}
