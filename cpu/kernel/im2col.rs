//! Windows of an image as the columns of a matrix, and back.

use quadrille_core::layer::Convolution;

/// The geometry of one group of a convolution on one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Input channels of the group.
    pub channels: usize,
    /// Rows and columns of the input.
    pub input: [usize; 2],
    /// Rows and columns of the output.
    pub output: [usize; 2],
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Padding.
    pub pad: [usize; 2],
    /// Stride.
    pub stride: [usize; 2],
    /// Dilation.
    pub dilation: [usize; 2],
}

impl Geometry {
    /// The geometry of `conv` on images of `channels` × `input`, which its shape rule has accepted.
    pub fn new(conv: &Convolution, channels: usize, input: [usize; 2], output: [usize; 2]) -> Self {
        Self {
            channels: channels / conv.group,
            input,
            output,
            kernel: conv.kernel,
            pad: conv.pad,
            stride: conv.stride,
            dilation: conv.dilation,
        }
    }

    /// Rows of the matrix: channels × taps.
    pub fn rows(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Columns of the matrix: output pixels.
    pub fn columns(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Elements of the group's part of an image.
    pub fn image(&self) -> usize {
        self.channels * self.input[0] * self.input[1]
    }

    /// The output positions along `axis` for which tap `tap` lies inside the input.
    fn inside(&self, axis: usize, tap: usize) -> std::ops::Range<usize> {
        let offset = tap * self.dilation[axis];
        let (pad, stride) = (self.pad[axis], self.stride[axis]);
        let first = pad.saturating_sub(offset).div_ceil(stride);
        let end = (self.input[axis] + pad).saturating_sub(offset).div_ceil(stride);
        first.min(self.output[axis])..end.clamp(first.min(self.output[axis]), self.output[axis])
    }

    /// Calls `each` with every run of taps along a row of the output: start in the matrix, start in the image,
    /// and length; elements of the image lie `stride` apart. Places of the matrix in no run are padding.
    fn runs(&self, mut each: impl FnMut(usize, usize, usize)) {
        let mut row = 0;
        for channel in 0..self.channels {
            for tap_y in 0..self.kernel[0] {
                for tap_x in 0..self.kernel[1] {
                    let xs = self.inside(1, tap_x);
                    for y in self.inside(0, tap_y) {
                        let from_y = y * self.stride[0] + tap_y * self.dilation[0] - self.pad[0];
                        if xs.is_empty() {
                            continue;
                        }
                        let from_x = xs.start * self.stride[1] + tap_x * self.dilation[1] - self.pad[1];
                        let to = row * self.columns() + y * self.output[1] + xs.start;
                        let from = (channel * self.input[0] + from_y) * self.input[1] + from_x;
                        each(to, from, xs.len());
                    }
                    row += 1;
                }
            }
        }
    }

    /// Fills `matrix` (rows × columns) with the windows of `image` (channels × input).
    pub fn unfold(&self, image: &[f32], matrix: &mut [f32]) {
        if self.pad != [0, 0] {
            matrix.fill(0.0);
        }
        let stride = self.stride[1];
        self.runs(|to, from, len| {
            let to = &mut matrix[to..to + len];
            if stride == 1 {
                copy_run(to, &image[from..from + len]);
            } else {
                for (i, value) in to.iter_mut().enumerate() {
                    *value = image[from + i * stride];
                }
            }
        });
    }

    /// Adds the windows in `matrix` up into `image`, which is cleared first.
    pub fn fold(&self, matrix: &[f32], image: &mut [f32]) {
        image.fill(0.0);
        let stride = self.stride[1];
        self.runs(|from, to, len| {
            let from = &matrix[from..from + len];
            if stride == 1 {
                add_run(&mut image[to..to + len], from);
            } else {
                for (i, value) in from.iter().enumerate() {
                    image[to + i * stride] += value;
                }
            }
        });
    }
}

/// Elements that are moved at once. Runs are as long as a row of the output, often only 8 or 24 elements: too short to
/// be worth a call of the system's copy.
const STEP: usize = 8;

fn copy_run(to: &mut [f32], from: &[f32]) {
    let ((to, to_rest), (from, from_rest)) = (to.as_chunks_mut::<STEP>(), from.as_chunks::<STEP>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
}

fn add_run(to: &mut [f32], from: &[f32]) {
    let ((to, to_rest), (from, from_rest)) = (to.as_chunks_mut::<STEP>(), from.as_chunks::<STEP>());
    for (to, from) in to.iter_mut().zip(from) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to += from;
    }
}
