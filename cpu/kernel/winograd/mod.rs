//! Minimal filtering of squares, after Winograd: the outputs of a tile of pixels from fewer products than pixels times taps.
//!
//! `Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A` for a tile d of inputs, a kernel g and a tile Y of outputs (Lavin and Gray, 2015); the
//! gradient of g is that of the same bilinear form, `Gᵀ [Σ (Bᵀ d B) ⊙ (A dY Aᵀ)] G`, and that of d is
//! `B [(G g Gᵀ) ⊙ (A dY Aᵀ)] Bᵀ`, added up where tiles of inputs overlap, or Y of a kernel that is turned round. The matrices are those of one axis
//! ([`axis`]): 3×3 kernels make 2×2 outputs from 16 products instead of 36, or 4×4 from 49 instead of 144, and 5×5 kernels 4×4
//! outputs from 121 instead of 400.
//!
//! What is multiplied may be rounded to bf16 ([`Store`]), as may be the planes; the transforms are f32 in both directions,
//! and the products are summed up in f32. All constants are powers of two, so small integers stay exact, and an output's
//! error is at most that of a sum of products of the same length times what the matrices make of magnitudes.

mod axis;
mod entry;
mod overlap;
mod store;
mod table;
mod weights;

use self::axis::{Axis, F2x3, F4x3, F4x5};
pub(crate) use self::entry::{EntryInputs, EntryOutputs, MOST_SOURCES};
pub(crate) use self::overlap::InputsBack;
pub(crate) use self::store::Store;
use self::store::{Put, Together, Transform, transform};
use self::table::{Line, Table};
pub(crate) use self::weights::{WeightWords, Weights, WeightsBack};
use super::simd::Simd;
use super::stored::{OnStored, Origin, Stored};
use crate::isa::Isa;
use std::marker::PhantomData;

/// How kernels are filtered: as F(2×2, 3×3), and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// 3×3 taps, tiles of 2×2 outputs.
    F2x3,
    /// 3×3 taps, tiles of 4×4 outputs.
    F4x3,
    /// 5×5 taps, tiles of 4×4 outputs.
    F4x5,
}

impl Filter {
    /// Rows and columns of the kernel.
    pub const fn side(self) -> usize {
        match self {
            Self::F2x3 | Self::F4x3 => 3,
            Self::F4x5 => 5,
        }
    }

    /// Taps of the kernel.
    pub const fn taps(self) -> usize {
        self.side() * self.side()
    }

    /// Rows and columns of a tile's outputs.
    pub const fn outputs(self) -> usize {
        match self {
            Self::F2x3 => 2,
            Self::F4x3 | Self::F4x5 => 4,
        }
    }

    /// Products of a tile.
    pub const fn points(self) -> usize {
        self.points_of_axis() * self.points_of_axis()
    }

    /// Rows and columns of what a tile sees.
    pub const fn seen(self) -> usize {
        self.outputs() + self.side() - 1
    }

    /// Products of a row of a tile.
    pub const fn points_of_axis(self) -> usize {
        match self {
            Self::F2x3 => 4,
            Self::F4x3 => 7,
            Self::F4x5 => 11,
        }
    }

    /// Whether two squares are worth transforming side by side.
    pub const fn goes_in_pairs(self) -> bool {
        self.points_of_axis() <= MOST_IN_PAIRS
    }

    /// Tiles of a plane.
    pub const fn tiles(self, [rows, columns]: [usize; 2]) -> usize {
        rows.div_ceil(self.outputs()) * columns.div_ceil(self.outputs())
    }

    /// Elements that whole kernels of so many elements are transformed to.
    pub const fn transformed(self, elements: usize) -> usize {
        elements / self.taps() * self.points()
    }
}

/// A square of pixels of a plane; what lies outside the plane is 0.
struct Square<'a> {
    plane: &'a [f32],
    /// Rows and columns of the plane.
    extents: [usize; 2],
    /// First row and column.
    first: [isize; 2],
    /// Whether all of it lies inside: most do, and that asks nothing of single pixels.
    inside: bool,
}

