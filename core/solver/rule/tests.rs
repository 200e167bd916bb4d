//! The rules, by hand where the numbers are exact and in double precision where they are not.

use super::*;
use crate::rng::{Purpose, Stream};

/// A step of `rule` at `rate` without decay, scale or centre.
fn step(rule: Rule, rate: f32) -> Step<'static> {
    Step { rule, iteration: 0, rate, decay: 0.0, scale: 1.0, elastic: None }
}

fn of(kind: RuleKind) -> Rule {
    Rule { kind, ..Rule::default() }
}

#[test]
fn the_rate_is_inside_the_history() {
    let rule = Rule::sgd(0.5, 0.25);
    let (mut w, mut h) = ([4.0], [0.0]);
    update(&Step { decay: 0.25, ..step(rule, 0.5) }, &mut w, &[3.0], &mut h, &mut []);
    // g + decay·w = 4, h = 2, w = 2; then with another rate the old history keeps the old one.
    assert_eq!((w, h), ([2.0], [2.0]));
    update(&Step { decay: 0.25, ..step(rule, 0.25) }, &mut w, &[3.5], &mut h, &mut []);
    assert_eq!((w, h), ([0.0], [2.0]));
}

#[test]
fn l1_pulls_by_the_sign_and_leaves_zero_alone() {
    let rule = Rule { decay: Decay::L1, ..Rule::default() };
    let (mut w, mut h) = ([4.0, -4.0, 0.0], [0.0; 3]);
    update(&Step { decay: 0.5, ..step(rule, 1.0) }, &mut w, &[0.0; 3], &mut h, &mut []);
    assert_eq!(w, [3.5, -3.5, 0.0]);
}

#[test]
fn the_gradient_is_scaled_before_the_penalty() {
    let (mut w, mut h) = ([4.0], [0.0]);
    update(&Step { decay: 0.5, scale: 0.25, ..step(Rule::default(), 1.0) }, &mut w, &[8.0], &mut h, &mut []);
    // g = 0.25·8 + 0.5·4 = 4.
    assert_eq!((w, h), ([0.0], [4.0]));
}

#[test]
fn the_centre_pulls_on_the_weight_before_its_update() {
    let (mut w, mut h) = ([4.0], [2.0]);
    let elastic = Some(Elastic { centre: &[2.0], strength: 0.25 });
    update(&Step { elastic, ..step(Rule::sgd(0.5, 0.0), 1.0) }, &mut w, &[1.0], &mut h, &mut []);
    // V = 0.5·2 + 1 = 2; W = 4 − 2 − 0.25·(4 − 2) = 1.5.
    assert_eq!((w, h), ([1.5], [2.0]));
}

#[test]
fn the_other_solvers_feel_the_same_pull() {
    let (mut w, mut h) = ([4.0], [0.0]);
    let elastic = Some(Elastic { centre: &[2.0], strength: 0.25 });
    let rule = of(RuleKind::AdaGrad { delta: 1.0 });
    update(&Step { elastic, ..step(rule, 2.0) }, &mut w, &[3.0], &mut h, &mut []);
    // Δ = 2·3 / (3 + 1) = 1.5; W = 4 − 1.5 − 0.25·(4 − 2) = 2.
    assert_eq!((w, h), ([2.0], [9.0]));
}

