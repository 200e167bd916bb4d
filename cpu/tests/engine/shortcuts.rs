//! Shortcuts that a normalisation adds before it writes: the numbers of a sum apart.

use quadrille_core::layer::{Layer, Normalize};
use quadrille_core::net::Net;
use quadrille_cpu::NAN_HALVES;
use quadrille_cpu::isa::Precision;

use crate::adding::{adding, residual};
use crate::common::numerics;
use crate::lifetime::{How, PLAINLY, check_finite, made, momentum, train};

fn sums(net: &Net) -> usize {
    let adds = |layer: &Layer| matches!(layer, Layer::Normalize(Normalize { sum: true, .. }));
    net.layers.iter().filter(|layer| adds(&layer.layer)).count()
}

/// With a ReLU and without, after a projection and after what was added up before; with gradients in arrays of their own, and in
/// that of the sum.
#[test]
fn normalisations_add_what_a_sum_would() {
    for numerics in numerics("shortcuts added by normalisations") {
        let (options, plain) = (momentum(numerics), made(residual, true));
        for (in_place, quadrants) in [(false, 1), (true, 1), (true, 3)] {
            let placed = |net: Net| if in_place { adding(net, &options) } else { net };
            let apart = |quadrants| -> Vec<Net> { plain(quadrants).into_iter().map(placed).collect() };
            let make = |quadrants| -> Vec<Net> {
                plain(quadrants).into_iter().map(|net| placed(net.summing())).collect()
            };
            assert_eq!([sums(&apart(1)[0]), sums(&make(1)[0])], [0, 3], "{numerics}");
            let how = How { quadrants, ..PLAINLY };
            let expected = train(&make, &options, how);
            check_finite(&expected, "residual");
            if numerics.precision == Precision::F32 {
                let found = train(&apart, &options, how);
                // Zeros may have another sign.
                let same = expected.iter().zip(&found).all(|(a, b)| f32::from_bits(*a) == f32::from_bits(*b));
                assert!(same, "on {numerics}, in place {in_place}, {quadrants} quadrants");
            }
            for (threads, shares, poison) in
                [(1, true, None), (3, false, Some(NAN_HALVES)), (3, true, Some(NAN_HALVES))]
            {
                let how = How { quadrants, threads, shares, poison, ..PLAINLY };
                assert!(
                    train(&make, &options, how) == expected,
                    "on {numerics}, in place {in_place}: {how:?}"
                );
            }
        }
    }
}
