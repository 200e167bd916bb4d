//! The learning rate as a function of the iteration: Caffe's policies.

/// A learning-rate policy. `base` is the solver's `base_lr`.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// `base`.
    Fixed,
    /// `base · gamma^⌊iteration / step⌋`.
    Step {
        /// Factor of a step.
        gamma: f32,
        /// Iterations between steps, at least 1.
        step: u64,
    },
    /// `base · gamma^iteration`.
    Exp {
        /// Factor of an iteration.
        gamma: f32,
    },
    /// `base · (1 + gamma · iteration)^(−power)`.
    Inv {
        /// Speed of the decay.
        gamma: f32,
        /// Exponent of the decay.
        power: f32,
    },
    /// `base · gamma^k` with `k` the number of `steps` that were reached.
    MultiStep {
        /// Factor of a step.
        gamma: f32,
        /// Iterations of the steps, rising.
        steps: Vec<u64>,
    },
    /// `base · (1 − iteration / max)^power`.
    Poly {
        /// Exponent.
        power: f32,
        /// The iteration at which the rate is 0.
        max: u64,
    },
    /// `base / (1 + exp(−gamma · (iteration − step)))`: rises.
    Sigmoid {
        /// Steepness.
        gamma: f32,
        /// The iteration of half the rate.
        step: u64,
    },
}

impl Policy {
    /// The learning rate that is used in `iteration`, counted from 0. Computed in single precision like Caffe.
    pub fn rate(&self, base: f32, iteration: u64) -> f32 {
        let t = iteration as f32;
        match self {
            Self::Fixed => base,
            Self::Step { gamma, step } => base * gamma.powf((iteration / step.max(&1)) as f32),
            Self::Exp { gamma } => base * gamma.powf(t),
            Self::Inv { gamma, power } => base * (1.0 + gamma * t).powf(-power),
            Self::MultiStep { gamma, steps } => {
                base * gamma.powf(steps.iter().filter(|s| **s <= iteration).count() as f32)
            }
            Self::Poly { power, max } => base * (1.0 - t / *max as f32).max(0.0).powf(*power),
            Self::Sigmoid { gamma, step } => base / (1.0 + (-gamma * (t - *step as f32)).exp()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inv_is_lenets_policy() {
        let inv = Policy::Inv { gamma: 1e-4, power: 0.75 };
        assert_eq!(inv.rate(0.01, 0), 0.01);
        assert!((inv.rate(0.01, 10_000) - 0.01 * 2f32.powf(-0.75)).abs() < 1e-8);
    }

    #[test]
    fn steps_are_taken_at_their_iteration() {
        let multi = Policy::MultiStep { gamma: 0.1, steps: vec![5, 8] };
        let rates: Vec<f32> = [4, 5, 7, 8].iter().map(|t| multi.rate(1.0, *t)).collect();
        for (rate, expected) in rates.iter().zip([1.0, 0.1, 0.1, 0.01]) {
            assert!((rate - expected).abs() < 1e-7, "{rates:?}");
        }
        let step = Policy::Step { gamma: 0.5, step: 10 };
        assert_eq!([step.rate(1.0, 9), step.rate(1.0, 10), step.rate(1.0, 25)], [1.0, 0.5, 0.25]);
    }

    #[test]
    fn poly_ends_at_zero_and_sigmoid_rises() {
        let poly = Policy::Poly { power: 2.0, max: 100 };
        assert_eq!([poly.rate(1.0, 0), poly.rate(1.0, 50), poly.rate(1.0, 100)], [1.0, 0.25, 0.0]);
        let sigmoid = Policy::Sigmoid { gamma: 0.1, step: 50 };
        assert_eq!(sigmoid.rate(1.0, 50), 0.5);
        assert!(sigmoid.rate(1.0, 60) > sigmoid.rate(1.0, 40));
    }
}
