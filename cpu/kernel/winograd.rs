//! Winograd's minimal filtering F(2×2, 3×3): four outputs of a 3×3 kernel from 16 products instead of 36.
//!
//! `Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A` for a tile d of 4×4 inputs, a kernel g and 2×2 outputs Y, with
//!
//! ```text
//! Bᵀ = 1  0 -1  0     G = 1   0   0     Aᵀ = 1 1  1  0
//!      0  1  1  0         ½   ½   ½          0 1 -1 -1
//!      0 -1  1  0         ½  -½   ½
//!      0  1  0 -1         0   0   1
//! ```
//!
//! The gradient of g is that of the same bilinear form: `Gᵀ [Σ (Bᵀ d B) ⊙ (A dY Aᵀ)] G`.
//!
//! (Lavin and Gray, 2015). What is multiplied may be rounded to bf16 ([`Store`]), as may be the planes; the transforms are
//! f32 in both directions, and the products are summed up in f32. All constants are powers of two, so small integers stay exact, and an output's error is at
//! most 81 times that of a sum of products of the same length: 2 · 2 per input, 1.5 · 1.5 per weight, 3 · 3 per output.

use std::marker::PhantomData;

use super::simd::Simd;
use super::stored::{AsBf16, AsF32, OnStored, Stored};
use super::vectorised::{Explicit, with_vectors};
use super::words::{Narrow, Narrowing, with_words};
use crate::isa::Isa;

/// Points at which polynomials are multiplied: products of a tile.
pub(crate) const POINTS: usize = 16;
/// Rows and columns of a tile's inputs.
pub(crate) const INPUTS: usize = 4;
/// Rows and columns of a tile's outputs.
pub(crate) const OUTPUTS: usize = 2;
/// Taps of the kernel.
pub(crate) const TAPS: usize = 9;

/// `Bᵀ` on four values.
#[inline(always)]
unsafe fn input<S: Simd>(d: [S::Vector; 4]) -> [S::Vector; 4] {
    // SAFETY: the CPU has the instruction set by contract of the caller.
    unsafe { [S::subtract(d[0], d[2]), S::add(d[1], d[2]), S::subtract(d[2], d[1]), S::subtract(d[1], d[3])] }
}

/// `G` on three values.
#[inline(always)]
unsafe fn weight<S: Simd>(g: [S::Vector; 3]) -> [S::Vector; 4] {
    // SAFETY: as above.
    unsafe {
        let half = S::splat(0.5);
        let (outer, middle) = (S::multiply(half, S::add(g[0], g[2])), S::multiply(half, g[1]));
        [g[0], S::add(outer, middle), S::subtract(outer, middle), g[2]]
    }
}

/// `A` on two values.
#[inline(always)]
unsafe fn gradient<S: Simd>(d: [S::Vector; 2]) -> [S::Vector; 4] {
    // SAFETY: as above.
    unsafe { [d[0], S::add(d[0], d[1]), S::subtract(d[0], d[1]), S::subtract(S::zero(), d[1])] }
}

/// `Gᵀ` on four values.
#[inline(always)]
unsafe fn weight_back<S: Simd>(u: [S::Vector; 4]) -> [S::Vector; 3] {
    // SAFETY: as above.
    unsafe {
        let half = S::splat(0.5);
        let (sum, difference) =
            (S::multiply(half, S::add(u[1], u[2])), S::multiply(half, S::subtract(u[1], u[2])));
        [S::add(u[0], sum), difference, S::add(sum, u[3])]
    }
}

/// Rows for columns.
#[inline(always)]
fn transposed<V: Copy>(rows: [[V; 4]; 4]) -> [[V; 4]; 4] {
    let [a, b, c, d] = rows;
    [[a[0], b[0], c[0], d[0]], [a[1], b[1], c[1], d[1]], [a[2], b[2], c[2], d[2]], [a[3], b[3], c[3], d[3]]]
}

/// `Aᵀ` on four values.
#[inline(always)]
unsafe fn output<S: Simd>(m: [S::Vector; 4]) -> [S::Vector; 2] {
    // SAFETY: as above.
    unsafe { [S::add(m[0], S::add(m[1], m[2])), S::subtract(S::subtract(m[1], m[2]), m[3])] }
}

/// How transformed values are stored, tile by tile in a row: in bf16 if the planes that they come from are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// A vector of f32 for each tile.
    Numbers,
    /// In bf16: half a vector of words for each tile, in the half of a vector where the row begins.
    Channels,
    /// In bf16: a vector of words for each pair of tiles. The second of a pair must come after the first.
    Tiles,
}

