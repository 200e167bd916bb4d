use super::super::super::{Apart, Pixel, Run, kernels};
use super::super::model::{Model, integers};
use super::*;
use crate::isa::{Isa, Numerics};
use crate::kernel::words::{halves, rounded};
use std::cell::RefCell;

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

/// Pixels between two rows.
const GAP: usize = 2;

/// Every number of pixels and of pixels of a row, if there may be so many rows; both widths; words of the shorter runs.
fn cases(rows: &[usize]) -> impl Iterator<Item = (usize, usize, bool, usize)> {
    let in_rows = |pixels: usize| {
        rows.iter().filter(move |rows| pixels.is_multiple_of(**rows)).map(move |rows| (pixels, pixels / rows))
    };
    let wide = |(p, r)| [false, true].into_iter().map(move |two| (p, r, two));
    let all = (1..=MOST_PIXELS).flat_map(in_rows).flat_map(wide);
    all.flat_map(|(p, r, two)| [0, 3, 8, 16].map(|short| (p, r, two, short)))
}

/// What all runs add to the sum of a pixel and an output.
fn product(runs: &[Run], (x, p): (&[f32], usize), (w, o, width): (&[f32], usize, usize)) -> f32 {
    let numbers = runs.iter().flat_map(|run| (0..2 * run.len as usize).map(move |k| (run, k / 2, k % 2)));
    let of = |(run, k, half): (&Run, usize, usize)| {
        let source = x[2 * (run.offset as usize + p * WORDS + k) + half];
        source * w[2 * ((run.first as usize + k) * width + o) + half]
    };
    numbers.map(of).sum()
}

/// What goes over the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Nothing,
    Relu,
    /// The backward of a ReLU.
    Backward,
}

/// Distances of pixels and vectors of sums. Pixels lie further apart than in the source, vectors after all pixels; nothing between may
/// change.
const SUMS: [usize; 2] = [WORDS + 3, (MOST_PIXELS + GAP) * (WORDS + 3)];

/// The same of numbers that are kept, in words.
const WORDS_KEPT: [usize; 2] = [WORDS / 2 + 1, (MOST_PIXELS + GAP) * (WORDS / 2 + 1)];

/// Words of a plane of the source.
const PLANE: usize = (MOST_PIXELS + 5 + GAP) * WORDS;

/// A tile and what it reads, as it lies in memory and as numbers.
struct Case {
    pixels: usize,
    /// Pixels of a row.
    row: usize,
    two: bool,
    runs: Vec<Run>,
    x: (Vec<f32>, Vec<f32>),
    w: (Vec<f32>, Vec<f32>),
    bias: Vec<f32>,
    /// What sums may start from that is kept.
    others: (Vec<f32>, Vec<f32>),
    /// What lies where sums end, and where numbers that are kept end.
    before: Vec<f32>,
    kept_before: Vec<f32>,
    /// A ReLU's values: as sums lie, and as numbers that are kept.
    sign: Vec<f32>,
    kept_sign: (Vec<f32>, Vec<f32>),
}

impl Case {
    fn new((pixels, row, two, short): (usize, usize, bool, usize)) -> Self {
        let runs = runs(short, PLANE);
        let depth = runs.iter().map(|run| run.len as usize).sum::<usize>();
        Self {
            pixels,
            row,
            two,
            runs,
            x: integers(2 * PLANE, 1),
            w: integers(depth * if two { 2 * WORDS } else { WORDS }, 2),
            bias: integers(2 * WORDS, 3).1,
            before: integers(SUMS[1], 4).1,
            kept_before: integers(2 * WORDS_KEPT[1], 5).0,
            others: integers(2 * WORDS_KEPT[1], 6),
            kept_sign: integers(2 * WORDS_KEPT[1], 7),
            sign: integers(SUMS[1], 8).1,
        }
    }

    fn width(&self) -> usize {
        if self.two { 2 * WORDS } else { WORDS }
    }

