//! Other sizes of samples, fixed or by chance, as Intel's data_transformer makes them: `random_resize_param` or else
//! `random_aspect_ratio_param`, and then `resize_param`; all to train and to test.

use quadrille_core::layer::{Fit, Interpolation, RandomResize, Resampling, Resize, Transform};

use super::chance::{Chance, below};
use super::records::values_of;
use super::resize::{border, interpolate};
use super::transform::{Image, Pixels, extents};

/// Memory for the steps of a change.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// The image after the last step, pixel by pixel.
    pixels: Vec<u8>,
    /// Where the next step puts its.
    next: Vec<u8>,
}

/// Numbers of the first block: the size, and how each of the two changes interpolates.
#[derive(Clone, Copy)]
enum Word {
    Side,
    Random,
    Fixed,
}

impl Changed {
    /// The image as `transform` wants it before a part is cut out.
    ///
    /// # Errors
    /// Why it cannot be resized.
    pub fn apply(
        &mut self,
        transform: &Transform,
        image: Image<'_>,
        chance: &Chance,
    ) -> Result<Image<'_>, String> {
        let source = match image.pixels {
            Pixels::Interleaved(bytes) => Some(bytes),
            Pixels::Planes(bytes) => {
                interleave(bytes, image.shape[0], &mut self.pixels);
                None
            }
            Pixels::Floats(_) => {
                return Err("holds numbers that are no bytes, which cannot be resized".to_owned());
            }
        };
        let mut steps = Steps { source, memory: self, shape: image.shape, words: chance.sizes(0) };
        match transform.random.as_deref() {
            None => {}
            Some(RandomResize::ShorterSide { min, max, resampling }) => {
                steps.shorter_side_by_chance([*min, *max], resampling)?;
            }
            Some(RandomResize::Part { areas, change, attempts, resampling }) => {
                let [_, height, width] = image.shape;
                let part = PartRule { areas: *areas, change: *change };
                match (0..*attempts).find_map(|attempt| part.draw([height, width], attempt, chance)) {
                    Some(part) => {
                        steps.cut(part);
                        steps.resize(resampling, [transform.crop; 2], Word::Random)?;
                    }
                    None => steps.shorter_side(transform.crop, resampling)?,
                }
            }
        }
        if let Some(Resize { size, resampling }) = transform.resize.as_deref() {
            steps.resize(resampling, *size, Word::Fixed)?;
        }
        let shape = steps.shape;
        Ok(Image { shape, pixels: Pixels::Interleaved(&self.pixels) })
    }
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub top: usize,
    pub left: usize,
    /// Rows and columns.
    pub size: [usize; 2],
}

/// How parts of images are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartRule {
    /// The smallest and the largest part of the image's area.
    pub areas: [f32; 2],
    /// The smaller bound of the factor for the sides; the larger is its inverse.
    pub change: f32,
}

impl PartRule {
    /// The part of an image of `height` and `width` that an attempt draws, if it fits into the image.
    pub fn draw(&self, [height, width]: [usize; 2], attempt: u32, chance: &Chance) -> Option<Cut> {
        let [area, change, turn, top] = chance.sizes(1 + 2 * attempt);
        let area = between(area, self.areas) * (height * width) as f32;
        let change = between(change, [self.change, 1.0 / self.change]);
        let sides = [area.sqrt() * change, area.sqrt() / change].map(|side| side as usize);
        let turned = between(turn, [0.0, 1.0]) < 0.5;
        let [rows, columns] = if turned { [sides[1], sides[0]] } else { sides };
        // Of a small image, a part can have no pixel at all.
        let fits = (1..=height).contains(&rows) && (1..=width).contains(&columns);
        let [left, ..] = chance.sizes(2 + 2 * attempt);
        fits.then(|| Cut {
            top: below(top, (height - rows) as u64 + 1) as usize,
            left: below(left, (width - columns) as u64 + 1) as usize,
            size: [rows, columns],
        })
    }
}

