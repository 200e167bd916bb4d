//! Stochastic gradient descent with momentum and weight decay, as Caffe does it.

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

/// Momentum SGD. The learning rate is inside the history: `h ← μh + η·(g + decay·w)`, `w ← w − h`.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct SgdRule {
    /// μ.
    pub momentum: f32,
    /// Strength of the penalty, before a parameter's `decay_mult`.
    pub weight_decay: f32,
    /// Kind of the penalty.
    pub decay: Decay,
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
    pub rule: SgdRule,
    /// The learning rate times the parameter's `lr_mult`.
    pub rate: f32,
    /// The weight decay times the parameter's `decay_mult`.
    pub decay: f32,
    /// The pull of the centre; with it, equations (1), (5) and (6) of Sync EASGD.
    pub elastic: Option<Elastic<'a>>,
}

/// Changes `weight` and `history` by `gradient`; all slices are one part of the packed buffers and have one
/// length.
#[inline(always)]
pub fn update(step: &Step<'_>, weight: &mut [f32], gradient: &[f32], history: &mut [f32]) {
    let Step { rule, rate, decay, elastic } = *step;
    let penalty = |w: f32| match rule.decay {
        Decay::L2 => decay * w,
        Decay::L1 if w == 0.0 => 0.0,
        Decay::L1 => decay * w.signum(),
    };
    let terms = weight.iter_mut().zip(gradient).zip(history.iter_mut());
    match elastic {
        None => {
            for ((w, &g), h) in terms {
                *h = rule.momentum * *h + rate * (g + penalty(*w));
                *w -= *h;
            }
        }
        Some(Elastic { centre, strength }) => {
            for (((w, &g), h), &c) in terms.zip(centre) {
                *h = rule.momentum * *h + rate * (g + penalty(*w));
                *w = update_worker(*w, *h, c, strength);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_inside_the_history() {
        let rule = SgdRule { momentum: 0.5, weight_decay: 0.25, decay: Decay::L2 };
        let (mut w, mut h) = ([4.0], [0.0]);
        update(&Step { rule, rate: 0.5, decay: 0.25, elastic: None }, &mut w, &[3.0], &mut h);
        // g + decay·w = 4, h = 2, w = 2; then with another rate the old history keeps the old one.
        assert_eq!((w, h), ([2.0], [2.0]));
        update(&Step { rule, rate: 0.25, decay: 0.25, elastic: None }, &mut w, &[3.5], &mut h);
        assert_eq!((w, h), ([0.0], [2.0]));
    }

    #[test]
    fn l1_pulls_by_the_sign_and_leaves_zero_alone() {
        let rule = SgdRule { momentum: 0.0, weight_decay: 0.5, decay: Decay::L1 };
        let (mut w, mut h) = ([4.0, -4.0, 0.0], [0.0; 3]);
        update(&Step { rule, rate: 1.0, decay: 0.5, elastic: None }, &mut w, &[0.0; 3], &mut h);
        assert_eq!(w, [3.5, -3.5, 0.0]);
    }

    #[test]
    fn the_centre_pulls_on_the_weight_before_its_update() {
        let rule = SgdRule { momentum: 0.5, ..SgdRule::default() };
        let (mut w, mut h) = ([4.0], [2.0]);
        let elastic = Some(Elastic { centre: &[2.0], strength: 0.25 });
        update(&Step { rule, rate: 1.0, decay: 0.0, elastic }, &mut w, &[1.0], &mut h);
        // V = 0.5·2 + 1 = 2; W = 4 − 2 − 0.25·(4 − 2) = 1.5.
        assert_eq!((w, h), ([1.5], [2.0]));
    }
}
