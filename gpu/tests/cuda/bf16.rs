//! Products in bf16: what the oracle makes of factors that were rounded before, within as many roundings of f32 as sums have
//! terms. Of libraries, in TF32, too: what the oracle makes of factors as they are, within what rounding them may change.

use quadrille_core::layer::{Convolution, InnerProduct, Layer, Operand};
use quadrille_core::reference::Arrays;
use quadrille_core::solver::Rule;
use quadrille_gpu::{Arithmetic, Cuda, Options, Program};

use crate::bench::{ORDERS, run, written};
use crate::case::Case;
use crate::common::{convolution, fractions, gpu, inner_product, own};

fn in_bf16() -> Options {
    Options { arithmetic: Arithmetic::Bf16, ..own(Rule::default()) }
}

/// The nearest number with eight significant bits, and of two the one whose last bit is 0.
fn as_bf16(value: f32) -> f32 {
    let exponent = f64::from(value).abs().max(f64::MIN_POSITIVE).log2().floor() as i32;
    let step = 2f64.powi(exponent - 7);
    ((f64::from(value) / step).round_ties_even() * step) as f32
}

/// The case's arrays in fractions, and the same with what is multiplied rounded: all but a bias.
fn arrays(case: &Case) -> [Arrays<f32>; 2] {
    let integers = case.integers();
    let (mut plain, mut rounded) = (Arrays::new(), Arrays::new());
    let all = [Operand::Bottom(0), Operand::TopGrad(0), Operand::Param(0), Operand::Param(1)];
    for (seed, operand) in all.into_iter().enumerate() {
        let Some(integers) = integers.find(operand) else { continue };
        let values = fractions(11 + seed as u64, integers.len());
        let factors = values.iter().map(|value| as_bf16(*value)).collect();
        rounded.insert(operand, if operand == Operand::Param(1) { values.clone() } else { factors });
        plain.insert(operand, values);
    }
    [plain, rounded]
}

fn in_f64(arrays: &Arrays<f32>, case: &Case, value: impl Fn(f32) -> f64) -> Arrays<f64> {
    let mut wide = Arrays::new();
    for operand in [Operand::Bottom(0), Operand::TopGrad(0), Operand::Param(0), Operand::Param(1)] {
        if let Some(values) = arrays.find(operand) {
            wide.insert(operand, values.iter().map(|v| value(*v)).collect());
        }
    }
    case.reference(&mut wide);
    wide
}

/// Whatever libraries round, and however: `lost` is what a product of rounded factors, and a result that is rounded, too, may be off,
/// of its magnitude.
fn check_libraries(gpu: &Cuda, case: &Case, arithmetic: Arithmetic, lost: f64) {
    let [plain, _] = arrays(case);
    let expected = in_f64(&plain, case, f64::from);
    let magnitudes = in_f64(&plain, case, |value| f64::from(value.abs()));
    for order in ORDERS {
        let options = Options { arithmetic, order, ..Options::new(Rule::default(), false) };
        let found = run(gpu, case, &options, &plain);
        for (sub, operand) in written(case) {
            let values = expected.get(operand).iter().zip(found.get(operand)).zip(magnitudes.get(operand));
            for (at, ((e, f), magnitude)) in values.enumerate() {
                let close = (e - f64::from(*f)).abs() <= lost * magnitude;
                assert!(
                    close,
                    "at {at}: {f} is not {e} in {arithmetic}, {order:?}: {sub} {operand:?} of {case}"
                );
            }
        }
    }
}

fn check(gpu: &Cuda, case: &Case, terms: usize) {
    let [plain, rounded] = arrays(case);
    let found = run(gpu, case, &in_bf16(), &plain);
    // A bias' gradient is a sum of what was not rounded.
    let [of_sums, of_products] = [&plain, &rounded].map(|arrays| in_f64(arrays, case, f64::from));
    let magnitudes = in_f64(&rounded, case, |value| f64::from(value.abs()));
    for (sub, operand) in written(case) {
        let expected = if operand == Operand::ParamGrad(1) { &of_sums } else { &of_products };
        let values = expected.get(operand).iter().zip(found.get(operand)).zip(magnitudes.get(operand));
        for (at, ((e, f), magnitude)) in values.enumerate() {
            let bound = terms as f64 * f64::from(f32::EPSILON) * magnitude;
            let close = (e - f64::from(*f)).abs() <= bound;
            assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {sub} {operand:?} of {case}");
        }
        let exact = of_sums.get(operand).iter().zip(found.get(operand));
        let largest = exact.map(|(e, f)| (e - f64::from(*f)).abs()).fold(0.0, f64::max);
        assert!(
            operand == Operand::ParamGrad(1) || largest > 1e-4,
            "{sub} {operand:?} of {case} is not rounded"
        );
    }
}

/// Layers that multiply, with the terms of their longest sums.
fn cases() -> impl Iterator<Item = (Case, usize)> {
    let convolutions = [
        (Convolution { pad: [1, 1], ..convolution(17, [3, 3]) }, [3, 6, 5]),
        (Convolution { group: 2, stride: [2, 1], pad: [1, 2], ..convolution(6, [3, 5]) }, [4, 8, 7]),
        (Convolution { pad: [1, 1], ..convolution(70, [3, 3]) }, [33, 7, 9]),
    ];
    let convolutions = convolutions.into_iter().map(|(layer, [c, h, w])| {
        let terms = (c * 25).max(layer.num_output * 25).max(5 * h * w);
        (Case::new(Layer::Convolution(layer), &[&[5, c, h, w]]), terms)
    });
    let sizes = [(10, 15), (133, 315)].into_iter().flat_map(|size| [(size, false), (size, true)]);
    convolutions.chain(sizes.map(|((outputs, inputs), transpose)| {
        let layer = InnerProduct { transpose, ..inner_product(outputs) };
        (Case::new(Layer::InnerProduct(layer), &[&[64, inputs]]), 320)
    }))
}

#[test]
fn products_of_rounded_factors() {
    let Some(gpu) = gpu("products of rounded factors") else { return };
    cases().for_each(|(case, terms)| check(gpu, &case, terms));
}

/// Ten bits of mantissa and seven, rounded or cut off, of two factors, and in bf16 of the result.
#[test]
fn products_of_factors_that_libraries_round() {
    let Some(gpu) = gpu("products of factors that libraries round") else { return };
    for (arithmetic, lost) in [(Arithmetic::Tf32, 0.003), (Arithmetic::Bf16, 0.03)] {
        cases().for_each(|(case, _)| check_libraries(gpu, &case, arithmetic, lost));
    }
}

/// The emulator has one; elsewhere there may be none.
#[test]
fn a_gpu_that_is_too_old_for_bf16_is_refused() {
    let test = "a GPU that is too old for bf16";
    if gpu(test).is_none() {
        return;
    }
    let case = Case::new(Layer::InnerProduct(inner_product(3)), &[&[2, 5]]);
    let plan = case.plan();
    let refusals = (0..8).filter_map(|number| Cuda::open(number).ok()).filter_map(|gpu| {
        let worker = gpu.worker(&[Program { net: &case.net, plans: &[&plan] }], &in_bf16());
        worker.err().map(|error| error.to_string())
    });
    let refusals: Vec<String> = refusals.collect();
    if refusals.is_empty() {
        println!("skipped: {test}: there is none");
    }
    let says_why = |said: &String| said.contains("compute capability 8.0") && said.contains("has 7.5");
    assert!(refusals.iter().all(says_why), "{refusals:?}");
}
