//! INTER_LINEAR, with weights rounded to 2^-11, and what INTER_AREA is for images that grow.

use super::Job;

/// One of the weights' units.
const ONE: i32 = 1 << 11;

/// Where a pixel of the new image lies between two of the old, with their weights.
struct Between {
    from: [usize; 2],
    weights: [i32; 2],
}

/// The pixel before the centre of pixel `i` of `to`, among `from` others, and how far behind it the centre lies.
pub(super) fn centred(i: usize, from: usize, to: usize) -> (f32, f32) {
    let at = ((i as f64 + 0.5) * (from as f64 / to as f64) - 0.5) as f32;
    (at.floor(), at - at.floor())
}

/// The first pixel that pixel `i` of `to` covers, among `from` others, and how much of `i` lies behind that.
pub(super) fn covered(i: usize, from: usize, to: usize) -> (f32, f32) {
    let (scale, inverse) = (from as f64 / to as f64, to as f64 / from as f64);
    let low = (i as f64 * scale).floor();
    let share = ((i + 1) as f64 - (low + 1.0) * inverse) as f32;
    (low as f32, if share <= 0.0 { 0.0 } else { share - share.floor() })
}

/// The places of `to` pixels between `from` others. At the edges a pixel lies on the last one, either as a whole or, as
/// OpenCV does it down columns, with both weights, which rounds otherwise.
fn places(place: fn(usize, usize, usize) -> (f32, f32), from: usize, to: usize, whole: bool) -> Vec<Between> {
    let place = |i: usize| {
        let (low, share) = place(i, from, to);
        let beyond = low < 0.0 || low as usize + 1 >= from;
        let weight = |share: f32| (share * ONE as f32).round_ties_even() as i32;
        let weights = if beyond && whole { [ONE, 0] } else { [weight(1.0 - share), weight(share)] };
        let inside = |at: f32| (at.max(0.0) as usize).min(from - 1);
        Between { from: [inside(low), inside(low + 1.0)], weights }
    };
    (0..to).map(place).collect()
}

/// Resizes with the places that `place` finds along each axis.
pub(super) fn linear(job: Job<'_>, place: fn(usize, usize, usize) -> (f32, f32), out: &mut Vec<u8>) {
    let Job { channels, from, to, .. } = job;
    let (rows, columns) = (places(place, from[0], to[0], false), places(place, from[1], to[1], true));
    // A row with the columns of the new image, in units of 2^-11.
    let across = |y: usize, into: &mut Vec<i32>| {
        let row = job.row(y);
        into.clear();
        for Between { from: [a, b], weights } in &columns {
            let pair = row[a * channels..][..channels].iter().zip(&row[b * channels..][..channels]);
            into.extend(pair.map(|(a, b)| i32::from(*a) * weights[0] + i32::from(*b) * weights[1]));
        }
    };
    let (mut low, mut high) = ((usize::MAX, Vec::new()), (usize::MAX, Vec::new()));
    for Between { from: [a, b], weights: [wa, wb] } in rows {
        if low.0 != a && high.0 == a {
            std::mem::swap(&mut low, &mut high);
        }
        for (row, wanted) in [(&mut low, a), (&mut high, b)] {
            if row.0 != wanted {
                across(wanted, &mut row.1);
                row.0 = wanted;
            }
        }
        // OpenCV's fixed point, which keeps 18 of the 22 bits between its two steps.
        let mix = |(a, b): (&i32, &i32)| ((((wa * (a >> 4)) >> 16) + ((wb * (b >> 4)) >> 16) + 2) >> 2) as u8;
        out.extend(low.1.iter().zip(&high.1).map(mix));
    }
}
