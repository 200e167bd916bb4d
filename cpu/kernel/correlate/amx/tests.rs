use super::super::Run;
use super::*;
use crate::isa::Isa;
use crate::kernel::words::{halves, rounded};

/// The instructions in plain Rust, as their description has them; where a CPU would raise an exception, this panics.
#[derive(Default)]
struct Model {
    shapes: Option<Shapes>,
    registers: [[[u32; WORDS]; ROWS]; 8],
}

impl Model {
    /// Rows and words of a row.
    fn shape(&self, register: usize) -> [usize; 2] {
        let shapes = self.shapes.expect("shapes are set");
        let (rows, bytes) = (usize::from(shapes.rows[register]), usize::from(shapes.row_bytes[register]));
        assert!((1..=ROWS).contains(&rows) && (1..=64).contains(&bytes) && bytes.is_multiple_of(4));
        [rows, bytes / 4]
    }
}

/// A bf16, of which numbers that are not normal count as 0.
fn number(half: u32) -> f32 {
    let value = f32::from_bits(half << 16);
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { value }
}

impl Tiles for Model {
    unsafe fn configure(&mut self, shapes: &Shapes) {
        assert!(shapes.palette == 1 && shapes.start_row == 0 && shapes.reserved == [0; 14]);
        assert!(shapes.rows[8..] == [0; 8] && shapes.row_bytes[8..] == [0; 8], "registers that do not exist");
        *self = Self { shapes: Some(*shapes), ..Self::default() };
    }
    unsafe fn release(&mut self) {
        *self = Self::default();
    }
    unsafe fn zero<const T: usize>(&mut self) {
        self.shape(T);
        self.registers[T] = Default::default();
    }
    unsafe fn load<const T: usize>(&mut self, from: *const f32, distance: usize) {
        let [rows, words] = self.shape(T);
        self.registers[T] = Default::default();
        for (r, w) in (0..rows * words).map(|i| (i / words, i % words)) {
            // SAFETY: by the trait's contract.
            let word = unsafe { from.byte_add(r * distance).add(w).read() };
            self.registers[T][r][w] = word.to_bits();
        }
    }
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        let [c, a, b] = [C, A, B].map(|register| self.shape(register));
        assert!(C != A && C != B && A != B, "registers are different ones");
        assert!(c == [a[0], b[1]] && a[1] == b[0], "shapes do not agree: {c:?} {a:?} {b:?}");
        for (m, n) in (0..c[0] * c[1]).map(|i| (i / c[1], i % c[1])) {
            let mut sums = [0.0f32; 2];
            for k in 0..a[1] {
                let (a, b) = (self.registers[A][m][k], self.registers[B][k][n]);
                sums[0] += number(a & 0xffff) * number(b & 0xffff);
                sums[1] += number(a >> 16) * number(b >> 16);
            }
            let sum = f32::from_bits(self.registers[C][m][n]) + (sums[0] + sums[1]);
            self.registers[C][m][n] = sum.to_bits();
        }
    }
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, distance: usize) {
        let [rows, words] = self.shape(T);
        for (r, w) in (0..rows * words).map(|i| (i / words, i % words)) {
            // SAFETY: by the trait's contract.
            unsafe { to.byte_add(r * distance).add(w).write(f32::from_bits(self.registers[T][r][w])) }
        }
    }
}

/// Words of small integers, none of them 0, and the integers.
fn integers(words: usize, seed: usize) -> (Vec<f32>, Vec<f32>) {
    let values: Vec<f32> = (0..2 * words)
        .map(|i| {
            let value = ((i * 7 + seed * 13 + i / 5) % 9) as f32 - 4.0;
            if value == 0.0 { 5.0 } else { value }
        })
        .collect();
    let mut packed = vec![0.0; words];
    halves(&mut packed).iter_mut().zip(&values).for_each(|(half, value)| *half = rounded(*value));
    (packed, values)
}

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
    const PLANE: usize = (ROWS + 5) * WORDS;
    let ((x, x_values), bias) = (integers(2 * PLANE, 1), integers(2 * WORDS, 3).1);
    for (pixels, two, short) in
        (1..=ROWS).flat_map(|p| [false, true].into_iter().flat_map(move |t| [0, 3, 8, 16].map(|s| (p, t, s))))
    {
        let (runs, width) = (runs(short, PLANE), if two { 32 } else { 16 });
        let depth = runs.iter().map(|run| run.len as usize).sum::<usize>();
        let (w, w_values) = integers(depth * width, 2);
        // Pixels lie further apart than in the source, vectors after all pixels; nothing between may change.
        let (y_pixel, y_vector) = (WORDS + 3, ROWS * (WORDS + 3));
        let starts = [Start::Zero, Start::Bias(bias.as_ptr()), Start::There];
        let [pixel, vector] = [WORDS / 2 + 1, ROWS * (WORDS / 2 + 1)];
        for (start, relu, kept) in starts
            .into_iter()
            .flat_map(|s| [false, true].into_iter().flat_map(move |r| [(s, r, false), (s, r, true)]))
        {
            let before = integers(y_vector, 4).1;
            let mut y = before.clone();
            let (kept_before, _) = integers(2 * vector, 5);
            let mut words = kept_before.clone();
            let end = match kept {
                true => End::Kept { y: words.as_mut_ptr(), pixel, vector },
                false => End::There,
            };
            let tile = Tile {
                runs: &runs,
                x: x.as_ptr(),
                w: w.as_ptr(),
                y: y.as_mut_ptr(),
                y_pixel,
                y_vector,
                start,
                end,
                relu,
            };
            kernel(&tile, pixels, two);
            let (mut expected, mut expected_words) = (before.clone(), kept_before.clone());
            for (p, o) in (0..pixels * width).map(|i| (i / width, i % width)) {
                let place = o / WORDS * y_vector + p * y_pixel + o % WORDS;
                let mut sum = match start {
                    Start::Zero => 0.0,
                    Start::Bias(_) => bias[o],
                    Start::There => before[place],
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
        unsafe { outputs(&mut Model::default(), tile, pixels, two, WORDS) }
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
        unsafe { outputs(&mut Amx, tile, pixels, two, WORDS) }
    });
}

/// The same data through the kernel that AMX stands in for, where the CPU has that: both agree on every format.
#[test]
fn tiles_of_avx512bf16() {
    if !Isa::Avx512Bf16.is_available() {
        println!("skipped: tiles of AVX-512 BF16: this CPU does not have avx512bf16");
        return;
    }
    let bf16 = crate::isa::Numerics::bf16(Isa::Avx512Bf16);
    let kernels =
        [1, 2].map(|v| super::super::kernels(bf16, v, super::super::Pixel::Vector).expect("kernels"));
    check(|tile, pixels, two| {
        let tiles = kernels[usize::from(two)].tiles;
        if let Some(kernel) = tiles.get(pixels - 1) {
            // SAFETY: the tier is available; the arrays are as long as the tile says.
            return unsafe { kernel(tile) };
        }
        // Wider than its registers: the rest in a tile of its own.
        let (first, rest) = (tiles.len(), pixels - tiles.len());
        // SAFETY: as above, for the first pixels and those after them.
        unsafe {
            tiles[first - 1](tile);
            let (x, y) = (tile.x.add(first * WORDS), tile.y.add(first * tile.y_pixel));
            let end = match tile.end {
                End::There => End::There,
                End::Kept { y, pixel, vector } => End::Kept { y: y.add(first * pixel), pixel, vector },
            };
            tiles[rest - 1](&Tile { x, y, end, ..*tile });
        }
    });
}
