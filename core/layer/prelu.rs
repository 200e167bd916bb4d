//! Parametric ReLU: `y = max(x, 0) + a · min(x, 0)` with an `a` that is learned, for each channel or for all.

use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Parametric ReLU over images by channels; the gradient at 0 is that of the negative side, as in Caffe.
#[derive(Clone, Debug, PartialEq)]
pub struct Prelu {
    /// Whether there is one slope for all channels.
    pub channel_shared: bool,
    /// How the slopes start.
    pub filler: Filler,
}

impl Meaning for Prelu {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let x = &bottoms[0];
        if x.axes() < 2 {
            let message = format!("has shape {x}; expected at least two axes: images and channels");
            return Err(Fault::new("bottom", message));
        }
        let shape = if self.channel_shared { Shape::default() } else { Shape::new([x.dim(1)]) };
        let slopes = ParamShape { shape, filler: self.filler.clone() };
        Ok(Inferred { tops: vec![x.clone()], params: vec![slopes], aux: Vec::new() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0), Param(0)], [Top(0)])),
            // The bottom and not the top, whose sign tells nothing where a slope is negative.
            SubTask::GradActivation => {
                Some(Accesses::new([TopGrad(0), Bottom(0), Param(0)], [BottomGrad(0)]))
            }
            SubTask::GradWeight => Some(Accesses::new([TopGrad(0), Bottom(0)], [ParamGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match sub {
            SubTask::Forward | SubTask::GradWeight => 2 * values,
            SubTask::GradActivation => values,
            _ => 0,
        }
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_slope_for_each_channel_or_one() {
        let slopes = |channel_shared, dims: &[usize]| {
            let layer = Prelu { channel_shared, filler: Filler::default() };
            layer.infer(&[Shape::new(dims)]).map(|inferred| inferred.params[0].shape.clone())
        };
        assert_eq!(slopes(false, &[2, 3, 4, 5]), Ok(Shape::new([3])));
        assert_eq!(slopes(false, &[2, 7]), Ok(Shape::new([7])));
        assert_eq!(slopes(true, &[2, 3, 4, 5]), Ok(Shape::default()));
        assert_eq!(slopes(true, &[2]).map_err(|fault| fault.field), Err("bottom".to_owned()));
    }
}
