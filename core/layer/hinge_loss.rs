//! Hinge loss of scores, one against all: `L = Σ max(0, 1 − s · x)^p / N`, with `s = 1` for an image's own class and −1 for
//! every other.

use super::softmax_loss::check_labels;
use super::{Accesses, Arity, ClassView, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// The exponent of what is missing of a margin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HingeNorm {
    /// 1.
    #[default]
    L1,
    /// 2.
    L2,
}

/// Hinge loss. Bottoms: scores and a label for each image; top: the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HingeLoss {
    /// The norm.
    pub norm: HingeNorm,
}

impl Meaning for HingeLoss {
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
        let values = bottoms[0].count() as u64;
        match sub {
            SubTask::Forward | SubTask::GradActivation => 3 * values,
            _ => 0,
        }
    }
}
