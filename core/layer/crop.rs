//! A part of the first bottom, as large as the second.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Bottom 0 cut along `axis` and all axes after it to the extents of bottom 1, whose values nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crop {
    /// The first axis that is cut; negative counts from the end.
    pub axis: i32,
    /// Where the part begins along each axis that is cut: none for 0, one for all, or one for each.
    pub offsets: Vec<usize>,
}

impl Crop {
    /// Where the part begins along every axis, and its shape.
    ///
    /// # Errors
    /// If the part does not lie in bottom 0.
    pub fn part(&self, bottoms: &[Shape]) -> Result<(Vec<usize>, Shape), Fault> {
        let (whole, like) = (&bottoms[0], &bottoms[1]);
        let first = whole.axis(self.axis, "crop_param.axis")?;
        let cut = whole.axes() - first;
        if self.offsets.len() > 1 && self.offsets.len() != cut {
            let given = self.offsets.len();
            return Err(Fault::new(
                "crop_param.offset",
                format!(
                    "{given} given, but {cut} axes are cut, from axis {first} on; expected none, one for all or {cut}"
                ),
            ));
        }
        if like.axes() < whole.axes() {
            return Err(Fault::new(
                "bottom",
                format!(
                    "the second has shape {like}; to cut {whole} from axis {first} on it needs {} axes",
                    whole.axes()
                ),
            ));
        }
        let (mut offsets, mut dims) = (vec![0; whole.axes()], whole.dims().to_vec());
        for axis in first..whole.axes() {
            let offset = match self.offsets[..] {
                [] => 0,
                [all] => all,
                _ => self.offsets[axis - first],
            };
            let (extent, all) = (like.dim(axis), whole.dim(axis));
            if offset.checked_add(extent).is_none_or(|end| end > all) {
                return Err(Fault::new(
                    "crop_param.offset",
                    format!(
                        "{extent} from {offset} on do not lie in the {all} of axis {axis} of a bottom of shape {whole}"
                    ),
                ));
            }
            (offsets[axis], dims[axis]) = (offset, extent);
        }
        Ok((offsets, Shape::new(dims)))
    }
}

impl Meaning for Crop {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        Ok(Inferred { tops: vec![self.part(bottoms)?.1], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        match sub {
            SubTask::Forward => Some(Accesses::new([Operand::Bottom(0)], [Operand::Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([Operand::TopGrad(0)], [Operand::BottomGrad(0)])),
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

    fn part(axis: i32, offsets: &[usize], like: &[usize]) -> Result<(Vec<usize>, String), String> {
        let crop = Crop { axis, offsets: offsets.to_vec() };
        let part = crop.part(&[Shape::new([2, 5, 6, 7]), Shape::new(like)]).map_err(|fault| fault.field)?;
        Ok((part.0, part.1.to_string()))
    }

    #[test]
    fn a_part_is_as_large_as_the_second_bottom_from_an_axis_on() {
        let of = |offsets: [usize; 4], top: &str| Ok((offsets.to_vec(), top.to_owned()));
        assert_eq!(part(2, &[], &[9, 9, 3, 4]), of([0; 4], "2x5x3x4"));
        assert_eq!(part(2, &[3], &[1, 1, 3, 4]), of([0, 0, 3, 3], "2x5x3x4"));
        assert_eq!(part(-1, &[2], &[1, 1, 1, 4]), of([0, 0, 0, 2], "2x5x6x4"));
        assert_eq!(part(1, &[2, 0, 1], &[1, 3, 4, 5]), of([0, 2, 0, 1], "2x3x4x5"));
        assert_eq!(part(0, &[], &[1, 2, 3, 4]), of([0; 4], "1x2x3x4"));
    }

    #[test]
    fn a_part_that_does_not_fit_is_refused() {
        let field = |name: &str| Err(format!("crop_param.{name}"));
        assert_eq!(part(2, &[4], &[2, 5, 3, 3]), field("offset"));
        assert_eq!(part(2, &[], &[2, 5, 7, 7]), field("offset"));
        assert_eq!(part(2, &[usize::MAX], &[2, 5, 1, 1]), field("offset"));
        assert_eq!(part(1, &[0, 0], &[2, 5, 1, 1]), field("offset"));
        assert_eq!(part(4, &[], &[2, 5, 1, 1]), field("axis"));
        assert_eq!(part(2, &[], &[2, 5, 1]), Err("bottom".to_owned()));
    }
}
