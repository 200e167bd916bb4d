//! Several axes as one. Forward costs nothing: the top lies in the bottom's memory, as its gradient does in the
//! bottom's gradient.

use super::{Accesses, Arity, Inferred, Meaning, SubTask, view_accesses};
use crate::shape::Shape;
use crate::site::Fault;

/// The axes from `axis` to `end_axis` as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flatten {
    /// The first; negative counts from the end.
    pub axis: i32,
    /// The last; negative counts from the end.
    pub end_axis: i32,
}

impl Meaning for Flatten {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let bottom = &bottoms[0];
        let first = bottom.axis(self.axis, "flatten_param.axis")?;
        let last = bottom.axis(self.end_axis, "flatten_param.end_axis")?;
        if last < first {
            return Err(Fault::new(
                "flatten_param.end_axis",
                format!("axis {last} lies before axis {first}; expected one that does not"),
            ));
        }
        let dims = bottom.dims();
        let flat = dims[first..=last].iter().product();
        let top = [&dims[..first], &[flat], &dims[last + 1..]].concat();
        Ok(Inferred { tops: vec![Shape::new(top)], ..Inferred::default() })
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

    #[test]
    fn axes_become_one() {
        let infer = |axis, end_axis, dims: &[usize]| {
            let inferred = Flatten { axis, end_axis }.infer(&[Shape::new(dims)]);
            inferred.map(|i| i.tops[0].to_string()).map_err(|fault| fault.field)
        };
        assert_eq!(infer(1, -1, &[2, 3, 4, 5]), Ok("2x60".to_owned()));
        assert_eq!(infer(2, -1, &[2, 3, 4, 5]), Ok("2x3x20".to_owned()));
        assert_eq!(infer(0, 1, &[2, 3, 4, 5]), Ok("6x4x5".to_owned()));
        assert_eq!(infer(-2, 2, &[2, 3, 4, 5]), Ok("2x3x4x5".to_owned()));
        assert_eq!(infer(1, -1, &[2]), Err("flatten_param.axis".to_owned()));
        assert_eq!(infer(1, 4, &[2, 3, 4, 5]), Err("flatten_param.end_axis".to_owned()));
        assert_eq!(infer(2, 1, &[2, 3, 4, 5]), Err("flatten_param.end_axis".to_owned()));
    }
}
