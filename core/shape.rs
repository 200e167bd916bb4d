//! The extent of a blob.

use std::fmt;

use crate::site::Fault;

/// Largest number of elements of one blob: Caffe's own limit, and what keeps every index in 32 bits.
pub const MAX_ELEMENTS: usize = i32::MAX as usize;
/// Largest number of axes of one blob, as in Caffe.
pub const MAX_AXES: usize = 32;

/// Extents of a blob, slowest axis first (N, C, H, W for images). No axes means one value.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// A shape that was checked elsewhere or is written in the program.
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Self(dims.into())
    }

    /// A shape that comes from a file: refuses zero extents, more than [`MAX_AXES`] axes and more than
    /// [`MAX_ELEMENTS`] elements.
    pub fn checked(dims: &[usize], field: &str) -> Result<Self, Fault> {
        if dims.len() > MAX_AXES {
            return Err(Fault::new(field, format!("{} axes; at most {MAX_AXES} are possible", dims.len())));
        }
        if let Some(axis) = dims.iter().position(|&d| d == 0) {
            return Err(Fault::new(field, format!("axis {axis} has extent 0; expected at least 1")));
        }
        let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        match count {
            Some(n) if n <= MAX_ELEMENTS => Ok(Self(dims.to_vec())),
            _ => Err(Fault::new(
                field,
                format!("shape {} has more than {MAX_ELEMENTS} elements", Self(dims.to_vec())),
            )),
        }
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of axes.
    pub fn axes(&self) -> usize {
        self.0.len()
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.0.iter().product()
    }

    /// Number of elements of the axes before `axis`.
    pub fn count_before(&self, axis: usize) -> usize {
        self.0[..axis].iter().product()
    }

    /// Number of elements of `axis` and those after it.
    pub fn count_from(&self, axis: usize) -> usize {
        self.0[axis..].iter().product()
    }

    /// Extent of `axis`; 1 for an axis beyond the last.
    pub fn dim(&self, axis: usize) -> usize {
        self.0.get(axis).copied().unwrap_or(1)
    }

    /// Images in the blob: extent of the first axis.
    pub fn images(&self) -> usize {
        self.dim(0)
    }

    /// Elements of one image.
    pub fn per_image(&self) -> usize {
        self.count() / self.images().max(1)
    }

    /// Resolves an axis that may be negative (counted from the end), as Caffe does.
    pub fn axis(&self, axis: i32, field: &str) -> Result<usize, Fault> {
        let axes = self.axes() as i32;
        if axis < -axes || axis >= axes {
            return Err(Fault::new(
                field,
                format!(
                    "axis {axis} does not exist in a blob of shape {self}; expected {} to {}",
                    -axes,
                    axes - 1
                ),
            ));
        }
        Ok(axis.rem_euclid(axes) as usize)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "1");
        }
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { "x" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        assert!(Shape::checked(&[64, 0, 3], "shape").is_err());
        assert!(Shape::checked(&[1 << 20, 1 << 20], "shape").is_err());
        assert!(Shape::checked(&[usize::MAX, usize::MAX], "shape").is_err());
        assert!(Shape::checked(&[1; 33], "shape").is_err());
        assert_eq!(Shape::checked(&[2, 3], "shape").map(|s| s.count()), Ok(6));
    }

    #[test]
    fn negative_axes_count_from_the_end() {
        let shape = Shape::new([2, 3, 4]);
        assert_eq!(shape.axis(-1, "axis"), Ok(2));
        assert!(shape.axis(3, "axis").is_err());
    }
}
