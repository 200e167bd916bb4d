//! Images of another size, as `cv::resize` makes them of bytes: the centres of pixels correspond, and nothing is smoothed
//! before unless the average of an area is asked for.

mod area;
mod border;
mod linear;
mod taps;

use quadrille_core::layer::Interpolation;

pub(super) use border::border;

/// An image whose values lie pixel by pixel, and the extents that it has and gets (height and width each).
#[derive(Clone, Copy, Debug)]
struct Job<'a> {
    pixels: &'a [u8],
    channels: usize,
    from: [usize; 2],
    to: [usize; 2],
}

impl<'a> Job<'a> {
    /// A row of the image.
    fn row(&self, y: usize) -> &'a [u8] {
        let stride = self.from[1] * self.channels;
        &self.pixels[y * stride..][..stride]
    }
}

/// Resizes an image of `channels` interleaved channels from `from` to `to` (height, width each, at least 1) with
/// INTER_LINEAR.
pub(super) fn resize(pixels: &[u8], channels: usize, from: [usize; 2], to: [usize; 2], out: &mut Vec<u8>) {
    interpolate(Interpolation::Linear, pixels, channels, (from, to), out);
}

/// The same with any interpolation.
pub(super) fn interpolate(
    by: Interpolation,
    pixels: &[u8],
    channels: usize,
    (from, to): ([usize; 2], [usize; 2]),
    out: &mut Vec<u8>,
) {
    out.clear();
    if from == to {
        out.extend_from_slice(pixels);
        return;
    }
    out.reserve(to[0] * to[1] * channels);
    let job = Job { pixels, channels, from, to };
    match by {
        Interpolation::Linear => linear::linear(job, linear::centred, out),
        Interpolation::Area if from[0] >= to[0] && from[1] >= to[1] => area::average(job, out),
        Interpolation::Area => linear::linear(job, linear::covered, out),
        Interpolation::Nearest => nearest(job, out),
        Interpolation::Cubic => taps::taps(job, taps::cubic, out),
        Interpolation::Lanczos4 => taps::taps(job, taps::lanczos4, out),
    }
}

fn nearest(job: Job<'_>, out: &mut Vec<u8>) {
    let place = |i: usize, axis: usize| {
        let scale = 1.0 / (job.to[axis] as f64 / job.from[axis] as f64);
        ((i as f64 * scale) as usize).min(job.from[axis] - 1)
    };
    let columns: Vec<usize> = (0..job.to[1]).map(|x| place(x, 1) * job.channels).collect();
    for y in 0..job.to[0] {
        let row = job.row(place(y, 0));
        out.extend(columns.iter().flat_map(|at| &row[*at..][..job.channels]));
    }
}