/// One of [`Store`], known when kernels are compiled.
trait Put<S: Simd> {
    /// Elements up to the end of tile `count - 1` of a row.
    fn room(count: usize) -> usize;
    /// Stores the value of a tile.
    ///
    /// # Safety
    /// The CPU has the instructions of `S` and of `Self`; the row has room.
    unsafe fn put(row: *mut f32, tile: usize, value: S::Vector);
}

struct Numbers;
struct Channels<N>(PhantomData<N>);
struct Tiles<N>(PhantomData<N>);

impl<S: Simd> Put<S> for Numbers {
    fn room(count: usize) -> usize {
        count * S::LANES
    }
    #[inline(always)]
    unsafe fn put(row: *mut f32, tile: usize, value: S::Vector) {
        // SAFETY: by contract.
        unsafe { S::store(row.add(tile * S::LANES), value) }
    }
}

impl<N: Narrow> Put<N::Registers> for Channels<N> {
    fn room(count: usize) -> usize {
        count * N::Registers::LANES - N::Registers::LANES / 2
    }
    #[inline(always)]
    unsafe fn put(row: *mut f32, tile: usize, value: <N::Registers as Simd>::Vector) {
        // SAFETY: by contract.
        unsafe { N::narrow(value, row.add(tile * N::Registers::LANES)) }
    }
}

impl<N: Narrow> Put<N::Registers> for Tiles<N> {
    fn room(count: usize) -> usize {
        count.div_ceil(2) * N::Registers::LANES
    }
    #[inline(always)]
    unsafe fn put(row: *mut f32, tile: usize, value: <N::Registers as Simd>::Vector) {
        // SAFETY: by contract.
        unsafe {
            let to = row.add(tile / 2 * N::Registers::LANES);
            if tile.is_multiple_of(2) { N::first(value, to) } else { N::second(value, to) }
        }
    }
}

/// What is transformed and stored in one of several ways.
trait Transform {
    /// # Safety
    /// The CPU has the instructions of `S`, of `E` and of `P`.
    unsafe fn transform<S: Simd, E: Stored<S>, P: Put<S>>(self);
}

/// Transforms planes on a tier and stores what comes out, both in bf16 or both in f32.
fn transform(isa: Isa, store: Store, work: impl Transform) {
    struct Plain<T>(T);
    impl<T: Transform> Explicit for Plain<T> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: by contract.
            unsafe { self.0.transform::<S, AsF32, Numbers>() }
        }
    }
    struct InChannels<T>(T);
    impl<T: Transform> Narrowing for InChannels<T> {
        #[inline(always)]
        unsafe fn run<N: Narrow>(self) {
            // SAFETY: by contract.
            unsafe { self.0.transform::<N::Registers, AsBf16<N>, Channels<N>>() }
        }
    }
    struct InTiles<T>(T);
    impl<T: Transform> Narrowing for InTiles<T> {
        #[inline(always)]
        unsafe fn run<N: Narrow>(self) {
            // SAFETY: by contract.
            unsafe { self.0.transform::<N::Registers, AsBf16<N>, Tiles<N>>() }
        }
    }
    match store {
        Store::Numbers => with_vectors(isa, Plain(work)),
        Store::Channels => with_words(InChannels(work)),
        Store::Tiles => with_words(InTiles(work)),
    }
}

/// `N` × `N` pixels of a plane from a row and a column on; what lies outside is 0.
///
/// # Safety
/// The CPU has the instructions of `S` and of `E`; the plane has as many pixels as `extents` say.
#[inline(always)]
unsafe fn pixels<S: Simd, E: Stored<S>, const N: usize>(
    plane: &[f32],
    [height, width]: [usize; 2],
    [row, column]: [isize; 2],
) -> [[S::Vector; N]; N] {
    let inside = |at: isize, extent: usize| at >= 0 && at as usize + N <= extent;
    // SAFETY: by contract, inside of the plane.
    let load = |r: usize, c: usize| unsafe { E::load(plane.as_ptr().add((r * width + c) * E::LEN)) };
    // SAFETY: by contract.
    let mut values = [[unsafe { S::zero() }; N]; N];
    // Most tiles are whole, which asks nothing of single pixels.
    if inside(row, height) && inside(column, width) {
        for (r, values) in values.iter_mut().enumerate() {
            for (c, value) in values.iter_mut().enumerate() {
                *value = load(row as usize + r, column as usize + c);
            }
        }
        return values;
    }
    for (r, values) in values.iter_mut().enumerate() {
        let Some(r) = usize::try_from(row + r as isize).ok().filter(|r| *r < height) else { continue };
        for (c, value) in values.iter_mut().enumerate() {
            let c = usize::try_from(column + c as isize).ok().filter(|c| *c < width);
            if let Some(c) = c {
                *value = load(r, c);
            }
        }
    }
    values
}

