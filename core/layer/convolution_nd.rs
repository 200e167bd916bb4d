//! Convolution over any number of axes, and its transpose, Deconvolution.
//!
//! A convolution has a large side, its bottom, on which windows lie, and a small side, its top, with one place for each
//! window: `small[n,o,y] = b[o] + Σ W[o,i,p] · large[n, g·C/G + i, y·stride + p·dilation − pad]` for places y and taps p of
//! any number of axes. A deconvolution exchanges the sides: its bottom is small, its top large. So its forward is a
//! convolution's ∇A and its ∇A a convolution's forward.

use super::convolution::weighted_accesses;
use super::{Accesses, Arity, Convolution, Filler, Inferred, Meaning, ParamShape, SubTask, Windows};
use crate::shape::Shape;
use crate::site::Fault;

/// Convolution or deconvolution of (images …, C, extents …) with kernels (channels of the small side, channels of the large
/// side / group, taps …). Convolutions of (N, C, H, W) become [`Convolution`] when a net is built.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionNd {
    /// Whether it is a deconvolution.
    pub transposed: bool,
    /// Output channels.
    pub num_output: usize,
    /// The windows.
    pub windows: Windows,
    /// The axis of the channels; negative counts from the end. All axes before it are images.
    pub axis: i32,
    /// Channels are cut into this many groups that do not see each other.
    pub group: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// How the weight starts.
    pub weight_filler: Filler,
    /// How the bias starts.
    pub bias_filler: Filler,
}

/// One side of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Channels.
    pub channels: usize,
    /// Extents behind the channels.
    pub extents: Vec<usize>,
}

impl Side {
    /// Values of an image.
    pub fn image(&self) -> usize {
        self.channels * self.plane()
    }

    /// Values of a channel.
    pub fn plane(&self) -> usize {
        self.extents.iter().product()
    }
}

/// A convolution on a bottom of known shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sides {
    /// Images: the product of the axes before the channels.
    pub images: usize,
    /// Groups of channels.
    pub group: usize,
    /// The windows, with one value for each axis.
    pub windows: Windows,
    /// The side with one place for each window: the top, and a deconvolution's bottom.
    pub small: Side,
    /// The side on which the windows lie: the bottom, and a deconvolution's top.
    pub large: Side,
}

impl ConvolutionNd {
    /// The convolution of images that this one is on a bottom of this shape, if it is one.
    pub fn of_images(&self, bottom: &Shape) -> Option<Convolution> {
        if self.transposed || bottom.axes() != 4 || bottom.axis(self.axis, "") != Ok(1) {
            return None;
        }
        let Windows { kernel, pad, stride, dilation } = self.windows.over(2).ok()?;
        let pair = |list: Vec<usize>| [list[0], list[1]];
        Some(Convolution {
            num_output: self.num_output,
            kernel: pair(kernel),
            pad: pair(pad),
            stride: pair(stride),
            dilation: pair(dilation),
            group: self.group,
            bias: self.bias,
            relu: false,
            weight_filler: self.weight_filler.clone(),
            bias_filler: self.bias_filler.clone(),
        })
    }