impl<'a> Square<'a> {
    /// That of a tile whose outputs begin there, so far behind the first pixel of the square.
    fn new(plane: &'a [f32], extents: [usize; 2], tile: [usize; 2], pad: [usize; 2], side: usize) -> Self {
        let first = [0, 1].map(|a| tile[a] as isize - pad[a] as isize);
        let inside = (0..2).all(|a| first[a] >= 0 && first[a] as usize + side <= extents[a]);
        Self { plane, extents, first, inside }
    }

    /// One row of `N` pixels.
    ///
    /// # Safety
    /// The CPU has the instructions of `S` and of `E`; the plane has as many pixels as `extents` say.
    #[inline(always)]
    unsafe fn row<S: Simd, E: Stored<S>, const N: usize>(&self, row: usize) -> [S::Vector; N] {
        let ([height, width], [first_row, first_column]) = (self.extents, self.first);
        let r = first_row + row as isize;
        // SAFETY: by contract, inside of the plane.
        unsafe {
            let load = |r: usize, c: usize| E::load(self.plane.as_ptr().add((r * width + c) * E::LEN));
            if self.inside {
                let mut values = Line::<_, N>::new();
                for c in 0..N {
                    values.write(c, load(r as usize, first_column as usize + c));
                }
                return values.all();
            }
            let mut values = [S::zero(); N];
            let Some(r) = usize::try_from(r).ok().filter(|r| *r < height) else { return values };
            for (c, value) in values.iter_mut().enumerate() {
                let c = usize::try_from(first_column + c as isize).ok().filter(|c| *c < width);
                if let Some(c) = c {
                    *value = load(r, c);
                }
            }
            values
        }
    }
}

/// Points of an axis up to which two squares are transformed side by side: 49 or 121 points of each would go through memory.
const MOST_IN_PAIRS: usize = 4;

/// What is transformed of the source of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Squares {
    /// The inputs that the tile sees, by `Bᵀ`.
    Inputs,
    /// Its own pixels, which are gradients of outputs, by `A`.
    Outputs,
}

/// Transforms sources of tiles, `Bᵀ d B` or `A dY Aᵀ`, a block of channels of each pixel.
pub(crate) struct Sources<'a> {
    /// How kernels are filtered.
    pub filter: Filter,
    /// What is transformed.
    pub squares: Squares,
    /// A plane: pixels of a block of channels, row by row.
    pub plane: &'a [f32],
    /// A second plane, whose values are stored beside those of the first ([`Store::Channels`]).
    pub beside: Option<&'a [f32]>,
    /// Rows and columns of the plane.
    pub extents: [usize; 2],
    /// First row and column of each tile's outputs.
    pub tiles: &'a [[usize; 2]],
    /// How far before them a tile's square begins; what lies outside the plane is 0.
    pub pad: [usize; 2],
    /// Where the values go: point by point `point` apart, a row of tiles each.
    pub to: &'a mut [f32],
    /// Distance of points.
    pub point: usize,
    /// Which tile of the row is the first.
    pub first: usize,
}

impl Sources<'_> {
    /// Transforms on a tier.
    pub fn run(self, isa: Isa, store: Store) {
        match self.squares {
            Squares::Inputs => self.squared::<true>(isa, store),
            Squares::Outputs => self.squared::<false>(isa, store),
        }
    }

    fn squared<const INPUTS: bool>(self, isa: Isa, store: Store) {
        match self.filter {
            Filter::F2x3 => transform(isa, store, By::<INPUTS, F2x3, 4, 2, 3, 4>::new(self)),
            Filter::F4x3 => transform(isa, store, By::<INPUTS, F4x3, 6, 4, 3, 7>::new(self)),
            Filter::F4x5 => transform(isa, store, By::<INPUTS, F4x5, 8, 4, 5, 11>::new(self)),
        }
    }
}

