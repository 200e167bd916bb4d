//! Batch normalisation: each channel is brought to mean 0 and variance 1. Scale and bias are a layer of their own
//! ([`super::Scale`]), as in Caffe.
//!
//! The layer keeps running sums of the batches' statistics for phase TEST, Caffe's three blobs: mean (C), variance
//! (C) and factor (1), from which `mean / factor` and `variance / factor` follow. They take the road of gradients:
//! GradWeight writes this device's share of the batch's statistics, the shares are summed over devices and workers
//! like every gradient, and the update adds the sum ([`crate::net::ParamRule::RunningSum`]). So all replicas of the
//! weights stay equal bit by bit.

use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Batch normalisation over every axis but 1, the channels; a blob of one axis is one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// Whether the kept statistics normalise and not the batch's own. `None` leaves it to the phase: those of the
    /// batch in TRAIN, the kept ones in TEST. A net has no `None`.
    pub use_global_stats: Option<bool>,
    /// What of the running sums stays in an iteration, 0 to 1.
    pub moving_average_fraction: f32,
    /// Added to the variance before the root, at least 0.
    pub eps: f32,
}

impl BatchNorm {
    /// Whether the kept statistics normalise: only where the file or the phase says so.
    pub fn uses_kept_statistics(&self) -> bool {
        self.use_global_stats == Some(true)
    }

    /// Factor that makes the variance of `count` values that of a sample, as Caffe keeps it: `count / (count − 1)`,
    /// and 1 for a single value.
    pub fn bias_correction(count: usize) -> f32 {
        if count > 1 { count as f32 / (count - 1) as f32 } else { 1.0 }
    }
}

impl Meaning for BatchNorm {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            return Err(Fault::new(
                "batch_norm_param.eps",
                format!("{}; expected a number of at least 0", self.eps),
            ));
        }
        let fraction = self.moving_average_fraction;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Fault::new(
                "batch_norm_param.moving_average_fraction",
                format!("{fraction}; expected a number from 0 to 1"),
            ));
        }
        if bottoms[0].axes() == 0 {
            return Err(Fault::new(
                "bottom",
                "the blob is a single value without axes; expected images by channels",
            ));
        }
        let channels = Shape::new([bottoms[0].dim(1)]);
        let sum = |shape: &Shape| ParamShape { shape: shape.clone(), filler: Filler::Constant(0.0) };
        Ok(Inferred {
            tops: vec![bottoms[0].clone()],
            params: vec![sum(&channels), sum(&channels), sum(&Shape::new([1]))],
            // Mean and variance that forward normalised with.
            aux: vec![channels.clone(), channels],
        })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
        let kept = self.uses_kept_statistics();
        match sub {
            SubTask::Forward if kept => {
                Some(Accesses::new([Bottom(0), Param(0), Param(1), Param(2)], [Top(0), Aux(0), Aux(1)]))
            }
            SubTask::Forward => Some(Accesses::new([Bottom(0)], [Top(0), Aux(0), Aux(1)])),
            SubTask::GradActivation if kept => Some(Accesses::new([TopGrad(0), Aux(1)], [BottomGrad(0)])),
            // The top and not the bottom, so that the layer can work in place.
            SubTask::GradActivation => Some(Accesses::new([TopGrad(0), Top(0), Aux(1)], [BottomGrad(0)])),
            SubTask::GradWeight if !kept => {
                Some(Accesses::new([Aux(0), Aux(1)], [ParamGrad(0), ParamGrad(1), ParamGrad(2)]))
            }
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        let (values, channels) = (bottoms[0].count() as u64, bottoms[0].dim(1) as u64);
        match (sub, self.uses_kept_statistics()) {
            // Subtract, divide; with the batch's own statistics also the sums of values and of squares.
            (SubTask::Forward, true) => 2 * values,
            (SubTask::Forward, false) => 5 * values,
            // Divide; with the batch's own statistics also two sums and two differences with them.
            (SubTask::GradActivation, true) => values,
            (SubTask::GradActivation, false) => 7 * values,
            (SubTask::GradWeight, false) => 3 * channels,
            _ => 0,
        }
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variance_of_one_value_needs_no_correction() {
        assert_eq!([1, 2, 5].map(BatchNorm::bias_correction), [1.0, 2.0, 1.25]);
    }
}
