//! A blob's array as a row of words: its images one after the other, whatever lies between them in memory.

use std::ops::Range;

use crate::layout::Arrangement;
use crate::memory::Span;

/// An array in memory and how it lies there. Words are counted without what lies between images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    /// From the first word to the last, with what lies between images.
    pub span: Span,
    /// How it lies there.
    pub lies: Arrangement,
}

impl Array {
    /// Words.
    pub fn len(&self) -> usize {
        self.lies.len()
    }

    /// Some words; of one image, if something lies between images.
    pub fn part(&self, words: Range<usize>) -> Span {
        let (start, len) = (self.lies.word(words.start), words.len());
        assert!(
            len == 0 || self.lies.word(words.end - 1) == start + len - 1,
            "words of images that lie apart"
        );
        self.span.part(start..start + len)
    }

    /// Most words that lie in one piece wherever an image begins.
    fn piece(&self) -> usize {
        if self.lies.gap == 0 { usize::MAX } else { self.lies.image_len() }
    }
}

/// Cuts some words so that each run of them lies in one piece in every one of several arrays of one layout.
pub(super) fn runs<'a, I: IntoIterator<Item = &'a Array>>(
    words: Range<usize>,
    arrays: I,
) -> impl Iterator<Item = Range<usize>> + use<'a, I> {
    let piece = arrays.into_iter().map(Array::piece).min().unwrap_or(usize::MAX);
    let mut start = words.start;
    std::iter::from_fn(move || {
        let run = start..(start / piece + 1).saturating_mul(piece).min(words.end);
        start = run.end;
        (!run.is_empty()).then_some(run)
    })
}

#[cfg(test)]
mod tests {
    use quadrille_core::shape::Shape;
    use quadrille_core::task::LaneId;

    use super::*;
    use crate::isa::Precision;
    use crate::layout::Layout;
    use crate::memory::MemoryMap;

    #[test]
    fn runs_end_where_an_image_does_if_images_lie_apart() {
        let layout = Layout { block: 8, precision: Precision::F32 };
        // 3 images of 48 words.
        let dense = Arrangement::new(&Shape::new([3, 16, 1, 3]), layout);
        let apart = Arrangement { gap: 100, ..dense };
        let mut map = MemoryMap::default();
        let [dense, apart] =
            [dense, apart].map(|lies| Array { span: map.workspace(LaneId(0), 0, lies.extent()), lies });
        let cut = |words, arrays: [&Array; 2]| {
            runs(words, arrays).map(|run| (run.start, run.end)).collect::<Vec<_>>()
        };
        assert_eq!(cut(10..130, [&dense, &dense]), [(10, 130)]);
        assert_eq!(cut(10..130, [&dense, &apart]), [(10, 48), (48, 96), (96, 130)]);
        assert_eq!(cut(48..90, [&apart, &apart]), [(48, 90)]);
        assert_eq!(cut(48..48, [&apart, &dense]), []);
        assert_eq!((dense.len(), apart.len()), (144, 144));
        assert_eq!((dense.span.len(), apart.span.len()), (144, 344));
        assert_eq!(apart.part(50..60), apart.span.part(150..160));
        assert_eq!(dense.part(50..60), dense.span.part(50..60));
    }

    #[test]
    #[should_panic(expected = "images that lie apart")]
    fn no_part_goes_from_one_image_to_the_next_if_they_lie_apart() {
        let lies = Arrangement { gap: 4, ..Arrangement::new(&Shape::new([2, 5]), Layout::PLAIN) };
        let span = MemoryMap::default().workspace(LaneId(0), 0, lies.extent());
        Array { span, lies }.part(4..6);
    }
}