/// A number between two, in steps of a thousandth.
pub(super) fn between(word: u32, [min, max]: [f32; 2]) -> f32 {
    let count = ((max - min) * 1000.0 + 1.0) as u32;
    (below(word, u64::from(count.max(1))) as f32 + min * 1000.0) / 1000.0
}

/// An image on its way through changes.
struct Steps<'a> {
    /// The image before the first step, unless it lies in the memory already.
    source: Option<&'a [u8]>,
    memory: &'a mut Changed,
    shape: [usize; 3],
    words: [u32; 4],
}

impl Steps<'_> {
    fn step(&mut self, step: impl FnOnce(&[u8], [usize; 3], &mut Vec<u8>), size: [usize; 2]) {
        let Changed { pixels, next } = &mut *self.memory;
        step(self.source.take().unwrap_or(pixels.as_slice()), self.shape, next);
        std::mem::swap(pixels, next);
        self.shape = [self.shape[0], size[0], size[1]];
    }

    fn cut(&mut self, Cut { top, left, size }: Cut) {
        let cut = |pixels: &[u8], [channels, _, width]: [usize; 3], out: &mut Vec<u8>| {
            out.clear();
            for row in pixels.chunks(width * channels).skip(top).take(size[0]) {
                out.extend_from_slice(&row[left * channels..][..size[1] * channels]);
            }
        };
        self.step(cut, size);
    }

    fn shorter_side_by_chance(
        &mut self,
        [min, max]: [Option<usize>; 2],
        resampling: &Resampling,
    ) -> Result<(), String> {
        let [_, height, width] = self.shape;
        let (min, max) = (min.unwrap_or(height.min(width)), max.unwrap_or(height.max(width)));
        if min > max {
            return Err(format!(
                "is {height} x {width} (height x width), but random_resize_param wants a shorter side between {min} and \
                 {max}"
            ));
        }
        let side = min + below(self.words[Word::Side as usize], (max - min) as u64 + 1) as usize;
        self.shorter_side(side, resampling)
    }

    /// Gives the shorter side a length. Arithmetic is Caffe's, in single precision.
    fn shorter_side(&mut self, side: usize, resampling: &Resampling) -> Result<(), String> {
        let [height, width] = [self.shape[1], self.shape[2]].map(|extent| extent as f32);
        let longer = |ratio: f32| (ratio * side as f32) as usize;
        let size =
            if height < width { [side, longer(width / height)] } else { [longer(height / width), side] };
        self.resize(resampling, size, Word::Random)
    }

    fn resize(&mut self, how: &Resampling, size: [usize; 2], word: Word) -> Result<(), String> {
        let [channels, height, width] = self.shape;
        let (inside, whole) = (how.inside([height, width], size), how.whole([height, width], size));
        let too_large =
            [inside, whole].iter().any(|[rows, columns]| values_of([channels, *rows, *columns]).is_none());
        if too_large {
            let [rows, columns] = inside;
            return Err(format!(
                "is {}, of which resizing would make {rows} x {columns} (height x width), nothing or too much",
                extents(self.shape)
            ));
        }
        let count = how.interpolations.len() as u64;
        let by = how.interpolations.get(below(self.words[word as usize], count) as usize);
        let by = by.copied().unwrap_or(Interpolation::Linear);
        let resize = |pixels: &[u8], _, out: &mut Vec<u8>| {
            interpolate(by, pixels, channels, ([height, width], inside), out);
        };
        self.step(resize, inside);
        if how.fit == Fit::LargeAndPad && inside != whole {
            let around = |pixels: &[u8], _, out: &mut Vec<u8>| {
                border(&how.padding, pixels, channels, (inside, whole), out);
            };
            self.step(around, whole);
        }
        Ok(())
    }
}

/// Channels side by side become pixels.
fn interleave(planes: &[u8], channels: usize, out: &mut Vec<u8>) {
    out.clear();
    out.resize(planes.len(), 0);
    for (channel, plane) in planes.chunks(planes.len() / channels).enumerate() {
        out.iter_mut().skip(channel).step_by(channels).zip(plane).for_each(|(out, value)| *out = *value);
    }
}
