//! Changes of the size of samples, fixed or by chance, as Intel's fork of Caffe and SSD's make them.

/// How an image is brought to another size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resampling {
    /// What becomes of its aspect ratio.
    pub fit: Fit,
    /// What fills the borders of [`Fit::LargeAndPad`].
    pub padding: Padding,
    /// How values between pixels are found: one of these for each image, all as likely; never empty.
    pub interpolations: Vec<Interpolation>,
}

impl Default for Resampling {
    fn default() -> Self {
        Self {
            fit: Fit::Warp,
            padding: Padding::Constant(Vec::new()),
            interpolations: vec![Interpolation::Linear],
        }
    }
}

/// What becomes of the aspect ratio of an image that is brought to a height and a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It becomes that of the size.
    Warp,
    /// It stays, and the image covers the size: one side is longer, unless the ratios are equal.
    Small,
    /// It stays, and the image lies in the middle of the size with borders along two sides.
    LargeAndPad,
}

/// What lies in the borders around an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Padding {
    /// A value for each channel, or one for all; empty for 0.
    Constant(Vec<u8>),
    /// The image, mirrored at its outermost pixels.
    Mirrored,
    /// The nearest pixel of the image.
    Nearest,
}

/// How values between pixels are found, by the names of OpenCV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// From two pixels along each axis.
    Linear,
    /// The average of all that is covered; like linear where an image grows.
    Area,
    /// The pixel itself.
    Nearest,
    /// From four pixels along each axis.
    Cubic,
    /// From eight pixels along each axis.
    Lanczos4,
}

impl Resampling {
    /// Rows and columns that an image of so many gets for `size`, before borders are added. Either can be 0 if the image is
    /// much longer than wide. Arithmetic is Caffe's, in single precision.
    pub fn inside(&self, image: [usize; 2], size: [usize; 2]) -> [usize; 2] {
        let aspect = |[height, width]: [usize; 2]| width as f32 / height as f32;
        let [height, width] = size;
        let by_width = [(width as f32 / aspect(image)) as usize, width];
        let by_height = [height, (aspect(image) * height as f32) as usize];
        match self.fit {
            Fit::Warp => size,
            Fit::Small if aspect(image) < aspect(size) => by_width,
            Fit::Small => by_height,
            Fit::LargeAndPad if aspect(image) > aspect(size) => [by_width[0].min(height), width],
            Fit::LargeAndPad => [height, by_height[1].min(width)],
        }
    }

    /// # Errors
    /// That there are not as many values for borders as images have channels.
    pub fn check(&self, channels: usize) -> Result<(), String> {
        match &self.padding {
            Padding::Constant(values) if values.len() > 1 && values.len() != channels => {
                let count = values.len();
                Err(format!("{count} values for samples of {channels} channels; expected 1 or {channels}"))
            }
            _ => Ok(()),
        }
    }

    /// Rows and columns with borders.
    pub fn whole(&self, image: [usize; 2], size: [usize; 2]) -> [usize; 2] {
        match self.fit {
            Fit::LargeAndPad => size,
            Fit::Warp | Fit::Small => self.inside(image, size),
        }
    }
}

/// A change to one size (`resize_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Height and width, at least 1.
    pub size: [usize; 2],
    /// How images get there.
    pub resampling: Resampling,
}

/// A change of the size by chance, before all others. Each needs a crop, which makes all samples equal.
#[derive(Clone, Debug, PartialEq)]
pub enum RandomResize {
    /// The shorter side becomes a number by chance and the aspect ratio stays (`random_resize_param`).
    ShorterSide {
        /// The smallest number; `None` for the shorter side of the image.
        min: Option<usize>,
        /// The largest number; `None` for the longer side of the image.
        max: Option<usize>,
        /// How images get there.
        resampling: Resampling,
    },
    /// A part of the image by chance is brought to the size of the crop (`random_aspect_ratio_param`).
    Part {
        /// The smallest and the largest part of the image's area: above 0, at most 1.
        areas: [f32; 2],
        /// The sides of a square of that area are multiplied and divided by a number between this (above 0, at most 1) and
        /// its inverse.
        change: f32,
        /// How often a part is drawn until one fits into the image; if none does, the shorter side is brought to the crop.
        attempts: u32,
        /// How images get there.
        resampling: Resampling,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers by hand from the formulas of Intel's `AspectKeepingResizeBySmall` and `AspectKeepingResizeAndPad`.
    #[test]
    fn sizes_follow_from_the_fit() {
        let of = |fit, image, size| {
            let resampling = Resampling { fit, ..Resampling::default() };
            (resampling.inside(image, size), resampling.whole(image, size))
        };
        // 100 x 300, an aspect ratio of 3, to 60 x 60.
        assert_eq!(of(Fit::Warp, [100, 300], [60, 60]), ([60, 60], [60, 60]));
        assert_eq!(of(Fit::Small, [100, 300], [60, 60]), ([60, 180], [60, 180]));
        assert_eq!(of(Fit::LargeAndPad, [100, 300], [60, 60]), ([20, 60], [60, 60]));
        // 300 x 200 to 40 x 50: 50 / (2 / 3) rows, or (2 / 3) · 40 columns, rounded down.
        assert_eq!(of(Fit::Small, [300, 200], [40, 50]), ([75, 50], [75, 50]));
        assert_eq!(of(Fit::LargeAndPad, [300, 200], [40, 50]), ([40, 26], [40, 50]));
        // Nothing is left of a line.
        assert_eq!(of(Fit::LargeAndPad, [1, 300], [60, 60]), ([0, 60], [60, 60]));
    }
}
