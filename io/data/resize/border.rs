//! Borders around an image, as `cv::copyMakeBorder` makes them.

use quadrille_core::layer::Padding;

/// Puts an image of `channels` interleaved channels and `from` (height, width) into the middle of `to`, at least as large;
/// where that is not possible, there is one more row or column behind it than before.
pub(in super::super) fn border(
    padding: &Padding,
    pixels: &[u8],
    channels: usize,
    (from, to): ([usize; 2], [usize; 2]),
    out: &mut Vec<u8>,
) {
    let constant: Vec<u8> = match padding {
        Padding::Constant(values) => (0..channels).map(|channel| value_of(values, channel)).collect(),
        Padding::Mirrored | Padding::Nearest => Vec::new(),
    };
    let source = |i: usize, axis: usize| {
        let at = i as isize - ((to[axis] - from[axis]) / 2) as isize;
        outside(padding, at, from[axis])
    };
    let columns: Vec<Option<usize>> = (0..to[1]).map(|x| source(x, 1)).collect();
    out.clear();
    out.reserve(to[0] * to[1] * channels);
    for y in 0..to[0] {
        let row = source(y, 0).map(|y| &pixels[y * from[1] * channels..][..from[1] * channels]);
        for column in &columns {
            match (row, column) {
                (Some(row), Some(x)) => out.extend_from_slice(&row[x * channels..][..channels]),
                _ => out.extend_from_slice(&constant),
            }
        }
    }
}

/// The value of a channel out of one for each or one for all; 0 if there is none.
fn value_of(values: &[u8], channel: usize) -> u8 {
    values.get(channel).or(values.first()).copied().unwrap_or(0)
}

/// The pixel of `extent` that lies at a place; `None` for the constant outside.
fn outside(padding: &Padding, at: isize, extent: usize) -> Option<usize> {
    let last = extent as isize - 1;
    match padding {
        _ if (0..=last).contains(&at) => Some(at as usize),
        Padding::Constant(_) => None,
        Padding::Nearest => Some(at.clamp(0, last) as usize),
        Padding::Mirrored if last == 0 => Some(0),
        // There and back again, with the outermost pixels once.
        Padding::Mirrored => {
            let place = at.rem_euclid(2 * last);
            Some(place.min(2 * last - place) as usize)
        }
    }
}
