//! Batch normalisation, alone and with the scale and the ReLU behind it, against the oracle in double precision. The bounds follow the roundings from the statistics to
//! the gradients; each is computed from the data of its channel.

use quadrille_core::layer::{BatchNorm, Filler, Layer, Normalize, Operand, Scale};
use quadrille_core::reference::Arrays;
use quadrille_cpu::EngineOptions;
use quadrille_cpu::isa::{Numerics, Precision};

use crate::common::{fractions, integers, numerics, options};
use crate::exact::bench::{rounded, run};
use crate::exact::case::Case;
use crate::exact::rounded::BF16;

const EPSILON: f64 = f32::EPSILON as f64;

/// Channels of a case and what it says of them.
struct Channels {
    count: usize,
    pixels: usize,
    eps: f64,
    /// Whether kept statistics normalise.
    kept: bool,
}

impl Channels {
    fn of(case: &Case, norm: &BatchNorm) -> Self {
        let dims = case.bottoms[0].dims();
        Self {
            count: dims[1],
            pixels: dims[2..].iter().product(),
            eps: f64::from(norm.eps),
            kept: norm.uses_kept_statistics(),
        }
    }

    fn channel(&self, at: usize) -> usize {
        at / self.pixels % self.count
    }

    /// A channel's values.
    fn own<'a>(&'a self, values: &'a [f64], channel: usize) -> impl Iterator<Item = f64> + 'a {
        let of_channel = channel * self.pixels..(channel + 1) * self.pixels;
        values.chunks(self.count * self.pixels).flat_map(move |image| &image[of_channel.clone()]).copied()
    }

    /// The largest magnitude of a channel.
    fn largest(&self, values: &[f64], channel: usize) -> f64 {
        self.own(values, channel).fold(0.0, |m, v| m.max(v.abs()))
    }

    /// How far apart a channel's values are.
    fn range(&self, values: &[f64], channel: usize) -> f64 {
        let (least, most) = self
            .own(values, channel)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), v| (least.min(v), most.max(v)));
        most - least
    }
}

/// What the roundings of a channel come to.
struct Errors {
    /// Of `n` additions, relative to the sum of magnitudes.
    sum: f64,
    mean: f64,
    /// Relative.
    variance: f64,
    /// `1 / deviation`, and its relative error.
    inverse: f64,
    inverse_error: f64,
}

impl Errors {
    /// A mean is wrong by at most the roundings of its additions. The sum of the squared distances rounds in each
    /// distance, square and addition, and a mean that is wrong by d adds d² to the variance, or 2d times the distance of
    /// the parts' means where parts are joined. Kept statistics are but quotients.
    fn new(channels: &Channels, x: &[f64], [mean, variance]: [f64; 2], channel: usize, data: Data) -> Self {
        let values = (x.len() / channels.count) as f64;
        let sum = (values + 8.0) * EPSILON;
        let mean = match data {
            _ if channels.kept => 3.0 * EPSILON * mean.abs(),
            Data::Fractions => sum * channels.largest(x, channel),
            // Only quotients and joints round.
            Data::Integers(_) => 8.0 * EPSILON * channels.largest(x, channel),
        };
        let wrong = mean * mean + 2.0 * channels.range(x, channel) * mean;
        let variance_error = match channels.kept {
            true => 3.0 * EPSILON,
            false => sum + wrong / variance.max(f64::MIN_POSITIVE),
        };
        let all = variance + channels.eps;
        Self {
            sum,
            mean,
            variance: variance_error,
            inverse: 1.0 / all.sqrt(),
            inverse_error: 0.5 * variance_error * variance / all + 4.0 * EPSILON,
        }
    }

    /// Of a normalised value.
    fn normalised(&self, y: f64) -> f64 {
        self.mean * self.inverse + y.abs() * (self.inverse_error + 2.0 * EPSILON)
    }
}

