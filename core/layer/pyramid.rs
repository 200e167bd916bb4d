//! One level of spatial pyramid pooling: an image cut into as many windows along each side as the level says.
//!
//! A layer of type SPP is pooling at each level, flattened and put side by side; a file's reader makes these layers of it.
//! What the windows are follows from the image, so that a net's building makes each level a [`Pooling`].

use super::{Accesses, Arity, Inferred, Meaning, PoolMethod, Pooling, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Pooling over 2^level × 2^level windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PyramidLevel {
    /// What becomes of a window.
    pub method: PoolMethod,
    /// The level; 0 is the whole image.
    pub level: u32,
}

impl PyramidLevel {
    /// The pooling that it is on a bottom of this shape.
    ///
    /// # Errors
    /// If the bottom is no image, or its sides cannot be cut so.
    pub fn pooling(&self, bottom: &Shape) -> Result<Pooling, Fault> {
        let &[_, _, height, width] = bottom.dims() else {
            return Err(Fault::new(
                "bottom",
                format!("has shape {bottom}; expected four axes (images, channels, height, width)"),
            ));
        };
        let windows = 1usize.checked_shl(self.level).filter(|windows| *windows <= height.max(width));
        let refused = || {
            Fault::new(
                "spp_param.pyramid_height",
                format!(
                    "the images, {height} x {width}, cannot be cut into 2^{level} windows along each side for level {level}",
                    level = self.level
                ),
            )
            .hint("use fewer levels, or larger images")
        };
        let windows = windows.ok_or_else(refused)?;
        let kernel = [height, width].map(|side| side.div_ceil(windows));
        let pad = [0, 1].map(|a| (kernel[a] * windows - [height, width][a]).div_ceil(2));
        let pooling = Pooling { method: self.method, kernel: Some(kernel), pad, stride: kernel };
        pooling.infer(std::slice::from_ref(bottom)).map_err(|_| refused())?;
        Ok(pooling)
    }
}

impl Meaning for PyramidLevel {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        self.pooling(&bottoms[0])?.infer(bottoms)
    }

    fn accesses(&self, _: SubTask) -> Option<Accesses> {
        None
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_the_image_with_as_little_padding_as_can_be() {
        let pooling = |level, dims: &[usize]| {
            let level = PyramidLevel { method: PoolMethod::Max, level };
            level.pooling(&Shape::new(dims)).map(|p| (p.kernel, p.pad, p.stride)).map_err(|fault| fault.field)
        };
        assert_eq!(pooling(0, &[2, 3, 5, 7]), Ok((Some([5, 7]), [0, 0], [5, 7])));
        assert_eq!(pooling(1, &[2, 3, 5, 7]), Ok((Some([3, 4]), [1, 1], [3, 4])));
        assert_eq!(pooling(2, &[2, 3, 12, 13]), Ok((Some([3, 4]), [0, 2], [3, 4])));
        let refused = Err("spp_param.pyramid_height".to_owned());
        assert_eq!(pooling(3, &[2, 3, 5, 7]), refused);
        assert_eq!(pooling(200, &[2, 3, 5, 7]), refused);
        assert_eq!(pooling(1, &[2, 3, 5]), Err("bottom".to_owned()));
    }
}