/// Transforms the inputs of tiles: for each, a block of channels of 4×4 pixels.
pub(crate) struct Inputs<'a> {
    /// A plane: pixels of a block of channels, row by row.
    pub plane: &'a [f32],
    /// Rows and columns of the plane.
    pub extents: [usize; 2],
    /// First row and column of each tile's inputs; what lies outside the plane is 0.
    pub tiles: &'a [[isize; 2]],
    /// Where the values go: point by point `point` apart, a row of tiles each.
    pub to: &'a mut [f32],
    /// Distance of points.
    pub point: usize,
    /// Which tile of the row is the first.
    pub first: usize,
}

impl Inputs<'_> {
    /// Transforms on a tier.
    pub fn run(self, isa: Isa, store: Store) {
        transform(isa, store, self);
    }
}

impl Transform for Inputs<'_> {
    #[inline(always)]
    unsafe fn transform<S: Simd, E: Stored<S>, P: Put<S>>(self) {
        let Self { plane, extents: [height, width], tiles, to, point, first } = self;
        assert!(plane.len() >= height * width * E::LEN, "a plane is too short");
        assert!(to.len() >= (POINTS - 1) * point + P::room(first + tiles.len()), "no room for all tiles");
        for (t, [row, column]) in tiles.iter().copied().enumerate() {
            // SAFETY: the CPU has the instruction set by contract; pixels are read inside the plane and values written
            // where there is room, as asserted.
            unsafe {
                let d = pixels::<S, E, INPUTS>(plane, [height, width], [row, column]);
                let [a, b, c, d] = d;
                let rows = [input::<S>(a), input::<S>(b), input::<S>(c), input::<S>(d)];
                for (c, column) in transposed(rows).into_iter().enumerate() {
                    let column = input::<S>(column);
                    for (r, value) in column.into_iter().enumerate() {
                        P::put(to.as_mut_ptr().add((r * INPUTS + c) * point), first + t, value);
                    }
                }
            }
        }
    }
}

/// Transforms weights: vectors of nine taps each.
pub(crate) struct Weights<'a> {
    /// The taps of the first: tap by tap, `tap` apart.
    pub taps: &'a [f32],
    /// Distance of taps.
    pub tap: usize,
    /// Where the values go: point by point, `point` apart.
    pub to: &'a mut [f32],
    /// Distance of points.
    pub point: usize,
    /// Elements, whole vectors, that lie side by side in both.
    pub count: usize,
}

impl Explicit for Weights<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { taps, tap, to, point, count } = self;
        assert!(count.is_multiple_of(S::LANES), "{count} elements are no whole vectors");
        assert!(taps.len() >= (TAPS - 1) * tap + count, "taps are too short");
        assert!(to.len() >= (POINTS - 1) * point + count, "no room for all points");
        for at in (0..count).step_by(S::LANES) {
            // SAFETY: the CPU has the instruction set by contract; all lies inside the slices, as asserted.
            unsafe {
                let load = |t: usize| S::load(taps.as_ptr().add(t * tap + at));
                let [a, b, c] = [
                    weight::<S>([load(0), load(1), load(2)]),
                    weight::<S>([load(3), load(4), load(5)]),
                    weight::<S>([load(6), load(7), load(8)]),
                ];
                for (c, [a, b, d, _]) in transposed([a, b, c, c]).into_iter().enumerate() {
                    let column = weight::<S>([a, b, d]);
                    for (r, value) in column.into_iter().enumerate() {
                        S::store(to.as_mut_ptr().add((r * INPUTS + c) * point + at), value);
                    }
                }
            }
        }
    }
}

/// Transforms the gradients of tiles' outputs, `A dY Aᵀ`: for each, a block of channels of 2×2 pixels.
pub(crate) struct Gradients<'a> {
    /// A plane: pixels of a block of channels, row by row.
    pub plane: &'a [f32],
    /// Rows and columns of the plane.
    pub extents: [usize; 2],
    /// First row and column of each tile's outputs; what lies outside the plane is 0.
    pub tiles: &'a [[usize; 2]],
    /// Where the values go: point by point `point` apart, a row of tiles each.
    pub to: &'a mut [f32],
    /// Distance of points.
    pub point: usize,
    /// Which tile of the row is the first.
    pub first: usize,
}

impl Gradients<'_> {
    /// Transforms on a tier.
    pub fn run(self, isa: Isa, store: Store) {
        transform(isa, store, self);
    }
}

