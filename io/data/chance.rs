//! The random numbers of one draw, from which follows all that happens to its sample by chance.

use quadrille_core::layer::Transform;
use quadrille_core::rng::{Purpose, Stream};

use super::transform::Part;

/// The random numbers of one draw: a pure function of the stream and the number of the draw, whoever asks, in whatever
/// order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance {
    stream: Stream,
    draw: u64,
    /// Where to cut out (two), whether to mirror, and which window.
    words: [u32; 4],
    training: bool,
}

impl Chance {
    /// Those of draw `k`.
    pub fn new(stream: Stream, k: u64, training: bool) -> Self {
        Self { stream, draw: k, words: stream.block(k), training }
    }

    /// Which part is taken of an image with so much room (rows, columns): anywhere to train, the middle to test; mirrored
    /// by chance in both, as in Caffe.
    pub fn part(&self, transform: &Transform, room: [usize; 2]) -> Part {
        let anywhere = |word: u32, room: usize| below(word, room as u64 + 1) as usize;
        let [top, left] = match self.training {
            true => [anywhere(self.words[0], room[0]), anywhere(self.words[1], room[1])],
            false => room.map(|r| r / 2),
        };
        Part { top, left, mirrored: self.mirrors(transform) }
    }

    pub fn mirrors(&self, transform: &Transform) -> bool {
        transform.mirror && self.words[2] & 1 == 1
    }

    /// The number by which a window is drawn.
    pub fn window(&self) -> u32 {
        self.words[3]
    }

    /// Numbers for sizes by chance; each `block` (below 2^28) has others.
    pub fn sizes(&self, block: u32) -> [u32; 4] {
        self.stream.for_purpose(Purpose::Resize(block)).block(self.draw)
    }
}

/// A number below `count` (at least 1, at most 2^32) by 32 random bits.
pub(super) fn below(word: u32, count: u64) -> u64 {
    (u64::from(word) * count) >> 32
}
