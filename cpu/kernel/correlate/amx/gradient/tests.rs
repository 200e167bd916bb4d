use super::super::super::{Pixel, kernels};
use super::super::model::{Model, integers};
use super::*;
use crate::isa::{Isa, Numerics};

/// How a case's source lies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    /// Channels of pixels, in rows of an image.
    Channels,
    /// Rows of an inner product's left side: pixels are neighbours.
    Rows,
    /// The same turned round: sources are neighbours, and rows of pixels lie so far apart.
    Columns,
    /// Channels of two taps: neither way.
    Scattered,
}

/// Compares a kernel with plain sums: every number of sources, both widths, numbers of pixels that end in full and in short
/// runs, one row of them and several.
fn check(kernel: impl Fn(&WeightTile<'_>, usize, bool, usize)) {
    const FARTHEST: usize = 3 * 150 * WORDS + 2 * WORDS;
    let ((x, x_values), (dy, dy_values)) = (integers(FARTHEST, 1), integers(FARTHEST, 2));
    for case in [Case::Channels, Case::Rows, Case::Columns, Case::Scattered] {
        for (sources, two, add) in (1..=MOST_SOURCES)
            .flat_map(|s| [(false, false), (true, false), (true, true)].map(|(t, a)| (s, t, a)))
        {
            for (rows, columns) in [(1, 1), (1, 16), (1, 7), (3, 23), (1, 150), (2, 64)] {
                if case == Case::Scattered && sources < 2 {
                    continue;
                }
                let long = rows * columns;
                // Distances of sources and of pixels, and of rows of pixels.
                let (pixel, [source, step, row], pixels) = match case {
                    Case::Channels => (WORDS, [1, WORDS, (columns + 1) * WORDS], [rows, columns]),
                    Case::Scattered => (WORDS, [1, WORDS, (columns + 1) * WORDS], [rows, columns]),
                    Case::Rows => (1, [long + 3, 1, 1], [long, 1]),
                    Case::Columns => (1, [1, MOST_SOURCES, MOST_SOURCES], [long, 1]),
                };
                let jump = |k: usize| if case == Case::Scattered { k / 2 * (WORDS - 2) } else { 0 };
                let offsets: Vec<u32> = (0..sources).map(|k| (5 + k * source + jump(k)) as u32).collect();
                let (width, dw_source) = (if two { 2 } else { 1 } * WORDS, 2 * WORDS + 3);
                let dy_row = if pixel == 1 { WORDS } else { (columns + 2) * WORDS };
                let dy_vector = FARTHEST / 2;
                let before = integers(MOST_SOURCES * dw_source, 3).1;
                let mut dw = before.clone();
                let tile = WeightTile {
                    offsets: &offsets,
                    x: x.as_ptr(),
                    x_row: if pixel == 1 { step } else { row },
                    dy: dy.as_ptr(),
                    dy_row,
                    dy_vector,
                    pixels,
                    dw: dw.as_mut_ptr(),
                    dw_source,
                    add,
                    ahead: dy.as_ptr(),
                    ahead_row: 0,
                };
                kernel(&tile, sources, two, pixel);
                let mut expected = before.clone();
                for (k, o) in (0..sources * width).map(|i| (i / width, i % width)) {
                    let mut sum = if add { before[k * dw_source + o] } else { 0.0 };
                    for (r, c) in (0..pixels[0] * pixels[1]).map(|i| (i / pixels[1], i % pixels[1])) {
                        let (x_row, x_step) = if pixel == 1 { (step, 0) } else { (row, WORDS) };
                        let source = offsets[k] as usize + r * x_row + c * x_step;
                        let gradient = o / WORDS * dy_vector + r * dy_row + c * WORDS + o % WORDS;
                        for half in 0..2 {
                            sum += x_values[2 * source + half] * dy_values[2 * gradient + half];
                        }
                    }
                    expected[k * dw_source + o] = sum;
                }
                assert_eq!(
                    dw, expected,
                    "{case:?}, {sources} sources, two vectors {two}, {pixels:?}, add {add}"
                );
            }
        }
    }
}

/// The kernels of AVX-512 BF16 on a tile that may have more sources than they.
fn below(tile: &WeightTile<'_>, two: bool, pixel: usize) {
    let pixel = if pixel == 1 { Pixel::One } else { Pixel::Vector };
    let vectors = if two { 2 } else { 1 };
    let below = kernels(Numerics::bf16(Isa::Avx512Bf16), vectors, pixel).expect("kernels").weights;
    // SAFETY: the tier is available, or there were no kernels; the arrays are as long as the tile says.
    unsafe { in_parts(tile, below) }
}

#[test]
fn tiles_of_the_model() {
    check(|tile, sources, two, pixel| {
        // SAFETY: the model needs no instructions; the arrays are as long as the tile says.
        let done = unsafe { gradient(&mut Model::default(), tile, sources, two, pixel) };
        // What lies neither way is another test's affair.
        if !done {
            assert!(pixel > 1 && sources > 1, "only scattered sources are left");
            plain(tile, two, pixel);
        }
    });
}

/// The sums of scattered sources in plain Rust, one product at a time.
fn plain(tile: &WeightTile<'_>, two: bool, pixel: usize) {
    use crate::kernel::words::{halves_of, widened};
    let [rows, columns] = tile.pixels;
    for (k, o) in (0..tile.offsets.len() * 32).map(|i| (i / 32, i % 32)).filter(|(_, o)| two || *o < WORDS) {
        // SAFETY: the arrays are as long as the tile says.
        unsafe {
            let dw = tile.dw.add(k * tile.dw_source + o);
            let mut sum = if tile.add { *dw } else { 0.0 };
            for (r, c) in (0..rows * columns).map(|i| (i / columns, i % columns)) {
                let x = *tile.x.add(tile.offsets[k] as usize + r * tile.x_row + c * pixel);
                let place = o / WORDS * tile.dy_vector + r * tile.dy_row + c * WORDS + o % WORDS;
                let pairs = halves_of(x).into_iter().zip(halves_of(*tile.dy.add(place)));
                sum += pairs.map(|(a, b)| widened(a) * widened(b)).sum::<f32>();
            }
            *dw = sum;
        }
    }
}

#[test]
fn tiles_of_the_instructions() {
    if !Isa::AmxBf16.is_available() {
        println!("skipped: gradients by the instructions of AMX: this CPU does not have amxbf16");
        return;
    }
    check(|tile, sources, two, pixel| {
        // SAFETY: the tier is available; the arrays are as long as the tile says.
        if !unsafe { gradient(&mut registers(), tile, sources, two, pixel) } {
            below(tile, two, pixel);
        }
    });
}

/// The same data through the kernels that AMX stands in for, where the CPU has those: both agree on every format.
#[test]
fn tiles_of_avx512bf16() {
    if !Isa::Avx512Bf16.is_available() {
        println!("skipped: gradients of AVX-512 BF16: this CPU does not have avx512bf16");
        return;
    }
    check(|tile, _, two, pixel| below(tile, two, pixel));
}
