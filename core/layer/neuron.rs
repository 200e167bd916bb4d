//! Layers that work value by value, with one function for all values: `y = f(x)`. Caffe calls them neuron layers.
//! ReLU, Dropout and PReLU have files of their own.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// The function. Names and formulas are those of Caffe's layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Neuron {
    /// `y = |x|`; the gradient at 0 is 0.
    AbsVal,
    /// Binomial normal log likelihood: `y = ln(1 + eˣ)`.
    Bnll,
    /// `y = max(min, min(x, max))`; the bounds themselves let the gradient pass.
    Clip {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// Exponential linear unit: `y = x` above 0, and `α · (eˣ − 1)` elsewhere.
    Elu {
        /// The negative of the limit for small `x`.
        alpha: f32,
    },
    /// `y = base ^ (shift + scale · x)`.
    Exp {
        /// Above 0; `None` is e.
        base: Option<f32>,
        /// Factor of `x`.
        scale: f32,
        /// What is added.
        shift: f32,
    },
    /// `y = log_base (shift + scale · x)`.
    Log {
        /// Above 0 and not 1; `None` is e.
        base: Option<f32>,
        /// Factor of `x`.
        scale: f32,
        /// What is added.
        shift: f32,
    },
    /// `y = (shift + scale · x) ^ power`. If power or scale is 0 the bottom is not looked at, and has the gradient 0.
    Power {
        /// Exponent.
        power: f32,
        /// Factor of `x`.
        scale: f32,
        /// What is added.
        shift: f32,
    },
    /// `y = 1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `y = x / (1 + e^(−β·x))`.
    Swish {
        /// Factor of `x` in the sigmoid.
        beta: f32,
    },
    /// `y = tanh x`.
    TanH,
    /// `y = 1` above the threshold, and 0 elsewhere. It has no gradient.
    Threshold {
        /// The threshold.
        threshold: f32,
    },
}

