//! How the channels of a blob lie in memory.
//!
//! The host and the plain kernels see N, C, H, W. The fast kernels want a vector's worth of channels of one pixel side
//! by side: (image, block of channels, pixel, channel of the block), where the last block is filled up with zeros.
//! *Padding is always zero*: every kernel that writes a blocked array writes zeros there, so that sums over a block
//! need no mask and never meet a NaN that is not in the data.
//!
//! Blocks may hold their numbers in bf16, two in a word of memory, the first in its lower half ([`crate::kernel::words`]).
//! All lengths and places in memory are counted in words of 32 bits.

use std::fmt;

use quadrille_core::shape::Shape;

use crate::isa::Precision;
use crate::kernel::words::{halves_of, widened, word};

/// Channels of a block that lie side by side; blocks of 1 are plain N, C, H, W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Channels of a block.
    pub block: usize,
    /// How numbers are kept: plain arrays always as f32.
    pub precision: Precision,
}

impl Layout {
    /// N, C, H, W.
    pub const PLAIN: Self = Self { block: 1, precision: Precision::F32 };

    /// Words of a block of channels of a pixel.
    pub fn pixel(&self) -> usize {
        self.block / self.precision.in_word()
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.block, self.precision) {
            (1, _) => write!(f, "nchw"),
            (block, Precision::F32) => write!(f, "nChw{block}c"),
            (block, precision) => write!(f, "nChw{block}c-{precision}"),
        }
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
    /// Words between the end of an image and the beginning of the next: those of other arrays, if it is a part of a
    /// larger one, and otherwise none.
    pub gap: usize,
}

impl Arrangement {
    /// A blob's array in a layout.
    pub fn new(shape: &Shape, layout: Layout) -> Self {
        let (images, channels) = (shape.dim(0), shape.dim(1));
        Self { images, channels, pixels: shape.count() / (images * channels).max(1), layout, gap: 0 }
    }

    /// `count` numbers that are no images.
    pub fn row(count: usize) -> Self {
        Self { images: 1, channels: 1, pixels: count, layout: Layout::PLAIN, gap: 0 }
    }

    /// Words of its own, padding included.
    pub fn len(&self) -> usize {
        self.images * self.image_len()
    }

    /// Words from the first in memory to the last, with those between images.
    pub fn extent(&self) -> usize {
        self.len() + self.images.saturating_sub(1) * self.gap
    }

    /// Words from the beginning of an image to that of the next.
    pub fn image_stride(&self) -> usize {
        self.image_len() + self.gap
    }

    /// Place in memory of one of its own words.
    pub fn word(&self, index: usize) -> usize {
        if self.gap == 0 { index } else { index + index / self.image_len() * self.gap }
    }

    /// Words of one image in memory, padding included.
    pub fn image_len(&self) -> usize {
        self.channels.div_ceil(self.layout.block) * self.plane_len()
    }

    /// Words of a block of channels of one image.
    pub fn plane_len(&self) -> usize {
        self.pixels * self.layout.pixel()
    }

    /// Elements without padding.
    pub fn count(&self) -> usize {
        self.images * self.channels * self.pixels
    }

    /// Place in an image of element `index` of N, C, H, W, for arrays of f32.
    pub fn place(&self, index: usize) -> usize {
        debug_assert!(self.layout.precision == Precision::F32, "places of halves");
        let block = self.layout.block;
        let (channel, pixel) = (index / self.pixels, index % self.pixels);
        (channel / block * self.pixels + pixel) * block + channel % block
    }

    /// Whether both are the same order of the same elements, whatever lies between images.
    pub fn is_like(&self, other: &Self) -> bool {
        let whole = |a: &Self| {
            a.pixels == 1 && a.channels.is_multiple_of(a.layout.block) && a.layout.precision == Precision::F32
        };
        self.layout == other.layout || (whole(self) && whole(other))
    }

