//! Softmax along one axis: `y_i = exp(x_i − max) / Σ exp(x_j − max)`.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Softmax along `axis`.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// The axis of the classes; negative counts from the end.
    pub axis: i32,
}

/// A blob seen as outer × classes × inner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassView {
    /// Product of the axes before the classes.
    pub outer: usize,
    /// Extent of the axis of classes.
    pub classes: usize,
    /// Product of the axes after the classes.
    pub inner: usize,
}

impl ClassView {
    /// The view of `shape` with classes along `axis`.
    ///
    /// # Errors
    /// If the axis does not exist.
    pub fn new(shape: &Shape, axis: i32, field: &str) -> Result<Self, Fault> {
        let axis = shape.axis(axis, field)?;
        Ok(Self {
            outer: shape.count_before(axis),
            classes: shape.dim(axis),
            inner: shape.count_from(axis + 1),
        })
    }

    /// The view of a blob in which all values of an image are the scores of its classes.
    pub fn of_images(shape: &Shape) -> Self {
        Self { outer: shape.images(), classes: shape.per_image(), inner: 1 }
    }
}

impl Meaning for Softmax {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        ClassView::new(&bottoms[0], self.axis, "softmax_param.axis")?;
        Ok(Inferred { tops: vec![bottoms[0].clone()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top, TopGrad};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0)], [Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([TopGrad(0), Top(0)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        // Forward: subtract, exponential (counted as one), sum, divide; backward: product, sum, subtract, product.
        match sub {
            SubTask::Forward | SubTask::GradActivation => 4 * bottoms[0].count() as u64,
            _ => 0,
        }
    }
}
