//! INTER_AREA of images that shrink: each pixel is the average of what it covers.

use super::Job;

/// Less of a pixel than this does not count.
const LEAST_SHARE: f64 = 1e-3;

/// The pixels that one covers, one after the other from `first` on, with their shares.
struct Covered {
    first: usize,
    shares: Vec<f32>,
}

fn covered(from: usize, to: usize) -> Vec<Covered> {
    let scale = from as f64 / to as f64;
    let pixel = |i: usize| {
        let begin = i as f64 * scale;
        let end = begin + scale;
        let whole = scale.min(from as f64 - begin);
        let last = (end.floor() as usize).min(from - 1);
        let first = (begin.ceil() as usize).min(last);
        let (before, behind) = (first as f64 - begin, end - last as f64);
        let mut pixel = Covered { first, shares: vec![(1.0 / whole) as f32; last - first] };
        if before > LEAST_SHARE && first > 0 {
            pixel.first -= 1;
            pixel.shares.insert(0, (before / whole) as f32);
        }
        if behind > LEAST_SHARE {
            pixel.shares.push((behind.min(1.0).min(whole) / whole) as f32);
        }
        pixel
    };
    (0..to).map(pixel).collect()
}

/// Resizes to at most as many rows and columns.
pub(super) fn average(job: Job<'_>, out: &mut Vec<u8>) {
    let Job { from, to, .. } = job;
    if from[0].is_multiple_of(to[0]) && from[1].is_multiple_of(to[1]) {
        whole_pixels(job, [from[0] / to[0], from[1] / to[1]], out);
    } else {
        shares(job, out);
    }
}

/// By `rows` times `columns` whole pixels each.
fn whole_pixels(job: Job<'_>, [rows, columns]: [usize; 2], out: &mut Vec<u8>) {
    let (channels, mut sums) = (job.channels, vec![0u32; job.to[1] * job.channels]);
    let part = 1.0 / (rows * columns) as f32;
    for y in 0..job.to[0] {
        sums.fill(0);
        for row in (y * rows..(y + 1) * rows).map(|y| job.row(y)) {
            for (sums, pixels) in sums.chunks_mut(channels).zip(row.chunks(columns * channels)) {
                for pixel in pixels.chunks(channels) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += u32::from(*value));
                }
            }
        }
        // OpenCV rounds halves up for four pixels, and to even for any other number.
        let four = [rows, columns] == [2, 2];
        let mean = |sum: &u32| {
            if four { ((sum + 2) >> 2) as u8 } else { (*sum as f32 * part).round_ties_even() as u8 }
        };
        out.extend(sums.iter().map(mean));
    }
}

fn shares(job: Job<'_>, out: &mut Vec<u8>) {
    let channels = job.channels;
    let (rows, columns) = (covered(job.from[0], job.to[0]), covered(job.from[1], job.to[1]));
    let mut across = vec![0.0f32; job.to[1] * channels];
    let mut sums = across.clone();
    for Covered { first, shares } in rows {
        for (i, share) in shares.iter().enumerate() {
            let row = job.row(first + i);
            for (sum, column) in across.chunks_mut(channels).zip(&columns) {
                sum.fill(0.0);
                let pixels = row[column.first * channels..].chunks(channels);
                for (pixel, share) in pixels.zip(&column.shares) {
                    sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += f32::from(*value) * share);
                }
            }
            let pairs = sums.iter_mut().zip(&across);
            // The first row replaces what is left of the pixel before.
            pairs.for_each(|(sum, value)| *sum = if i == 0 { value * share } else { *sum + value * share });
        }
        out.extend(sums.iter().map(|sum| sum.round_ties_even() as u8));
    }
}
