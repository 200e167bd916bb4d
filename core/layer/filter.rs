//! The images that a selector marks.
//!
//! In Caffe the tops have as many images as are marked, a number that only the data knows. Shapes are fixed here before the
//! first step, so tops have room for all images: those that are marked come first, in their order, and zeros follow. A
//! layer above would take the zeros for images, so nobody may read the tops: they are outputs of the net.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// For each bottom but the last its images that the last one, the selector, marks with anything but 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Number of bottoms, the selector among them.
    pub bottoms: usize,
}

impl Meaning for Filter {
    fn arity(&self) -> Arity {
        let tops = self.bottoms.saturating_sub(1).max(1);
        Arity { bottoms: 2..=self.bottoms.max(2), tops: tops..=tops }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let (tops, selector) = bottoms.split_at(bottoms.len() - 1);
        let selector = &selector[0];
        if selector.axes() == 0 || selector.per_image() != 1 {
            return Err(Fault::new(
                "bottom",
                format!(
                    "the last, which selects images, has shape {selector}; expected one value for each image"
                ),
            ));
        }
        if let Some(i) = tops.iter().position(|x| x.axes() == 0 || x.images() != selector.images()) {
            return Err(Fault::new(
                "bottom",
                format!(
                    "bottom {i} has shape {}, but the last selects from {} images",
                    tops[i],
                    selector.images()
                ),
            ));
        }
        Ok(Inferred { tops: tops.to_vec(), ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        let each = |operand: fn(usize) -> Operand, count| (0..count).map(operand).collect::<Vec<_>>();
        let tops = self.bottoms.saturating_sub(1);
        (sub == SubTask::Forward)
            .then(|| Accesses::new(each(Operand::Bottom, self.bottoms), each(Operand::Top, tops)))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selector_has_a_value_for_each_image() {
        let tops = |dims: &[&[usize]]| {
            let bottoms: Vec<Shape> = dims.iter().map(|dims| Shape::new(*dims)).collect();
            let inferred = Filter { bottoms: bottoms.len() }.infer(&bottoms).map_err(|fault| fault.field)?;
            Ok(inferred.tops.iter().map(Shape::to_string).collect::<Vec<_>>())
        };
        assert_eq!(tops(&[&[4, 3], &[4, 1, 1]]), Ok(vec!["4x3".to_owned()]));
        assert_eq!(tops(&[&[4, 3], &[4], &[4]]), Ok(vec!["4x3".to_owned(), "4".to_owned()]));
        for wrong in [&[&[4, 3][..], &[5]], &[&[4, 3], &[4, 2]], &[&[4, 3], &[]], &[&[], &[1]]] {
            assert_eq!(tops(wrong), Err("bottom".to_owned()), "{wrong:?}");
        }
    }
}
