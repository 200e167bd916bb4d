//! How far from Caffe's numbers another implementation may be.

use crate::fixture::{Case, Rounding};

/// The last digit of the stored distances: they have three.
const LAST_DIGIT: f64 = 0.005;
/// What is left to sums of doubles in another order, as a part of the largest value.
const DOUBLE: f64 = 1e-13;
/// "A few" units in the last place of the largest value, for what Caffe happens to hit.
const ULPS: f64 = 4.0;

/// What a computation is held to.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// Caffe in double precision: from Caffe's numbers in single precision, which are stored, it is as far as the
    /// stored distances say, no more and no less.
    Double,
    /// Caffe in single precision. Both are single-precision roundings of the same numbers, and Caffe's is `distance`
    /// away from them: with sums in another order ours may be a few times as far, so that the two are at most
    /// `multiple` distances apart, and a few units in the last place.
    Single { multiple: f64 },
}

/// One layer: our own rounding is not larger than Caffe's.
pub const LAYER: Bound = Bound::Single { multiple: 2.0 };
/// Many layers, one after the other, each of which rounds in its own way: at most three times Caffe's.
pub const NET: Bound = Bound::Single { multiple: 4.0 };

/// A window of a MAX pooling in which two values are closer than single precision can tell. Which of them gets the
/// gradient follows from the last bit, which nobody promises. Everything else must agree, and so must their sum.
pub struct NearTie {
    pub case: &'static str,
    /// The pooling's bottom.
    pub blob: &'static str,
    pub places: [usize; 2],
    /// The arrays in which the gradient lies at one place or the other; further down both lead to the same value.
    pub arrays: &'static [&'static str],
}

/// All that are known. Both places come from one value of `conv1`, which `pool1` saw in two windows.
pub const NEAR_TIES: &[NearTie] = &[NearTie {
    case: "inception_small",
    blob: "norm1",
    places: [673, 681],
    arrays: &["diff/norm1", "diff/pool1"],
}];

/// Largest distance of two arrays; NaN if there is one.
fn largest_distance(a: &[f64], b: &[f64]) -> f64 {
    let distances = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    distances.fold(0.0, |most: f64, d| if most.is_nan() || d <= most { most } else { d })
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

impl Bound {
    /// The largest distance from Caffe that a value may have.
    pub fn distance(self, rounding: Rounding) -> f64 {
        let Rounding { largest, distance, .. } = rounding;
        match self {
            Self::Double => distance,
            Self::Single { multiple } => multiple * distance + ULPS * f64::from(f32::EPSILON) * largest,
        }
    }

    /// Compares an array with Caffe's.
    pub fn check(self, case: &Case, key: &str, caffe: &[f64], found: &[f64]) -> Result<(), String> {
        if caffe.len() != found.len() {
            return Err(format!("{} values, not {}", found.len(), caffe.len()));
        }
        let rounding = case.rounding(key);
        match self {
            Self::Double => check_double(rounding, caffe, found),
            Self::Single { multiple } => {
                let (mut caffe, mut found) = (caffe.to_vec(), found.to_vec());
                let ties = NEAR_TIES.iter().filter(|tie| tie.case == case.name && tie.arrays.contains(&key));
                for NearTie { places: [first, second], .. } in ties {
                    for values in [&mut caffe, &mut found] {
                        values[*first] += std::mem::take(&mut values[*second]);
                    }
                }
                check_single((self.distance(rounding), multiple), rounding, &caffe, &found)
            }
        }
    }
}

fn check_double(rounding: Rounding, caffe: &[f64], found: &[f64]) -> Result<(), String> {
    let Rounding { largest, distance, relative } = rounding;
    let length = norm(caffe.iter().copied());
    let far = largest_distance(caffe, found);
    let apart = norm(caffe.iter().zip(found).map(|(c, f)| c - f));
    let like = |is: f64, stated: f64, scale: f64| (is - stated).abs() <= LAST_DIGIT * stated + DOUBLE * scale;
    if like(far, distance, largest) && like(apart, relative * length, length) {
        return Ok(());
    }
    let relative_is = apart / length;
    Err(format!(
        "Caffe's double precision is {distance:e} away from its single precision, {relative:e} in the L2 norm; here it is \
         {far:e}, {relative_is:e}"
    ))
}

fn check_single(
    (most, multiple): (f64, f64),
    rounding: Rounding,
    caffe: &[f64],
    found: &[f64],
) -> Result<(), String> {
    let Rounding { largest, distance, relative } = rounding;
    let few = ULPS * f64::from(f32::EPSILON);
    let length = norm(caffe.iter().copied());
    let far = largest_distance(caffe, found);
    let apart = norm(caffe.iter().zip(found).map(|(c, f)| c - f));
    // Written so that NaN fails.
    let close = far <= most && apart <= (multiple * relative + few) * length;
    if close {
        return Ok(());
    }
    let relative_is = apart / length;
    Err(format!(
        "{far:e} away, {relative_is:e} in the L2 norm; Caffe's rounding is {distance:e}, {relative:e}, at values up to \
         {largest:e}"
    ))
}
