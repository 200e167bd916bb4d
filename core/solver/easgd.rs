//! The elastic-averaging equations of SC17, (1), (2), (5) and (6).
//!
//! Every method of the EASGD family shares these updates; the methods differ only in who talks to whom
//! and when, which is the business of `quadrille-comm`. Equations (3) and (4) are [`super::RuleKind::Sgd`].

/// Equation (2): the centre moves towards the workers,
/// `W̄ ← W̄ + ηρ Σ_i (W_i − W̄) = W̄ + ηρ (Σ_i W_i − P·W̄)`.
///
/// `sum` is `Σ W_i` over the `workers` workers served in this step, taken *before* their own update;
/// `elastic` is ηρ. All slices have one length (the packed buffer).
#[inline]
pub fn update_centre(centre: &mut [f32], sum: &[f32], workers: usize, elastic: f32) {
    assert_eq!(centre.len(), sum.len(), "centre and sum are the same packed buffer");
    let p = workers as f32;
    for (c, &s) in centre.iter_mut().zip(sum) {
        *c += elastic * (s - p * *c);
    }
}

/// Equation (2) on one element where one worker is served by itself: `W̄ + ηρ (W_i − W̄)`. The same bits as
/// [`update_centre`] with one worker.
#[inline(always)]
pub fn centre_after(centre: f32, weight: f32, elastic: f32) -> f32 {
    centre + elastic * (weight - centre)
}

/// A worker meets the centre alone: the centre moves by equation (2), and `weights`, the worker's before its own update,
/// become the centre before this, which the worker's update asks for.
#[inline]
pub fn meet_centre(centre: &mut [f32], weights: &mut [f32], elastic: f32) {
    assert_eq!(centre.len(), weights.len(), "centre and weights are the same packed buffer");
    for (c, w) in centre.iter_mut().zip(weights) {
        let after = centre_after(*c, *w, elastic);
        *w = std::mem::replace(c, after);
    }
}

/// Equations (1), (5) and (6) on one element. `velocity` is the momentum history in Caffe's sign and with the
/// rate inside, `V = μV + η·g`, so that `W ← W − V − ηρ (W − W̄)`; with μ = 0 this is equation (1).
/// The weight on the right-hand side is the one before the update.
#[inline(always)]
pub fn update_worker(weight: f32, velocity: f32, centre: f32, elastic: f32) -> f32 {
    weight - velocity - elastic * (weight - centre)
}

/// The elastic coefficient ρ that Zhang et al. recommend, β = P·η·ρ = 0.9: the strongest pull that keeps the
/// centre's own recurrence stable with room to spare (it needs β < 1 for a monotone approach). Where the rate is 0 nothing
/// moves, whatever ρ is, so it is 0.
pub fn recommended_rho(workers: usize, base_rate: f32) -> f32 {
    if base_rate == 0.0 { 0.0 } else { 0.9 / (workers.max(1) as f32 * base_rate) }
}

#[cfg(test)]
mod tests;
