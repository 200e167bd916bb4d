//! Windows across channels: strips of pixels, with all their channels.
//!
//! In scratch neighbouring channels of a pixel are `step` elements apart, and zeros stand beyond the first and the last
//! channel: for plain arrays whole rows of pixels, for blocks of channels a gap between the channels of two pixels.

use std::ops::Range;

use quadrille_core::layer::Lrn;

use super::{Cut, Part, Target, add_up};
use crate::kernel::element::Element;
use crate::kernel::vectorised::prefetch;
use crate::layout::Arrangement;

/// Strips of pixels, worked on in vectors of `LANES`: those of a block, or pixels of a plain array.
pub(super) struct Strips<const LANES: usize>(Geometry<LANES>);

impl<const LANES: usize> Strips<LANES> {
    pub fn new(lrn: &Lrn, x: Arrangement, elements: usize) -> Self {
        Self(Geometry::new(lrn, x, elements))
    }
}

impl<const LANES: usize> Cut for Strips<LANES> {
    type Part = Strip<LANES>;

    fn parts(&self) -> usize {
        self.0.x.images * self.0.per_image()
    }

    fn part(&self, index: usize) -> (Range<usize>, Strip<LANES>) {
        let geometry = self.0;
        let (per_image, len) = (geometry.per_image(), geometry.x.image_len());
        let (image, first) = (index / per_image, index % per_image * geometry.pixels);
        let pixels = geometry.pixels.min(geometry.x.pixels - first);
        (image * len..(image + 1) * len, Strip { geometry, first, pixels })
    }

    fn len(&self) -> usize {
        self.0.column() * self.0.pixels
    }
}

/// How an image is cut into strips of pixels, and how these lie in scratch.
#[derive(Clone, Copy)]
struct Geometry<const LANES: usize> {
    x: Arrangement,
    /// Neighbours on either side. Beyond all channels there is nothing to see.
    reach: usize,
    /// Pixels of a strip.
    pixels: usize,
}

impl<const LANES: usize> Geometry<LANES> {
    fn new(lrn: &Lrn, x: Arrangement, elements: usize) -> Self {
        let reach = (lrn.local_size / 2).min(x.channels);
        let column = x.channels.next_multiple_of(x.layout.block) + 2 * reach;
        let pixels = (elements / column).min(x.pixels).max(1);
        let pixels = if x.layout.block == 1 { pixels.next_multiple_of(LANES) } else { pixels };
        Self { x, reach, pixels }
    }

    fn per_image(&self) -> usize {
        self.x.pixels.div_ceil(self.pixels)
    }

    /// Elements of the channels of a pixel, with the zeros beyond them.
    fn column(&self) -> usize {
        self.x.channels.next_multiple_of(self.x.layout.block) + 2 * self.reach
    }

    /// How far apart neighbouring channels lie.
    fn step(&self) -> usize {
        if self.x.layout.block == 1 { self.pixels } else { 1 }
    }
}

/// Some values of a strip that lie side by side.
#[derive(Clone, Copy)]
struct Chunk {
    /// Place of the first in the image.
    from: usize,
    /// Place of the first in scratch.
    at: usize,
    /// How many there are.
    len: usize,
}

/// A strip of an image.
#[derive(Clone, Copy)]
pub(super) struct Strip<const LANES: usize> {
    geometry: Geometry<LANES>,
    first: usize,
    pixels: usize,
}

/// The chunks of a strip. An iterator and no closure: only what is inlined is compiled for the tier.
struct Chunks<const LANES: usize> {
    strip: Strip<LANES>,
    /// Channel or block of channels, and chunk of it.
    row: usize,
    chunk: usize,
    rows: usize,
    /// Chunks of a row.
    chunks: usize,
}

impl<const LANES: usize> Iterator for Chunks<LANES> {
    type Item = Chunk;

    #[inline(always)]
    fn next(&mut self) -> Option<Chunk> {
        if self.chunk == self.chunks {
            (self.row, self.chunk) = (self.row + 1, 0);
        }
        if self.row >= self.rows {
            return None;
        }
        let (row, chunk) = (self.row, self.chunk);
        self.chunk += 1;
        let Strip { geometry: Geometry { x, reach, pixels }, first, .. } = self.strip;
        Some(if x.layout.block == 1 {
            let pixel = chunk * LANES;
            let (from, at) = (row * x.pixels + first + pixel, (reach + row) * pixels + pixel);
            Chunk { from, at, len: LANES.min(self.strip.pixels - pixel) }
        } else {
            let from = (row * x.pixels + first + chunk) * LANES;
            let at = chunk * self.strip.geometry.column() + reach + row * LANES;
            Chunk { from, at, len: LANES }
        })
    }
}

impl<const LANES: usize> Strip<LANES> {
    /// The strip in chunks of at most `LANES`: channels of a pixel in blocks, or pixels of a channel.
    #[inline(always)]
    fn chunks(self) -> Chunks<LANES> {
        let x = self.geometry.x;
        let (rows, chunks) = if x.layout.block == 1 {
            (x.channels, self.pixels.div_ceil(LANES))
        } else {
            (x.channels.div_ceil(LANES), self.pixels)
        };
        Chunks { strip: self, row: 0, chunk: 0, rows, chunks }
    }
}

impl<const LANES: usize> Part for Strip<LANES> {
    #[inline(always)]
    fn gather<E: Element>(self, image: &[E], values: &mut [f32]) {
        let ahead = self.geometry.pixels * self.geometry.x.layout.block;
        for chunk in self.chunks() {
            // The next strip comes while this one is computed.
            prefetch(image.as_ptr().wrapping_add(chunk.from + ahead).cast());
            if chunk.len == LANES {
                E::widen(&image[chunk.from..chunk.from + LANES], &mut values[chunk.at..chunk.at + LANES]);
            } else {
                gather_some(chunk, image, values);
            }
        }
    }

    #[inline(always)]
    fn ask_for<E: Element>(self, image: &Target<E>) {
        for chunk in self.chunks() {
            prefetch(image.start.wrapping_add(chunk.from).cast());
        }
    }

    #[inline(always)]
    fn scatter<E: Element>(self, values: &[f32], image: &Target<E>) {
        for chunk in self.chunks() {
            image.store::<LANES>(chunk.from, &values[chunk.at..chunk.at + chunk.len]);
        }
    }

    /// Channels rising.
    #[inline(always)]
    fn sums(self, values: &[f32], _: &mut [f32], sums: &mut [f32]) {
        add_up(values, self.geometry.reach, self.geometry.step(), sums);
    }

    #[inline(always)]
    fn clear_beyond(self, values: &mut [f32]) {
        let Geometry { x, reach, pixels } = self.geometry;
        let (step, column) = (self.geometry.step(), self.geometry.column());
        values[..reach * step].fill(0.0);
        if step == 1 {
            for pixel in 1..pixels {
                values[(pixel - 1) * column + reach + x.channels..pixel * column + reach].fill(0.0);
            }
        }
        let end = values.len() - (column - reach - x.channels) * step;
        values[end..].fill(0.0);
    }
}

/// Apart from the rest, so that copies of whole chunks stay moves of registers.
#[cold]
#[inline(never)]
fn gather_some<E: Element>(chunk: Chunk, image: &[E], values: &mut [f32]) {
    E::widen(&image[chunk.from..chunk.from + chunk.len], &mut values[chunk.at..chunk.at + chunk.len]);
}
