//! Local response normalisation: `y_i = x_i · s_i^(−β)` with `s_i = k + α/|W| · Σ_{j ∈ W(i)} x_j²`.
//!
//! Backward reads the bottom and computes `s` again: that costs what forward costs and saves an array as large as
//! the bottom, which Caffe keeps from forward to backward.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask, check_extents};
use crate::shape::Shape;
use crate::site::Fault;

/// Which values are the neighbours `W(i)` of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormRegion {
    /// `local_size` channels around its own, at the same place of the image; `|W| = local_size`.
    AcrossChannels,
    /// A square of `local_size` around its place, in its own channel; `|W| = local_size²`. Here `k` is 1, whatever
    /// the file says, as in Caffe.
    WithinChannel,
}

/// Local response normalisation of (N, C, H, W). Neighbours beyond the border count as 0; `|W|` does not shrink there.
#[derive(Clone, Debug, PartialEq)]
pub struct Lrn {
    /// Which values are neighbours.
    pub region: NormRegion,
    /// How many channels, or rows and columns, around and with the value itself: odd.
    pub local_size: usize,
    /// α, the weight of the neighbours' mean square.
    pub alpha: f32,
    /// β, the exponent.
    pub beta: f32,
    /// What is added to the weighted mean square across channels.
    pub k: f32,
}

impl Lrn {
    /// Neighbours of a value along each of the axes (channels, rows, columns), on either side.
    pub fn reach(&self) -> [usize; 3] {
        let side = self.local_size / 2;
        match self.region {
            NormRegion::AcrossChannels => [side, 0, 0],
            NormRegion::WithinChannel => [0, side, side],
        }
    }

    /// `|W|`: what α is divided by.
    pub fn divisor(&self) -> f32 {
        match self.region {
            NormRegion::AcrossChannels => self.local_size as f32,
            NormRegion::WithinChannel => (self.local_size as f32) * (self.local_size as f32),
        }
    }

    /// What the scale `s` is without neighbours.
    pub fn base(&self) -> f32 {
        match self.region {
            NormRegion::AcrossChannels => self.k,
            NormRegion::WithinChannel => 1.0,
        }
    }
}

impl Meaning for Lrn {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if bottoms[0].axes() != 4 {
            return Err(Fault::new(
                "bottom",
                format!("has shape {}; expected four axes (images, channels, height, width)", bottoms[0]),
            ));
        }
        let field = "lrn_param.local_size";
        check_extents(field, &[self.local_size], 1)?;
        if self.local_size.is_multiple_of(2) {
            return Err(Fault::new(field, format!("{}; expected an odd number", self.local_size))
                .hint("neighbours lie on both sides of a value, as many on each"));
        }
        Ok(Inferred { tops: vec![bottoms[0].clone()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top, TopGrad};
        match sub {
            SubTask::Forward => Some(Accesses::new([Bottom(0)], [Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([TopGrad(0), Bottom(0)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let window = self.reach().iter().fold(1u64, |n, r| n.saturating_mul(2 * *r as u64 + 1));
        // A square or product, the sum over the window, scale, power (counted as one) and product; backward sums
        // twice, of the squares and of what comes back.
        let each = match sub {
            SubTask::Forward => window.saturating_add(5),
            SubTask::GradActivation => window.saturating_mul(2).saturating_add(11),
            _ => 0,
        };
        each.saturating_mul(bottoms[0].count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lrn(region: NormRegion, local_size: usize) -> Lrn {
        Lrn { region, local_size, alpha: 1.0, beta: 0.75, k: 2.0 }
    }

    #[test]
    fn only_images_and_odd_sizes_are_possible() {
        for region in [NormRegion::AcrossChannels, NormRegion::WithinChannel] {
            let refused = |size, dims: &[usize]| {
                lrn(region, size).infer(&[Shape::new(dims)]).map_err(|fault| fault.field)
            };
            for size in [0, 2, 4, usize::MAX, usize::MAX - 1] {
                assert_eq!(refused(size, &[1, 2, 3, 4]), Err("lrn_param.local_size".to_owned()), "{size}");
            }
            assert_eq!(refused(3, &[2, 3]), Err("bottom".to_owned()));
            assert_eq!(refused(99, &[1, 2, 3, 4]).map(|i| i.tops), Ok(vec![Shape::new([1, 2, 3, 4])]));
        }
    }

    #[test]
    fn a_window_that_no_memory_would_hold_has_operations_all_the_same() {
        let shape = [Shape::new([1, 1, 1, 1])];
        let most = lrn(NormRegion::WithinChannel, i32::MAX as usize);
        assert!(most.flops(SubTask::GradActivation, &shape, &shape) > 1 << 60);
    }
}
