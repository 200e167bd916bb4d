//! How a gradient changes its parameter: Caffe's six solvers, with the penalty on the size of the weights.
//!
//! Each step forms the gradient `g = scale · gradient + decay · penalty(w)`, in this order: clipping and the mean over
//! several mini-batches (the scale) come before the penalty. The solver makes an amount Δ of it, and `w ← w − Δ`.

use super::easgd::update_worker;

/// The penalty on the size of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Decay {
    /// `decay · w` is added to the gradient.
    #[default]
    L2,
    /// `decay · sign(w)` is added to the gradient.
    L1,
}

/// Caffe's solvers. η is the learning rate times the parameter's `lr_mult`; h and s are histories that start at 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RuleKind {
    /// Momentum SGD, with the rate inside the history: `h ← μh + ηg`, `Δ = h`.
    Sgd {
        /// μ.
        momentum: f32,
    },
    /// Nesterov's accelerated gradient: `h' = μh + ηg`, `Δ = (1 + μ)h' − μh`, `h ← h'`.
    Nesterov {
        /// μ.
        momentum: f32,
    },
    /// AdaGrad: `h ← h + g²`, `Δ = η g / (√h + δ)`.
    AdaGrad {
        /// δ.
        delta: f32,
    },
    /// RMSProp: `h ← ρh + (1 − ρ)g²`, `Δ = η g / (√h + δ)`.
    RmsProp {
        /// ρ.
        decay: f32,
        /// δ.
        delta: f32,
    },
    /// AdaDelta: `h ← μh + (1 − μ)g²`, `d = g √((s + δ) / (h + δ))`, `s ← μs + (1 − μ)d²`, `Δ = ηd`. δ is inside the root.
    AdaDelta {
        /// μ.
        momentum: f32,
        /// δ.
        delta: f32,
    },
    /// Adam: `h ← β₁h + (1 − β₁)g`, `s ← β₂s + (1 − β₂)g²`, `Δ = η √(1 − β₂ᵗ) / (1 − β₁ᵗ) · h / (√s + δ)` in iteration
    /// t, counted from 1.
    Adam {
        /// β₁.
        momentum: f32,
        /// β₂.
        momentum2: f32,
        /// δ.
        delta: f32,
    },
}

impl RuleKind {
    /// Caffe's name of the solver.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sgd { .. } => "SGD",
            Self::Nesterov { .. } => "Nesterov",
            Self::AdaGrad { .. } => "AdaGrad",
            Self::RmsProp { .. } => "RMSProp",
            Self::AdaDelta { .. } => "AdaDelta",
            Self::Adam { .. } => "Adam",
        }
    }

    /// Histories of each parameter, 1 or 2. A packed buffer of histories holds first the first ones of all parameters and
    /// then, at as many elements further on as the packed weights have, the second ones: Caffe's order.
    pub fn histories(self) -> usize {
        match self {
            Self::AdaDelta { .. } | Self::Adam { .. } => 2,
            _ => 1,
        }
    }

    /// What the learning rate of an iteration, counted from 0, is multiplied by: what undoes the start of Adam's histories at
    /// 0, and 1 for any other rule.
    pub fn rate_correction(self, iteration: u64) -> f32 {
        match self {
            Self::Adam { momentum, momentum2, .. } => adam_correction(momentum, momentum2, iteration),
            _ => 1.0,
        }
    }
}

/// The rule that changes the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The solver.
    pub kind: RuleKind,
    /// Strength of the penalty, before a parameter's `decay_mult`.
    pub weight_decay: f32,
    /// Kind of the penalty.
    pub decay: Decay,
    /// The largest norm (L2, over the gradients of all parameters together) that gradients may have: larger ones are
    /// scaled down to it, before the penalty and before the mean over several mini-batches.
    pub clip: Option<f32>,
}

impl Default for Rule {
    /// SGD without momentum or penalty.
    fn default() -> Self {
        Self::sgd(0.0, 0.0)
    }
}

impl Rule {
    /// Momentum SGD with an L2 penalty.
    pub fn sgd(momentum: f32, weight_decay: f32) -> Self {
        Self { kind: RuleKind::Sgd { momentum }, weight_decay, decay: Decay::L2, clip: None }
    }
}

/// The pull of the centre in the EASGD family.
#[derive(Clone, Copy, Debug)]
pub struct Elastic<'a> {
    /// Centre weights W̄, as long as the weights.
    pub centre: &'a [f32],
    /// ηρ.
    pub strength: f32,
}

/// One application of the rule to a part of the packed buffers.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The rule.
    pub rule: Rule,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The learning rate times the parameter's `lr_mult`.
    pub rate: f32,
    /// The weight decay times the parameter's `decay_mult`.
    pub decay: f32,
    /// What the gradient is multiplied by before anything else.
    pub scale: f32,
    /// The pull of the centre on the weight before the step: `W ← W − Δ − ηρ (W − W̄)`. For momentum SGD these are
    /// equations (1), (5) and (6) of Sync EASGD; the other solvers have the same pull.
    pub elastic: Option<Elastic<'a>>,
}