/// The arrays in double precision, and what the oracle makes of them.
fn doubled(case: &Case, arrays: &Arrays<f32>) -> Arrays<f64> {
    let mut doubled = Arrays::new();
    let blobs = [Operand::Bottom(0), Operand::Bottom(1), Operand::TopGrad(0)];
    let operands = blobs.into_iter().chain((0..5).map(Operand::Param));
    for operand in operands {
        if let Some(values) = arrays.find(operand) {
            doubled.insert(operand, values.iter().map(|v| f64::from(*v)).collect());
        }
    }
    case.reference(&mut doubled);
    doubled
}

fn close(what: &str, expected: &[f64], found: &[f32], bound: impl Fn(usize) -> f64) {
    assert_eq!(expected.len(), found.len(), "{what}: length");
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (at, (e, f)) in expected.iter().zip(found).enumerate() {
        let bound = bound(at) + f64::from(f32::MIN_POSITIVE);
        assert!(bound < 0.05 * largest.max(1.0), "mistrusted: a bound of {bound:e} below {largest}: {what}");
        // Written so that NaN fails.
        let close = (e - f64::from(*f)).abs() <= bound;
        assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {what}");
    }
}

/// What is normalised.
#[derive(Clone, Copy)]
enum Data {
    /// Numbers around one of each channel's own.
    Fractions,
    /// Integers around such a one, but not that one itself, and not too far from this number; their sums are exact.
    Integers(f32),
}

/// Data, sums of statistics as they could be kept, and gradients.
fn arrays(case: &Case, data: Data, numerics: Numerics) -> Arrays<f32> {
    let mut arrays = case.integers();
    let (dims, count) = (case.bottoms[0].dims(), case.bottoms[0].count());
    let pixels: usize = dims[2..].iter().product();
    let middle = |at: usize| (at / pixels % dims[1] % 8) as f32;
    let x: Vec<f32> = match data {
        Data::Fractions => {
            fractions(5, count).iter().enumerate().map(|(i, v)| 0.37 * middle(i) + v).collect()
        }
        Data::Integers(about) => {
            integers(5, count, 4).iter().enumerate().map(|(i, v)| about + middle(i) + v).collect()
        }
    };
    // Where blobs are kept in bf16, numbers that it has.
    let is_kept = numerics.precision == Precision::F32;
    let x = if is_kept { x } else { x.into_iter().map(rounded).collect() };
    arrays.insert(Operand::Bottom(0), x);
    let channels = fractions(6, dims[1]);
    arrays.insert(Operand::Param(0), channels.iter().map(|v| 3.0 * v).collect());
    arrays.insert(Operand::Param(1), channels.iter().map(|v| 1.5 + v).collect());
    arrays.insert(Operand::Param(2), vec![1.75]);
    if let Some(bias) = arrays.find(Operand::Param(Normalize::BIAS)) {
        // So small that no integer's value comes near the kink of a ReLU.
        let bias = bias.iter().map(|b| 0.02 * b).collect();
        arrays.insert(Operand::Param(Normalize::BIAS), bias);
    }
    arrays
}

/// What a case is made of, in double precision.
struct Truth {
    channels: Channels,
    errors: Vec<Errors>,
    /// Normalised values, and the largest magnitude of each channel.
    normalised: Vec<f64>,
    largest: Vec<f64>,
    /// `mean(|dy · n|)` of each channel, n being normalised.
    products: Vec<f64>,
    factors: Vec<f64>,
    biases: Vec<f64>,
    /// What is added to each value.
    shortcut: Vec<f64>,
    /// What rounding to how blobs are kept may add to a number, relative.
    kept: f64,
    /// The same for the normalised values that backward reads: alone, the layer finds them in its top.
    read: f64,
}

