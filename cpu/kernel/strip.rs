//! A strip: some rows of an image, copied with their padding, so that no tap of a kernel leaves it and neighbouring
//! output pixels see neighbouring input pixels whatever the stride. Rows and columns that no tap sees are left out.
//!
//! Where products are of bf16, elements of the strip are words ([`super::words`]) that hold two of the numbers that are
//! multiplied. Plain planes are rounded here, once for all taps and all tiles of targets that see them; blocks of channels
//! come in bf16 and are but put together.

use super::words::{self, Narrow, Narrowing, Neighbours, Pairs, with_words};

/// Words of a block of channels in bf16.
const HALF: usize = words::LANES / 2;

/// What a pixel of a strip holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The source's pixel.
    Copy,
    /// Two blocks of channels in bf16, one after the other. A block that is missing is 0.
    Channels,
    /// Two pixels in bf16, of one channel that comes in f32 or of a block of channels that comes in bf16: each channel of
    /// the source's pixel shares a word with that of the pixel so many columns right of it.
    Pixels(usize),
}

/// How a strip lies: plane by plane, row by row; in a row the columns of phase 0 (columns 0, s, 2s, … of the padded
/// row for s phases), then those of phase 1, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    /// What a pixel holds.
    pub content: Content,
    /// Elements of a pixel of the strip: 1, or a block of channels, or as many words.
    pub pixel: usize,
    /// Channels, blocks of channels, or pairs of blocks.
    pub planes: usize,
    /// Rows of a plane.
    pub rows: usize,
    /// Pixels of the source between neighbouring rows and columns of the strip.
    pub step: [usize; 2],
    /// Columns between those that neighbouring output pixels see.
    pub phases: usize,
    /// Pixels of a phase of a row.
    pub phase_len: usize,
    /// Column of the source at which the padded row begins; negative for padding.
    pub first_column: isize,
    /// Rows and columns of the source.
    pub source: [usize; 2],
}

