//! Cases of the layers that copy, leave out and compare: Concat, Slice, Dropout, ContrastiveLoss.

use quadrille_core::layer::{Concat, ContrastiveLoss, Dropout, Layer, Operand, Slice};

use crate::exact::bench::{everywhere, exact, kept, written};
use crate::exact::case::Case;

#[test]
fn concats() {
    let concat =
        |axis: i32, dims: &[&[usize]]| Case::new(Layer::Concat(Concat { axis, bottoms: dims.len() }), dims);
    let mut cases = Vec::new();
    for n in [1, 2, 5] {
        let channels = |c: usize| [n, c, 3, 5];
        cases.push(concat(1, &[&channels(3), &channels(1), &channels(4)]));
        // Whole blocks of every tier, and a last piece that is not.
        cases.push(concat(1, &[&channels(16), &channels(48), &channels(32)]));
        cases.push(concat(1, &[&channels(16), &channels(7)]));
        cases.push(concat(1, &[&channels(7), &channels(16)]));
        cases.push(concat(1, &[&channels(20)]));
        cases.push(concat(0, &[&channels(16), &[3, 16, 3, 5]]));
        cases.push(concat(2, &[&channels(16), &[n, 16, 2, 5]]));
        cases.push(concat(-1, &[&channels(3), &[n, 3, 3, 2]]));
        cases.push(concat(1, &[&[n, 3], &[n, 5], &[n, 1], &[n, 700]]));
    }
    // Enough for several grains.
    cases.push(concat(1, &[&[9, 64, 14, 15], &[9, 32, 14, 15], &[9, 16, 14, 15]]));
    exact("concats", &cases);
}

#[test]
fn slices() {
    let slice = |axis: i32, points: &[usize], tops, dims: &[usize]| {
        Case::new(Layer::Slice(Slice { axis, points: points.to_vec(), tops }), &[dims])
    };
    let mut cases = Vec::new();
    for n in [1, 2, 5] {
        cases.push(slice(1, &[], 2, &[n, 6, 4, 3]));
        cases.push(slice(1, &[16, 48], 3, &[n, 96, 4, 3]));
        cases.push(slice(1, &[16], 2, &[n, 23, 4, 3]));
        cases.push(slice(1, &[7], 2, &[n, 23, 4, 3]));
        cases.push(slice(2, &[1], 2, &[n, 16, 4, 3]));
        cases.push(slice(-1, &[2, 3], 3, &[n, 5]));
    }
    cases.push(slice(0, &[2], 2, &[5, 16, 4, 3]));
    cases.push(slice(1, &[32, 48, 96], 4, &[9, 112, 14, 15]));
    exact("slices", &cases);
}

/// A scale of a power of two keeps integers exact.
#[test]
fn dropouts_in_place_and_not() {
    let mut cases = Vec::new();
    for ratio in [0.0, 0.5, 0.75] {
        let layer = || Layer::Dropout(Dropout { ratio, active: true });
        // Rows that begin within a random block, images that are no multiple of one, channels with padding.
        for dims in [&[1, 1][..], &[3, 67], &[5, 3, 7], &[2, 20, 1, 1], &[2, 32, 1, 1], &[7, 21, 13, 5]] {
            let why = "what is dropped";
            cases.push(Case::new(layer(), &[dims]).zeros(why));
            cases.push(Case::in_place(layer(), dims).zeros(why));
        }
    }
    exact("dropouts", &cases);
}

#[test]
fn contrastive_losses() {
    for legacy_version in [false, true] {
        // Squared distances of integers about a margin on either side of most of them.
        for margin in [3.0, 9.0, 40.0] {
            for dims in [&[1, 2][..], &[7, 3], &[64, 2, 1, 1], &[33, 1000]] {
                let layer = Layer::ContrastiveLoss(ContrastiveLoss { margin, legacy_version });
                let case = Case::new(layer, &[dims, dims, &[dims[0]]]);
                let mut arrays = case.integers();
                let similar = [0.0, 1.0, -0.5, 0.99, 2.0, -1.0].into_iter().cycle();
                arrays.insert(Operand::Bottom(2), similar.take(dims[0]).collect());
                let mut expected = arrays.clone();
                case.reference(&mut expected);
                everywhere("contrastive losses", &case, &arrays, |case, how, found| {
                    // The sums are taken in the order of the oracle: not a bit differs, but where it is not kept.
                    for (sub, operand) in written(case) {
                        let kept = kept(case, how.numerics, operand);
                        let (expected, found) = (expected.get(operand), found.get(operand));
                        assert_eq!(expected.len(), found.len(), "{sub} {operand:?} of {how}");
                        for (at, (e, f)) in expected.iter().zip(found).enumerate() {
                            assert!(
                                f == e || *f == kept(*e),
                                "at {at}: {f} is not {e}: {sub} {operand:?} of {how}"
                            );
                        }
                    }
                });
            }
        }
    }
}