impl Truth {
    fn new(
        case: &Case,
        arrays: &Arrays<f32>,
        expected: &Arrays<f64>,
        data: Data,
        numerics: Numerics,
    ) -> Self {
        let norm = match &case.layer {
            Layer::BatchNorm(norm) => norm,
            Layer::Normalize(layer) => &layer.norm,
            other => panic!("{other:?} does not normalise"),
        };
        let channels = Channels::of(case, norm);
        let double = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let x = double(arrays.get(Operand::Bottom(0)));
        let (means, variances) = (expected.get(Operand::Aux(0)), expected.get(Operand::Aux(1)));
        let errors: Vec<Errors> = (0..channels.count)
            .map(|c| Errors::new(&channels, &x, [means[c], variances[c]], c, data))
            .collect();
        let normalise = |(i, x): (usize, &f64)| {
            let channel = channels.channel(i);
            (x - means[channel]) * errors[channel].inverse
        };
        let normalised: Vec<f64> = x.iter().enumerate().map(normalise).collect();
        let largest = (0..channels.count).map(|c| channels.largest(&normalised, c)).collect();
        let dy = double(arrays.get(Operand::TopGrad(0)));
        let products: Vec<f64> = dy.iter().zip(&normalised).map(|(dy, n)| (dy * n).abs()).collect();
        let values = (products.len() / channels.count) as f64;
        let products =
            (0..channels.count).map(|c| channels.own(&products, c).sum::<f64>() / values).collect();
        let param = |i: usize, none: f64| {
            arrays.find(Operand::Param(i)).map_or_else(|| vec![none; channels.count], double)
        };
        let (factors, biases) = (param(Normalize::FACTORS, 1.0), param(Normalize::BIAS, 0.0));
        let kept = if numerics.precision == Precision::Bf16 { BF16 } else { 0.0 };
        let read = if matches!(case.layer, Layer::BatchNorm(_)) { kept } else { 0.0 };
        let shortcut = arrays.find(Operand::Bottom(1)).map_or_else(|| vec![0.0; x.len()], double);
        Self { errors, normalised, largest, products, factors, biases, shortcut, channels, kept, read }
    }

    /// A value before the ReLU, and how wrong it may be.
    fn scaled(&self, i: usize) -> (f64, f64) {
        let channel = self.channels.channel(i);
        let (factor, bias) = (self.factors[channel], self.biases[channel]);
        let (product, term) = (factor * self.normalised[i], self.shortcut[i]);
        let wrong = factor.abs() * self.errors[channel].normalised(self.normalised[i]);
        (product + bias + term, wrong + 4.0 * EPSILON * (product.abs() + bias.abs() + term.abs()))
    }

    /// How wrong `mean(dy · n)` may be, n being normalised and no gradient larger than 4: by its sum, and by each n.
    fn product(&self, channel: usize) -> f64 {
        let (e, top) = (&self.errors[channel], self.largest[channel]);
        4.0 * (e.normalised(top) + e.sum * top)
    }

    /// A bound with what keeping the number in its blob adds.
    fn kept(&self, value: f64, bound: f64) -> f64 {
        bound + self.kept * (value.abs() + bound)
    }

    /// Of a gradient of the bottom. Both means carry the roundings of their sums, and n stands behind the second. Where
    /// backward reads n rounded, n is wrong in its own place and in `mean(dy · n)`, which `mean(|dy · n|)` bounds.
    fn gradient(&self, i: usize, dx: f64) -> f64 {
        let channel = self.channels.channel(i);
        let (e, top) = (&self.errors[channel], self.largest[channel]);
        let means = 4.0 * e.sum
            + top * self.product(channel)
            + 4.0 * e.normalised(top) * top
            + 16.0 * EPSILON * (1.0 + top * top);
        let read = self.read * (2.0 + self.read) * self.products[channel] * self.normalised[i].abs();
        let means = means * (1.0 + 3.0 * self.read) + read;
        let means = if self.channels.kept { 0.0 } else { self.factors[channel].abs() * e.inverse * means };
        means + dx.abs() * (e.inverse_error + 5.0 * EPSILON)
    }
}