/// Squares of one kind that are filtered in one way. Each has a function of its own: compiled into one, the 49 points of F(4×4, 3×3)
/// were 5 % slower.
struct By<'a, const INPUTS: bool, A, const D: usize, const Y: usize, const G: usize, const N: usize> {
    sources: Sources<'a>,
    axis: PhantomData<A>,
}

/// Transforms the rows of a square. A macro, as `put_all`.
macro_rules! half {
    ($square:ident, $rows:ident, $half:expr, $side:ident, <$registers:ident, $stored:ident>) => {
        for r in 0..$side {
            $rows.write(r, $half($square.row::<$registers, $stored, $side>(r)));
        }
    };
}

/// Stores the points of all tiles: `half` transforms `side` pixels of a row, and then what the rows have in a column. Two tiles at a
/// time, or that of a second plane, where they are stored together. A macro, since in a closure registers would go through memory.
macro_rules! put_all {
    ($sources:expr, $half:expr, $side:ident, $points:ident, <$registers:ident, $stored:ident, $put:ident>) => {
        let Sources { plane, beside, extents, tiles, pad, to, point, first, .. } = $sources;
        let to = to.as_mut_ptr();
        let mut t = 0;
        while t < tiles.len() {
            let mut own = Table::new();
            let square = Square::new(plane, extents, tiles[t], pad, $side);
            half!(square, own, $half, $side, <$registers, $stored>);
            let next = match $put::TOGETHER {
                Together::Planes if $points <= MOST_IN_PAIRS => beside.map(|beside| (beside, tiles[t])),
                Together::Tiles if $points <= MOST_IN_PAIRS && (first + t).is_multiple_of(2) => {
                    tiles.get(t + 1).map(|next| (plane, *next))
                }
                _ => None,
            };
            if let Some((plane, tile)) = next {
                let mut other = Table::new();
                let square = Square::new(plane, extents, tile, pad, $side);
                half!(square, other, $half, $side, <$registers, $stored>);
                for c in 0..$points {
                    let values = $half(own.column(c)).into_iter().zip($half(other.column(c)));
                    for (r, (value, next)) in values.enumerate() {
                        $put::put_pair(to.add((r * $points + c) * point), first + t, [value, next]);
                    }
                }
            } else {
                for c in 0..$points {
                    for (r, value) in $half(own.column(c)).into_iter().enumerate() {
                        $put::put(to.add((r * $points + c) * point), first + t, value);
                    }
                }
            }
            t += 1 + usize::from($put::TOGETHER == Together::Tiles && next.is_some());
        }
    };
}

impl<'a, const INPUTS: bool, A, const D: usize, const Y: usize, const G: usize, const N: usize>
    By<'a, INPUTS, A, D, Y, G, N>
{
    fn new(sources: Sources<'a>) -> Self {
        Self { sources, axis: PhantomData }
    }
}

impl<const INPUTS: bool, A, const D: usize, const Y: usize, const G: usize, const N: usize> Transform
    for By<'_, INPUTS, A, D, Y, G, N>
where
    A: Axis<D, Y, G, N>,
{
    #[inline(always)]
    unsafe fn transform<S: Simd, E: Stored<S>, P: Put<S>>(self) {
        let sources = self.sources;
        let [height, width] = sources.extents;
        let planes = [Some(sources.plane), sources.beside].into_iter().flatten();
        assert!(planes.map(<[f32]>::len).all(|len| len >= height * width * E::LEN), "a plane is too short");
        let second_half = if sources.beside.is_some() { S::LANES / 2 } else { 0 };
        let room = (N * N - 1) * sources.point + P::room(sources.first + sources.tiles.len()) + second_half;
        assert!(sources.to.len() >= room, "no room for all tiles");
        // SAFETY: the CPU has the instruction set by contract; pixels are read inside the plane and values written where
        // there is room, as asserted.
        unsafe {
            if INPUTS {
                put_all!(sources, A::inputs::<S>, D, N, <S, E, P>);
            } else {
                put_all!(sources, A::gradients::<S>, Y, N, <S, E, P>);
            }
        }
    }
}

