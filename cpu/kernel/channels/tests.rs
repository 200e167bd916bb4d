//! The passes beside sums in f64, by vectors and by rows, of planes that have whole pieces, parts of one, or a pixel.

use super::*;

/// Numbers around a mean that is large beside their distances from it.
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| 20.0 + ((i * 37 + salt * 11 + i * i % 13) % 97) as f32 / 32.0).collect()
}

/// All ways through planes of so many pixels: every tier's vectors, and rows.
fn ways(pixels: usize) -> impl Iterator<Item = Planes> {
    Isa::available().flat_map(move |isa| {
        let block = Machine::of(isa).channel_block;
        let of = move |block| Planes { isa, precision: Precision::F32, block, pixels };
        // A block that is no vector of any tier goes by rows.
        [of(block), of(4), of(1)]
    })
}

const SIZES: [usize; 5] = [1, 7, 49, 256, 701];

fn near(found: f32, expected: f64, scale: f64, what: &str) {
    let error = (f64::from(found) - expected).abs();
    assert!(error <= 1e-5 * scale.max(1.0), "{found} instead of {expected}: {what}");
}

/// Values of a channel in planes.
fn channel<'a>(
    planes: &'a [Vec<f32>],
    way: &Planes,
    channel: usize,
) -> impl Iterator<Item = f64> + Clone + 'a {
    let block = way.block;
    planes.iter().flatten().enumerate().filter(move |(i, _)| i % block == channel).map(|(_, v)| f64::from(*v))
}

fn planes(way: &Planes, salt: usize) -> Vec<Vec<f32>> {
    (0..3).map(|image| numbers(way.block * way.pixels, salt + image)).collect()
}

fn affine(way: &Planes) -> Affine {
    let of = |number: fn(usize) -> f32| {
        let mut numbers = Numbers::default();
        numbers[..way.block].iter_mut().enumerate().for_each(|(i, to)| *to = number(i));
        numbers
    };
    Affine {
        mean: of(|i| 21.0 + i as f32 / 16.0),
        factor: of(|i| 0.5 - i as f32 / 8.0),
        bias: of(|i| i as f32 / 4.0),
    }
}

/// A function at a value of a channel.
fn at(affine: &Affine, channel: usize, x: f64) -> f64 {
    let [mean, factor, bias] = [affine.mean, affine.factor, affine.bias].map(|n| f64::from(n[channel]));
    (x - mean) * factor + bias
}

#[test]
fn moments_are_those_of_all_planes() {
    for way in SIZES.into_iter().flat_map(ways) {
        let planes = planes(&way, 1);
        let [means, squares] = way.measure(planes.iter().map(Vec::as_slice));
        for c in 0..way.block {
            let values = channel(&planes, &way, c);
            let mean = values.clone().sum::<f64>() / values.clone().count() as f64;
            let distances: f64 = values.map(|v| (v - mean) * (v - mean)).sum();
            near(means[c], mean, mean, &format!("mean of channel {c}, {way:?}"));
            near(squares[c], distances, distances, &format!("distances of channel {c}, {way:?}"));
        }
    }
}

#[test]
fn functions_and_sums_of_all_pixels() {
    for (way, relu) in SIZES.into_iter().flat_map(ways).flat_map(|way| [(way, false), (way, true)]) {
        let (x, dy, affine) = (planes(&way, 2), planes(&way, 5), affine(&way));
        let passes = |c: usize, x: f64| if relu && at(&affine, c, x) <= 0.0 { 0.0 } else { 1.0 };
        let mut y = x.clone();
        let (first, rest) = y.split_at_mut(1);
        // The first plane lies in another array, the others are changed where they lie.
        let pairs = [(Some(x[0].as_slice()), first[0].as_mut_slice())].into_iter();
        way.apply(&affine, relu, pairs.chain(rest.iter_mut().map(|y| (None, y.as_mut_slice()))));
        for (i, (found, x)) in y.iter().flatten().zip(x.iter().flatten()).enumerate() {
            let (c, x) = (i % way.block, f64::from(*x));
            near(*found, passes(c, x) * at(&affine, c, x), 1.0, &format!("value {i}, ReLU {relu}, {way:?}"));
        }
        let sums =
            way.correlate(&affine, relu, dy.iter().map(Vec::as_slice).zip(x.iter().map(Vec::as_slice)));
        for (c, found) in sums[0].into_iter().zip(sums[1]).take(way.block).enumerate() {
            let both = channel(&dy, &way, c).zip(channel(&x, &way, c));
            let both = both.map(|(dy, x)| (dy * passes(c, x), x - f64::from(affine.mean[c])));
            let (plain, product) = both.fold((0.0, 0.0), |(p, q), (dy, x)| (p + dy, q + dy * x));
            let scale = channel(&dy, &way, c).sum::<f64>();
            near(found.0, plain, scale, &format!("sum of channel {c}, ReLU {relu}, {way:?}"));
            near(found.1, product, 3.0 * scale, &format!("products of channel {c}, ReLU {relu}, {way:?}"));
        }
        let slope = Slope { factor: affine.bias, slope: affine.factor, offset: affine.mean };
        let mut dx = dy.clone();
        let (first, rest) = dx.split_at_mut(1);
        let others = rest.iter_mut().zip(&x[1..]).map(|(dx, x)| (None, x.as_slice(), dx.as_mut_slice()));
        let all =
            [(Some(dy[0].as_slice()), x[0].as_slice(), first[0].as_mut_slice())].into_iter().chain(others);
        way.back((&affine, &slope), relu, all);
        for (i, (found, (dy, x))) in
            dx.iter().flatten().zip(dy.iter().flatten().zip(x.iter().flatten())).enumerate()
        {
            let (c, x) = (i % way.block, f64::from(*x));
            let [mean, factor, slope, offset] =
                [affine.mean, slope.factor, slope.slope, slope.offset].map(|n| f64::from(n[c]));
            let expected = f64::from(*dy) * passes(c, x) * factor - (x - mean) * slope - offset;
            near(*found, expected, 20.0, &format!("gradient {i}, ReLU {relu}, {way:?}"));
        }
    }
}

#[test]
fn what_is_no_number_stays_so() {
    for way in ways(9) {
        let mut x = numbers(way.block * way.pixels, 3);
        x[way.block * 5] = f32::NAN;
        let [means, squares] = way.measure([x.as_slice()].into_iter());
        assert!(
            means[0].is_nan() && squares[0].is_nan() && (1..way.block).all(|c| !means[c].is_nan()),
            "{way:?}"
        );
        way.apply(&affine(&way), true, [(None, x.as_mut_slice())].into_iter());
        assert!(x[way.block * 5].is_nan() && x.iter().filter(|v| v.is_nan()).count() == 1, "{way:?}");
    }
}
