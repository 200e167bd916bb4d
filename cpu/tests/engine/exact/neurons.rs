//! Layers that work value by value, PReLU, Bias, MVN and Reduction: exact on integers; where a library's functions are
//! called, the oracle's bits, since it calls the same; and within rounding where sums are divided.

use quadrille_core::layer::{
    Bias, Filler, Layer, Mvn, Neuron, Operand, Prelu, Reduction, ReductionOperation,
};
use quadrille_core::reference::Arrays;

use crate::common::{fractions, options, tiers};
use crate::exact::bench::{exact, run, written};
use crate::exact::case::Case;
use crate::exact::rounded::{EPSILON, close, doubled};

/// Plain blobs, blobs in part and in whole blocks, and one of several grains.
const SHAPES: [&[usize]; 6] =
    [&[1, 1], &[5, 17], &[2, 3, 5], &[3, 20, 5, 7], &[2, 32, 3, 3], &[64, 20, 13, 3]];

fn power(power: f32, scale: f32, shift: f32) -> Neuron {
    Neuron::Power { power, scale, shift }
}

#[test]
fn functions_of_integers() {
    let why = "a function that is flat somewhere";
    let mut cases = Vec::new();
    for neuron in [
        Neuron::AbsVal,
        Neuron::Clip { min: -2.0, max: 3.0 },
        Neuron::Clip { min: 1.0, max: 2.0 },
        power(1.0, 3.0, 0.0),
        power(1.0, -2.0, 1.0),
        power(2.0, 2.0, -1.0),
        power(2.0, 1.0, 0.0),
        power(3.0, 1.0, 0.0),
        power(0.0, 2.0, 1.0),
        power(2.0, 0.0, 3.0),
    ] {
        for dims in SHAPES {
            let all = Case::everywhere(Layer::Neuron(neuron), dims).into_iter();
            cases.extend(all.map(|case| case.zeros(why)));
        }
    }
    // Without a gradient it stands above nothing that is trained.
    for threshold in [1.0, -1.0] {
        let threshold = || Layer::Neuron(Neuron::Threshold { threshold });
        cases.extend(SHAPES.map(|dims| Case::of_images(threshold(), dims).zeros(why)));
    }
    exact("functions of integers", &cases);
}

/// Compares all bits with the oracle's in single precision.
fn same_bits(case: &Case, arrays: &Arrays<f32>) {
    let mut expected = arrays.clone();
    case.reference(&mut expected);
    for isa in tiers("bits of functions") {
        for threads in [1, 3] {
            let found = run(case, &options(isa), threads, arrays);
            for (sub, operand) in written(case) {
                let pairs = expected.get(operand).iter().zip(found.get(operand)).enumerate();
                for (at, (e, f)) in pairs {
                    let same = e.to_bits() == f.to_bits() || (e.is_nan() && f.is_nan());
                    assert!(same, "at {at}: {f:e} is not {e:e}: {sub} {operand:?} of {case}, {isa}");
                }
            }
        }
    }
}

#[test]
fn functions_of_a_library() {
    let (scale, shift) = (0.5, 2.5);
    for neuron in [
        Neuron::Bnll,
        Neuron::Elu { alpha: 1.0 },
        Neuron::Elu { alpha: 0.0 },
        Neuron::Elu { alpha: -0.5 },
        Neuron::Exp { base: None, scale: 1.0, shift: 0.0 },
        Neuron::Exp { base: Some(2.0), scale, shift },
        Neuron::Exp { base: None, scale, shift },
        Neuron::Log { base: None, scale, shift },
        Neuron::Log { base: Some(10.0), scale, shift },
        power(0.5, scale, shift),
        power(-1.5, scale, shift),
        power(2.5, 1.0, 0.0),
        Neuron::Sigmoid,
        Neuron::Swish { beta: 1.5 },
        Neuron::TanH,
    ] {
        for dims in SHAPES {
            for case in Case::everywhere(Layer::Neuron(neuron), dims) {
                let mut arrays = case.integers();
                let count = case.bottoms[0].count();
                let mut x: Vec<f32> = fractions(3, count).iter().map(|v| 4.0 * v).collect();
                let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 100.0, -100.0];
                x.iter_mut().step_by(11).zip(special).for_each(|(x, value)| *x = value);
                // Convolutions below would mix values that are no numbers; they are no part of the case.
                arrays.insert(Operand::Bottom(0), x);
                same_bits(&case, &arrays);
            }
        }
    }
}

#[test]
fn prelus() {
    let mut cases = Vec::new();
    for channel_shared in [false, true] {
        let layer = || Layer::Prelu(Prelu { channel_shared, filler: Filler::default() });
        for dims in SHAPES.into_iter().chain([&[7, 40][..], &[2, 20, 50, 49]]) {
            cases
                .extend(Case::everywhere(layer(), dims).into_iter().map(|case| case.zeros("one slope only")));
        }
    }
    exact("PReLU", &cases);
}

