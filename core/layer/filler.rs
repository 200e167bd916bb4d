//! How a parameter starts. Semantics of Caffe's fillers; the random numbers are our own.

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

impl Filler {
    /// Fills `out`, a parameter of `shape`, from `stream`.
    pub fn fill(&self, shape: &Shape, stream: &Stream, out: &mut [f32]) {
        let each = |out: &mut [f32], f: &dyn Fn(u64) -> f32| {
            for (i, value) in out.iter_mut().enumerate() {
                *value = f(i as u64);
            }
        };
        match *self {
            Self::Constant(value) => out.fill(value),
            Self::Uniform { min, max } => each(out, &|i| min + (max - min) * stream.uniform(i)),
            Self::Gaussian { mean, std, sparse } => {
                let count = out.len() as u64;
                let kept = sparse.map_or(2.0, |s| s as f32 / shape.dim(0) as f32);
                // The choice of what stays uses numbers beyond those of the values (two words a value).
                each(out, &|i| {
                    let stays = stream.uniform(2 * count + 4 + i) < kept;
                    if stays { mean + std * stream.normal(i) } else { 0.0 }
                });
            }
            Self::Xavier(norm) => {
                let scale = (3.0 / norm.n(shape)).sqrt();
                each(out, &|i| scale * (2.0 * stream.uniform(i) - 1.0));
            }
            Self::Msra(norm) => {
                let std = (2.0 / norm.n(shape)).sqrt();
                each(out, &|i| std * stream.normal(i));
            }
            Self::PositiveUnitBall => {
                each(out, &|i| stream.uniform(i));
                for part in out.chunks_mut(shape.count() / shape.dim(0)) {
                    let sum: f32 = part.iter().sum();
                    part.iter_mut().for_each(|v| *v /= sum);
                }
            }
            Self::Bilinear => {
                let width = shape.dim(3);
                let half = width.div_ceil(2) as f32;
                // Caffe's since 2017; before it kernels of 2, 3, 6, 7, … taps were not symmetric.
                let centre = (width as f32 - 1.0) / (2.0 * half);
                each(out, &|i| {
                    let (x, y) = ((i as usize % width) as f32, ((i as usize / width) % width) as f32);
                    (1.0 - (x / half - centre).abs()) * (1.0 - (y / half - centre).abs())
                });
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
