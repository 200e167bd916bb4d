//! Running sums, such as BatchNorm's statistics: parameters that no gradient trains.

/// Lets `fraction` of `sum` stay and adds this iteration's `term`: `s ← fraction · s + t`. Sum and terms are one part
/// of the packed weights and gradients and as many.
#[inline(always)]
pub fn add_to_running_sum(fraction: f32, sum: &mut [f32], term: impl Iterator<Item = f32>) {
    for (s, t) in sum.iter_mut().zip(term) {
        *s = fraction * *s + t;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_its_factor_is_the_mean_that_forgets() {
        let (mut sum, mut factor) = ([0.0, 0.0], [0.0]);
        for term in [[8.0, -4.0], [2.0, 0.0], [1.0, 6.0]] {
            add_to_running_sum(0.5, &mut sum, term.into_iter());
            add_to_running_sum(0.5, &mut factor, [1.0].into_iter());
        }
        assert_eq!((sum, factor), ([4.0, 5.0], [1.75]));
    }
}
