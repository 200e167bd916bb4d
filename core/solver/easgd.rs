//! The elastic-averaging equations of Sync EASGD (SC17, equations (1), (2), (5) and (6)).
//!
//! Every method of the EASGD family shares these two updates; the methods differ only in who talks to whom
//! and when, which is the business of `quadrille-comm`.

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

/// Equations (1), (5) and (6) on one element. `velocity` is the momentum history in Caffe's sign and with the
/// rate inside, `V = μV + η·g`, so that `W ← W − V − ηρ (W − W̄)`; with μ = 0 this is equation (1).
/// The weight on the right-hand side is the one before the update.
#[inline(always)]
pub fn update_worker(weight: f32, velocity: f32, centre: f32, elastic: f32) -> f32 {
    weight - velocity - elastic * (weight - centre)
}

/// The elastic coefficient ρ that Zhang et al. recommend, β = P·η·ρ = 0.9: the strongest pull that keeps the
/// centre's own recurrence stable with room to spare (it needs β < 1 for a monotone approach).
pub fn recommended_rho(workers: usize, base_rate: f32) -> f32 {
    0.9 / (workers.max(1) as f32 * base_rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn centre_is_the_mean_when_beta_is_one() {
        let mut centre = [10.0, -4.0];
        update_centre(&mut centre, &[8.0, 2.0], 4, 0.25);
        assert_eq!(centre, [2.0, 0.5]);
    }

    #[test]
    fn worker_without_momentum_follows_equation_one() {
        // W − η(ΔW + ρ(W − W̄)) with η = 0.5, ΔW = 2, ρ = 0.5, W = 3, W̄ = 1.
        assert_eq!(update_worker(3.0, 0.5 * 2.0, 1.0, 0.25), 3.0 - 0.5 * (2.0 + 0.5 * 2.0));
    }
}
