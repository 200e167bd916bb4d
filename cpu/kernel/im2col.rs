//! Windows of an image as the columns of a matrix, and back.

use quadrille_core::layer::{Convolution, Sides, Windows};

/// Most axes behind the channels.
const MAX_AXES: usize = quadrille_core::shape::MAX_AXES;

/// The geometry of one group of channels of one image, over any number of axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Channels of the group on the side on which the windows lie.
    pub channels: usize,
    /// Extents of that side behind its channels.
    pub input: Vec<usize>,
    /// Number of windows along each axis.
    pub output: Vec<usize>,
    /// The windows, with one value for each axis.
    pub windows: Windows,
}

impl Geometry {
    /// The geometry of `conv` on images of `channels` × `input`, which its shape rule has accepted.
    pub fn new(conv: &Convolution, channels: usize, input: [usize; 2], output: [usize; 2]) -> Self {
        let [kernel, pad, stride, dilation] =
            [conv.kernel, conv.pad, conv.stride, conv.dilation].map(|pair| pair.to_vec());
        Self {
            channels: channels / conv.group,
            input: input.to_vec(),
            output: output.to_vec(),
            windows: Windows { kernel, pad, stride, dilation },
        }
    }

    /// The geometry of a convolution or deconvolution with these sides.
    pub fn of_sides(sides: &Sides) -> Self {
        Self {
            channels: sides.large.channels / sides.group,
            input: sides.large.extents.clone(),
            output: sides.small.extents.clone(),
            windows: sides.windows.clone(),
        }
    }

    /// Rows of the matrix: channels × taps.
    pub fn rows(&self) -> usize {
        self.channels * self.windows.taps()
    }

    /// Columns of the matrix: windows.
    pub fn columns(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements of the group's part of an image.
    pub fn image(&self) -> usize {
        self.channels * self.input.iter().product::<usize>()
    }

    /// Distance in the image of places side by side in a row of the matrix.
    fn step(&self) -> usize {
        self.windows.stride.last().copied().unwrap_or(1)
    }

    /// The output positions along `axis` for which tap `tap` lies inside the input.
    fn inside(&self, axis: usize, tap: usize) -> std::ops::Range<usize> {
        let offset = tap * self.windows.dilation[axis];
        let (pad, stride) = (self.windows.pad[axis], self.windows.stride[axis]);
        let first = pad.saturating_sub(offset).div_ceil(stride);
        let end = (self.input[axis] + pad).saturating_sub(offset).div_ceil(stride);
        first.min(self.output[axis])..end.clamp(first.min(self.output[axis]), self.output[axis])
    }

    /// Calls `each` with every run of taps along the last axis of the output: start in the matrix, start in the image,
    /// and length; elements of the image lie a stride apart. Places of the matrix in no run are padding.
    fn runs(&self, mut each: impl FnMut(usize, usize, usize)) {
        let (axes, taps) = (self.input.len(), self.windows.taps());
        if axes == 0 {
            return (0..self.channels).for_each(|channel| each(channel, channel, 1));
        }
        let mut tap = [0; MAX_AXES];
        for row in 0..self.channels * taps {
            let mut digits = row % taps;
            for (digit, extent) in tap[..axes].iter_mut().zip(&self.windows.kernel).rev() {
                (*digit, digits) = (digits % extent, digits / extent);
            }
            self.runs_of_tap(&tap[..axes], 0, [row, row / taps], &mut each);
        }
    }

    /// The runs of one tap below `place`, the places of axis `axis − 1` in the matrix and in the image.
    fn runs_of_tap<F: FnMut(usize, usize, usize)>(
        &self,
        tap: &[usize],
        axis: usize,
        [to, from]: [usize; 2],
        each: &mut F,
    ) {
        let positions = self.inside(axis, tap[axis]);
        let w = &self.windows;
        let source = |position: usize| {
            from * self.input[axis] + position * w.stride[axis] + tap[axis] * w.dilation[axis] - w.pad[axis]
        };
        let target = |position: usize| to * self.output[axis] + position;
        if axis + 1 < tap.len() {
            positions.for_each(|at| self.runs_of_tap(tap, axis + 1, [target(at), source(at)], each));
        } else if !positions.is_empty() {
            each(target(positions.start), source(positions.start), positions.len());
        }
    }

    /// Fills `matrix` (rows × columns) with the windows of `image` (channels × input).
    pub fn unfold(&self, image: &[f32], matrix: &mut [f32]) {
        if self.windows.pad.iter().any(|pad| *pad > 0) {
            matrix.fill(0.0);
        }
        let stride = self.step();
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
        let stride = self.step();
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
