//! The places of the largest values.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// The `top_k` largest values along an axis, or of each image. Of equal values the one with the larger place comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgMax {
    /// Whether the values are wanted: in place of their places along an axis, or after those of an image.
    pub out_max_val: bool,
    /// How many.
    pub top_k: usize,
    /// The axis, negative counting from the end; `None` for everything behind axis 0.
    pub axis: Option<i32>,
}

/// Where the values lie that are compared: outer × extent × inner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Product of the axes before.
    pub outer: usize,
    /// How many are compared.
    pub extent: usize,
    /// Product of the axes after.
    pub inner: usize,
}

impl ArgMax {
    /// What is compared in a bottom of this shape.
    ///
    /// # Errors
    /// If the axis does not exist.
    pub fn compared(&self, bottom: &Shape) -> Result<Compared, Fault> {
        let Some(axis) = self.axis else {
            return Ok(Compared { outer: bottom.images(), extent: bottom.per_image(), inner: 1 });
        };
        let axis = bottom.axis(axis, "argmax_param.axis")?;
        let (outer, inner) = (bottom.count_before(axis), bottom.count_from(axis + 1));
        Ok(Compared { outer, extent: bottom.dim(axis), inner })
    }

    /// Numbers in the top for each of the outer extents.
    pub fn row(&self, compared: Compared) -> usize {
        let both = self.axis.is_none() && self.out_max_val;
        self.top_k * compared.inner * if both { 2 } else { 1 }
    }
}

impl Meaning for ArgMax {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let bottom = &bottoms[0];
        let extent = self.compared(bottom)?.extent;
        if self.top_k == 0 || self.top_k > extent {
            return Err(Fault::new(
                "argmax_param.top_k",
                format!("{}; expected 1 to {extent}, the number of values that are compared", self.top_k),
            ));
        }
        let dims = match self.axis {
            Some(axis) => {
                let mut dims = bottom.dims().to_vec();
                dims[bottom.axis(axis, "argmax_param.axis")?] = self.top_k;
                dims
            }
            None => {
                let mut dims = vec![1; bottom.axes().max(3)];
                (dims[0], dims[1], dims[2]) =
                    (bottom.images(), 1 + usize::from(self.out_max_val), self.top_k);
                dims
            }
        };
        Ok(Inferred { tops: vec![Shape::checked(&dims, "argmax_param.top_k")?], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        (sub == SubTask::Forward).then(|| Accesses::new([Operand::Bottom(0)], [Operand::Top(0)]))
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let compared = (bottoms[0].count() as u64).saturating_mul(self.top_k as u64);
        if sub == SubTask::Forward { compared } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tops_have_the_shapes_of_caffe() {
        let top = |out_max_val, top_k, axis, dims: &[usize]| {
            let layer = ArgMax { out_max_val, top_k, axis };
            let inferred = layer.infer(&[Shape::new(dims)]).map_err(|fault| fault.field)?;
            Ok(inferred.tops[0].to_string())
        };
        let refused = |field: &str| Err(format!("argmax_param.{field}"));
        assert_eq!(top(false, 1, None, &[3, 8]), Ok("3x1x1".to_owned()));
        assert_eq!(top(true, 2, None, &[3, 8]), Ok("3x2x2".to_owned()));
        assert_eq!(top(true, 8, None, &[3, 2, 2, 2]), Ok("3x2x8x1".to_owned()));
        assert_eq!(top(true, 2, Some(1), &[2, 5, 3]), Ok("2x2x3".to_owned()));
        assert_eq!(top(false, 3, Some(-1), &[2, 5, 3]), Ok("2x5x3".to_owned()));
        assert_eq!(top(false, 0, None, &[3, 8]), refused("top_k"));
        assert_eq!(top(false, 9, None, &[3, 8]), refused("top_k"));
        assert_eq!(top(false, 4, Some(0), &[3, 8]), refused("top_k"));
        assert_eq!(top(false, 1, Some(2), &[3, 8]), refused("axis"));
        assert_eq!(top(false, 1, None, &[]), Ok("1x1x1".to_owned()));
    }
}
