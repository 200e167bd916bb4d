//! How the channels of a blob lie in memory.
//!
//! The host and the plain kernels see N, C, H, W. The fast kernels want a vector's worth of channels of one pixel side
//! by side: (image, block of channels, pixel, channel of the block), where the last block is filled up with zeros.
//! *Padding is always zero*: every kernel that writes a blocked array writes zeros there, so that sums over a block
//! need no mask and never meet a NaN that is not in the data.

use std::fmt;

use quadrille_core::shape::Shape;

/// Channels of a block that lie side by side; blocks of 1 are plain N, C, H, W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Channels of a block.
    pub block: usize,
}

impl Layout {
    /// N, C, H, W.
    pub const PLAIN: Self = Self { block: 1 };
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.block == 1 { write!(f, "nchw") } else { write!(f, "nChw{}c", self.block) }
    }
}

/// An array with its extents and its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    /// Extent of the first axis.
    pub images: usize,
    /// Extent of the second axis; 1 if there is none.
    pub channels: usize,
    /// Product of the other extents.
    pub pixels: usize,
    /// Where the channels lie.
    pub layout: Layout,
}

impl Arrangement {
    /// A blob's array in a layout.
    pub fn new(shape: &Shape, layout: Layout) -> Self {
        let (images, channels) = (shape.dim(0), shape.dim(1));
        Self { images, channels, pixels: shape.count() / (images * channels).max(1), layout }
    }

    /// Elements in memory, padding included.
    pub fn len(&self) -> usize {
        self.images * self.image_len()
    }

    /// Elements of one image in memory, padding included.
    pub fn image_len(&self) -> usize {
        self.channels.next_multiple_of(self.layout.block) * self.pixels
    }

    /// Elements without padding.
    pub fn count(&self) -> usize {
        self.images * self.channels * self.pixels
    }

    /// Place in an image of element `index` of N, C, H, W.
    pub fn place(&self, index: usize) -> usize {
        let block = self.layout.block;
        let (channel, pixel) = (index / self.pixels, index % self.pixels);
        (channel / block * self.pixels + pixel) * block + channel % block
    }

    /// Whether both are the same order of the same elements.
    pub fn is_like(&self, other: &Self) -> bool {
        let whole = |a: &Self| a.pixels == 1 && a.channels.is_multiple_of(a.layout.block);
        self.layout == other.layout || (whole(self) && whole(other))
    }

    /// Copies one image from N, C, H, W to this layout.
    pub fn arrange(&self, plain: &[f32], image: &mut [f32]) {
        let block = self.layout.block;
        if block == 1 {
            return image.copy_from_slice(plain);
        }
        for (planes, pixels) in plain.chunks(block * self.pixels).zip(image.chunks_mut(block * self.pixels)) {
            let channels = planes.len() / self.pixels;
            for (p, pixel) in pixels.chunks_exact_mut(block).enumerate() {
                for (c, value) in pixel.iter_mut().enumerate() {
                    *value = if c < channels { planes[c * self.pixels + p] } else { 0.0 };
                }
            }
        }
    }

    /// Copies one image from this layout to N, C, H, W.
    pub fn flatten(&self, image: &[f32], plain: &mut [f32]) {
        let block = self.layout.block;
        if block == 1 {
            return plain.copy_from_slice(image);
        }
        for (planes, pixels) in plain.chunks_mut(block * self.pixels).zip(image.chunks(block * self.pixels)) {
            for (c, plane) in planes.chunks_exact_mut(self.pixels).enumerate() {
                for (value, pixel) in plane.iter_mut().zip(pixels.chunks_exact(block)) {
                    *value = pixel[c];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arranging_and_flattening_are_inverse_and_padding_is_zero() {
        for block in [1, 8, 16] {
            for channels in [1, 3, 8, 20] {
                let shape = Shape::new([1, channels, 2, 3]);
                let blocked = Arrangement::new(&shape, Layout { block });
                let plain: Vec<f32> = (1..=shape.count()).map(|v| v as f32).collect();
                let (mut image, mut back) = (vec![f32::NAN; blocked.len()], vec![f32::NAN; shape.count()]);
                blocked.arrange(&plain, &mut image);
                blocked.flatten(&image, &mut back);
                assert_eq!(back, plain, "{channels} channels in blocks of {block}");
                let zeros = image.iter().filter(|v| **v == 0.0).count();
                assert_eq!(zeros, blocked.len() - shape.count(), "{channels} channels in blocks of {block}");
            }
        }
    }

    #[test]
    fn a_pixel_of_whole_blocks_is_alike_in_all_layouts() {
        let of = |shape: [usize; 4], block| Arrangement::new(&Shape::new(shape), Layout { block });
        assert!(of([2, 32, 1, 1], 16).is_like(&of([2, 32, 1, 1], 1)));
        assert!(!of([2, 20, 1, 1], 16).is_like(&of([2, 20, 1, 1], 1)));
        assert!(!of([2, 32, 1, 2], 16).is_like(&of([2, 32, 1, 2], 1)));
    }
}
