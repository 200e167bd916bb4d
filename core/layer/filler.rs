//! How a parameter starts. Semantics of Caffe's fillers; the random numbers are our own.

use rayon::prelude::*;

use crate::rng::Stream;
use crate::shape::Shape;

/// What `n` is in the fillers that scale with the size of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VarianceNorm {
    /// `count / shape[0]`, also for a transposed InnerProduct.
    #[default]
    FanIn,
    /// `count / shape[1]`.
    FanOut,
    /// The mean of both.
    Average,
}

impl VarianceNorm {
    fn n(self, shape: &Shape) -> f32 {
        let count = shape.count() as f32;
        let fan_in = count / shape.dim(0) as f32;
        let fan_out = if shape.axes() > 1 { count / shape.dim(1) as f32 } else { count };
        match self {
            Self::FanIn => fan_in,
            Self::FanOut => fan_out,
            Self::Average => (fan_in + fan_out) / 2.0,
        }
    }
}

/// How a parameter starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Filler {
    /// All the same value.
    Constant(f32),
    /// U(min, max).
    Uniform {
        /// Lower end.
        min: f32,
        /// Upper end.
        max: f32,
    },
    /// N(mean, std²); with `sparse` ≥ 0 each value stays with probability `sparse / shape[0]` and is 0 otherwise.
    Gaussian {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
        /// Expected number of non-zero weights per output; `None` keeps all.
        sparse: Option<u32>,
    },
    /// U(−√(3/n), √(3/n)).
    Xavier(VarianceNorm),
    /// N(0, 2/n).
    Msra(VarianceNorm),
    /// U(0, 1), then every `shape[0]`-th part divided by its sum.
    PositiveUnitBall,
    /// Coefficients of bilinear interpolation, for a deconvolution that enlarges images.
    Bilinear,
}

impl Default for Filler {
    fn default() -> Self {
        Self::Constant(0.0)
    }
}

/// Values that a thread fills at once.
const PART: usize = 1 << 14;

impl Filler {
    /// Fills `out`, a parameter of `shape`, from `stream`.
    pub fn fill(&self, shape: &Shape, stream: &Stream, out: &mut [f32]) {
        self.fill_part(shape, stream, 0, out);
        self.scale_rows(shape, out);
    }

    /// The same values by all threads of rayon's pool: a large net's weights are the longest work before its first step.
    pub fn fill_by_all(&self, shape: &Shape, stream: &Stream, out: &mut [f32]) {
        let parts = out.par_chunks_mut(PART).enumerate();
        parts.for_each(|(i, part)| self.fill_part(shape, stream, i * PART, part));
        self.scale_rows(shape, out);
    }

    /// The values from number `first` on, before rows are scaled: each depends on its place alone.
    fn fill_part(&self, shape: &Shape, stream: &Stream, first: usize, out: &mut [f32]) {
        let at = first as u64;
        match *self {
            Self::Constant(value) => out.fill(value),
            Self::Uniform { min, max } => {
                stream.uniforms(at, out);
                out.iter_mut().for_each(|u| *u = min + (max - min) * *u);
            }
            Self::Gaussian { mean, std, sparse } => {
                stream.normals(at, out);
                out.iter_mut().for_each(|n| *n = mean + std * *n);
                if let Some(sparse) = sparse {
                    let kept = sparse as f32 / shape.dim(0) as f32;
                    // The choice of what stays uses numbers beyond those of the values (two words a value).
                    let chosen = 2 * shape.count() as u64 + 4 + at;
                    let stays = |i: usize| stream.uniform(chosen + i as u64) < kept;
                    out.iter_mut().enumerate().filter(|(i, _)| !stays(*i)).for_each(|(_, v)| *v = 0.0);
                }
            }
            Self::Xavier(norm) => {
                let scale = (3.0 / norm.n(shape)).sqrt();
                stream.uniforms(at, out);
                out.iter_mut().for_each(|u| *u = scale * (2.0 * *u - 1.0));
            }
            Self::Msra(norm) => {
                let std = (2.0 / norm.n(shape)).sqrt();
                stream.normals(at, out);
                out.iter_mut().for_each(|n| *n *= std);
            }
            Self::PositiveUnitBall => stream.uniforms(at, out),
            Self::Bilinear => {
                let width = shape.dim(3);
                let half = width.div_ceil(2) as f32;
                // Caffe's since 2017; before it kernels of 2, 3, 6, 7, … taps were not symmetric.
                let centre = (width as f32 - 1.0) / (2.0 * half);
                for (i, value) in (first..).zip(out) {
                    let (x, y) = ((i % width) as f32, ((i / width) % width) as f32);
                    *value = (1.0 - (x / half - centre).abs()) * (1.0 - (y / half - centre).abs());
                }
            }
        }
    }

