//! ∇A over the tiles of forward: their gradients are transformed by A, multiplied, and transformed to gradients of inputs by B,
//! which are added up where tiles overlap. Where there is less padding than forward takes away, the top has fewer tiles than the
//! bottom, over whose tiles ∇A goes otherwise: 4 instead of 9 in the second convolution of LeNet (8×8 from 12×12 pixels).

use quadrille_core::layer::Convolution;

use super::MOST;
use crate::kernel::winograd::Filter;

/// The tiles of an image and what they see of its bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    /// How many: they stay in one block.
    pub tiles: usize,
    /// Rows and columns of the bottom that they see, with padding.
    pub seen: [usize; 2],
    /// Rows and columns of padding before it.
    pub pad: [usize; 2],
}

impl Overlap {
    /// Of a convolution of stride 1, if there are a quarter fewer of them than of the bottom, and at most `most`.
    pub fn new(
        layer: &Convolution,
        filter: Filter,
        [bottom, top]: [[usize; 2]; 2],
        most: usize,
    ) -> Option<Self> {
        let along = |extents: [usize; 2]| extents.map(|extent| extent.div_ceil(filter.outputs()));
        let count = |extents: [usize; 2]| along(extents).iter().product::<usize>();
        let seen = along(top).map(|tiles| tiles * filter.outputs() + filter.side() - 1);
        let pays = 4 * count(top) <= 3 * count(bottom) && count(top) <= most.min(MOST);
        pays.then_some(Self { tiles: count(top), seen, pad: layer.pad })
    }
}