    /// What sums can start from.
    fn starts(&self) -> [Start; 4] {
        let [pixel, vector] = WORDS_KEPT;
        let others = Kept { y: self.others.0.as_ptr().cast_mut(), pixel, vector };
        [Start::Zero, Start::Bias(self.bias.as_ptr()), Start::There, Start::Kept(others)]
    }

    /// What is to lie where sums end, and where numbers that are kept end.
    fn expected(&self, start: Start, over: Over, kept: bool) -> [Vec<f32>; 2] {
        let (mut sums, mut words) = (self.before.clone(), self.kept_before.clone());
        for (p, o) in (0..self.pixels * self.width()).map(|i| (i / self.width(), i % self.width())) {
            let p = p / self.row * (self.row + GAP) + p % self.row;
            let place = o / WORDS * SUMS[1] + p * SUMS[0] + o % WORDS;
            let of_kept = 2 * (o / WORDS * WORDS_KEPT[1] + p * WORDS_KEPT[0]) + o % WORDS;
            let first = match start {
                Start::Zero => 0.0,
                Start::Bias(_) => self.bias[o],
                Start::There => self.before[place],
                Start::Kept(_) => self.others.1[of_kept],
            };
            let sum = first + product(&self.runs, (&self.x.1, p), (&self.w.1, o, self.width()));
            let sign = if kept { self.kept_sign.1[of_kept] } else { self.sign[place] };
            let sum = match over {
                Over::Nothing => sum,
                Over::Relu => sum.max(0.0),
                Over::Backward => {
                    if sign > 0.0 {
                        sum
                    } else {
                        0.0
                    }
                }
            };
            if kept {
                halves(&mut words)[of_kept] = rounded(sum);
            } else {
                sums[place] = sum;
            }
        }
        [sums, words]
    }

