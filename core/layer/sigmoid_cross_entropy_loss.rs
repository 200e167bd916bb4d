//! Cross entropy of sigmoids and targets between 0 and 1: `L = −Σ (t · ln p + (1 − t) · ln (1 − p)) / divisor`, with
//! `p = 1 / (1 + e⁻ˣ)`.

use super::euclidean_loss::check_pair;
use super::{Accesses, Arity, Inferred, Meaning, Normalization, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Sigmoids and their cross entropy. Bottoms: scores and as many targets; top: the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct SigmoidCrossEntropyLoss {
    /// A target that does not count; compared with a target's integer part.
    pub ignore_label: Option<i32>,
    /// What the sum is divided by: one image is one extent of the first axis.
    pub normalization: Normalization,
}

impl SigmoidCrossEntropyLoss {
    /// The divisor of the loss on scores of this shape, with `valid` targets that are not ignored.
    pub fn divisor(&self, scores: &Shape, valid: usize) -> f32 {
        self.normalization.divisor([scores.images(), scores.per_image()], valid)
    }
}

impl Meaning for SigmoidCrossEntropyLoss {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 0..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        check_pair([&bottoms[0], &bottoms[1]])?;
        // The divisor, for which all targets have to be looked at.
        Ok(Inferred { tops: vec![Shape::default()], params: Vec::new(), aux: vec![Shape::default()] })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Top};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0), Bottom(1)], [Top(0), Aux(0)])),
            SubTask::GradActivation => Some(Accesses::new([Bottom(0), Bottom(1), Aux(0)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match sub {
            SubTask::Forward => 9 * values,
            SubTask::GradActivation => 5 * values,
            _ => 0,
        }
    }
}
