//! Euclidean loss: half of the squared distance of two blobs, averaged over images: `L = Σ (a − b)² / (2N)`.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Euclidean loss. Bottoms: predictions and targets, both of which may have gradients; top: the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EuclideanLoss;

/// Checks that two blobs have as many images, and as many values in each.
pub(super) fn check_pair([a, b]: [&Shape; 2]) -> Result<(), Fault> {
    if a.axes() > 0 && b.axes() > 0 && [b.images(), b.count()] == [a.images(), a.count()] {
        return Ok(());
    }
    let message =
        format!("blobs of shapes {a} and {b}; expected the same images, with as many values in each");
    Err(Fault::new("bottom", message))
}

impl Meaning for EuclideanLoss {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 0..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        check_pair([&bottoms[0], &bottoms[1]])?;
        Ok(Inferred { tops: vec![Shape::default()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0), Bottom(1)], [Top(0)])),
            SubTask::GradActivation => {
                Some(Accesses::new([Bottom(0), Bottom(1)], [BottomGrad(0), BottomGrad(1)]))
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_must_fit() {
        let fits = |a: &[usize], b: &[usize]| EuclideanLoss.infer(&[Shape::new(a), Shape::new(b)]).is_ok();
        assert!(fits(&[2, 3, 4], &[2, 12]) && fits(&[5], &[5, 1]));
        for (a, b) in [(&[2, 3][..], &[3, 2][..]), (&[2, 3], &[2, 4]), (&[], &[]), (&[1], &[])] {
            assert!(!fits(a, b), "{a:?}, {b:?}");
        }
    }
}
