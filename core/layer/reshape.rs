//! The same values under other extents. Forward costs nothing: the top lies in the bottom's memory, as its gradient does
//! in the bottom's gradient.

use super::{Accesses, Arity, Inferred, Meaning, SubTask, view_accesses};
use crate::shape::Shape;
use crate::site::Fault;

/// One extent of the new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewExtent {
    /// That of the bottom's axis in the same place.
    Copied,
    /// What is left over; at most once.
    Inferred,
    /// So many.
    Of(usize),
}

/// Other extents in place of some axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// The new extents.
    pub extents: Vec<NewExtent>,
    /// The first axis that they replace; a negative one counts from one past the last, which is −1.
    pub axis: i32,
    /// How many axes they replace; −1 for all from `axis` on.
    pub num_axes: i32,
}

impl Reshape {
    /// The axes of `bottom` that are replaced.
    fn replaced(&self, bottom: &Shape) -> Result<std::ops::Range<usize>, Fault> {
        let axes = bottom.axes() as i32;
        if self.axis < -axes - 1 || self.axis > axes {
            return Err(Fault::new(
                "reshape_param.axis",
                format!(
                    "{} is no place in a blob of shape {bottom}; expected {} to {axes}",
                    self.axis,
                    -axes - 1
                ),
            ));
        }
        let first = if self.axis < 0 { axes + self.axis + 1 } else { self.axis };
        let rest = axes - first;
        let replaced = if self.num_axes == -1 { rest } else { self.num_axes };
        if !(0..=rest).contains(&replaced) {
            return Err(Fault::new(
                "reshape_param.num_axes",
                format!(
                    "{}; a blob of shape {bottom} has {rest} from axis {first} on; expected -1 to {rest}",
                    self.num_axes
                ),
            ));
        }
        Ok(first as usize..(first + replaced) as usize)
    }
}

impl Meaning for Reshape {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        const FIELD: &str = "reshape_param.shape";
        let bottom = &bottoms[0];
        let replaced = self.replaced(bottom)?;
        let mut inferred = None;
        let mut dims = bottom.dims()[..replaced.start].to_vec();
        for extent in &self.extents {
            let at = dims.len();
            dims.push(match *extent {
                NewExtent::Of(extent) => extent,
                NewExtent::Copied => *bottom.dims().get(at).ok_or_else(|| {
                    let message =
                        format!("0 copies axis {at}, which a bottom of shape {bottom} does not have");
                    Fault::new(FIELD, message)
                })?,
                NewExtent::Inferred if inferred.replace(at).is_none() => 1,
                NewExtent::Inferred => {
                    return Err(Fault::new(FIELD, "-1 is there twice; only one extent can be inferred")
                        .hint("write all extents but one, or dim: 0 for one that stays"));
                }
            });
        }
        dims.extend(&bottom.dims()[replaced.end..]);
        if let Some(at) = inferred {
            let others = Shape::checked(&dims, FIELD)?.count();
            if !bottom.count().is_multiple_of(others) {
                return Err(Fault::new(
                    FIELD,
                    format!(
                        "-1 cannot be inferred: the {} values of a bottom of shape {bottom} are no multiple of the {others} \
                         that the other extents make",
                        bottom.count()
                    ),
                ));
            }
            dims[at] = bottom.count() / others;
        }
        let top = Shape::checked(&dims, FIELD)?;
        if top.count() != bottom.count() {
            return Err(Fault::new(
                FIELD,
                format!(
                    "the top would have shape {top} and {} values; a bottom of shape {bottom} has {}",
                    top.count(),
                    bottom.count()
                ),
            )
            .hint("write dim: -1 for the extent that follows from the others"));
        }
        Ok(Inferred { tops: vec![top], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        view_accesses(sub)
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reshape(extents: &[i32], axis: i32, num_axes: i32) -> Reshape {
        let extent = |extent: &i32| match extent {
            0 => NewExtent::Copied,
            -1 => NewExtent::Inferred,
            extent => NewExtent::Of(extent.unsigned_abs() as usize),
        };
        Reshape { extents: extents.iter().map(extent).collect(), axis, num_axes }
    }

    fn top(layer: &Reshape, dims: &[usize]) -> Result<String, String> {
        let inferred = layer.infer(&[Shape::new(dims)]).map_err(|fault| fault.field)?;
        Ok(inferred.tops[0].to_string())
    }

    #[test]
    fn extents_are_copied_inferred_and_given() {
        let x = &[2, 3, 4, 5];
        for (extents, axis, num_axes, expected) in [
            (&[4, 5, 2, 3][..], 0, -1, "4x5x2x3"),
            (&[0, -1], 0, -1, "2x60"),
            (&[0, 0, 20], 0, -1, "2x3x20"),
            (&[-1, 0, 5], 0, -1, "8x3x5"),
            (&[-1, 5], -2, -1, "2x3x4x1x5"),
            (&[3, 1], 1, 1, "2x3x1x4x5"),
            (&[-1], 1, 2, "2x12x5"),
            (&[0, -1], 1, -1, "2x3x20"),
            (&[1], 0, 0, "1x2x3x4x5"),
            (&[1, 1], -1, 0, "2x3x4x5x1x1"),
            (&[1], 4, -1, "2x3x4x5x1"),
            (&[1, -1], -5, 1, "1x2x3x4x5"),
        ] {
            assert_eq!(
                top(&reshape(extents, axis, num_axes), x),
                Ok(expected.to_owned()),
                "{extents:?} {axis}"
            );
        }
        assert_eq!(top(&reshape(&[], 1, -1), &[3, 1, 1]), Ok("3".to_owned()));
        assert_eq!(top(&reshape(&[1, 1], 0, -1), &[]), Ok("1x1".to_owned()));
    }

    #[test]
    fn extents_that_do_not_fit_are_refused() {
        let refused = |extents: &[i32], axis, num_axes| {
            top(&reshape(extents, axis, num_axes), &[2, 3, 4]).expect_err("impossible")
        };
        let field = |name: &str| format!("reshape_param.{name}");
        assert_eq!(refused(&[5, -1], 0, -1), field("shape"));
        assert_eq!(refused(&[-1, -1], 0, -1), field("shape"));
        assert_eq!(refused(&[2, 3, 5], 0, -1), field("shape"));
        assert_eq!(refused(&[0, 0, 0, 0], 0, -1), field("shape"));
        assert_eq!(refused(&[0], 3, -1), field("shape"));
        assert_eq!(refused(&[i32::MAX, i32::MAX, -1], 0, -1), field("shape"));
        assert_eq!(refused(&[1], 4, -1), field("axis"));
        assert_eq!(refused(&[1], -5, -1), field("axis"));
        assert_eq!(refused(&[1], 2, 2), field("num_axes"));
        assert_eq!(refused(&[1], 0, -2), field("num_axes"));
    }
}