impl Transform for Gradients<'_> {
    #[inline(always)]
    unsafe fn transform<S: Simd, E: Stored<S>, P: Put<S>>(self) {
        let Self { plane, extents: [height, width], tiles, to, point, first } = self;
        assert!(plane.len() >= height * width * E::LEN, "a plane is too short");
        assert!(to.len() >= (POINTS - 1) * point + P::room(first + tiles.len()), "no room for all tiles");
        for (t, [row, column]) in tiles.iter().copied().enumerate() {
            // SAFETY: the CPU has the instruction set by contract; pixels are read inside the plane and values written
            // where there is room, as asserted.
            unsafe {
                let [row, column] = [row, column].map(|at| at as isize);
                let dy = pixels::<S, E, OUTPUTS>(plane, [height, width], [row, column]);
                let [above, below] = dy;
                let (above, below) = (gradient::<S>(above), gradient::<S>(below));
                for (c, pair) in above.into_iter().zip(below).enumerate() {
                    for (r, value) in gradient::<S>([pair.0, pair.1]).into_iter().enumerate() {
                        P::put(to.as_mut_ptr().add((r * INPUTS + c) * point), first + t, value);
                    }
                }
            }
        }
    }
}

/// Transforms the sums of products to gradients of weights, `Gᵀ U G`: vectors of 16 points each to nine taps.
pub(crate) struct WeightsBack<'a> {
    /// The points of the first: point by point, `point` apart.
    pub points: &'a [f32],
    /// Distance of points.
    pub point: usize,
    /// Where the taps go: tap by tap, `tap` apart.
    pub taps: &'a mut [f32],
    /// Distance of taps.
    pub tap: usize,
    /// Elements, whole vectors, that lie side by side in both.
    pub count: usize,
}

impl Explicit for WeightsBack<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { points, point, taps, tap, count } = self;
        assert!(count.is_multiple_of(S::LANES), "{count} elements are no whole vectors");
        assert!(points.len() >= (POINTS - 1) * point + count, "points are too short");
        assert!(taps.len() >= (TAPS - 1) * tap + count, "no room for all taps");
        for at in (0..count).step_by(S::LANES) {
            // SAFETY: the CPU has the instruction set by contract; all lies inside the slices, as asserted.
            unsafe {
                let load = |p: usize| S::load(points.as_ptr().add(p * point + at));
                let mut rows = [[S::zero(); 3]; INPUTS];
                for (r, row) in rows.iter_mut().enumerate() {
                    let r = r * INPUTS;
                    *row = weight_back::<S>([load(r), load(r + 1), load(r + 2), load(r + 3)]);
                }
                let [a, b, c, d] = rows;
                let columns = [[a[0], b[0], c[0], d[0]], [a[1], b[1], c[1], d[1]], [a[2], b[2], c[2], d[2]]];
                for (c, column) in columns.into_iter().enumerate() {
                    for (r, value) in weight_back::<S>(column).into_iter().enumerate() {
                        S::store(taps.as_mut_ptr().add((r * 3 + c) * tap + at), value);
                    }
                }
            }
        }
    }
}

/// Transforms products back: for each tile, a block of channels of 2×2 pixels.
pub(crate) struct Outputs<'a> {
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
    /// Where the plane begins: pixels of a block of channels, row by row.
    pub plane: *mut f32,
    /// Rows and columns of the plane.
    pub extents: [usize; 2],
}

impl OnStored for Outputs<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let Self { products, point, tiles, bias, relu, adds, plane, extents: [height, width] } = self;
        assert!(products.len() >= (POINTS - 1) * point + tiles.len() * S::LANES, "too few products");
        assert!(bias.is_none_or(|b| b.len() >= S::LANES), "the bias is too short");
        for (t, [row, column]) in tiles.iter().copied().enumerate() {
            // SAFETY: the CPU has the instruction set, the plane is the caller's own, by contract; pixels outside of it
            // are left out; products and bias are long enough, as asserted.
            unsafe {
                let bias = bias.map_or(S::zero(), |b| S::load(b.as_ptr()));
                let load = |p: usize| S::load(products.as_ptr().add(p * point + t * S::LANES));
                let mut rows = [[S::zero(); OUTPUTS]; INPUTS];
                for (r, pixels) in rows.iter_mut().enumerate() {
                    let r = r * INPUTS;
                    *pixels = output::<S>([load(r), load(r + 1), load(r + 2), load(r + 3)]);
                }
                let [[a, e], [b, f], [c, g], [d, h]] = rows;
                let columns = [[a, b, c, d], [e, f, g, h]];
                for (c, products) in columns.into_iter().enumerate().take(width - column) {
                    let pixels = output::<S>(products);
                    for (r, value) in pixels.into_iter().enumerate().take(height - row) {
                        let pixel = (row + r) * width + column + c;
                        let place = plane.add(pixel * E::LEN);
                        let value = S::add(value, if adds { E::load(place) } else { bias });
                        let value = if relu { S::rectified(value) } else { value };
                        E::store(place, value);
                    }
                }
            }
        }
    }
}
