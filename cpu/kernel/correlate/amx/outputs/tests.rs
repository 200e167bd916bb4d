use super::super::super::{Pixel, Run, kernels};
use super::super::model::{Model, integers};
use super::*;
use crate::isa::{Isa, Numerics};
use crate::kernel::words::{halves, rounded};

/// Two planes of a strip seen through three taps, of which the second plane has `short` words of channels.
fn runs(short: usize, plane: usize) -> Vec<Run> {
    let mut first = 0;
    let mut runs = Vec::new();
    for (start, len) in [(0, WORDS), (plane, short)].into_iter().filter(|(_, len)| *len > 0) {
        for tap in [0, 1, 5] {
            runs.push(Run { offset: (start + tap * WORDS) as u32, len: len as u32, first });
            first += len as u32;
        }
    }
    runs
}

/// Compares a kernel with plain sums on every number of pixels, both widths, every start and both ends.
fn check(kernel: impl Fn(&Tile<'_>, usize, bool)) {
    const PLANE: usize = (MOST_PIXELS + 5) * WORDS;
    let ((x, x_values), bias) = (integers(2 * PLANE, 1), integers(2 * WORDS, 3).1);
    for (pixels, two, short) in (1..=MOST_PIXELS)
        .flat_map(|p| [false, true].into_iter().flat_map(move |t| [0, 3, 8, 16].map(|s| (p, t, s))))
    {
        let (runs, width) = (runs(short, PLANE), if two { 32 } else { 16 });
        let depth = runs.iter().map(|run| run.len as usize).sum::<usize>();
        let (w, w_values) = integers(depth * width, 2);
        // Pixels lie further apart than in the source, vectors after all pixels; nothing between may change.
        let (y_pixel, y_vector) = (WORDS + 3, MOST_PIXELS * (WORDS + 3));
        let [pixel, vector] = [WORDS / 2 + 1, MOST_PIXELS * (WORDS / 2 + 1)];
        let (mut others, other_values) = integers(2 * vector, 6);
        let others = Kept { y: others.as_mut_ptr(), pixel, vector };
        let starts = [Start::Zero, Start::Bias(bias.as_ptr()), Start::There, Start::Kept(others)];
        for (start, relu, kept) in starts
            .into_iter()
            .flat_map(|s| [false, true].into_iter().flat_map(move |r| [(s, r, false), (s, r, true)]))
        {
            let before = integers(y_vector, 4).1;
            let mut y = before.clone();
            let (kept_before, _) = integers(2 * vector, 5);
            let mut words = kept_before.clone();
            let end = match kept {
                true => End::Kept(Kept { y: words.as_mut_ptr(), pixel, vector }),
                false => End::There,
            };
            let tile = Tile {
                runs: &runs,
                x: x.as_ptr(),
                x_pixel: WORDS,
                w: w.as_ptr(),
                y: y.as_mut_ptr(),
                y_pixel,
                y_vector,
                start,
                end,
                relu,
                ahead: std::ptr::null(),
                ahead_lines: 0,
            };
            kernel(&tile, pixels, two);
            let (mut expected, mut expected_words) = (before.clone(), kept_before.clone());
            for (p, o) in (0..pixels * width).map(|i| (i / width, i % width)) {
                let place = o / WORDS * y_vector + p * y_pixel + o % WORDS;
                let mut sum = match start {
                    Start::Zero => 0.0,
                    Start::Bias(_) => bias[o],
                    Start::There => before[place],
                    Start::Kept(_) => other_values[2 * (o / WORDS * vector + p * pixel) + o % WORDS],
                };
                for (run, k) in runs.iter().flat_map(|run| (0..run.len as usize).map(move |k| (run, k))) {
                    for half in 0..2 {
                        let source = x_values[2 * (run.offset as usize + p * WORDS + k) + half];
                        sum += source * w_values[2 * ((run.first as usize + k) * width + o) + half];
                    }
                }
                let sum = if relu { sum.max(0.0) } else { sum };
                if kept {
                    let place = 2 * (o / WORDS * vector + p * pixel) + o % WORDS;
                    halves(&mut expected_words)[place] = rounded(sum);
                } else {
                    expected[place] = sum;
                }
            }
            let what = format!("{pixels} pixels, two vectors {two}, {short} words, {start:?}, ReLU {relu}");
            assert_eq!(y, expected, "{what}, kept {kept}");
            assert_eq!(halves(&mut words), halves(&mut expected_words), "{what}, kept");
        }
    }
}

#[test]
fn tiles_of_the_model() {
    check(|tile, pixels, two| {
        // SAFETY: the model needs no instructions; the arrays are as long as the tile says.
        unsafe { outputs(&mut Model::default(), tile, pixels, two) }
    });
}

#[test]
fn tiles_of_the_instructions() {
    if !Isa::AmxBf16.is_available() {
        println!("skipped: tiles by the instructions of AMX: this CPU does not have amxbf16");
        return;
    }
    check(|tile, pixels, two| {
        // SAFETY: the tier is available; the arrays are as long as the tile says.
        unsafe { outputs(&mut Amx, tile, pixels, two) }
    });
}

/// The same data through the kernel that AMX stands in for, where the CPU has that: both agree on every format.
#[test]
fn tiles_of_avx512bf16() {
    if !Isa::Avx512Bf16.is_available() {
        println!("skipped: tiles of AVX-512 BF16: this CPU does not have avx512bf16");
        return;
    }
    let bf16 = Numerics::bf16(Isa::Avx512Bf16);
    let kernels = [1, 2].map(|v| kernels(bf16, v, Pixel::Vector).expect("kernels"));
    check(|tile, pixels, two| {
        let tiles = kernels[usize::from(two)].tiles;
        if let Some(kernel) = tiles.get(pixels - 1) {
            // SAFETY: the tier is available; the arrays are as long as the tile says.
            return unsafe { kernel(tile) };
        }
        // Wider than its registers: in several tiles.
        for first in (0..pixels).step_by(tiles.len()) {
            // SAFETY: as above, for the pixels from `first` on.
            unsafe {
                let (x, y) = (tile.x.add(first * WORDS), tile.y.add(first * tile.y_pixel));
                let behind = |kept: Kept| Kept { y: kept.y.add(first * kept.pixel), ..kept };
                let start = match tile.start {
                    Start::Kept(kept) => Start::Kept(behind(kept)),
                    other => other,
                };
                let end = match tile.end {
                    End::There => End::There,
                    End::Kept(kept) => End::Kept(behind(kept)),
                };
                tiles[(pixels - first).min(tiles.len()) - 1](&Tile { x, y, start, end, ..*tile });
            }
        }
    });
}
