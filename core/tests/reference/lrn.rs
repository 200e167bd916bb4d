//! Local response normalisation: gradients, an example by hand, and what happens at borders.

use quadrille_core::layer::{Layer, Lrn, NormRegion};

use crate::case::Case;

fn lrn(region: NormRegion, local_size: usize) -> Lrn {
    Lrn { region, local_size, alpha: 0.5, beta: 0.75, k: 1.0 }
}

const REGIONS: [NormRegion; 2] = [NormRegion::AcrossChannels, NormRegion::WithinChannel];

#[test]
fn lrn_has_the_gradient_of_its_forward() {
    let shapes = [
        (1, [2, 3, 2, 2]),
        (3, [2, 5, 3, 4]),
        (5, [2, 7, 2, 3]),
        (5, [1, 2, 6, 5]),
        // Windows larger than what they lie in.
        (9, [1, 3, 4, 3]),
    ];
    for region in REGIONS {
        for (seed, (size, dims)) in shapes.into_iter().enumerate() {
            for (alpha, beta, k) in [(0.5, 0.75, 1.0), (2.0, 0.5, 2.0), (1e-1, 1.5, 1.0)] {
                let layer = Lrn { region, local_size: size, alpha, beta, k };
                // With |x| ≤ 1 and s ≥ 1, of f = x·s^(−β) and a = α/|W|: |f'''| ≤ 6aβ + 24a²β(β+1) + 8a³β(β+1)(β+2).
                let (a, b) = (f64::from(alpha) / f64::from(layer.divisor()), f64::from(beta));
                let third = a * b * (6.0 + a * (b + 1.0) * (24.0 + 8.0 * a * (b + 2.0)));
                Case::new(Layer::Lrn(layer), &[&dims]).check_gradients(seed as u64, &[], third);
            }
        }
    }
}

#[test]
fn an_lrn_across_channels_by_hand() {
    // α/|W| = 3/3, so s = 1 + the squares of the neighbours; the exponent is −1.
    let layer = Lrn { alpha: 3.0, beta: 1.0, ..lrn(NormRegion::AcrossChannels, 3) };
    let case = Case::new(Layer::Lrn(layer.clone()), &[&[1, 4, 1, 2]]);
    let x = [1.0, 0.0, 2.0, 1.0, 0.0, 1.0, 5.0, 2.0];
    let y = case.forward(&[&x], &[]);
    let expected = [1.0 / 6.0, 0.0, 2.0 / 6.0, 1.0 / 3.0, 0.0, 1.0 / 7.0, 5.0 / 26.0, 2.0 / 6.0];
    let close = |y: &[f64], expected: &[f64]| y.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-15);
    assert!(close(&y, &expected), "{y:?}");
    // With k = 4 in place of 1.
    let case = Case::new(Layer::Lrn(Lrn { k: 4.0, ..layer }), &[&[1, 4, 1, 2]]);
    let y = case.forward(&[&x], &[]);
    let expected = [1.0 / 9.0, 0.0, 2.0 / 9.0, 1.0 / 6.0, 0.0, 1.0 / 10.0, 5.0 / 29.0, 2.0 / 9.0];
    assert!(close(&y, &expected), "{y:?}");
}

#[test]
fn within_a_channel_the_divisor_is_the_whole_window_even_at_borders_and_k_does_not_count() {
    // α/|W| = 9/9; every window of 3x3 over 2x2 sees all four values.
    let layer = Lrn { alpha: 9.0, beta: 1.0, k: 100.0, ..lrn(NormRegion::WithinChannel, 3) };
    let case = Case::new(Layer::Lrn(layer), &[&[1, 2, 2, 2]]);
    let y = case.forward(&[&[1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 1.0, 0.0]], &[]);
    assert_eq!(y, [1.0 / 16.0, 2.0 / 16.0, 3.0 / 16.0, 1.0 / 16.0, 0.0, 0.0, 0.5, 0.0]);
}

#[test]
fn images_are_no_neighbours_of_each_other() {
    for region in REGIONS {
        let layer = Layer::Lrn(lrn(region, 5));
        let (one, two) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]);
        let alone = |x: &[f64]| Case::new(layer.clone(), &[&[1, 3, 1, 2]]).forward(&[x], &[]);
        let both = Case::new(layer.clone(), &[&[2, 3, 1, 2]]).forward(&[&[one, two].concat()], &[]);
        assert_eq!(both, [alone(&one), alone(&two)].concat());
    }
}

#[test]
fn what_is_not_a_number_is_seen_by_its_neighbours() {
    let y = Case::new(Layer::Lrn(lrn(NormRegion::AcrossChannels, 3)), &[&[1, 4, 1, 1]])
        .forward(&[&[f64::NAN, 1.0, 1.0, 1.0]], &[]);
    assert!(y[0].is_nan() && y[1].is_nan() && y[2].is_finite() && y[3].is_finite(), "{y:?}");
}