fn check(case: &Case, options: &EngineOptions, threads: usize, data: Data) {
    let numerics = Numerics { isa: options.isa, precision: options.precision };
    let mut arrays = arrays(case, data, numerics);
    if arrays.find(Operand::Bottom(1)).is_some() {
        // No sum comes near the kink of a ReLU.
        let truth = Truth::new(case, &arrays, &doubled(case, &arrays), data, numerics);
        let terms = arrays.get_mut(Operand::Bottom(1)).iter_mut().enumerate();
        terms.filter(|(i, _)| truth.scaled(*i).0.abs() < 0.01).for_each(|(_, term)| *term += 1.0);
    }
    let (found, expected) = (run(case, options, threads, &arrays), doubled(case, &arrays));
    let truth = Truth::new(case, &arrays, &expected, data, numerics);
    let how = format!("{case}, {numerics}, {threads} threads");
    let compare = |what: &str, operand: Operand, bound: &dyn Fn(usize) -> f64| {
        close(&format!("{what} of {how}"), expected.get(operand), found.get(operand), bound);
    };
    let y = expected.get(Operand::Top(0));
    compare("forward", Operand::Top(0), &|i| truth.kept(y[i], truth.scaled(i).1));
    if matches!(&case.layer, Layer::Normalize(layer) if layer.relu) {
        let clear = |i: usize| truth.scaled(i).0.abs() > truth.scaled(i).1;
        assert!((0..truth.normalised.len()).all(clear), "mistrusted: a value beside the kink: {how}");
    }
    let dx = expected.find(Operand::BottomGrad(0)).unwrap_or_default();
    if !dx.is_empty() {
        compare("grad-activation", Operand::BottomGrad(0), &|i| truth.kept(dx[i], truth.gradient(i, dx[i])));
    }
    if let Some(passed) = expected.find(Operand::BottomGrad(1)) {
        assert!(passed.iter().any(|dy| *dy != 0.0), "mistrusted: nothing passes: {how}");
        compare("what passes", Operand::BottomGrad(1), &|_| 0.0);
    }
    if !truth.channels.kept {
        compare("means", Operand::ParamGrad(0), &|c| truth.errors[c].mean);
        let variances = expected.get(Operand::ParamGrad(1));
        let bound = |c: usize| variances[c] * (truth.errors[c].variance + 4.0 * EPSILON);
        compare("variances", Operand::ParamGrad(1), &bound);
        assert_eq!(found.get(Operand::ParamGrad(2)), [1.0], "{how}");
    }
    let values = (truth.normalised.len() / truth.channels.count) as f64;
    if expected.find(Operand::ParamGrad(Normalize::FACTORS)).is_some() {
        compare("factors", Operand::ParamGrad(Normalize::FACTORS), &|c| values * truth.product(c));
    }
    if expected.find(Operand::ParamGrad(Normalize::BIAS)).is_some() {
        let bound = |c: usize| values * 4.0 * truth.errors[c].sum;
        compare("bias", Operand::ParamGrad(Normalize::BIAS), &bound);
    }
}

/// Shapes around the blocks of all tiers, without and with pixels, planes of several pieces, a single image, and many
/// planes of several parts, which are gone through one by one.
fn shapes() -> Vec<Vec<usize>> {
    let mut shapes = Vec::new();
    for n in [2, 5, 16] {
        shapes.extend([3, 16, 20, 33, 64].map(|c| vec![n, c, 5, 7]));
        shapes.push(vec![n, 3, 7]);
    }
    shapes.extend([5, 16, 24].map(|c| vec![37, c]));
    shapes.extend([vec![3, 20, 27, 29], vec![1, 33, 40, 35], vec![8, 261, 13, 11]]);
    shapes
}

fn norm(kept: bool) -> BatchNorm {
    BatchNorm { use_global_stats: Some(kept), moving_average_fraction: 0.999, eps: 1e-3 }
}

/// The cases of a layer; in bf16 only those whose blobs are kept so.
fn cases(layer: &Layer, shape: &[usize], numerics: Numerics) -> Vec<Case> {
    let mut cases = Case::everywhere(layer.clone(), shape);
    cases.retain(|case| case.after_blocks || numerics.precision == Precision::F32);
    cases
}

