//! Multinomial logistic loss of a softmax: `−Σ log p[label] / divisor`.

use super::softmax::ClassView;
use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// What the sum of losses is divided by; never by less than 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Normalization {
    /// All labels (one for each place before and after the axis of the classes), ignored ones too.
    Full,
    /// The labels that are not ignored.
    #[default]
    Valid,
    /// The extent before the axis of the classes: the images, if that is axis 1.
    BatchSize,
    /// Nothing.
    None,
}

/// Softmax and its loss. Bottoms: scores and labels; tops: the loss (one value) and, if there is a second, the
/// probabilities. A probability below `f32::MIN_POSITIVE` counts as that.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxWithLoss {
    /// The axis of the classes.
    pub axis: i32,
    /// A label that does not count.
    pub ignore_label: Option<i32>,
    /// What the sum is divided by.
    pub normalization: Normalization,
}

impl Normalization {
    /// The divisor of a loss of `outer` times `inner` labels, of which `valid` are not ignored.
    pub fn divisor(self, [outer, inner]: [usize; 2], valid: usize) -> f32 {
        let divisor = match self {
            Self::Full => outer * inner,
            Self::Valid => valid,
            Self::BatchSize => outer,
            Self::None => 1,
        };
        divisor.max(1) as f32
    }
}

impl SoftmaxWithLoss {
    /// The divisor of the loss, with `valid` labels that are not ignored, on a blob of `view`.
    pub fn divisor(&self, view: &ClassView, valid: usize) -> f32 {
        self.normalization.divisor([view.outer, view.inner], valid)
    }
}

/// Checks that there is one label for each prediction of `view`.
pub(super) fn check_labels(view: &ClassView, scores: &Shape, labels: &Shape) -> Result<(), Fault> {
    if labels.count() == view.outer * view.inner {
        return Ok(());
    }
    Err(Fault::new(
        "bottom",
        format!(
            "{} labels (shape {labels}) for scores of shape {scores}; expected {} x {} labels",
            labels.count(),
            view.outer,
            view.inner
        ),
    )
    .hint("the second bottom must be the labels, one integer for each prediction"))
}

impl Meaning for SoftmaxWithLoss {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 0..=2 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let view = ClassView::new(&bottoms[0], self.axis, "softmax_param.axis")?;
        check_labels(&view, &bottoms[0], &bottoms[1])?;
        let probabilities = bottoms[0].clone();
        Ok(Inferred {
            tops: vec![Shape::default(), probabilities.clone()],
            params: Vec::new(),
            aux: vec![probabilities],
        })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Top};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0), Bottom(1)], [Aux(0), Top(0), Top(1)])),
            SubTask::GradActivation => Some(Accesses::new([Aux(0), Bottom(1)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        match sub {
            SubTask::Forward => 4 * bottoms[0].count() as u64,
            SubTask::GradActivation => bottoms[0].count() as u64,
            _ => 0,
        }
    }
}
