//! The source of a ∇W in words of two pixels, copied once in a stage of its own: where several parts of the tiles see the same
//! images, each would otherwise copy them into strips of its own.

use std::ops::Range;

use crate::kernel::strip::Strip;
use crate::layer::Grain;
use crate::layout::Arrangement;
use crate::machine::Machine;
use crate::memory::Span;

/// Copies of all images: image by image, group by group, each a strip of all rows.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    strip: Strip,
    groups: usize,
    images: usize,
}

impl Copies {
    /// `strip` is that of a group of an image.
    pub fn new(strip: Strip, groups: usize, images: usize) -> Self {
        Self { strip, groups, images }
    }

    /// How a group of an image lies.
    pub fn strip(&self) -> &Strip {
        &self.strip
    }

    /// Elements from an image to the next.
    pub fn image_len(&self) -> usize {
        self.groups * self.strip.len()
    }

    /// Elements of all copies.
    pub fn len(&self) -> usize {
        self.images * self.image_len()
    }

    /// Where a group of an image lies in them.
    pub fn place(&self, image: usize, group: usize) -> Range<usize> {
        let start = image * self.image_len() + group * self.strip.len();
        start..start + self.strip.len()
    }

    fn planes(&self) -> usize {
        self.images * self.groups * self.strip.planes
    }

    /// Grains that copy.
    pub fn grains(&self, machine: &Machine) -> usize {
        self.planes().min(machine.task_grains)
    }

    /// Copies the grain's planes of `source`, which lies so.
    pub fn fill(&self, grain: &Grain<'_>, (source, lies): (Span, &Arrangement), to: Span) {
        let one = Strip { planes: 1, ..self.strip.clone() };
        let (plane, copy) = (lies.plane_len(), one.len());
        for i in grain.share(self.planes()) {
            let start = i / (self.groups * self.strip.planes) * lies.image_stride()
                + i % (self.groups * self.strip.planes) * plane;
            // SAFETY: the source is only read in this task; grains have planes of their own.
            let (from, to) = unsafe {
                (
                    grain.memory.read(source.part(start..start + plane)),
                    grain.memory.write(to.part(i * copy..(i + 1) * copy)),
                )
            };
            one.fill(from, 0, one.rows, to);
        }
    }
}