impl Neuron {
    /// The layer's type in network files.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::AbsVal => "AbsVal",
            Self::Bnll => "BNLL",
            Self::Clip { .. } => "Clip",
            Self::Elu { .. } => "ELU",
            Self::Exp { .. } => "Exp",
            Self::Log { .. } => "Log",
            Self::Power { .. } => "Power",
            Self::Sigmoid => "Sigmoid",
            Self::Swish { .. } => "Swish",
            Self::TanH => "TanH",
            Self::Threshold { .. } => "Threshold",
        }
    }

    /// Whether the top is the same for every bottom: a power of 0, or of 0 times the bottom.
    pub fn is_constant(&self) -> bool {
        matches!(self, Self::Power { power, scale, .. } if power * scale == 0.0)
    }

    /// What the derivative follows from: the top where it tells all, so that the layer can work in place; `None` if the
    /// derivative is the same everywhere.
    pub fn derivative_of(&self) -> Option<Operand> {
        match self {
            Self::Power { power, .. } if *power == 1.0 || self.is_constant() => None,
            Self::Sigmoid | Self::TanH | Self::Exp { .. } => Some(Operand::Top(0)),
            // A negative α turns the sign around that tells the side.
            Self::Elu { alpha } if *alpha >= 0.0 => Some(Operand::Top(0)),
            _ => Some(Operand::Bottom(0)),
        }
    }

    /// Its numbers by their fields, for a check that all are finite.
    fn numbers(&self) -> Vec<(&'static str, f32)> {
        match *self {
            Self::Clip { min, max } => vec![("clip_param.min", min), ("clip_param.max", max)],
            Self::Elu { alpha } => vec![("elu_param.alpha", alpha)],
            Self::Exp { scale, shift, .. } => vec![("exp_param.scale", scale), ("exp_param.shift", shift)],
            Self::Log { scale, shift, .. } => vec![("log_param.scale", scale), ("log_param.shift", shift)],
            Self::Power { power, scale, shift } => {
                vec![("power_param.power", power), ("power_param.scale", scale), ("power_param.shift", shift)]
            }
            Self::Swish { beta } => vec![("swish_param.beta", beta)],
            Self::Threshold { threshold } => vec![("threshold_param.threshold", threshold)],
            Self::AbsVal | Self::Bnll | Self::Sigmoid | Self::TanH => Vec::new(),
        }
    }

    fn check(&self) -> Result<(), Fault> {
        for (field, value) in self.numbers() {
            if !value.is_finite() {
                return Err(Fault::new(field, format!("{value}; expected a finite number")));
            }
        }
        let positive = |field: &str, base: f32| {
            let problem = format!("{base}; expected a number above 0, or -1 for e");
            if base > 0.0 && base.is_finite() { Ok(()) } else { Err(Fault::new(field, problem)) }
        };
        match *self {
            Self::Clip { min, max } if min > max => {
                Err(Fault::new("clip_param.min", format!("{min} is larger than max, {max}")))
            }
            Self::Exp { base: Some(base), .. } => positive("exp_param.base", base),
            Self::Log { base: Some(base), .. } => {
                positive("log_param.base", base)?;
                if base == 1.0 {
                    return Err(Fault::new("log_param.base", "1; there is no logarithm to this base"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Meaning for Neuron {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        self.check()?;
        Ok(Inferred { tops: vec![bottoms[0].clone()], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, BottomGrad, Top, TopGrad};
        match (sub, self) {
            (SubTask::Forward, _) => Some(Accesses::new([Bottom(0)], [Top(0)])),
            (SubTask::GradActivation, Self::Threshold { .. }) => None,
            (SubTask::GradActivation, _) => {
                let reads = [TopGrad(0)].into_iter().chain(self.derivative_of());
                Some(Accesses::new(reads.collect::<Vec<_>>(), [BottomGrad(0)]))
            }
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], _: &[Shape]) -> u64 {
        // A library's function counts as one operation.
        let each = match (sub, self) {
            (SubTask::Forward, Self::AbsVal | Self::Threshold { .. } | Self::TanH) => 1,
            (SubTask::Forward, Self::Clip { .. }) => 2,
            (SubTask::Forward, Self::Swish { .. }) => 5,
            (SubTask::Forward, _) => 3,
            (SubTask::GradActivation, Self::Threshold { .. }) => 0,
            (SubTask::GradActivation, Self::Swish { .. }) => 8,
            (SubTask::GradActivation, _) => 3,
            _ => 0,
        };
        each * bottoms[0].count() as u64
    }

    /// As in Caffe, where only this one refuses. Where the derivative follows from the bottom the layer gets memory of its
    /// own all the same; Caffe takes it at the top's values.
    fn works_in_place(&self) -> bool {
        *self != Self::AbsVal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_function_are_refused() {
        let (scale, shift) = (1.0, 0.0);
        for (neuron, field) in [
            (Neuron::Exp { base: Some(0.0), scale, shift }, "exp_param.base"),
            (Neuron::Exp { base: Some(-2.0), scale, shift }, "exp_param.base"),
            (Neuron::Exp { base: Some(f32::INFINITY), scale, shift }, "exp_param.base"),
            (Neuron::Exp { base: None, scale: f32::NAN, shift }, "exp_param.scale"),
            (Neuron::Log { base: Some(1.0), scale, shift }, "log_param.base"),
            (Neuron::Log { base: Some(-0.5), scale, shift }, "log_param.base"),
            (Neuron::Log { base: None, scale, shift: f32::INFINITY }, "log_param.shift"),
            (Neuron::Power { power: f32::NAN, scale, shift }, "power_param.power"),
            (Neuron::Clip { min: 1.0, max: 0.5 }, "clip_param.min"),
            (Neuron::Clip { min: 1.0, max: f32::INFINITY }, "clip_param.max"),
            (Neuron::Elu { alpha: f32::NAN }, "elu_param.alpha"),
            (Neuron::Swish { beta: f32::NAN }, "swish_param.beta"),
            (Neuron::Threshold { threshold: f32::NAN }, "threshold_param.threshold"),
        ] {
            let fault = neuron.infer(&[Shape::new([2])]).expect_err("no function");
            assert_eq!(fault.field, field, "{neuron:?}");
        }
        let fits = Neuron::Exp { base: Some(1.0), scale, shift }.infer(&[Shape::default()]);
        assert_eq!(fits.map(|i| i.tops), Ok(vec![Shape::default()]));
    }
}
