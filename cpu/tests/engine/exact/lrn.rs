//! Local response normalisation against the oracle in double precision. The bounds count roundings: a unit
//! `f32::EPSILON` for each operation and two for a library's power, and one rounding to bf16 where blobs are kept so.

use quadrille_core::layer::{Layer, Lrn, NormRegion, Operand};
use quadrille_core::reference::Arrays;
use quadrille_cpu::isa::Precision;

use crate::common::fractions;
use crate::exact::bench::{everywhere, rounded};
use crate::exact::case::Case;
use crate::exact::rounded::{BF16, EPSILON, close, doubled};

/// The formula on one image after the other, with what its rounding is bounded by.
struct Bounds {
    y: Vec<f64>,
    dx: Vec<f64>,
}

/// Places of (N, C, H, W) that are neighbours of each place.
fn neighbours(lrn: &Lrn, dims: &[usize]) -> Vec<Vec<usize>> {
    let [channels, h, w] = [dims[1], dims[2], dims[3]];
    let reach = lrn.reach();
    let near =
        |axis: usize, at: usize| at.saturating_sub(reach[axis])..(at + reach[axis] + 1).min(dims[axis + 1]);
    let of = |i: usize| {
        let (image, c, y, x) = (i / (channels * h * w), i / (h * w) % channels, i / w % h, i % w);
        let mut places = Vec::new();
        for c in near(0, c) {
            for y in near(1, y) {
                places.extend(near(2, x).map(|x| ((image * channels + c) * h + y) * w + x));
            }
        }
        places
    };
    (0..dims.iter().product()).map(of).collect()
}

fn bounds(lrn: &Lrn, dims: &[usize], arrays: &Arrays<f64>) -> Bounds {
    let (x, dy) = (arrays.get(Operand::Bottom(0)), arrays.get(Operand::TopGrad(0)));
    let near = neighbours(lrn, dims);
    let (share, beta) = (f64::from(lrn.alpha) / f64::from(lrn.divisor()), f64::from(lrn.beta));
    let sum = |i: usize, value: &dyn Fn(usize) -> f64| near[i].iter().map(|j| value(*j)).sum::<f64>();
    let s: Vec<f64> =
        (0..x.len()).map(|i| f64::from(lrn.base()) + share * sum(i, &|j| x[j] * x[j])).collect();
    let window = near.iter().map(Vec::len).max().unwrap_or(0) as f64;
    // Squares, their sum, share (two roundings) and base, all of one sign.
    let of_scale = window + 4.0;
    // What the scale's error becomes in the power, and the power's own: two roots, product, division.
    let of_power = beta * of_scale + 4.0;
    let back = |j: usize| (dy[j] * x[j]).abs() * s[j].powf(-beta - 1.0);
    let dx = |i: usize| {
        let own = dy[i].abs() * s[i].powf(-beta) * (of_power + 2.0);
        let of_back = of_power + of_scale + 3.0;
        let others = 2.0 * share * beta * x[i].abs() * sum(i, &back) * (of_back + window + 6.0);
        EPSILON * (own + others)
    };
    let y = |i: usize| EPSILON * x[i].abs() * s[i].powf(-beta) * (of_power + 1.0);
    Bounds { y: (0..x.len()).map(y).collect(), dx: (0..x.len()).map(dx).collect() }
}

fn check(lrn: Lrn, dims: &[usize]) {
    let case = Case::new(Layer::Lrn(lrn.clone()), &[dims]);
    let mut arrays = case.integers();
    // Numbers that bf16 has, too.
    let x = fractions(3, case.bottoms[0].count()).iter().map(|v| rounded(8.0 * v)).collect();
    arrays.insert(Operand::Bottom(0), x);
    let expected = doubled(&case, &arrays);
    let bounds = bounds(&lrn, dims, &expected);
    everywhere("local response normalisation", &case, &arrays, |_, how, found| {
        let rounding = if how.numerics.precision == Precision::Bf16 { BF16 } else { 0.0 };
        let compare = |what: &str, operand: Operand, bounds: &[f64]| {
            let expected = expected.get(operand);
            let bound = |i: usize| bounds[i] + rounding * (expected[i].abs() + bounds[i]);
            close(&format!("{what} of {how}"), expected, found.get(operand), bound);
        };
        compare("forward", Operand::Top(0), &bounds.y);
        compare("grad-activation", Operand::BottomGrad(0), &bounds.dx);
    });
}

/// Channels in part of a block, whole blocks, and across borders of blocks; windows of one value and of all.
const SHAPES: [[usize; 4]; 6] =
    [[1, 1, 1, 1], [2, 5, 3, 7], [3, 16, 5, 5], [1, 32, 1, 9], [2, 50, 3, 3], [5, 20, 17, 19]];

#[test]
fn across_channels() {
    for dims in SHAPES {
        for local_size in [1, 5, 99] {
            for (beta, k) in [(0.75, 1.0), (0.75, 2.5), (0.5, 1.0)] {
                let region = NormRegion::AcrossChannels;
                check(Lrn { region, local_size, alpha: 0.3, beta, k }, &dims);
            }
        }
    }
}

#[test]
fn within_channels() {
    for dims in SHAPES {
        for (local_size, beta) in [(1, 0.75), (3, 0.75), (3, 0.5), (39, 0.75)] {
            let region = NormRegion::WithinChannel;
            check(Lrn { region, local_size, alpha: 0.3, beta, k: 1.0 }, &dims);
        }
    }
}
