//! Products with factors that are repeated over the other axes, and perhaps sums with a bias: `y = x · s + b`.

use super::convolution::weighted_accesses;
use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Products of bottom 0 with factors: a parameter, or bottom 1 if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Number of bottoms: 1, or 2 if the factors are the second.
    pub bottoms: usize,
    /// First axis of bottom 0 that the factors have; negative counts from the end.
    pub axis: i32,
    /// Number of axes that the factors have; −1 for all from `axis` on, 0 for a single factor. Without meaning if the
    /// factors are a bottom.
    pub num_axes: i32,
    /// Whether there is a bias, of the shape of the factors.
    pub bias: bool,
    /// How the factors start.
    pub filler: Filler,
    /// How the bias starts.
    pub bias_filler: Filler,
}

/// Bottom 0 seen as outer × factors × inner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factors {
    /// Extents of the factors, and of the bias.
    pub shape: Shape,
    /// Product of the axes before the factors'.
    pub outer: usize,
    /// Product of the axes after the factors'.
    pub inner: usize,
}

impl Factors {
    /// Where bottom 0 meets factors, or a bias: those of `bottoms[1]`, if there is one, and otherwise as many axes as
    /// `num_axes` says (−1 for all). `message` has the fields `axis` and `num_axes`.
    ///
    /// # Errors
    /// If an axis does not exist, or bottom 1 does not fit bottom 0.
    pub(super) fn new(bottoms: &[Shape], axis: i32, num_axes: i32, message: &str) -> Result<Self, Fault> {
        let field = format!("{message}.axis");
        let all = &bottoms[0];
        let view = |first: usize, shape: Shape| Self {
            outer: all.count_before(first),
            inner: all.count_from(first + shape.axes()),
            shape,
        };
        if let Some(given) = bottoms.get(1) {
            // A single factor fits everywhere.
            let first = if given.axes() == 0 { 0 } else { all.axis(axis, &field)? };
            let fits = all.dims()[first..].starts_with(given.dims());
            let message =
                || format!("bottom 1 has shape {given}, which does not fit {all} from axis {first} on");
            return fits.then(|| view(first, given.clone())).ok_or_else(|| Fault::new("bottom", message()));
        }
        let first = all.axis(axis, &field)?;
        let rest = all.axes() - first;
        let axes = if num_axes == -1 { Some(rest) } else { usize::try_from(num_axes).ok() };
        let axes = axes.filter(|axes| *axes <= rest).ok_or_else(|| {
            Fault::new(
                &format!("{message}.num_axes"),
                format!(
                    "{num_axes}; a blob of shape {all} has {rest} from axis {first} on; expected -1 to {rest}"
                ),
            )
        })?;
        Ok(view(first, Shape::new(&all.dims()[first..first + axes])))
    }
}

impl Scale {
    /// Where bottom 0 meets the factors.
    ///
    /// # Errors
    /// If an axis does not exist, or bottom 1 does not fit bottom 0.
    pub fn factors(&self, bottoms: &[Shape]) -> Result<Factors, Fault> {
        Factors::new(bottoms, self.axis, self.num_axes, "scale_param")
    }

    /// Which parameter the bias is: Caffe's order, in which factors that are a bottom have no place.
    pub fn bias_param(&self) -> usize {
        if self.bottoms == 2 { 0 } else { 1 }
    }
}

impl Meaning for Scale {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=2, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if bottoms.len() != self.bottoms {
            return Err(Fault::new(
                "bottom",
                format!("{} given; the layer was made for {}", bottoms.len(), self.bottoms),
            ));
        }
        let shape = self.factors(bottoms)?.shape;
        let mut params = Vec::new();
        if self.bottoms == 1 {
            params.push(ParamShape { shape: shape.clone(), filler: self.filler.clone() });
        }
        if self.bias {
            params.push(ParamShape { shape, filler: self.bias_filler.clone() });
        }
        Ok(Inferred { tops: vec![bottoms[0].clone()], params, aux: Vec::new() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
        if self.bottoms == 1 {
            return weighted_accesses(sub, self.bias);
        }
        match sub {
            SubTask::Forward if self.bias => Some(Accesses::new([Bottom(0), Bottom(1), Param(0)], [Top(0)])),
            SubTask::Forward => Some(Accesses::new([Bottom(0), Bottom(1)], [Top(0)])),
            SubTask::GradActivation => {
                Some(Accesses::new([TopGrad(0), Bottom(0), Bottom(1)], [BottomGrad(0), BottomGrad(1)]))
            }
            SubTask::GradBias if self.bias => Some(Accesses::new([TopGrad(0)], [ParamGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        match sub {
            SubTask::Forward if self.bias => 2 * values,
            SubTask::Forward => values,
            SubTask::GradActivation if self.bottoms == 2 => 3 * values,
            SubTask::GradActivation => values,
            SubTask::GradWeight if self.bottoms == 1 => 2 * values,
            SubTask::GradBias if self.bias => values,
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

    fn scale(bottoms: usize, axis: i32, num_axes: i32) -> Scale {
        let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
        Scale { bottoms, axis, num_axes, bias: true, filler, bias_filler }
    }

    #[test]
    fn the_factors_lie_between_the_axes_before_and_behind_them() {
        let x = Shape::new([2, 3, 4, 5]);
        for (axis, num_axes, dims, outer, inner) in [
            (1, 1, &[3][..], 2, 20),
            (0, 2, &[2, 3], 1, 20),
            (2, -1, &[4, 5], 6, 1),
            (-1, 1, &[5], 24, 1),
            (1, 0, &[], 2, 60),
        ] {
            let factors = Factors { shape: Shape::new(dims), outer, inner };
            assert_eq!(scale(1, axis, num_axes).factors(std::slice::from_ref(&x)), Ok(factors));
        }
        for (axis, dims, outer, inner) in [(1, &[3, 4][..], 2, 5), (0, &[2, 3], 1, 20), (3, &[], 1, 120)] {
            let (shape, bottoms) = (Shape::new(dims), [x.clone(), Shape::new(dims)]);
            assert_eq!(scale(2, axis, 9).factors(&bottoms), Ok(Factors { shape, outer, inner }));
        }
    }

    #[test]
    fn factors_that_do_not_fit_are_refused() {
        let x = Shape::new([2, 3, 4]);
        for (axis, num_axes, field) in [
            (3, 1, "scale_param.axis"),
            (-4, 1, "scale_param.axis"),
            (1, 3, "scale_param.num_axes"),
            (0, -2, "scale_param.num_axes"),
            (0, i32::MAX, "scale_param.num_axes"),
        ] {
            let fault = scale(1, axis, num_axes).infer(std::slice::from_ref(&x)).expect_err("impossible");
            assert_eq!(fault.field, field, "axis {axis}, {num_axes} axes");
        }
        for (axis, dims) in [(1, &[4][..]), (0, &[3]), (2, &[4, 1]), (0, &[2, 3, 4, 1])] {
            let fault = scale(2, axis, 1).infer(&[x.clone(), Shape::new(dims)]).expect_err("impossible");
            assert_eq!(fault.field, "bottom", "axis {axis}, {dims:?}");
        }
        assert!(scale(2, 1, 1).infer(&[x]).is_err());
    }
}