/// Changes `weight` and its histories by `gradient`. All slices are one part of the packed buffers and have one length;
/// `second` may be empty for rules with one history.
#[inline(always)]
pub fn update(
    step: &Step<'_>,
    weight: &mut [f32],
    gradient: &[f32],
    history: &mut [f32],
    second: &mut [f32],
) {
    update_by(step, weight, gradient.iter().copied(), history, second);
}

/// The same by gradients that are made as they are asked for.
#[inline(always)]
pub fn update_by(
    step: &Step<'_>,
    weight: &mut [f32],
    gradient: impl Iterator<Item = f32>,
    history: &mut [f32],
    second: &mut [f32],
) {
    // What is not scaled is not multiplied, either: the loop of momentum SGD has no arithmetic but its own.
    if step.scale == 1.0 {
        update_scaled(step, |g| g, weight, gradient, history, second);
    } else {
        let scale = step.scale;
        update_scaled(step, |g| scale * g, weight, gradient, history, second);
    }
}

#[inline(always)]
fn update_scaled(
    step: &Step<'_>,
    scaled: impl Fn(f32) -> f32,
    weight: &mut [f32],
    gradient: impl Iterator<Item = f32>,
    history: &mut [f32],
    second: &mut [f32],
) {
    let rate = step.rate;
    let arrays = (weight, gradient);
    match step.rule.kind {
        RuleKind::Sgd { momentum } => each(step, scaled, arrays, history.iter_mut(), |g, h| {
            *h = momentum * *h + rate * g;
            *h
        }),
        RuleKind::Nesterov { momentum } => each(step, scaled, arrays, history.iter_mut(), |g, h| {
            let before = std::mem::replace(h, momentum * *h + rate * g);
            (1.0 + momentum) * *h - momentum * before
        }),
        RuleKind::AdaGrad { delta } => each(step, scaled, arrays, history.iter_mut(), |g, h| {
            *h += g * g;
            rate * (g / (h.sqrt() + delta))
        }),
        RuleKind::RmsProp { decay, delta } => each(step, scaled, arrays, history.iter_mut(), |g, h| {
            *h = decay * *h + (1.0 - decay) * (g * g);
            rate * (g / (h.sqrt() + delta))
        }),
        RuleKind::AdaDelta { momentum, delta } => {
            let histories = history.iter_mut().zip(second);
            each(step, scaled, arrays, histories, |g, (h, s)| {
                *h = momentum * *h + (1.0 - momentum) * (g * g);
                let d = g * ((*s + delta) / (*h + delta)).sqrt();
                *s = momentum * *s + (1.0 - momentum) * (d * d);
                rate * d
            });
        }
        RuleKind::Adam { momentum, momentum2, delta } => {
            let rate = rate * step.rule.kind.rate_correction(step.iteration);
            let histories = history.iter_mut().zip(second);
            each(step, scaled, arrays, histories, |g, (h, s)| {
                *h = momentum * *h + (1.0 - momentum) * g;
                *s = momentum2 * *s + (1.0 - momentum2) * (g * g);
                rate * (*h / (s.sqrt() + delta))
            });
        }
    }
}

/// What undoes the start of Adam's histories at 0. In double precision, as in Caffe, where a power of a float is a double.
fn adam_correction(momentum: f32, momentum2: f32, iteration: u64) -> f32 {
    let t = i32::try_from(iteration.saturating_add(1)).unwrap_or(i32::MAX);
    let left = |beta: f32| 1.0 - f64::from(beta).powi(t);
    (left(momentum2).sqrt() / left(momentum)) as f32
}

/// Lets `change` make the amount Δ of each element's gradient and histories, and subtracts it.
#[inline(always)]
fn each<H>(
    step: &Step<'_>,
    scaled: impl Fn(f32) -> f32,
    (weight, gradient): (&mut [f32], impl Iterator<Item = f32>),
    histories: impl Iterator<Item = H>,
    change: impl Fn(f32, H) -> f32,
) {
    let Step { rule, decay, elastic, .. } = *step;
    let penalty = |w: f32| match rule.decay {
        Decay::L2 => decay * w,
        Decay::L1 if w == 0.0 => 0.0,
        Decay::L1 => decay * w.signum(),
    };
    let terms = weight.iter_mut().zip(gradient).zip(histories);
    match elastic {
        None => {
            for ((w, g), h) in terms {
                *w -= change(scaled(g) + penalty(*w), h);
            }
        }
        Some(Elastic { centre, strength }) => {
            for (((w, g), h), &c) in terms.zip(centre) {
                let amount = change(scaled(g) + penalty(*w), h);
                *w = update_worker(*w, amount, c, strength);
            }
        }
    }
}

#[cfg(test)]
mod tests;
