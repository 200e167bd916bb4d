//! One bottom cut along one axis.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// A top for each piece of the bottom along `axis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The axis that is cut; negative counts from the end.
    pub axis: i32,
    /// Where each piece but the first begins, rising; empty for pieces of equal size.
    pub points: Vec<usize>,
    /// Number of tops.
    pub tops: usize,
}

impl Slice {
    /// Extents of the pieces of an axis of `extent`.
    ///
    /// # Errors
    /// If the axis cannot be cut so.
    pub fn pieces(&self, extent: usize) -> Result<Vec<usize>, Fault> {
        let field = "slice_param.slice_point";
        let tops = self.tops;
        if self.points.is_empty() {
            if tops == 0 || !extent.is_multiple_of(tops) {
                return Err(Fault::new(
                    "top",
                    format!("{tops} tops for an axis of {extent}; expected a divisor"),
                )
                .hint("say with slice_point where each piece but the first begins"));
            }
            return Ok(vec![extent / tops; tops]);
        }
        if self.points.len() + 1 != tops {
            return Err(Fault::new(
                field,
                format!("{} given for {tops} tops; expected one less than tops", self.points.len()),
            ));
        }
        let ends = self.points.iter().copied().chain([extent]);
        let starts = [0].into_iter().chain(self.points.iter().copied());
        starts
            .zip(ends)
            .map(|(start, end)| {
                end.checked_sub(start).filter(|piece| *piece > 0).ok_or_else(|| {
                    let points = self.points.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                    Fault::new(field, format!("{points}; expected rising numbers from 1 to {}", extent - 1))
                })
            })
            .collect()
    }
}

impl Meaning for Slice {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=self.tops.max(1) }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let axis = bottoms[0].axis(self.axis, "slice_param.axis")?;
        let of_piece = |piece| {
            let mut dims = bottoms[0].dims().to_vec();
            dims[axis] = piece;
            Shape::new(dims)
        };
        let pieces = self.pieces(bottoms[0].dim(axis))?;
        Ok(Inferred { tops: pieces.into_iter().map(of_piece).collect(), ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        let each = |operand: fn(usize) -> Operand| (0..self.tops).map(operand).collect::<Vec<_>>();
        match sub {
            SubTask::Forward => Some(Accesses::new([Operand::Bottom(0)], each(Operand::Top))),
            SubTask::GradActivation => Some(Accesses::new(each(Operand::TopGrad), [Operand::BottomGrad(0)])),
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

    fn refused(axis: i32, points: &[usize], tops: usize) -> Option<String> {
        let slice = Slice { axis, points: points.to_vec(), tops };
        slice.infer(&[Shape::new([2, 6])]).map_err(|fault| fault.field).err()
    }

    #[test]
    fn pieces_are_equal_or_begin_where_they_are_told() {
        let pieces = |points: &[usize], tops| Slice { axis: 1, points: points.to_vec(), tops }.pieces(6);
        assert_eq!(pieces(&[], 3), Ok(vec![2; 3]));
        assert_eq!(pieces(&[], 1), Ok(vec![6]));
        assert_eq!(pieces(&[1, 4], 3), Ok(vec![1, 3, 2]));
        let point = Some("slice_param.slice_point".to_owned());
        for (points, tops) in [(&[1, 4][..], 2), (&[0], 2), (&[6], 2), (&[7], 2), (&[4, 4], 3), (&[5, 2], 3)]
        {
            assert_eq!(refused(1, points, tops), point, "{points:?}");
        }
        assert_eq!(refused(1, &[usize::MAX], 2), point);
        assert_eq!(refused(1, &[], 4), Some("top".to_owned()));
        assert_eq!(refused(2, &[], 2), Some("slice_param.axis".to_owned()));
        assert_eq!(refused(-1, &[], 2), None);
    }
}