/// Transforms products back: for each tile, a block of channels of each of its pixels.
pub(crate) struct Outputs<'a> {
    /// How kernels are filtered.
    pub filter: Filter,
    /// The products: point by point `point` apart, tile by tile a vector apart.
    pub products: &'a [f32],
    /// Distance of points.
    pub point: usize,
    /// First row and column of each tile's outputs; what lies outside the plane is left out.
    pub tiles: &'a [[usize; 2]],
    /// Added to every pixel; a vector.
    pub bias: Option<&'a [f32]>,
    /// Whether a ReLU goes over the pixels.
    pub relu: bool,
    /// Whether they are added to what the plane holds.
    pub adds: bool,
    /// If the backward of a ReLU goes over them, where its values begin, which lie as the plane does and are all read.
    pub sign: Option<Origin>,
    /// Where the plane begins, all of which is read and written: pixels of a block of channels, row by row.
    pub plane: Origin,
    /// Rows and columns of the plane.
    pub extents: [usize; 2],
}

impl Outputs<'_> {
    /// # Safety
    /// As for [`OnStored::run`]; products and bias are as long as the tiles ask for.
    #[inline(always)]
    unsafe fn along<S, E, A, const D: usize, const Y: usize, const G: usize, const N: usize>(self)
    where
        S: Simd,
        E: Stored<S>,
        A: Axis<D, Y, G, N>,
    {
        let Self { products, point, tiles, bias, relu, adds, extents: [height, width], .. } = self;
        let (plane, sign) = (self.plane.first(), self.sign.map(Origin::first));
        for (t, [row, first_column]) in tiles.iter().copied().enumerate() {
            // SAFETY: by contract; pixels outside of the plane are left out.
            unsafe {
                let bias = bias.map_or(S::zero(), |b| S::load(b.as_ptr()));
                let mut rows = Table::<_, N, Y>::new();
                for r in 0..N {
                    let mut values = Line::<_, N>::new();
                    for c in 0..N {
                        values.write(c, S::load(products.as_ptr().add((r * N + c) * point + t * S::LANES)));
                    }
                    rows.write(r, A::outputs::<S>(values.all()));
                }
                for c in 0..Y.min(width - first_column) {
                    let pixels = A::outputs::<S>(rows.column(c));
                    for (r, value) in pixels.into_iter().enumerate().take(height - row) {
                        let pixel = (row + r) * width + first_column + c;
                        let place = plane.add(pixel * E::LEN);
                        let value = S::add(value, if adds { E::load(place) } else { bias });
                        let value = if relu { S::rectified(value) } else { value };
                        let passed = sign.map(|sign| S::passed(value, E::load(sign.add(pixel * E::LEN))));
                        E::store(place, passed.unwrap_or(value));
                    }
                }
            }
        }
    }
}

impl OnStored for Outputs<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let room = (self.filter.points() - 1) * self.point + self.tiles.len() * S::LANES;
        assert!(self.products.len() >= room, "too few products");
        assert!(self.bias.is_none_or(|b| b.len() >= S::LANES), "the bias is too short");
        // SAFETY: the CPU has the instruction set, the plane is the caller's own, by contract; products and bias are long
        // enough, as asserted.
        unsafe {
            match self.filter {
                Filter::F2x3 => self.along::<S, E, F2x3, 4, 2, 3, 4>(),
                Filter::F4x3 => self.along::<S, E, F4x3, 6, 4, 3, 7>(),
                Filter::F4x5 => self.along::<S, E, F4x5, 8, 4, 5, 11>(),
            }
        }
    }
}