#[test]
fn small_steps_by_hand() {
    let nesterov = step(of(RuleKind::Nesterov { momentum: 0.5 }), 0.5);
    let (mut w, mut h) = ([10.0], [4.0]);
    update(&nesterov, &mut w, &[4.0], &mut h, &mut []);
    // h' = 2 + 2 = 4; Δ = 1.5·4 − 0.5·4 = 4.
    assert_eq!((w, h), ([6.0], [4.0]));

    let rms = step(of(RuleKind::RmsProp { decay: 0.75, delta: 1.0 }), 2.0);
    let (mut w, mut h) = ([10.0], [0.0]);
    update(&rms, &mut w, &[6.0], &mut h, &mut []);
    // h = 0.25·36 = 9; Δ = 2·6 / (3 + 1) = 3.
    assert_eq!((w, h), ([7.0], [9.0]));

    let delta = step(of(RuleKind::AdaDelta { momentum: 0.5, delta: 1.0 }), 4.0);
    let (mut w, mut h, mut s) = ([10.0], [14.0], [3.0]);
    update(&delta, &mut w, &[4.0], &mut h, &mut s);
    // h = 7 + 8 = 15; d = 4·√(4/16) = 2; s = 1.5 + 2 = 3.5; Δ = 8.
    assert_eq!((w, h, s), ([2.0], [15.0], [3.5]));

    let adam = step(of(RuleKind::Adam { momentum: 0.5, momentum2: 0.75, delta: 1.0 }), 2.0);
    let (mut w, mut h, mut s) = ([10.0], [0.0], [0.0]);
    update(&adam, &mut w, &[6.0], &mut h, &mut s);
    // h = 3, s = 9; √0.25 / 0.5 = 1; Δ = 2·3 / (3 + 1) = 1.5.
    assert_eq!((w, h, s), ([8.5], [3.0], [9.0]));
}

#[test]
fn adams_correction_fades() {
    assert!((adam_correction(0.9, 0.999, 0) - 0.001f32.sqrt() / 0.1).abs() < 1e-5);
    assert_eq!(adam_correction(0.9, 0.999, 1 << 20), 1.0);
    assert_eq!(adam_correction(0.9, 0.999, u64::MAX), 1.0);
    assert_eq!(adam_correction(0.0, 0.0, 0), 1.0);
}

/// Weight, histories and gradient in double precision.
#[derive(Clone, Copy)]
struct Exact {
    w: f64,
    h: f64,
    s: f64,
}

impl Exact {
    /// One step by the formulas of [`RuleKind`]; beside the numbers, sums of the magnitudes that each of them is made of.
    fn step(self, step: &Step<'_>, gradient: f32) -> (Self, Self) {
        let Self { w, h, s } = self;
        let d = f64::from;
        let penalty = match step.rule.decay {
            Decay::L2 => d(step.decay) * w,
            Decay::L1 => d(step.decay) * if w == 0.0 { 0.0 } else { w.signum() },
        };
        let rate = d(step.rate);
        let g = d(step.scale) * d(gradient) + penalty;
        let most = (d(step.scale) * d(gradient)).abs() + penalty.abs();
        let rest = |beta: f32| d(1.0 - beta);
        let (h, s, amount, sizes) = match step.rule.kind {
            RuleKind::Sgd { momentum } => {
                let next = d(momentum) * h + rate * g;
                let size = d(momentum) * h.abs() + rate * most;
                (next, s, next, (size, 0.0, size))
            }
            RuleKind::Nesterov { momentum } => {
                let mu = d(momentum);
                let next = mu * h + rate * g;
                let size = mu * h.abs() + rate * most;
                (next, s, (1.0 + mu) * next - mu * h, (size, 0.0, (1.0 + mu) * size + mu * h.abs()))
            }
            RuleKind::AdaGrad { delta } => {
                let next = h + g * g;
                let root = next.sqrt() + d(delta);
                // A relative error of g is, at most, that of √h, too.
                (next, s, rate * g / root, (h + most * most, 0.0, 2.0 * rate * most / root))
            }
            RuleKind::RmsProp { decay, delta } => {
                let next = d(decay) * h + rest(decay) * g * g;
                let root = next.sqrt() + d(delta);
                let size = d(decay) * h + rest(decay) * most * most;
                (next, s, rate * g / root, (size, 0.0, 2.0 * rate * most / root))
            }
            RuleKind::AdaDelta { momentum, delta } => {
                let mu = d(momentum);
                let next = mu * h + rest(momentum) * g * g;
                let ratio = ((s + d(delta)) / (next + d(delta))).sqrt();
                let (amount, size) = (g * ratio, 2.0 * most * ratio);
                let second = mu * s + rest(momentum) * amount * amount;
                let sizes = (
                    mu * h + rest(momentum) * most * most,
                    mu * s + rest(momentum) * size * size,
                    rate * size,
                );
                (next, second, rate * amount, sizes)
            }
            RuleKind::Adam { momentum, momentum2, delta } => {
                let t = step.iteration as i32 + 1;
                let left = |beta: f32| 1.0 - d(beta).powi(t);
                let next = d(momentum) * h + rest(momentum) * g;
                let second = d(momentum2) * s + rest(momentum2) * g * g;
                let size = d(momentum) * h.abs() + rest(momentum) * most;
                let second_size = d(momentum2) * s + rest(momentum2) * most * most;
                let factor = rate * left(momentum2).sqrt() / left(momentum) / (second.sqrt() + d(delta));
                (next, second, factor * next, (size, second_size, 2.0 * factor * size))
            }
        };
        let (pull, pull_size) = step.elastic.map_or((0.0, 0.0), |elastic| {
            let (strength, centre) = (d(elastic.strength), d(elastic.centre[0]));
            (strength * (w - centre), strength * (w.abs() + centre.abs()))
        });
        let sizes = Self { w: w.abs() + sizes.2 + pull_size, h: sizes.0, s: sizes.1 };
        (Self { w: w - amount - pull, h, s }, sizes)
    }
}