    /// What is left to do when all values are there.
    fn scale_rows(&self, shape: &Shape, out: &mut [f32]) {
        if *self == Self::PositiveUnitBall {
            for part in out.chunks_mut(shape.count() / shape.dim(0)) {
                let sum: f32 = part.iter().sum();
                part.iter_mut().for_each(|v| *v /= sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    fn filled(filler: &Filler, dims: &[usize]) -> Vec<f32> {
        let shape = Shape::new(dims);
        let mut out = vec![f32::NAN; shape.count()];
        filler.fill(&shape, &Stream::new(1, Purpose::Filler(0), 0), &mut out);
        out
    }

    /// Two parts and a few values more.
    #[test]
    fn all_threads_fill_what_one_does() {
        let shape = Shape::new([2, PART / 4 + 1, 2, 2]);
        let stream = Stream::new(9, Purpose::Filler(3), 0);
        let norm = VarianceNorm::Average;
        for filler in [
            Filler::Constant(2.5),
            Filler::Uniform { min: -1.0, max: 2.0 },
            Filler::Gaussian { mean: 0.5, std: 0.1, sparse: None },
            Filler::Gaussian { mean: 0.5, std: 0.1, sparse: Some(1) },
            Filler::Xavier(norm),
            Filler::Msra(norm),
            Filler::PositiveUnitBall,
            Filler::Bilinear,
        ] {
            let [mut one, mut all] = [(); 2].map(|()| vec![f32::NAN; shape.count()]);
            filler.fill(&shape, &stream, &mut one);
            filler.fill_by_all(&shape, &stream, &mut all);
            assert!(one == all, "{filler:?}");
        }
    }

    #[test]
    fn xavier_fills_its_interval_and_no_more() {
        let values = filled(&Filler::Xavier(VarianceNorm::FanIn), &[500, 800]);
        let bound = (3.0f32 / 800.0).sqrt();
        let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        assert!(largest <= bound && largest > 0.999 * bound);
    }

    #[test]
    fn msra_and_gaussian_have_their_deviation() {
        let deviation = |values: &[f32]| {
            (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
        };
        let msra = filled(&Filler::Msra(VarianceNorm::FanOut), &[200, 50, 3, 3]);
        assert!((deviation(&msra) - (2.0f64 / (200.0 * 9.0)).sqrt()).abs() < 1e-3);
        let gaussian = filled(&Filler::Gaussian { mean: 0.0, std: 0.01, sparse: Some(10) }, &[100, 400]);
        let kept = gaussian.iter().filter(|v| **v != 0.0).count() as f64 / gaussian.len() as f64;
        assert!((kept - 0.1).abs() < 0.01, "{kept}");
    }

    #[test]
    fn unit_ball_rows_sum_to_one_and_bilinear_is_symmetric() {
        for row in filled(&Filler::PositiveUnitBall, &[5, 7]).chunks(7) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        let kernel = filled(&Filler::Bilinear, &[1, 1, 4, 4]);
        assert_eq!(kernel[..4], [0.0625, 0.1875, 0.1875, 0.0625]);
        for side in 1..=9 {
            let kernel = filled(&Filler::Bilinear, &[2, 1, side, side]);
            let mirrored = kernel.iter().zip(kernel.iter().rev());
            assert!(mirrored.into_iter().all(|(a, b)| (a - b).abs() < 1e-6), "{kernel:?}");
        }
    }
}