#[test]
fn biases() {
    let bias =
        |bottoms, axis, num_axes| Layer::Bias(Bias { bottoms, axis, num_axes, filler: Filler::default() });
    let why = "integers of both signs add up to 0";
    let mut cases = Vec::new();
    for n in [1, 2, 5, 64] {
        let x = &[n, 3, 5, 7][..];
        cases.extend(Case::everywhere(bias(1, 2, -1), x));
        cases.extend(Case::everywhere(bias(1, 0, 2), x));
        cases.extend(Case::everywhere(bias(1, 0, -1), x));
        cases.extend(Case::everywhere(bias(1, -1, 0), x));
        cases.push(Case::new(bias(2, 0, 1), &[x, &[n]]));
        cases.push(Case::new(bias(2, 1, 1), &[x, &[3, 5]]));
        cases.push(Case::new(bias(2, 1, 1), &[x, &[3, 5, 7]]));
        cases.push(Case::new(bias(2, 3, 1), &[x, &[]]));
        cases.push(Case::blocked(bias(2, 0, 1), &[&[n, 20, 5, 7], &[n, 20]]));
        for c in [3, 16, 20, 33] {
            cases.extend(Case::everywhere(bias(1, 1, 1), &[n, c, 5, 7]));
            cases.extend(Case::everywhere(bias(1, 1, 1), &[n, c]));
        }
    }
    cases.extend(Case::everywhere(bias(1, 1, 1), &[2, 20, 50, 49]));
    exact("biases", &cases.into_iter().map(|case| case.zeros(why)).collect::<Vec<_>>());
}

#[test]
fn reductions() {
    use ReductionOperation::{AbsoluteSum, Mean, Sum, SumOfSquares};
    let mut cases = Vec::new();
    for operation in [Sum, AbsoluteSum, SumOfSquares, Mean] {
        // To no axes at all, which no inner product takes, the fixtures of Caffe reduce.
        for (axis, coeff) in [(1, -2.0), (-1, 0.5)] {
            // Counts that are powers of two keep a mean exact; the last has rows of several parts.
            for dims in [&[4, 2, 8][..], &[1, 1], &[64, 32, 16, 2], &[2, 16, 8, 8], &[2, 1 << 17]] {
                let layer = Layer::Reduction(Reduction { operation, axis, coeff });
                let case = Case::new(layer, &[dims]).zeros("sums of both signs");
                cases.extend(case.in_blocks());
                cases.push(case);
            }
        }
    }
    exact("reductions", &cases);
}

/// Roundings of a sum in lanes over pieces of 32 rows, of what is summed and of what becomes of the sum.
const SUM: f64 = 40.0 * EPSILON;

#[test]
fn mean_variance_normalisations() {
    for isa in tiers("mean-variance normalisations") {
        for (normalize_variance, across_channels) in [(true, false), (true, true), (false, false)] {
            for dims in [&[2, 3, 40][..], &[3, 20, 9, 7], &[5, 16, 6, 6], &[1, 2, 90, 91]] {
                let layer = Mvn { normalize_variance, across_channels, eps: 0.01 };
                for case in Case::everywhere(Layer::Mvn(layer.clone()), dims) {
                    let mut arrays = case.integers();
                    let x: Vec<f32> =
                        fractions(4, case.bottoms[0].count()).iter().map(|v| 3.0 * v + 1.0).collect();
                    arrays.insert(Operand::Bottom(0), x);
                    let (found, expected) = (run(&case, &options(isa), 2, &arrays), doubled(&case, &arrays));
                    let count = case.bottoms[0].count() / layer.rows(&case.bottoms[0]);
                    let (y, dx) = (expected.get(Operand::Top(0)), expected.get(Operand::BottomGrad(0)));
                    let divisor = |i: usize| match expected.find(Operand::Aux(0)) {
                        Some(divisors) => divisors[i / count],
                        None => 1.0,
                    };
                    // Values are at most 4. The mean errs by 4 sums' roundings, and so does the deviation relatively.
                    let relative = |i: usize| SUM * (2.0 + 8.0 / divisor(i));
                    let of_y = |i: usize| SUM * 4.0 / divisor(i) + y[i].abs() * relative(i);
                    let how = format!("{case}, {isa}");
                    close(&format!("forward of {how}"), y, found.get(Operand::Top(0)), of_y);
                    // dy is at most 4 and y at most `most`: two means of products, and their product with y.
                    let most = y.iter().fold(1.0f64, |most, y| most.max(y.abs()));
                    let of_dx = |i: usize| {
                        let errs = SUM * (4.0 + 4.0 * most * most) + 8.0 * most * most * relative(i) * 4.0;
                        errs / divisor(i) + dx[i].abs() * relative(i)
                    };
                    close(&format!("grad-activation of {how}"), dx, found.get(Operand::BottomGrad(0)), of_dx);
                }
            }
        }
    }
}
