//! Contrastive loss of pairs (Hadsell, Chopra, LeCun, CVPR 2006): pulls similar pairs together and pushes others apart
//! until they are a margin away: `L = Σ_n l_n / (2N)`, with `l_n = d_n²` for a similar pair and `max(margin − d_n, 0)²`
//! for any other, where `d_n` is the distance of `a_n` and `b_n`.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Contrastive loss. Bottoms: features a and b (N, C), and N numbers, 0 for a pair that is not similar; top: the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct ContrastiveLoss {
    /// The distance beyond which pairs that are not similar cost nothing.
    pub margin: f32,
    /// Whether they cost `max(margin − d², 0)` in place of `max(margin − d, 0)²`, as Caffe once had it.
    pub legacy_version: bool,
}

impl Meaning for ContrastiveLoss {
    fn arity(&self) -> Arity {
        Arity { bottoms: 3..=3, tops: 0..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let fault = |text: String| Err(Fault::new("bottom", text));
        let [a, b, similar] = [&bottoms[0], &bottoms[1], &bottoms[2]];
        if a.axes() < 2 || a.per_image() != a.dim(1) {
            return fault(format!(
                "the features have shape {a}; expected images x channels, and 1 for more axes"
            ));
        }
        if [b.images(), b.dim(1), b.count()] != [a.images(), a.dim(1), a.count()] {
            return fault(format!("features of shapes {a} and {b}; expected the same images and channels"));
        }
        if similar.axes() == 0 || [similar.images(), similar.count()] != [a.images(); 2] {
            let images = a.images();
            return fault(format!(
                "the third has shape {similar}; expected one number for each of {images} pairs: 0, or 1 if similar"
            ));
        }
        Ok(Inferred { tops: vec![Shape::default()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0), Bottom(1), Bottom(2)], [Top(0)])),
            // Differences and distances are computed again; they are few beside the features' own gradients.
            SubTask::GradActivation => {
                Some(Accesses::new([Bottom(0), Bottom(1), Bottom(2)], [BottomGrad(0), BottomGrad(1)]))
            }
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match sub {
            SubTask::Forward => 3 * values,
            SubTask::GradActivation => 5 * values,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_must_fit() {
        let infer = |dims: [&[usize]; 3]| {
            let loss = ContrastiveLoss { margin: 1.0, legacy_version: false };
            loss.infer(&dims.map(Shape::new)).map(|i| i.tops).map_err(|fault| fault.message)
        };
        for fits in [
            [&[6, 3][..], &[6, 3], &[6]],
            [&[6, 3, 1, 1], &[6, 3], &[6, 1, 1, 1]],
            [&[1, 3], &[1, 3], &[1, 1]],
        ] {
            assert_eq!(infer(fits), Ok(vec![Shape::default()]), "{fits:?}");
        }
        for (unfit, says) in [
            ([&[6, 3, 2][..], &[6, 3, 2], &[6]], "6x3x2; expected images x channels"),
            ([&[6], &[6], &[6]], "shape 6; expected images x channels"),
            ([&[6, 3], &[6, 4], &[6]], "6x3 and 6x4"),
            ([&[6, 3], &[3, 6], &[6]], "6x3 and 3x6"),
            ([&[6, 3], &[6, 3, 2], &[6]], "6x3 and 6x3x2"),
            ([&[6, 3], &[6, 3], &[5]], "each of 6 pairs"),
            ([&[6, 3], &[6, 3], &[6, 2]], "shape 6x2"),
            ([&[6, 3], &[6, 3], &[]], "each of 6 pairs"),
        ] {
            assert!(infer(unfit).is_err_and(|message| message.contains(says)), "{unfit:?}");
        }
    }
}
