//! Bottoms side by side along one axis.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// The bottoms, one after the other along `axis`; all other extents must be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concat {
    /// The axis along which they lie; negative counts from the end.
    pub axis: i32,
    /// Number of bottoms.
    pub bottoms: usize,
}

impl Meaning for Concat {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=self.bottoms.max(1), tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let axis = bottoms[0].axis(self.axis, "concat_param.axis")?;
        let mut dims = bottoms[0].dims().to_vec();
        for (i, bottom) in bottoms.iter().enumerate().skip(1) {
            let same = |(a, (one, other)): (usize, (&usize, &usize))| a == axis || one == other;
            if bottom.axes() != dims.len() || !dims.iter().zip(bottom.dims()).enumerate().all(same) {
                return Err(Fault::new(
                    "bottom",
                    format!(
                        "bottom {i} has shape {bottom}, the first {}; expected the same extents but along axis {axis}",
                        bottoms[0]
                    ),
                ));
            }
            dims[axis] = dims[axis].saturating_add(bottom.dim(axis));
        }
        Ok(Inferred { tops: vec![Shape::checked(&dims, "bottom")?], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        let each = |operand: fn(usize) -> Operand| (0..self.bottoms).map(operand).collect::<Vec<_>>();
        match sub {
            SubTask::Forward => Some(Accesses::new(each(Operand::Bottom), [Operand::Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([Operand::TopGrad(0)], each(Operand::BottomGrad))),
            _ => None,
        }
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(axis: i32, dims: &[&[usize]]) -> Result<Shape, Fault> {
        let bottoms: Vec<Shape> = dims.iter().map(|dims| Shape::new(*dims)).collect();
        let inferred = Concat { axis, bottoms: dims.len() }.infer(&bottoms)?;
        Ok(inferred.tops[0].clone())
    }

    #[test]
    fn extents_add_up_along_the_axis_and_agree_elsewhere() {
        assert_eq!(infer(1, &[&[2, 3, 4], &[2, 1, 4], &[2, 5, 4]]), Ok(Shape::new([2, 9, 4])));
        assert_eq!(infer(-1, &[&[2, 3], &[2, 4]]), Ok(Shape::new([2, 7])));
        assert_eq!(infer(0, &[&[2, 3]]), Ok(Shape::new([2, 3])));
        for (axis, dims) in [(0, [2, 4]), (1, [1, 3])] {
            let fault = infer(axis, &[&[2, 3], &dims]).expect_err("they do not fit");
            assert!(fault.field == "bottom" && fault.message.contains("bottom 1 has shape"), "{fault:?}");
        }
        assert!(infer(1, &[&[2, 3], &[2, 3, 1]]).is_err_and(|fault| fault.field == "bottom"));
        assert!(infer(2, &[&[2, 3], &[2, 3]]).is_err_and(|fault| fault.field == "concat_param.axis"));
        let huge: &[usize] = &[1, i32::MAX as usize];
        assert!(infer(1, &[huge, huge]).is_err_and(|fault| fault.message.contains("elements")));
    }
}
