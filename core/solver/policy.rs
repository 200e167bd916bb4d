//! The learning rate as a function of the iteration: Caffe's policies and those of Intel's fork.

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
    /// `base · gamma^k` with `k` the steps that [`Plateau`] took because the loss did not fall.
    Plateau {
        /// Factor of a step.
        gamma: f32,
        /// Iterations without a smaller loss before each step.
        windows: Vec<u64>,
    },
    /// The rate of the stage that the iteration lies in, whatever `base` is; behind the last stage that of the last one.
    /// At least one stage, in the order of their ends.
    MultiFixed(Vec<RateStage>),
}

/// Iterations with one rate, under [`Policy::MultiFixed`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateStage {
    /// Their rate.
    pub rate: f32,
    /// The last of them, counted from 0.
    pub last: u64,
}

impl Policy {
    /// Its name in solver files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Step { .. } => "step",
            Self::Exp { .. } => "exp",
            Self::Inv { .. } => "inv",
            Self::MultiStep { .. } => "multistep",
            Self::Poly { .. } => "poly",
            Self::Sigmoid { .. } => "sigmoid",
            Self::Plateau { .. } => "plateau",
            Self::MultiFixed(_) => "multifixed",
        }
    }
}

/// The start of a run: the rate rises evenly from `start` to the solver's `base_lr`, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// Iterations until the policy begins.
    pub iterations: u64,
    /// Learning rate of the first.
    pub start: f32,
}

impl Warmup {
    /// The learning rate of `iteration`, if it is one of the warm-up.
    pub fn rate(self, base: f32, iteration: u64) -> Option<f32> {
        let (done, left) = (iteration, self.iterations.checked_sub(iteration).filter(|left| *left > 0)?);
        Some((done as f32 * base + left as f32 * self.start) / self.iterations as f32)
    }
}

/// What the policy [`Policy::Plateau`] remembers from iteration to iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// Steps taken.
    pub steps: u64,
    /// The smallest loss so far.
    pub minimum_loss: f32,
    /// The iteration in which the loss was smallest or the last step was taken.
    pub last_event: u64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { steps: 0, minimum_loss: f32::MAX, last_event: 0 }
    }
}

impl Plateau {
    /// Looks at the smoothed loss of `iteration`, before its rate is asked for: a step is due when neither the loss fell nor
    /// a step was taken for as many iterations as the step's window has.
    pub fn note(&mut self, windows: &[u64], iteration: u64, loss: f32) {
        if loss < self.minimum_loss {
            (self.minimum_loss, self.last_event) = (loss, iteration);
        }
        let window = usize::try_from(self.steps).ok().and_then(|step| windows.get(step));
        if window.is_some_and(|window| iteration >= self.last_event.saturating_add(*window)) {
            self.steps += 1;
            self.last_event = iteration;
        }
    }
}

impl Policy {
    /// The learning rate that is used in `iteration`, counted from 0, after a plateau took so many `steps`. Computed in
    /// single precision like Caffe.
    pub fn rate(&self, base: f32, iteration: u64, steps: u64) -> f32 {
        let t = iteration as f32;
        match self {
            Self::Fixed => base,
            Self::Step { gamma, step } => base * gamma.powf((iteration / step.max(&1)) as f32),
            Self::Exp { gamma } => base * gamma.powf(t),
            Self::Inv { gamma, power } => base * (1.0 + gamma * t).powf(-power),
            Self::MultiStep { gamma, steps } => {
                base * gamma.powf(steps.iter().filter(|s| **s <= iteration).count() as f32)
            }
            Self::Plateau { gamma, .. } => base * gamma.powf(steps as f32),
            Self::Poly { power, max } => base * (1.0 - t / *max as f32).max(0.0).powf(*power),
            Self::Sigmoid { gamma, step } => base / (1.0 + (-gamma * (t - *step as f32)).exp()),
            Self::MultiFixed(stages) => {
                let stage = stages.iter().find(|stage| iteration <= stage.last).or(stages.last());
                stage.map_or(base, |stage| stage.rate)
            }
        }
    }