impl Strip {
    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.phases * self.phase_len * self.pixel
    }

    /// Elements of a plane.
    pub fn plane_len(&self) -> usize {
        self.rows * self.row_len()
    }

    /// Elements of a strip.
    pub fn len(&self) -> usize {
        self.planes * self.plane_len()
    }

    /// Place of a tap that sees the source `rows` rows below the strip's first and `columns` columns right of its
    /// first, both multiples of the steps.
    pub fn tap(&self, rows: usize, columns: usize) -> usize {
        let (rows, columns) = (rows / self.step[0], columns / self.step[1]);
        let place = columns % self.phases * self.phase_len + columns / self.phases;
        rows * self.row_len() + place * self.pixel
    }

    /// Copies the first `rows` rows, which begin at row `first` of the source. `image` holds the planes.
    pub fn fill(&self, image: &[f32], first: isize, rows: usize, strip: &mut [f32]) {
        match self.content {
            Content::Copy => {
                self.each_row(image, first, rows, strip, |[from, _], to| self.copy_row(from, to))
            }
            Content::Channels => {
                self.each_row(image, first, rows, strip, |from, to| self.join_row(from, to));
            }
            Content::Pixels(second) => {
                with_words(Fill { strip: self, image, first, rows, to: strip, second });
            }
        }
    }

    /// Elements of a pixel of the source.
    fn source_pixel(&self) -> usize {
        if self.content == Content::Copy || self.pixel == 1 { self.pixel } else { HALF }
    }

    /// Calls `copy` with each row of the strip and the row of the source, of one or two planes, that belongs there; rows
    /// outside of the source become 0.
    #[inline(always)]
    fn each_row(
        &self,
        image: &[f32],
        first: isize,
        rows: usize,
        strip: &mut [f32],
        copy: impl Fn([&[f32]; 2], &mut [f32]),
    ) {
        let [height, width] = self.source;
        let row_len = width * self.source_pixel();
        let plane_len = height * row_len;
        let together = if self.content == Content::Channels { 2 } else { 1 };
        for (planes, to) in
            image.chunks(together * plane_len).zip(strip.chunks_exact_mut(self.plane_len())).take(self.planes)
        {
            for (r, to) in to.chunks_exact_mut(self.row_len()).take(rows).enumerate() {
                match usize::try_from(first + (r * self.step[0]) as isize) {
                    Ok(source) if source < height => {
                        let second = planes.get(plane_len + source * row_len..).unwrap_or(&[]);
                        let second = &second[..row_len.min(second.len())];
                        copy([&planes[source * row_len..][..row_len], second], to);
                    }
                    _ => to.fill(0.0),
                }
            }
        }
    }

    /// The phases of a row: each with the column of the source that it begins with, and the distance of its columns.
    #[inline(always)]
    fn phases<'a>(&self, row: &'a mut [f32]) -> impl Iterator<Item = (isize, &'a mut [f32])> + use<'a> {
        let (first, step) = (self.first_column, self.step[1]);
        let phases = row.chunks_exact_mut(self.phase_len * self.pixel).enumerate();
        phases.map(move |(phase, to)| (first + (phase * step) as isize, to))
    }

    /// Which of the `count` pixels of a phase that begins with column `first` lie inside the source.
    #[inline(always)]
    fn inside(&self, first: isize, count: usize) -> std::ops::Range<usize> {
        let apart = self.phases * self.step[1];
        let start = first.min(0).unsigned_abs().div_ceil(apart).min(count);
        let columns = usize::try_from(self.source[1] as isize - first).unwrap_or(0);
        start..columns.div_ceil(apart).clamp(start, count)
    }

    fn copy_row(&self, source: &[f32], row: &mut [f32]) {
        let (pixel, apart) = (self.pixel, self.phases * self.step[1]);
        for (first, to) in self.phases(row) {
            let inside = self.inside(first, to.len() / pixel);
            let (padding, rest) = to.split_at_mut(inside.start * pixel);
            let (to, more) = rest.split_at_mut(inside.len() * pixel);
            padding.fill(0.0);
            more.fill(0.0);
            if inside.is_empty() {
                continue;
            }
            let column = (first + (inside.start * apart) as isize) as usize;
            let from = &source[column * pixel..];
            match (apart, pixel) {
                (1, _) => to.copy_from_slice(&from[..to.len()]),
                (_, 1) => every::<1>(from, apart, to),
                (_, 8) => every::<8>(from, apart, to),
                (_, 16) => every::<16>(from, apart, to),
                _ => unreachable!("pixels are single numbers or vectors, not {pixel} numbers"),
            }
        }
    }

    /// Fills a row with two blocks of channels.
    fn join_row(&self, [even, odd]: [&[f32]; 2], row: &mut [f32]) {
        let (pixel, apart) = (self.pixel, self.phases * self.step[1]);
        assert_eq!(pixel, words::LANES, "a pixel is a vector");
        assert!(odd.is_empty() || odd.len() == even.len(), "blocks of other lengths");
        let (even, odd) = (even.as_chunks::<HALF>().0, odd.as_chunks::<HALF>().0);
        for (first, to) in self.phases(row) {
            let inside = self.inside(first, to.len() / pixel);
            let (padding, rest) = to.split_at_mut(inside.start * pixel);
            let (to, more) = rest.split_at_mut(inside.len() * pixel);
            padding.fill(0.0);
            more.fill(0.0);
            if inside.is_empty() {
                continue;
            }
            let column = (first + (inside.start * apart) as isize) as usize;
            let to = to.as_chunks_mut::<HALF>().0.as_chunks_mut::<2>().0;
            let even = even[column..].iter().step_by(apart);
            if odd.is_empty() {
                to.iter_mut().zip(even).for_each(|(to, even)| *to = [*even, [0.0; HALF]]);
            } else {
                let both = even.zip(odd[column..].iter().step_by(apart));
                to.iter_mut().zip(both).for_each(|(to, (even, odd))| *to = [*even, *odd]);
            }
        }
    }

    /// Fills a row with words of two pixels, `second` columns apart.
    ///
    /// # Safety
    /// The CPU has the instructions of `N`.
    #[inline(always)]
    unsafe fn pixels<N: Narrow>(&self, source: &[f32], second: usize, row: &mut [f32]) {
        let (pixel, apart) = (self.pixel, self.phases * self.step[1]);
        if pixel == 1 {
            // SAFETY: the CPU has the instructions by contract.
            return self.phases(row).for_each(|(first, to)| unsafe {
                plane_of_pixels::<N>(source, first, apart, second, to);
            });
        }
        assert_eq!(pixel, words::LANES, "a pixel is a vector");
        let block = |column: isize| {
            let at = usize::try_from(column).ok().map(|c| c * HALF);
            at.and_then(|at| source.get(at..at + HALF)).map_or(words::ZEROS.as_ptr(), <[f32]>::as_ptr)
        };
        for (first, to) in self.phases(row) {
            for (i, to) in to.chunks_exact_mut(pixel).enumerate() {
                let column = first + (i * apart) as isize;
                let (a, b) = (block(column), block(column + second as isize));
                // SAFETY: the CPU has the instructions by contract; both are blocks of the source or zeros.
                unsafe { N::pairs_of_words(a, b, to.as_mut_ptr()) }
            }
        }
    }
}

