//! Multinomial logistic loss of probabilities: `L = −Σ ln p[label] / N`.

use super::softmax_loss::check_labels;
use super::{Accesses, Arity, ClassView, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Multinomial logistic loss. Bottoms: the probabilities of each image's classes, and a label for each image; top: the
/// loss. [`super::SoftmaxWithLoss`] is the better choice where the probabilities are those of a softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MultinomialLogisticLoss;

impl MultinomialLogisticLoss {
    /// A smaller probability counts as this: Caffe's constant.
    pub const LEAST: f32 = 1e-20;
}

impl Meaning for MultinomialLogisticLoss {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 0..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        check_labels(&ClassView::of_images(&bottoms[0]), &bottoms[0], &bottoms[1])?;
        Ok(Inferred { tops: vec![Shape::default()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0), Bottom(1)], [Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([Bottom(0), Bottom(1)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        match sub {
            SubTask::Forward | SubTask::GradActivation => 3 * bottoms[0].images() as u64,
            _ => 0,
        }
    }
}
