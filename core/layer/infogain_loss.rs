//! Infogain loss of a softmax: `L = −Σ_n Σ_k H[label_n, k] · ln p_nk / divisor`. With the identity as H it is the
//! multinomial logistic loss.

use std::sync::Arc;

use super::softmax_loss::check_labels;
use super::{Accesses, Arity, ClassView, Inferred, Meaning, Normalization, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Softmax and its infogain loss. Bottoms: scores, labels and perhaps the matrix H (classes × classes); tops: the loss and,
/// if there is a second, the probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct InfogainLoss {
    /// The axis of the classes.
    pub axis: i32,
    /// A label that does not count.
    pub ignore_label: Option<i32>,
    /// What the sum is divided by.
    pub normalization: Normalization,
    /// H by rows, if it is no bottom.
    pub matrix: Option<Arc<[f32]>>,
}

impl InfogainLoss {
    /// A smaller probability counts as this in the loss: Caffe's constant.
    pub const LEAST: f32 = 1e-20;

    /// The divisor of the loss, with `valid` labels that are not ignored, on a blob of `view`.
    pub fn divisor(&self, view: &ClassView, valid: usize) -> f32 {
        self.normalization.divisor([view.outer, view.inner], valid)
    }

    fn check_matrix(&self, view: &ClassView, bottoms: &[Shape]) -> Result<(), Fault> {
        let (field, values) = match (&self.matrix, bottoms.get(2)) {
            (None, Some(shape)) => ("bottom", shape.count()),
            (Some(matrix), None) => ("infogain_loss_param.source", matrix.len()),
            (Some(_), Some(_)) => return Err(Fault::new("bottom", "the matrix is there twice")),
            (None, None) => return Err(Fault::new("infogain_loss_param.source", "missing")),
        };
        let classes = view.classes;
        if values == classes * classes {
            return Ok(());
        }
        let message =
            format!("a matrix of {values} values for {classes} classes; expected {classes}x{classes}");
        Err(Fault::new(field, message))
    }
}

impl Meaning for InfogainLoss {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=3, tops: 0..=2 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let view = ClassView::new(&bottoms[0], self.axis, "infogain_loss_param.axis")?;
        check_labels(&view, &bottoms[0], &bottoms[1])?;
        self.check_matrix(&view, bottoms)?;
        let probabilities = bottoms[0].clone();
        Ok(Inferred {
            tops: vec![Shape::default(), probabilities.clone()],
            params: Vec::new(),
            aux: vec![probabilities],
        })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Top};
        let matrix = self.matrix.is_none().then_some(Bottom(2));
        match sub {
            SubTask::Forward => {
                let reads = [Bottom(0), Bottom(1)].into_iter().chain(matrix);
                Some(Accesses::new(reads.collect::<Vec<_>>(), [Aux(0), Top(0), Top(1)]))
            }
            SubTask::GradActivation => {
                let reads = [Aux(0), Bottom(1)].into_iter().chain(matrix);
                Some(Accesses::new(reads.collect::<Vec<_>>(), [BottomGrad(0)]))
            }
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match sub {
            SubTask::Forward => 7 * values,
            SubTask::GradActivation => 4 * values,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_a_bottom_or_the_layers_own() {
        let infer = |matrix: Option<usize>, dims: &[&[usize]]| {
            let matrix = matrix.map(|count| vec![0.0; count].into());
            let (ignore_label, normalization) = (None, Normalization::default());
            let layer = InfogainLoss { axis: 1, ignore_label, normalization, matrix };
            let bottoms: Vec<Shape> = dims.iter().map(|dims| Shape::new(*dims)).collect();
            layer.infer(&bottoms).map(drop).map_err(|fault| fault.field)
        };
        let (scores, labels, matrix): (&[usize], &[usize], &[usize]) = (&[4, 3], &[4], &[1, 1, 3, 3]);
        assert_eq!(infer(None, &[scores, labels, matrix]), Ok(()));
        assert_eq!(infer(Some(9), &[scores, labels]), Ok(()));
        assert_eq!(infer(None, &[scores, labels, labels]), Err("bottom".to_owned()));
        assert_eq!(infer(Some(9), &[scores, labels, matrix]), Err("bottom".to_owned()));
        assert_eq!(infer(Some(8), &[scores, labels]), Err("infogain_loss_param.source".to_owned()));
        assert_eq!(infer(None, &[scores, labels]), Err("infogain_loss_param.source".to_owned()));
    }
}