fn kinds() -> [RuleKind; 8] {
    let delta = 1e-4;
    [
        RuleKind::Sgd { momentum: 0.0 },
        RuleKind::Sgd { momentum: 0.9 },
        RuleKind::Nesterov { momentum: 0.9 },
        RuleKind::AdaGrad { delta },
        RuleKind::RmsProp { decay: 0.98, delta },
        RuleKind::AdaDelta { momentum: 0.95, delta },
        RuleKind::Adam { momentum: 0.9, momentum2: 0.999, delta },
        RuleKind::Adam { momentum: 0.5, momentum2: 0.75, delta: 1e-8 },
    ]
}

/// Each result is rounded at most a dozen times on its way, and no rounding is larger than half a unit in the last place
/// of the magnitudes that it is made of.
#[test]
fn every_rule_is_its_formula_in_double_precision() {
    const ROUNDINGS: f64 = 16.0;
    let half_unit = f64::from(f32::EPSILON) / 2.0;
    let random = Stream::new(5, Purpose::Dummy, 0);
    let number = |i: u64| 2.0 * random.uniform(i) - 1.0;
    let centre = [0.75];
    let mut seen = 0;
    for (index, kind) in kinds().into_iter().enumerate() {
        for i in 0..400 {
            let at = 8 * (400 * index as u64 + i);
            let decay = if i % 3 == 0 { Decay::L1 } else { Decay::L2 };
            let rule = Rule { kind, decay, ..Rule::default() };
            let elastic = (i % 4 == 0).then_some(Elastic { centre: &centre, strength: 0.125 });
            let scale = if i % 2 == 0 { 1.0 } else { 0.3 };
            let step = Step { rule, iteration: i, rate: 0.05, decay: 0.02, scale, elastic };
            // Histories of the adaptive rules are sums of squares.
            let signed =
                matches!(kind, RuleKind::Sgd { .. } | RuleKind::Nesterov { .. } | RuleKind::Adam { .. });
            let history = if signed { number(at) } else { number(at).abs() };
            let (w, g, s) = (number(at + 1), number(at + 2), number(at + 3).abs());
            let (mut weight, mut first, mut second) = ([w], [history], [s]);
            update(&step, &mut weight, &[g], &mut first, &mut second);
            let before = Exact { w: w.into(), h: history.into(), s: s.into() };
            let (exact, sizes) = before.step(&step, g);
            let pairs = [
                (weight[0], exact.w, sizes.w),
                (first[0], exact.h, sizes.h),
                (second[0], exact.s, if kind.histories() == 2 { sizes.s } else { 0.0 }),
            ];
            for (found, exact, size) in pairs {
                let far = (f64::from(found) - exact).abs();
                assert!(far <= ROUNDINGS * half_unit * size, "{step:?}: {found}, not {exact}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 8 * 400 * 3);
}