    /// Compares a kernel with plain sums.
    fn check(&self, (start, over, kept): (Start, Over, bool), kernel: impl Fn(&Tile<'_>, usize, bool)) {
        let (mut y, mut words) = (self.before.clone(), self.kept_before.clone());
        let ([y_pixel, y_vector], [pixel, vector]) = (SUMS, WORDS_KEPT);
        let distance = self.row + GAP;
        let below = Apart { x: distance * WORDS, y: distance * y_pixel, kept: distance * pixel };
        let sign = if kept { self.kept_sign.0.as_ptr() } else { self.sign.as_ptr() };
        let tile = Tile {
            runs: &self.runs,
            x: self.x.0.as_ptr(),
            x_pixel: WORDS,
            w: self.w.0.as_ptr(),
            y: y.as_mut_ptr(),
            y_pixel,
            y_vector,
            below: (self.row < self.pixels).then_some(below),
            start,
            end: if kept { End::Kept(Kept { y: words.as_mut_ptr(), pixel, vector }) } else { End::There },
            relu: over == Over::Relu,
            sign: (over == Over::Backward).then_some(sign),
            ahead: std::ptr::null(),
            ahead_lines: 0,
        };
        kernel(&tile, self.pixels, self.two);
        let [expected, mut expected_words] = self.expected(start, over, kept);
        let what = format!(
            "{} pixels in rows of {}, two vectors {}, {} runs, {start:?}, {over:?}",
            self.pixels,
            self.row,
            self.two,
            self.runs.len()
        );
        assert_eq!(y, expected, "{what}, kept {kept}");
        assert_eq!(halves(&mut words), halves(&mut expected_words), "{what}, kept");
    }
}

/// Compares a kernel with plain sums on every number of pixels in one row and, if it can, in two, both widths, every start, both
/// ends, and all that goes over the sums.
fn check(rows: &[usize], kernel: impl Fn(&Tile<'_>, usize, bool)) {
    for case in cases(rows).map(Case::new) {
        for start in case.starts() {
            for over in [Over::Nothing, Over::Relu, Over::Backward] {
                case.check((start, over, false), &kernel);
                case.check((start, over, true), &kernel);
            }
        }
    }
}

#[test]
fn tiles_of_the_model() {
    check(&[1, 2], |tile, pixels, two| {
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
    check(&[1, 2], |tile, pixels, two| {
        // SAFETY: the tier is available; the arrays are as long as the tile says.
        unsafe { outputs(&mut registers(), tile, pixels, two) }
    });
}

/// The lines that a tile asks for, in order, and how often it stores registers; it has none.
#[derive(Default)]
struct Lines {
    far: RefCell<Vec<usize>>,
    stores: usize,
}

/// The line of an address.
fn line(address: *const f32) -> usize {
    address as usize / size_of::<[f32; WORDS]>()
}

impl Tiles for Lines {
    unsafe fn configure(&mut self, _: Needs) {}
    unsafe fn zero<const T: usize>(&mut self) {}
    unsafe fn load<const T: usize>(&mut self, _: *const f32, _: usize) {}
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {}
    unsafe fn store<const T: usize>(&mut self, _: *mut f32, _: usize) {
        self.stores += 1;
    }
    fn ask(&self, address: *const f32) {
        panic!("nothing is asked for in the first level: line {}", line(address));
    }
    fn ask_far(&self, address: *const f32) {
        self.far.borrow_mut().push(line(address));
    }
    unsafe fn leave<const RELU: bool, const SIGN: bool, const KEPT: bool>(
        &self,
        _: *const f32,
        _: *const f32,
        _: *mut f32,
    ) {
    }
    unsafe fn widen(&self, _: *const f32, _: *mut f32) {}
    unsafe fn transpose(&self, _: *const f32, _: usize, _: [usize; 2], _: *mut f32) {}
}

/// Each run asks for so many lines of what comes behind the tile. A tile of many runs stores a register now and then, and one of few
/// asks for the lines to which the sums of the next one leave.
#[test]
fn runs_ask_for_what_comes_behind_the_tile() {
    let memory = vec![0.0f32; 1 << 14];
    let start = memory.as_ptr().align_offset(64);
    let (far, kept) = (memory[start..].as_ptr(), memory[start + (1 << 12)..].as_ptr());
    const PIXELS: usize = 28;
    for (count, lines) in [(0, 2), (3, 2), (3, 0), (36, 3), (40, 1)] {
        let run = |i| Run { offset: 0, len: WORDS as u32, first: i * WORDS as u32 };
        let runs: Vec<Run> = (0..count).map(run).collect();
        let [pixel, vector] = [WORDS / 2, 1 << 10];
        let tile = Tile {
            runs: &runs,
            x: far,
            x_pixel: WORDS,
            w: kept,
            y: std::ptr::null_mut(),
            y_pixel: WORDS,
            y_vector: 32 * WORDS,
            below: None,
            start: Start::Zero,
            end: End::Kept(Kept { y: kept.cast_mut(), pixel, vector }),
            relu: false,
            sign: None,
            ahead: far,
            ahead_lines: lines,
        };
        let mut asked = Lines::default();
        // SAFETY: these registers touch no memory.
        unsafe { outputs(&mut asked, &tile, PIXELS, true) };
        let few = count as usize <= AMX_FEW_RUNS;
        let behind = (0..2 * PIXELS / 2).map(|i| {
            let (v, i) = (i / (PIXELS / 2), i % (PIXELS / 2));
            line(kept) + (v * vector + PIXELS * pixel) / WORDS + i
        });
        // Runs that have nothing to ask for ask for the weights, which are there.
        let of_run = |i: usize| match lines {
            0 => vec![line(kept)],
            _ => (0..lines).map(|l| line(far) + i * lines + l).collect(),
        };
        let expected: Vec<usize> =
            behind.filter(|_| few).chain((0..count as usize).flat_map(of_run)).collect();
        assert_eq!(asked.far.into_inner(), expected, "{count} runs, {lines} lines each");
        assert_eq!(asked.stores, 4 + count as usize / AMX_AWAKE_RUNS, "{count} runs");
    }
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
    check(&[1], |tile, pixels, two| {
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
                let lies = if let End::Kept(kept) = tile.end { kept.pixel } else { tile.y_pixel };
                let sign = tile.sign.map(|sign| sign.add(first * lies));
                tiles[(pixels - first).min(tiles.len()) - 1](&Tile { x, y, start, end, sign, ..*tile });
            }
        }
    });
}