    /// Copies one image from N, C, H, W to this layout.
    pub fn arrange(&self, plain: &[f32], image: &mut [f32]) {
        if self.layout == Layout::PLAIN {
            return image.copy_from_slice(plain);
        }
        let planes = plain.chunks(self.layout.block * self.pixels);
        for (planes, pixels) in planes.zip(image.chunks_mut(self.plane_len())) {
            for (p, pixel) in pixels.chunks_exact_mut(self.layout.pixel()).enumerate() {
                let value = |channel: usize| planes.get(channel * self.pixels + p).copied().unwrap_or(0.0);
                for (i, to) in pixel.iter_mut().enumerate() {
                    *to = match self.layout.precision {
                        Precision::F32 => value(i),
                        Precision::Bf16 => word(value(2 * i), value(2 * i + 1)),
                    };
                }
            }
        }
    }

    /// Copies one image from this layout to N, C, H, W.
    pub fn flatten(&self, image: &[f32], plain: &mut [f32]) {
        if self.layout == Layout::PLAIN {
            return plain.copy_from_slice(image);
        }
        let planes = plain.chunks_mut(self.layout.block * self.pixels);
        for (planes, pixels) in planes.zip(image.chunks(self.plane_len())) {
            for (c, plane) in planes.chunks_exact_mut(self.pixels).enumerate() {
                for (value, pixel) in plane.iter_mut().zip(pixels.chunks_exact(self.layout.pixel())) {
                    *value = match self.layout.precision {
                        Precision::F32 => pixel[c],
                        Precision::Bf16 => widened(halves_of(pixel[c / 2])[c % 2]),
                    };
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
        let layouts = [(1, Precision::F32), (8, Precision::F32), (16, Precision::F32), (16, Precision::Bf16)];
        for (block, precision) in layouts {
            for channels in [1, 3, 8, 20] {
                let shape = Shape::new([1, channels, 2, 3]);
                let blocked = Arrangement::new(&shape, Layout { block, precision });
                let plain: Vec<f32> = (1..=shape.count()).map(|v| v as f32).collect();
                let (mut image, mut back) = (vec![f32::NAN; blocked.len()], vec![f32::NAN; shape.count()]);
                blocked.arrange(&plain, &mut image);
                blocked.flatten(&image, &mut back);
                assert_eq!(back, plain, "{channels} channels in {}", blocked.layout);
                let numbers = image.iter().flat_map(|word| match precision {
                    Precision::F32 => vec![*word],
                    Precision::Bf16 => halves_of(*word).map(widened).to_vec(),
                });
                let zeros = numbers.filter(|v| *v == 0.0).count();
                let padding = blocked.len() * precision.in_word() - shape.count();
                assert_eq!(zeros, padding, "{channels} channels in {}", blocked.layout);
            }
        }
    }

    #[test]
    fn images_that_lie_apart_have_as_many_words() {
        let layout = Layout { block: 16, precision: Precision::Bf16 };
        let dense = Arrangement::new(&Shape::new([3, 20, 2, 2]), layout);
        let apart = Arrangement { gap: 10, ..dense };
        assert_eq!(
            (dense.image_len(), dense.image_stride(), dense.len(), dense.extent()),
            (64, 64, 192, 192)
        );
        assert_eq!(
            (apart.image_len(), apart.image_stride(), apart.len(), apart.extent()),
            (64, 74, 192, 212)
        );
        assert_eq!([63, 64, 191].map(|word| apart.word(word)), [63, 74, 211]);
        assert_eq!(dense.word(191), 191);
        assert!(apart.is_like(&dense));
    }

    #[test]
    fn a_pixel_of_whole_blocks_is_alike_in_all_layouts_of_one_precision() {
        let of = |shape: [usize; 4], block, precision| {
            Arrangement::new(&Shape::new(shape), Layout { block, precision })
        };
        let (f32, bf16) = (Precision::F32, Precision::Bf16);
        assert!(of([2, 32, 1, 1], 16, f32).is_like(&of([2, 32, 1, 1], 1, f32)));
        assert!(!of([2, 20, 1, 1], 16, f32).is_like(&of([2, 20, 1, 1], 1, f32)));
        assert!(!of([2, 32, 1, 2], 16, f32).is_like(&of([2, 32, 1, 2], 1, f32)));
        assert!(!of([2, 32, 1, 1], 16, bf16).is_like(&of([2, 32, 1, 1], 1, f32)));
        assert!(!of([2, 32, 1, 2], 16, bf16).is_like(&of([2, 32, 1, 2], 16, f32)));
    }
}
