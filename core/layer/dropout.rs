//! Dropout: `y_i = x_i · m_i`, where `m_i` is 0 with the probability `ratio` and `1/(1 − ratio)` otherwise. In phase
//! TEST it is the identity and costs nothing.
//!
//! The mask is not kept: backward draws it again. It is a pure function of the step's seed, the layer's place in the
//! net and the value's place in the worker's mini-batch (image, then the value's place in the image in the order
//! N, C, H, W), so it depends neither on threads, nor on memory layouts, nor on the cut over devices.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::rng::Stream;
use crate::shape::Shape;
use crate::site::Fault;

/// Dropout; works in place.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// The part of the values that is dropped, at least 0 and less than 1.
    pub ratio: f32,
    /// Whether anything is dropped: in phase TRAIN. The net decides it.
    pub active: bool,
}

impl Dropout {
    /// What the value at `place` of the worker's mini-batch is multiplied by. `stream` is the layer's in this step
    /// ([`crate::rng::Draw::stream`]).
    pub fn factor(&self, stream: &Stream, place: u64) -> f32 {
        if stream.bits(place) >> 8 < self.threshold() { 0.0 } else { self.scale() }
    }

    /// The value at a place is dropped if the upper 24 of its random bits ([`Stream::bits`]) are less than this: the
    /// same as `uniform < ratio`.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.ratio) * f64::from(1 << 24)).ceil() as u32
    }

    /// What a value that is not dropped is multiplied by: `1/(1 − ratio)`, so that means stay as they are.
    pub fn scale(&self) -> f32 {
        (1.0 / (1.0 - f64::from(self.ratio))) as f32
    }
}

impl Meaning for Dropout {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        if !(0.0..1.0).contains(&self.ratio) {
            return Err(Fault::new(
                "dropout_param.dropout_ratio",
                format!("{}; expected at least 0 and less than 1", self.ratio),
            ));
        }
        Ok(Inferred { tops: vec![bottoms[0].clone()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        match sub {
            SubTask::Forward if self.active => Some(Accesses::new([Operand::Bottom(0)], [Operand::Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([Operand::TopGrad(0)], [Operand::BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        match sub {
            SubTask::Forward | SubTask::GradActivation if self.active => bottoms[0].count() as u64,
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
    use crate::rng::Draw;

    #[test]
    fn only_parts_of_a_whole_can_be_dropped() {
        let infer = |ratio| Dropout { ratio, active: true }.infer(&[Shape::new([2, 3])]);
        for ratio in [0.0, 0.5, 0.999] {
            assert_eq!(infer(ratio).map(|i| i.tops), Ok(vec![Shape::new([2, 3])]));
        }
        for ratio in [-0.1, 1.0, 1.5, f32::NAN, f32::INFINITY] {
            let fault = infer(ratio).expect_err("no such part");
            assert_eq!(fault.field, "dropout_param.dropout_ratio");
        }
    }

    #[test]
    fn as_many_are_dropped_as_were_asked_for_and_the_mean_stays() {
        const VALUES: u64 = 100_000;
        for ratio in [0.0, 0.1, 0.5, 0.9] {
            let dropout = Dropout { ratio, active: true };
            let stream = Draw { seed: 5, layer: 3, first_image: 0 }.stream();
            let factors = (0..VALUES).map(|i| dropout.factor(&stream, i));
            let uniform = |i| stream.uniform(i) < ratio;
            assert!((0..VALUES).all(|i| uniform(i) == (dropout.factor(&stream, i) == 0.0)), "{ratio}");
            let dropped = factors.clone().filter(|f| *f == 0.0).count() as f64 / VALUES as f64;
            let mean = factors.map(f64::from).sum::<f64>() / VALUES as f64;
            // Five standard deviations of a binomial distribution.
            let p = f64::from(ratio);
            let bound = 5.0 * (p * (1.0 - p) / VALUES as f64).sqrt();
            assert!((dropped - p).abs() <= bound, "{dropped} of {ratio}");
            assert!((mean - 1.0).abs() <= bound / (1.0 - p) + 1e-6, "{mean} for {ratio}");
        }
    }
}
