//! Images in another order, any number of times each.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// For each index in bottom 1 (one axis), that image of bottom 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchReindex;

impl BatchReindex {
    /// The image of `images` that a number names, its fraction cut off as in Caffe; `None` if there is no such image.
    /// Caffe ends the program then; here the top is not a number.
    pub fn image(index: f64, images: usize) -> Option<usize> {
        (index >= 0.0 && index < images as f64).then_some(index as usize)
    }
}

impl Meaning for BatchReindex {
    fn arity(&self) -> Arity {
        Arity { bottoms: 2..=2, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let &[count] = bottoms[1].dims() else {
            return Err(Fault::new(
                "bottom",
                format!("the second, of indices, has shape {}; expected one axis", bottoms[1]),
            ));
        };
        if bottoms[0].axes() == 0 {
            return Err(Fault::new("bottom", "the first is a single value without axes; expected images"));
        }
        let top = [&[count], &bottoms[0].dims()[1..]].concat();
        Ok(Inferred { tops: vec![Shape::checked(&top, "bottom")?], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top, TopGrad};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0), Bottom(1)], [Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([TopGrad(0), Bottom(1)], [BottomGrad(0)])),
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
    fn there_is_an_image_for_each_index() {
        let top = |first: &[usize], indices: &[usize]| {
            let inferred = BatchReindex.infer(&[Shape::new(first), Shape::new(indices)]);
            inferred.map(|i| i.tops[0].to_string()).map_err(|fault| fault.field)
        };
        assert_eq!(top(&[2, 3, 4], &[5]), Ok("5x3x4".to_owned()));
        assert_eq!(top(&[2], &[1]), Ok("1".to_owned()));
        assert_eq!(top(&[2, 3], &[5, 1]), Err("bottom".to_owned()));
        assert_eq!(top(&[], &[5]), Err("bottom".to_owned()));
        let image = |index| BatchReindex::image(index, 3);
        assert_eq!([0.0, 2.5, 3.0, -0.5, f64::NAN].map(image), [Some(0), Some(2), None, None, None]);
    }
}
