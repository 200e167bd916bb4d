//! Share of predictions whose true class is among the `top_k` best, over all and by class.

use super::softmax::ClassView;
use super::softmax_loss::check_labels;
use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Accuracy. Bottoms: scores and labels; tops: the share (one value) and, if there is a second, the share of each class,
/// 0 for one that no label names. A class with the same score as the true one counts as better, so ties hurt.
#[derive(Clone, Debug, PartialEq)]
pub struct Accuracy {
    /// How many best classes are looked at.
    pub top_k: usize,
    /// The axis of the classes.
    pub axis: i32,
    /// A label that does not count.
    pub ignore_label: Option<i32>,
}

impl Meaning for Accuracy {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 1..=2 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let view = ClassView::new(&bottoms[0], self.axis, "accuracy_param.axis")?;
        check_labels(&view, &bottoms[0], &bottoms[1])?;
        if self.top_k == 0 || self.top_k > view.classes {
            return Err(Fault::new(
                "accuracy_param.top_k",
                format!("{}; expected 1 to {}, the number of classes", self.top_k, view.classes),
            ));
        }
        let by_class = Shape::new([view.classes]);
        Ok(Inferred { tops: vec![Shape::default(), by_class], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        (sub == SubTask::Forward).then(|| {
            let (bottoms, tops) = ([0, 1].map(Operand::Bottom), [0, 1].map(Operand::Top));
            Accesses::new(bottoms, tops)
        })
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        if sub == SubTask::Forward { bottoms[0].count() as u64 } else { 0 }
    }
}