    /// The steps that Caffe's solver has counted after so many iterations (`current_step` of its state).
    pub fn steps_after(&self, iterations: u64, plateau: &Plateau) -> u64 {
        let Some(last) = iterations.checked_sub(1) else { return 0 };
        match self {
            Self::Step { step, .. } => last / step.max(&1),
            Self::MultiStep { steps, .. } => steps.iter().filter(|step| **step <= last).count() as u64,
            Self::Plateau { .. } => plateau.steps,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inv_is_lenets_policy() {
        let inv = Policy::Inv { gamma: 1e-4, power: 0.75 };
        assert_eq!(inv.rate(0.01, 0, 0), 0.01);
        assert!((inv.rate(0.01, 10_000, 0) - 0.01 * 2f32.powf(-0.75)).abs() < 1e-8);
    }

    #[test]
    fn steps_are_taken_at_their_iteration() {
        let multi = Policy::MultiStep { gamma: 0.1, steps: vec![5, 8] };
        let rates: Vec<f32> = [4, 5, 7, 8].iter().map(|t| multi.rate(1.0, *t, 0)).collect();
        for (rate, expected) in rates.iter().zip([1.0, 0.1, 0.1, 0.01]) {
            assert!((rate - expected).abs() < 1e-7, "{rates:?}");
        }
        let step = Policy::Step { gamma: 0.5, step: 10 };
        assert_eq!([9, 10, 25].map(|t| step.rate(1.0, t, 0)), [1.0, 0.5, 0.25]);
    }

    #[test]
    fn a_stage_has_its_rate_up_to_its_last_iteration() {
        let stage = |rate, last| RateStage { rate, last };
        let policy = Policy::MultiFixed(vec![stage(0.1, 2), stage(0.5, 3), stage(0.25, 6)]);
        let rates: Vec<f32> = (0..9).map(|t| policy.rate(7.0, t, 0)).collect();
        // Intel Caffe asks whether the iteration is at most stageiter: the first stage is one iteration longer than it says.
        assert_eq!(rates, [0.1, 0.1, 0.1, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]);
    }

    #[test]
    fn poly_ends_at_zero_and_sigmoid_rises() {
        let poly = Policy::Poly { power: 2.0, max: 100 };
        assert_eq!([0, 50, 100].map(|t| poly.rate(1.0, t, 0)), [1.0, 0.25, 0.0]);
        let sigmoid = Policy::Sigmoid { gamma: 0.1, step: 50 };
        assert_eq!(sigmoid.rate(1.0, 50, 0), 0.5);
        assert!(sigmoid.rate(1.0, 60, 0) > sigmoid.rate(1.0, 40, 0));
    }

    #[test]
    fn a_plateau_lowers_the_rate_when_the_loss_does_not_fall() {
        let policy = Policy::Plateau { gamma: 0.5, windows: vec![2, 3] };
        let Policy::Plateau { windows, .. } = &policy else { unreachable!() };
        let mut plateau = Plateau::default();
        let losses = [4.0, 3.0, 3.0, 3.5, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0];
        let rates: Vec<f32> = (0..)
            .zip(losses)
            .map(|(iteration, loss)| {
                plateau.note(windows, iteration, loss);
                policy.rate(1.0, iteration, plateau.steps)
            })
            .collect();
        // The smallest loss of iteration 1 is not beaten for 2 iterations, that of iteration 5 not for 3; then there is no
        // further window.
        assert_eq!(rates, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]);
        assert_eq!(plateau, Plateau { steps: 2, minimum_loss: 2.0, last_event: 8 });
        let mut lost = Plateau::default();
        lost.note(&[1], 0, f32::NAN);
        assert_eq!(lost, Plateau::default());
    }

    #[test]
    fn a_warm_up_rises_to_the_base_and_ends() {
        let warmup = Warmup { iterations: 4, start: 0.2 };
        let rates: Vec<Option<f32>> = (0..6).map(|t| warmup.rate(1.0, t)).collect();
        let expected = [Some(0.2), Some(0.4), Some(0.6), Some(0.8), None, None];
        for (rate, expected) in rates.iter().zip(expected) {
            let near = rate.zip(expected).is_none_or(|(a, b)| (a - b).abs() < 1e-6);
            assert!(near && rate.is_some() == expected.is_some(), "{rates:?}");
        }
        assert_eq!(Warmup { iterations: 0, start: 0.2 }.rate(1.0, 0), None);
    }

    #[test]
    fn steps_are_counted_as_caffe_stores_them() {
        let plateau = Plateau { steps: 7, ..Plateau::default() };
        let after = |policy: Policy| [0, 1, 5, 6, 9].map(|done| policy.steps_after(done, &plateau));
        assert_eq!(after(Policy::MultiStep { gamma: 0.1, steps: vec![5, 8] }), [0, 0, 0, 1, 2]);
        assert_eq!(after(Policy::Step { gamma: 0.1, step: 5 }), [0, 0, 0, 1, 1]);
        assert_eq!(after(Policy::Plateau { gamma: 0.1, windows: vec![1] }), [0, 7, 7, 7, 7]);
        assert_eq!(after(Policy::Fixed), [0; 5]);
        assert_eq!(after(Policy::MultiFixed(vec![RateStage { rate: 0.1, last: 1 }])), [0; 5]);
    }
}
