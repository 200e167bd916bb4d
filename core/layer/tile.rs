//! Copies of a bottom side by side along one axis.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// The bottom `tiles` times along `axis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The axis along which the copies lie; negative counts from the end.
    pub axis: i32,
    /// How many.
    pub tiles: usize,
}

impl Meaning for Tile {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let axis = bottoms[0].axis(self.axis, "tile_param.axis")?;
        let field = "tile_param.tiles";
        if self.tiles == 0 {
            return Err(Fault::new(field, "0; expected at least 1"));
        }
        let mut dims = bottoms[0].dims().to_vec();
        dims[axis] = dims[axis].saturating_mul(self.tiles);
        Ok(Inferred { tops: vec![Shape::checked(&dims, field)?], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        match sub {
            SubTask::Forward => Some(Accesses::new([Operand::Bottom(0)], [Operand::Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([Operand::TopGrad(0)], [Operand::BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, _: &[Shape], tops: &[Shape]) -> u64 {
        if sub == SubTask::GradActivation { tops[0].count() as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_axis_grows() {
        let top = |axis, tiles| {
            let inferred =
                Tile { axis, tiles }.infer(&[Shape::new([2, 3, 4])]).map_err(|fault| fault.field)?;
            Ok(inferred.tops[0].to_string())
        };
        let refused = |field: &str| Err(format!("tile_param.{field}"));
        assert_eq!(top(1, 2), Ok("2x6x4".to_owned()));
        assert_eq!(top(-1, 3), Ok("2x3x12".to_owned()));
        assert_eq!(top(3, 2), refused("axis"));
        assert_eq!(top(0, 0), refused("tiles"));
        assert_eq!(top(0, usize::MAX), refused("tiles"));
    }
}