    /// The sides on a bottom of this shape.
    ///
    /// # Errors
    /// If no window fits, or a field is impossible.
    pub fn sides(&self, bottom: &Shape) -> Result<Sides, Fault> {
        let axis = bottom.axis(self.axis, "convolution_param.axis")?;
        let (images, extents) = (bottom.count_before(axis), &bottom.dims()[axis + 1..]);
        let windows = self.windows.over(extents.len())?;
        if self.num_output == 0 {
            return Err(Fault::new("convolution_param.num_output", "0; expected at least 1 output channel"));
        }
        let (channels, group) = (bottom.dim(axis), self.group);
        if group == 0 || !channels.is_multiple_of(group) || !self.num_output.is_multiple_of(group) {
            return Err(Fault::new(
                "convolution_param.group",
                format!(
                    "{group} does not divide the {channels} input channels and the {} output channels",
                    self.num_output
                ),
            )
            .hint("each group takes as many input channels and makes as many outputs as any other"));
        }
        let top = if self.transposed { windows.covered(extents) } else { windows.places(extents) };
        let top = top.ok_or_else(|| match self.transposed {
            false => windows.too_large(extents),
            true => Fault::new("convolution_param.pad", "takes away all that the windows cover")
                .hint("use less padding, or a larger kernel"),
        })?;
        let bottom = Side { channels, extents: extents.to_vec() };
        let top = Side { channels: self.num_output, extents: top };
        let (small, large) = if self.transposed { (bottom, top) } else { (top, bottom) };
        Ok(Sides { images, group, windows, small, large })
    }
}