/// Copies pixels 0, `apart`, `2 · apart`, … of `PIXEL` numbers: a constant, since a call for each pixel would take longer than
/// its copy.
fn every<const PIXEL: usize>(from: &[f32], apart: usize, to: &mut [f32]) {
    let from = from.as_chunks::<PIXEL>().0.iter().step_by(apart);
    to.as_chunks_mut::<PIXEL>().0.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// Fills `to` with words of two pixels of one channel: columns `first`, `first + apart`, …, each with the one `second`
/// columns right of it.
///
/// # Safety
/// The CPU has the instructions of `N`.
#[inline(always)]
unsafe fn plane_of_pixels<N: Narrow>(
    source: &[f32],
    first: isize,
    apart: usize,
    second: usize,
    to: &mut [f32],
) {
    let number = |column: isize| usize::try_from(column).ok().and_then(|c| source.get(c)).map_or(0.0, |v| *v);
    let word = |i: usize| {
        let column = first + (i * apart) as isize;
        words::word(number(column), number(column + second as isize))
    };
    // Where both pixels of a word lie inside and words follow each other as vectors do, whole vectors are rounded.
    let start = first.min(0).unsigned_abs().div_ceil(apart).min(to.len());
    let column = (first + (start * apart) as isize).max(0) as usize;
    let from = source.get(column..).unwrap_or(&[]);
    let whole = (from.len().saturating_sub(second) / apart).min(to.len() - start);
    let done = match (apart, second) {
        (1, _) => {
            let (a, b) = (&from[..whole], from.get(second..second + whole).unwrap_or(&[]));
            // SAFETY: the CPU has the instructions by contract.
            unsafe { Pairs { a, b, to: &mut to[start..] }.run::<N>() }
            start..start + whole
        }
        (2, 1) => {
            // SAFETY: as above.
            unsafe { Neighbours { from: &from[..2 * whole], to: &mut to[start..] }.run::<N>() }
            start..start + whole
        }
        _ => {
            let vectors = whole / words::LANES * words::LANES;
            for i in (0..vectors).step_by(words::LANES) {
                let [mut a, mut b] = [words::ZEROS; 2];
                for (j, (a, b)) in a.iter_mut().zip(&mut b).enumerate() {
                    let column = (i + j) * apart;
                    (*a, *b) = (from[column], from[column + second]);
                }
                // SAFETY: as above; both are vectors, and so is what is left of the words that are whole.
                unsafe { N::pairs(a.as_ptr(), b.as_ptr(), to[start + i..start + vectors].as_mut_ptr()) }
            }
            start..start + vectors
        }
    };
    for i in (0..done.start).chain(done.end..to.len()) {
        to[i] = word(i);
    }
}

/// Fills a strip with words of two pixels.
struct Fill<'a> {
    strip: &'a Strip,
    image: &'a [f32],
    first: isize,
    rows: usize,
    to: &'a mut [f32],
    /// Columns between the two pixels of a word.
    second: usize,
}

