//! INTER_CUBIC and INTER_LANCZOS4: several pixels along each axis, with weights rounded to 2^-11.
//!
//! OpenCV's own paths for vectors round some halves of INTER_CUBIC otherwise, and Intel's IPP, which some of its builds call
//! instead, has other weights: there, values differ by at most 1.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_4};

use super::Job;

/// One of the weights' units.
const ONE: f32 = 2048.0;

/// The pixels that make up one of the new image, with their weights.
struct Taps<const N: usize> {
    from: [usize; N],
    weights: [i32; N],
}

/// The weights of the four pixels around a place that lies `x` behind the second: Keys' cubic with -0.75.
pub(super) fn cubic(x: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let inside = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let first = ((A * (x + 1.0) - 5.0 * A) * (x + 1.0) + 8.0 * A) * (x + 1.0) - 4.0 * A;
    let (second, third) = (inside(x), inside(1.0 - x));
    [first, second, third, 1.0 - first - second - third]
}

/// The weights of the eight pixels around a place that lies `x` behind the fourth.
pub(super) fn lanczos4(x: f32) -> [f32; 8] {
    // Sines of angles that are eighths of a turn apart follow from one pair.
    const S: f64 = FRAC_1_SQRT_2;
    const TURNS: [[f64; 2]; 8] =
        [[1.0, 0.0], [-S, -S], [0.0, 1.0], [S, -S], [-1.0, 0.0], [S, S], [0.0, -1.0], [-S, S]];
    let (sin, cos) = (-(f64::from(x) + 3.0) * FRAC_PI_4).sin_cos();
    let mut weights = [0.0; 8];
    for (i, (weight, [s, c])) in weights.iter_mut().zip(TURNS).enumerate() {
        let distance = x + 3.0 - i as f32;
        let angle = -f64::from(distance) * FRAC_PI_4;
        // On a pixel, all others are nothing beside it.
        let on_it = distance.abs() < 1e-6;
        *weight = if on_it { 1e30 } else { ((s * sin + c * cos) / (angle * angle)) as f32 };
    }
    let inverse = 1.0 / weights.iter().sum::<f32>();
    weights.map(|weight| weight * inverse)
}

fn places<const N: usize>(weights: fn(f32) -> [f32; N], from: usize, to: usize) -> Vec<Taps<N>> {
    let scale = 1.0 / (to as f64 / from as f64);
    let place = |i: usize| {
        let at = ((i as f64 + 0.5) * scale - 0.5) as f32;
        let low = at.floor();
        let weights = weights(at - low).map(|weight| (weight * ONE).round_ties_even() as i32);
        let mut taps = Taps { from: [0; N], weights };
        for (k, from_k) in taps.from.iter_mut().enumerate() {
            // Beyond the edges lie the outermost pixels.
            let index = low as isize + k as isize - (N as isize / 2 - 1);
            *from_k = index.clamp(0, from as isize - 1) as usize;
        }
        taps
    };
    (0..to).map(place).collect()
}

/// Resizes with the weights that `weights` gives along each axis.
pub(super) fn taps<const N: usize>(job: Job<'_>, weights: fn(f32) -> [f32; N], out: &mut Vec<u8>) {
    let channels = job.channels;
    let (rows, columns) = (places(weights, job.from[0], job.to[0]), places(weights, job.from[1], job.to[1]));
    // Rows with the columns of the new image, in units of 2^-11, each in the place of its number modulo N: of the N rows
    // that a place needs, no two share one, but for those that are the same.
    let mut kept: [(usize, Vec<i32>); N] = std::array::from_fn(|_| (usize::MAX, Vec::new()));
    let mut sums = vec![0i32; job.to[1] * channels];
    for Taps { from, weights } in rows {
        sums.fill(0);
        for (y, weight) in from.into_iter().zip(weights) {
            let (known, row) = &mut kept[y % N];
            if *known != y {
                *known = y;
                across(job.row(y), channels, &columns, row);
            }
            sums.iter_mut().zip(&*row).for_each(|(sum, value)| *sum += value * weight);
        }
        out.extend(sums.iter().map(|sum| ((sum + (1 << 21)) >> 22).clamp(0, 255) as u8));
    }
}

/// A row with the columns of the new image.
fn across<const N: usize>(row: &[u8], channels: usize, columns: &[Taps<N>], into: &mut Vec<i32>) {
    into.clear();
    match channels {
        1 => across_channels::<N, 1>(row, columns, into),
        3 => across_channels::<N, 3>(row, columns, into),
        _ => {
            for Taps { from, weights } in columns {
                for channel in 0..channels {
                    let values = from.iter().map(|x| i32::from(row[x * channels + channel]));
                    into.push(values.zip(weights).map(|(value, weight)| value * weight).sum());
                }
            }
        }
    }
}

/// The same for a number of channels that the compiler knows, which takes a third of the time.
fn across_channels<const N: usize, const CHANNELS: usize>(
    row: &[u8],
    columns: &[Taps<N>],
    into: &mut Vec<i32>,
) {
    let (pixels, _) = row.as_chunks::<CHANNELS>();
    for Taps { from, weights } in columns {
        let mut sums = [0; CHANNELS];
        for (x, weight) in from.iter().zip(weights) {
            let pixel = pixels[*x];
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(value) * weight;
            }
        }
        into.extend(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No image makes a sum overflow: white where weights are positive and black elsewhere, along both axes, is the worst.
    #[test]
    fn sums_fit_into_their_type() {
        fn worst<const N: usize>(weights: fn(f32) -> [f32; N]) -> i64 {
            let worst_of = |x: f32| {
                let rounded = weights(x).map(|weight| (weight * ONE).round_ties_even() as i64);
                let sum_of = |sign: i64| rounded.iter().map(|weight| (weight * sign).max(0)).sum::<i64>();
                (sum_of(1), sum_of(-1))
            };
            let all: Vec<(i64, i64)> = (0..=4096).map(|i| worst_of(i as f32 / 4097.0)).collect();
            let most = |of: fn(&(i64, i64)) -> i64| all.iter().map(of).max().unwrap();
            let (positive, negative) = (most(|(positive, _)| *positive), most(|(_, negative)| *negative));
            255 * (positive * positive + negative * negative) + (1 << 21)
        }
        for worst in [worst(cubic), worst(lanczos4)] {
            assert!(worst > 1 << 30 && worst <= i64::from(i32::MAX), "{worst}");
        }
    }

    #[test]
    fn a_place_on_a_pixel_is_that_pixel() {
        assert_eq!(cubic(0.0), [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(lanczos4(0.0).map(|weight| (weight * ONE) as i32), [0, 0, 0, 2048, 0, 0, 0, 0]);
        // Between two pixels all is symmetric: Keys' cubic has -3/32 and 19/32 there.
        assert_eq!(cubic(0.5), [-0.09375, 0.59375, 0.59375, -0.09375]);
        let half = lanczos4(0.5);
        for i in 0..4 {
            assert!((half[i] - half[7 - i]).abs() < 1e-6, "{half:?}");
        }
    }
}