impl Meaning for ConvolutionNd {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let sides = self.sides(&bottoms[0])?;
        let Windows { kernel, .. } = &sides.windows;
        if self.weight_filler == Filler::Bilinear && !matches!(kernel[..], [height, width] if height == width)
        {
            return Err(Fault::new(
                "convolution_param.weight_filler.type",
                format!(
                    "bilinear weights need a square kernel over two axes, not {}",
                    Shape::new(kernel.clone())
                ),
            ));
        }
        let field = "convolution_param.num_output";
        let weight = [&[sides.small.channels, sides.large.channels / self.group], &kernel[..]].concat();
        let weight = Shape::checked(&weight, field)?;
        let mut params = vec![ParamShape { shape: weight, filler: self.weight_filler.clone() }];
        if self.bias {
            let shape = Shape::new([self.num_output]);
            params.push(ParamShape { shape, filler: self.bias_filler.clone() });
        }
        let top = if self.transposed { &sides.large } else { &sides.small };
        let before = bottoms[0].axes() - 1 - top.extents.len();
        let top = [&bottoms[0].dims()[..before], &[top.channels], &top.extents[..]].concat();
        Ok(Inferred { tops: vec![Shape::checked(&top, field)?], params, aux: Vec::new() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        weighted_accesses(sub, self.bias)
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], tops: &[Shape]) -> u64 {
        let outputs = tops[0].count() as u64;
        let Ok(Sides { images, group, windows, small, large }) = self.sides(&bottoms[0]) else { return 0 };
        let factors = [images, small.image(), large.channels / group, windows.taps(), 2];
        let products = factors.iter().fold(1u64, |product, factor| product.saturating_mul(*factor as u64));
        match sub {
            SubTask::Forward => products.saturating_add(if self.bias { outputs } else { 0 }),
            SubTask::GradActivation | SubTask::GradWeight => products,
            SubTask::GradBias if self.bias => outputs,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(transposed: bool, kernel: &[usize]) -> ConvolutionNd {
        let one = || vec![1];
        ConvolutionNd {
            transposed,
            num_output: 6,
            windows: Windows { kernel: kernel.to_vec(), pad: vec![0], stride: one(), dilation: one() },
            axis: 1,
            group: 1,
            bias: true,
            weight_filler: Filler::default(),
            bias_filler: Filler::default(),
        }
    }

    fn shapes(layer: &ConvolutionNd, bottom: &[usize]) -> Result<(String, String), String> {
        let inferred = layer.infer(&[Shape::new(bottom)]).map_err(|fault| fault.field)?;
        Ok((inferred.tops[0].to_string(), inferred.params[0].shape.to_string()))
    }

    #[test]
    fn a_deconvolution_has_the_shapes_of_a_convolution_backwards() {
        let of = |top: &str, weight: &str| Ok((top.to_owned(), weight.to_owned()));
        assert_eq!(shapes(&layer(false, &[3]), &[2, 4, 5, 6, 7]), of("2x6x3x4x5", "6x4x3x3x3"));
        assert_eq!(shapes(&layer(true, &[3]), &[2, 4, 5, 6]), of("2x6x7x8", "4x6x3x3"));
        let grouped = |transposed| ConvolutionNd { group: 2, ..layer(transposed, &[2, 1]) };
        assert_eq!(shapes(&grouped(false), &[2, 4, 5, 6]), of("2x6x4x6", "6x2x2x1"));
        assert_eq!(shapes(&grouped(true), &[2, 4, 5, 6]), of("2x6x6x6", "4x3x2x1"));
        // Channels on another axis, behind which there may be nothing.
        let last = ConvolutionNd { axis: -1, ..layer(false, &[3]) };
        assert_eq!(shapes(&last, &[2, 3, 4]), of("2x3x6", "6x4"));
        assert_eq!(
            shapes(&ConvolutionNd { axis: 2, ..layer(true, &[2]) }, &[2, 3, 4, 5]),
            of("2x3x6x6", "4x6x2")
        );
        let windows = Windows { pad: vec![1], stride: vec![2], ..layer(true, &[4]).windows };
        let strided = ConvolutionNd { windows, ..layer(true, &[4]) };
        assert_eq!(shapes(&strided, &[1, 6, 4, 5]), of("1x6x8x10", "6x6x4x4"));
    }

    #[test]
    fn only_a_convolution_of_images_is_one() {
        let images = Shape::new([2, 4, 5, 6]);
        let square = layer(false, &[3]).of_images(&images).expect("it is one");
        assert_eq!((square.kernel, square.pad, square.stride), ([3; 2], [0; 2], [1; 2]));
        assert!(ConvolutionNd { axis: -3, ..layer(false, &[3]) }.of_images(&images).is_some());
        assert!(ConvolutionNd { axis: 2, ..layer(false, &[3]) }.of_images(&images).is_none());
        assert!(layer(true, &[3]).of_images(&images).is_none());
        assert!(layer(false, &[3; 3]).of_images(&images).is_none());
        assert!(layer(false, &[3]).of_images(&Shape::new([2, 4, 5])).is_none());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused =
            |layer: &ConvolutionNd, bottom: &[usize]| shapes(layer, bottom).expect_err("impossible");
        let field = |name: &str| format!("convolution_param.{name}");
        assert_eq!(refused(&layer(false, &[4, 1, 1]), &[1, 1, 3, 3, 3]), field("kernel_size"));
        assert_eq!(refused(&layer(false, &[2, 2]), &[1, 1, 3, 3, 3]), field("kernel_size"));
        assert_eq!(refused(&ConvolutionNd { axis: 3, ..layer(false, &[1]) }, &[1, 1, 3]), field("axis"));
        assert_eq!(
            refused(&ConvolutionNd { num_output: 0, ..layer(true, &[1]) }, &[1, 1, 3]),
            field("num_output")
        );
        for group in [0, 4, 5] {
            assert_eq!(
                refused(&ConvolutionNd { group, ..layer(true, &[1]) }, &[1, 5, 3]),
                field("group"),
                "{group}"
            );
        }
        let windows = Windows { pad: vec![2], ..layer(true, &[3]).windows };
        assert_eq!(refused(&ConvolutionNd { windows, ..layer(true, &[3]) }, &[1, 1, 2, 2]), field("pad"));
        let bilinear = |kernel| ConvolutionNd { weight_filler: Filler::Bilinear, ..layer(true, kernel) };
        assert_eq!(refused(&bilinear(&[3, 2]), &[1, 1, 4, 4]), field("weight_filler.type"));
        assert_eq!(refused(&bilinear(&[3]), &[1, 1, 4, 4, 4]), field("weight_filler.type"));
        assert!(shapes(&bilinear(&[3]), &[1, 1, 4, 4]).is_ok());
        let most = i32::MAX as usize;
        assert_eq!(refused(&layer(true, &[most]), &[1, 1, 3, 3]), field("num_output"));
    }
}