impl Narrowing for Fill<'_> {
    #[inline(always)]
    unsafe fn run<N: Narrow>(self) {
        let Self { strip, image, first, rows, to, second } = self;
        // SAFETY: the CPU has the instructions by contract.
        strip.each_row(image, first, rows, to, |from, to| unsafe {
            strip.pixels::<N>(from[0], second, to);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_find_their_pixels_in_phases_and_padding() {
        let (height, width) = (4, 5);
        let image: Vec<f32> = (0..2 * height * width).map(|v| 1.0 + v as f32).collect();
        for (stride, step) in [(1, [1, 1]), (2, [1, 1]), (3, [1, 1]), (1, [2, 3]), (2, [3, 2])] {
            for first_column in [-3isize, -1, 0, 2] {
                for first_row in [-2isize, 0, 1] {
                    let strip = Strip {
                        content: Content::Copy,
                        pixel: 1,
                        planes: 2,
                        rows: 6,
                        step,
                        phases: stride,
                        phase_len: 9usize.div_ceil(stride),
                        first_column,
                        source: [height, width],
                    };
                    let mut copy = vec![f32::NAN; strip.len()];
                    strip.fill(&image, first_row, 6, &mut copy);
                    for plane in 0..2 {
                        for (r, c) in (0..6).flat_map(|r| (0..9).map(move |c| (r, c))) {
                            let seen = [r * step[0], c * step[1]];
                            let (row, column) =
                                (first_row + seen[0] as isize, first_column + seen[1] as isize);
                            let inside =
                                (0..height as isize).contains(&row) && (0..width as isize).contains(&column);
                            let at =
                                plane * height * width + row.max(0) as usize * width + column.max(0) as usize;
                            let expected = if inside { image[at] } else { 0.0 };
                            let found = copy[plane * strip.plane_len() + strip.tap(seen[0], seen[1])];
                            assert_eq!(
                                found, expected,
                                "row {row} column {column} stride {stride} step {step:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// Small integers, which are exact in bf16, none of them 0.
    fn planes(count: usize) -> Vec<f32> {
        (0..count).map(|v| (1 + v % 251) as f32).collect()
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn words_hold_two_channels_or_two_pixels() {
        if !crate::isa::Isa::Avx512Bf16.is_available() {
            println!("skipped: strips of words: this CPU does not have avx512bf16");
            return;
        }
        for (pixel, width) in [(16, 7), (1, 7), (1, 90)] {
            words_of(pixel, [5, width]);
        }
    }

    fn words_of(pixel: usize, [height, width]: [usize; 2]) {
        let image = planes(3 * height * width * pixel);
        let kept = match pixel {
            1 => image.clone(),
            _ => image.chunks_exact(2).map(|pair| words::word(pair[0], pair[1])).collect(),
        };
        let value = |plane: usize, row: isize, column: isize, channel: usize| {
            if !(0..5).contains(&row) || !(0..width as isize).contains(&column) || plane == 3 {
                return 0.0;
            }
            image[((plane * height + row as usize) * width + column as usize) * pixel + channel]
        };
        let mut cases = Vec::new();
        for (stride, step) in [(1, [1, 1]), (2, [1, 1]), (3, [1, 1]), (1, [2, 3]), (2, [3, 2])] {
            for first_column in [-3isize, -1, 0, 2] {
                if pixel > 1 {
                    cases.push((stride, step, first_column, Content::Channels));
                }
                cases.push((stride, step, first_column, Content::Pixels(1)));
                cases.push((stride, step, first_column, Content::Pixels(stride * step[1])));
            }
        }
        for (phases, step, first_column, content) in cases {
            let planes = if content == Content::Channels { 2 } else { 3 };
            let columns = width + 3;
            let phase_len = columns.div_ceil(phases);
            let source = [height, width];
            let strip =
                Strip { content, pixel, planes, rows: 6, step, phases, phase_len, first_column, source };
            let mut copy = vec![f32::NAN; strip.len()];
            strip.fill(&kept, -1, 6, &mut copy);
            let found = words::halves(&mut copy);
            let places = (0..planes * 6 * columns).map(|i| (i / columns / 6, i / columns % 6, i % columns));
            for (plane, r, c) in places {
                let (row, column) = (-1 + (r * step[0]) as isize, first_column + (c * step[1]) as isize);
                let at = 2 * (plane * strip.plane_len() + strip.tap(r * step[0], c * step[1]));
                let halves = (0..2 * pixel).map(|i| f32::from_bits(u32::from(found[at + i]) << 16));
                for (i, half) in halves.enumerate() {
                    let expected = match content {
                        Content::Pixels(second) => {
                            value(plane, row, column + (i % 2 * second) as isize, i / 2)
                        }
                        _ => value(2 * plane + i / pixel, row, column, i % pixel),
                    };
                    assert_eq!(half, expected, "half {i} of row {row}, column {column}: {strip:?}");
                }
            }
        }
    }
}