#[test]
fn batch_norms() {
    for numerics in numerics("batch normalisation") {
        // Sums that are exact leave the bounds to the rounding of blobs.
        let data = match numerics.precision {
            Precision::F32 => Data::Fractions,
            Precision::Bf16 => Data::Integers(0.0),
        };
        for kept in [false, true] {
            let layer = Layer::BatchNorm(norm(kept));
            for case in shapes().iter().flat_map(|s| cases(&layer, s, numerics)) {
                for threads in [1, 3] {
                    check(&case, &options(numerics), threads, data);
                }
            }
        }
    }
}

/// What E[x²] − mean² would lose.
#[test]
fn a_small_variance_is_not_lost_beside_a_large_mean() {
    for numerics in numerics("small variances") {
        for case in cases(&Layer::BatchNorm(norm(false)), &[2, 20, 5, 3], numerics) {
            check(&case, &options(numerics), 2, Data::Integers(1000.0));
        }
    }
}

fn normalize(kept: bool, bias: bool, relu: bool, passes_down: bool) -> Layer {
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias, filler, bias_filler };
    Layer::Normalize(Normalize { norm: norm(kept), scale, sum: false, relu, passes_down })
}

#[test]
fn batch_norms_with_scales() {
    for numerics in numerics("batch normalisation with a scale") {
        for (kept, bias, relu) in
            [(false, true, true), (false, true, false), (false, false, true), (true, true, true)]
        {
            let layer = normalize(kept, bias, relu, true);
            for shape in shapes() {
                for case in cases(&layer, &shape, numerics) {
                    check(&case, &options(numerics), 3, Data::Integers(0.0));
                }
            }
            // The parameters' gradients alone.
            let layer = normalize(kept, bias, relu, false);
            check(&Case::of_images(layer, &[5, 20, 5, 7]), &options(numerics), 2, Data::Integers(0.0));
        }
    }
}

#[test]
fn batch_norms_with_shortcuts() {
    for numerics in numerics("batch normalisation with a shortcut") {
        for (kept, bias, relu) in [(false, true, true), (false, false, false), (true, true, true)] {
            let Layer::Normalize(layer) = normalize(kept, bias, relu, true) else { unreachable!() };
            let layer = Layer::Normalize(Normalize { sum: true, ..layer });
            for shape in shapes() {
                let plain = Case::new(layer.clone(), &[&shape, &shape]);
                let mut cases: Vec<Case> = plain.in_blocks().into_iter().chain([plain]).collect();
                cases.retain(|case| case.after_blocks || numerics.precision == Precision::F32);
                for case in cases {
                    check(&case, &options(numerics), 3, Data::Integers(0.0));
                }
            }
        }
    }
}

/// A channel that has diverged is seen to have, and its neighbours in a block are as they were.
#[test]
fn what_is_not_finite_stays_in_its_channel() {
    let relu = normalize(false, true, true, true);
    for numerics in numerics("channels that are not finite") {
        for layer in [Layer::BatchNorm(norm(false)), Layer::BatchNorm(norm(true)), relu.clone()] {
            for case in cases(&layer, &[3, 20, 5, 7], numerics) {
                for (channel, wrong) in [(4, f32::NAN), (11, f32::INFINITY), (19, f32::NEG_INFINITY)] {
                    let mut arrays = arrays(&case, Data::Integers(0.0), numerics);
                    arrays.get_mut(Operand::Bottom(0))[(20 + channel) * 35 + 17] = wrong;
                    let (found, expected) =
                        (run(&case, &options(numerics), 2, &arrays), doubled(&case, &arrays));
                    for operand in [Operand::Top(0), Operand::BottomGrad(0)] {
                        let both = expected.get(operand).iter().zip(found.get(operand));
                        let same = both.clone().all(|(e, f)| e.is_nan() == f.is_nan());
                        assert!(same, "{operand:?} with {wrong} in channel {channel} of {case}, {numerics}");
                        let not_finite = both.enumerate().filter(|(_, (_, f))| !f.is_finite());
                        let mut channels = not_finite.map(|(i, _)| i / 35 % 20);
                        assert!(
                            channels.all(|c| c == channel),
                            "{operand:?} beside {channel} of {case}, {numerics}"
                        );
                    }
                }
            }
        }
    }
}
