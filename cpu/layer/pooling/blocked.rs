//! Pooling over blocked channels: a window is reduced a whole block at a time.
//!
//! Maxima remember which tap of their window they came from, one byte each, so that backward compares instead of
//! scattering. Where the layer does the backward of the ReLU before it, a maximum that is not above 0 comes from no tap.
//!
//! Windows that overlap add to the same pixels. Where none do, as those of 2x2 with a stride of 2, gradients are written at once.
//!
//! Blobs may be kept in bf16; all arithmetic is in f32. Backward sums what several windows add to a pixel: in place if
//! the gradient is kept in f32; otherwise in a few rows of scratch, each of which is rounded once when no window adds to
//! it any more.

use std::ops::Range;

use quadrille_core::layer::{Layer, Operand, PoolMethod, SubTask, Window};
use quadrille_core::net::{LayerId, Net};

use super::along;
use crate::isa::{Isa, Numerics, Precision};
use crate::kernel::simd::Simd;
use crate::kernel::stored::{OnStored, Stored, with_stored};
use crate::layer::{Array, Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

/// What a byte says instead of a tap where the gradient of a maximum goes nowhere.
const NO_TAP: u8 = u8::MAX;

/// Taps of the largest window whose maxima a byte can name.
const MAX_TAPS: usize = NO_TAP as usize;

/// Whether blocks can do a layer: on tiers with vectors, for windows whose taps a byte can name.
pub(in crate::layer) fn fits(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let Layer::Pooling(pooling) = &net.layer(id).layer else { return false };
    let bottom = net.bottom_shapes(id).swap_remove(0);
    let [rows, columns] = pooling.kernel_over([bottom.dim(2), bottom.dim(3)]);
    numerics.isa != Isa::Portable && rows.saturating_mul(columns) <= MAX_TAPS && bottom.axes() == 4
}

struct Blocked {
    isa: Isa,
    /// How bottom and top are kept.
    precision: Precision,
    method: PoolMethod,
    /// Blocks of channels, over all images.
    planes: usize,
    /// Words of a plane of the bottom and of the top.
    input: usize,
    output: usize,
    /// Taps of a plane: numbers of the top.
    maxima: usize,
    /// Numbers of the rows in which backward sums before it rounds.
    sums: usize,
    width: usize,
    rows: Vec<Window>,
    columns: Vec<Window>,
    bottom: Array,
    top: Array,
    /// The tap of each maximum, a byte each.
    taps: Option<Span>,
    /// Whether those that are not above 0 have none.
    rectifies: bool,
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    grains: usize,
}

pub(in crate::layer) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Pooling(pooling) = &binder.layer().layer else { return None };
    let shape = binder.net.bottom_shapes(binder.id).swap_remove(0);
    let tops = binder.net.top_shapes(binder.id).swap_remove(0);
    let (input, output) = (binder.arrangement(Operand::Bottom(0))?, binder.arrangement(Operand::Top(0))?);
    let extents = [shape.dim(2), shape.dim(3)];
    let planes = input.images * input.channels.div_ceil(input.layout.block);
    let is_max = pooling.method == PoolMethod::Max;
    let maxima = output.pixels * output.layout.block;
    let taps = if is_max { binder.state(0, (planes * maxima).div_ceil(size_of::<f32>())) } else { None };
    let grains = binder.stream_grains(input.len()).min(planes);
    let precision = input.layout.precision;
    let rows = along(pooling, 0, extents, tops.dim(2));
    let sums = if precision == Precision::F32 { 0 } else { highest(&rows) * extents[1] * input.layout.block };
    Some(Box::new(Blocked {
        isa: binder.isa,
        precision,
        method: pooling.method,
        planes,
        input: input.plane_len(),
        output: output.plane_len(),
        maxima,
        sums,
        width: extents[1],
        rows,
        columns: along(pooling, 1, extents, tops.dim(3)),
        bottom: binder.array(Operand::Bottom(0))?,
        top: binder.array(Operand::Top(0))?,
        taps,
        rectifies: binder.layer().rectifies_gradient,
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grad: binder.array(Operand::TopGrad(0)),
        grains,
    }))
}

/// Rows of the highest window, at least 1: windows may lie in the padding altogether.
fn highest(rows: &[Window]) -> usize {
    rows.iter().map(|window| window.end.saturating_sub(window.start)).fold(1, usize::max)
}

/// The windows of a plane: a block of channels of an image.
struct Plane<'a> {
    method: PoolMethod,
    rows: &'a [Window],
    columns: &'a [Window],
    /// Pixels of a row of the input.
    width: usize,
}

impl Plane<'_> {
    /// Calls `each(output pixel, rows, columns)` for every window.
    #[inline(always)]
    fn each(&self, mut each: impl FnMut(usize, &Window, &Window)) {
        let mut at = 0;
        for rows in self.rows {
            for columns in self.columns {
                each(at, rows, columns);
                at += 1;
            }
        }
    }

    /// Whether no pixel is seen by two windows.
    fn is_apart(&self) -> bool {
        [self.rows, self.columns].iter().all(|axis| axis.windows(2).all(|pair| pair[0].end <= pair[1].start))
    }

    /// Whether windows that are apart see all pixels of a plane of `height` rows.
    fn is_covered(&self, height: usize) -> bool {
        let seen = |axis: &[Window]| {
            axis.iter().map(|window| window.end.saturating_sub(window.start)).sum::<usize>()
        };
        seen(self.rows) == height && seen(self.columns) == self.width
    }

    /// Makes sure that an input of `x` words, an output of `y` words and `taps` hold what the windows see and write.
    #[inline(always)]
    fn check<S: Simd, E: Stored<S>>(&self, x: usize, y: usize, taps: Option<usize>) {
        let last = |windows: &[Window]| windows.iter().map(|w| w.end).max().unwrap_or(0);
        let pixels = last(self.rows).saturating_sub(1) * self.width + last(self.columns);
        let windows = self.rows.len() * self.columns.len();
        assert!(x >= pixels * E::LEN && y >= windows * E::LEN, "a plane is too short");
        assert!(taps.is_none_or(|taps| taps >= windows * S::LANES), "too few taps");
    }
}

/// Evaluates an expression for the extents of a window, which are constants in it for windows of common sizes: loops over
/// their taps are no loops then.
macro_rules! of_extents {
    ($rows:expr, $columns:expr, |$extents:ident| $of:block) => {
        match [$rows, $columns].map(|window| window.end.saturating_sub(window.start)) {
            [2, 2] => {
                let $extents = [2, 2];
                $of
            }
            [3, 3] => {
                let $extents = [3, 3];
                $of
            }
            $extents => $of,
        }
    };
}

/// The greatest values of a window of so many rows and columns whose first pixel lies at `x`, and the taps they are from.
///
/// # Safety
/// The CPU has the instructions; the window's pixels can be read, rows `width` pixels apart.
#[inline(always)]
unsafe fn largest<S: Simd, E: Stored<S>>(
    x: *const f32,
    width: usize,
    [rows, columns]: [usize; 2],
) -> (S::Vector, S::Vector) {
    // SAFETY: by contract. The first value stands until a greater one comes, as in the oracle.
    unsafe {
        let mut best = E::load(x);
        let (mut from, mut tap) = (S::zero(), S::zero());
        for row in 0..rows {
            for column in 0..columns {
                let value = E::load(x.add((row * width + column) * E::LEN));
                (best, from) = S::greater(value, best, tap, from);
                tap = S::add(tap, S::splat(1.0));
            }
        }
        (best, from)
    }
}

struct Forward<'a> {
    plane: Plane<'a>,
    x: &'a [f32],
    y: &'a mut [f32],
    taps: Option<&'a mut [u8]>,
    /// Whether maxima that are not above 0 come from no tap.
    rectifies: bool,
}

impl OnStored for Forward<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let Self { plane, x, y, taps, rectifies } = self;
        plane.check::<S, E>(x.len(), y.len(), taps.as_ref().map(|taps| taps.len()));
        let (x, y) = (x.as_ptr(), y.as_mut_ptr());
        // SAFETY: the CPU has the instructions by contract; windows see pixels of the plane, as asserted.
        unsafe {
            match (plane.method, taps) {
                (PoolMethod::Max, Some(taps)) => plane.each(|at, rows, columns| {
                    let first = x.add((rows.start * plane.width + columns.start) * E::LEN);
                    let (best, from) = of_extents!(rows, columns, |extents| {
                        largest::<S, E>(first, plane.width, extents)
                    });
                    E::store(y.add(at * E::LEN), best);
                    let from = match rectifies {
                        true => S::greater(best, S::zero(), from, S::splat(f32::from(NO_TAP))).1,
                        false => from,
                    };
                    S::store_bytes(taps[at * S::LANES..].as_mut_ptr(), from);
                }),
                _ => plane.each(|at, rows, columns| {
                    let mut sum = S::zero();
                    for row in rows.start..rows.end {
                        for column in columns.start..columns.end {
                            sum = S::add(sum, E::load(x.add((row * plane.width + column) * E::LEN)));
                        }
                    }
                    let counted = S::splat((rows.counted * columns.counted) as f32);
                    E::store(y.add(at * E::LEN), S::divide(sum, counted));
                }),
            }
        }
    }
}

/// Rows of pixels in which backward sums what windows add.
struct Sums<'a> {
    /// The rows, which take turns: as many as the highest window has, or all of the plane.
    rows: &'a mut [f32],
    /// How many.
    count: usize,
    /// Pixels of a row.
    width: usize,
    /// Where rows are rounded to once they are done; `None` if the sums are the gradient itself.
    rounded: Option<&'a mut [f32]>,
    /// The first row of the plane that is not done, and its place among the rows.
    first: usize,
    place: usize,
}

impl Sums<'_> {
    /// Where a row of the plane is that is not done: less than `count` rows behind the first.
    #[inline(always)]
    fn row<S: Simd>(&mut self, row: usize) -> *mut f32 {
        let place = self.place + row - self.first;
        let place = if place >= self.count { place - self.count } else { place };
        self.rows.as_mut_ptr().wrapping_add(place * self.width * S::LANES)
    }

    /// No window adds to the rows before `end` any more.
    ///
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn finish<S: Simd, E: Stored<S>>(&mut self, end: usize) {
        let Some(rounded) = &mut self.rounded else { return };
        for row in self.first..end {
            let sums = &mut self.rows[self.place * self.width * S::LANES..][..self.width * S::LANES];
            let to = &mut rounded[row * self.width * E::LEN..][..self.width * E::LEN];
            for pixel in 0..self.width {
                // SAFETY: the CPU has the instructions by contract; both rows have the pixel.
                unsafe {
                    let at = sums.as_mut_ptr().add(pixel * S::LANES);
                    E::store(to.as_mut_ptr().add(pixel * E::LEN), S::load(at));
                    S::store(at, S::zero());
                }
            }
            self.place = if self.place + 1 == self.count { 0 } else { self.place + 1 };
        }
        self.first = self.first.max(end);
    }
}

struct Backward<'a> {
    plane: Plane<'a>,
    dy: &'a [f32],
    dx: &'a mut [f32],
    /// Room for the rows of the highest window, for gradients that are kept in bf16; of f32 nothing.
    sums: &'a mut [f32],
    taps: Option<&'a [u8]>,
}

impl OnStored for Backward<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Stored<S>>(self) {
        let Self { plane, dy, dx, sums, taps } = self;
        plane.check::<S, E>(dx.len(), dy.len(), taps.map(<[u8]>::len));
        if plane.is_apart() {
            // SAFETY: the CPU has the instructions by contract; windows see pixels of the plane, as asserted.
            return unsafe { spread::<S, E>(&plane, dy, dx, taps) };
        }
        let (width, in_place) = (plane.width, sums.is_empty());
        assert!(!in_place || E::LEN == S::LANES, "sums in bf16");
        let height = dx.len() / (width * E::LEN);
        let (rows, rounded) = if in_place { (dx, None) } else { (sums, Some(dx)) };
        let count = if in_place { height } else { highest(plane.rows) };
        assert!(rows.len() >= count * width * S::LANES, "no room for the rows of a window");
        rows.fill(0.0);
        let mut sums = Sums { rows, count, width, rounded, first: 0, place: 0 };
        for (r, rows) in plane.rows.iter().enumerate() {
            // SAFETY: the CPU has the instructions by contract; windows see pixels of the plane, as asserted, and begin
            // one below the other, so that those that are not done see no row before this one's.
            unsafe {
                sums.finish::<S, E>(rows.start.min(height));
                for (c, columns) in plane.columns.iter().enumerate() {
                    let at = r * plane.columns.len() + c;
                    let gradient = E::load(dy.as_ptr().add(at * E::LEN));
                    let taps = taps.map(|taps| &taps[at * S::LANES..]);
                    add::<S>(&mut sums, [rows, columns], gradient, taps);
                }
            }
        }
        // SAFETY: as above.
        unsafe { sums.finish::<S, E>(height) };
    }
}

/// Adds the gradient of a window to the pixels that it sees: to each its share, or all to those that `taps` name.
///
/// # Safety
/// The CPU has the instructions; the pixels lie in rows that are not done.
#[inline(always)]
unsafe fn add<S: Simd>(sums: &mut Sums<'_>, window: [&Window; 2], gradient: S::Vector, taps: Option<&[u8]>) {
    let [rows, columns] = window;
    // SAFETY: by contract.
    unsafe {
        let shared = Shared::<S>::of(window, gradient, taps);
        of_extents!(rows, columns, |extents| {
            let [height, width] = extents;
            for row in 0..height {
                let to = sums.row::<S>(rows.start + row).add(columns.start * S::LANES);
                for column in 0..width {
                    let to = to.add(column * S::LANES);
                    S::store(to, S::add(S::load(to), shared.share(row * width + column)));
                }
            }
        });
    }
}

/// What the pixels of a window get of its gradient.
#[derive(Clone, Copy)]
struct Shared<S: Simd> {
    /// What a pixel gets.
    share: S::Vector,
    /// Which tap gets it; `None` if all do.
    from: Option<S::Vector>,
}

impl<S: Simd> Shared<S> {
    /// Of a window's gradient: all to the taps that are named, or to each tap its share.
    ///
    /// # Safety
    /// The CPU has the instructions; taps are a vector's.
    #[inline(always)]
    unsafe fn of([rows, columns]: [&Window; 2], gradient: S::Vector, taps: Option<&[u8]>) -> Self {
        // SAFETY: by contract.
        unsafe {
            match taps {
                Some(taps) => Self { share: gradient, from: Some(S::load_bytes(taps.as_ptr())) },
                None => {
                    let counted = S::splat((rows.counted * columns.counted) as f32);
                    Self { share: S::divide(gradient, counted), from: None }
                }
            }
        }
    }

    /// What a tap gets.
    ///
    /// # Safety
    /// The CPU has the instructions.
    #[inline(always)]
    unsafe fn share(&self, tap: usize) -> S::Vector {
        // SAFETY: by contract.
        unsafe {
            match self.from {
                Some(from) => S::where_equal(from, S::splat(tap as f32), self.share),
                None => self.share,
            }
        }
    }
}

/// The gradient where no two windows see the same pixel: each is written once, and nothing is summed.
///
/// # Safety
/// The CPU has the instructions; windows see pixels of the plane, and the arrays are as long as they want them.
#[inline(always)]
unsafe fn spread<S: Simd, E: Stored<S>>(plane: &Plane<'_>, dy: &[f32], dx: &mut [f32], taps: Option<&[u8]>) {
    if !plane.is_covered(dx.len() / (plane.width * E::LEN)) {
        dx.fill(0.0);
    }
    let dx = dx.as_mut_ptr();
    // SAFETY: by contract.
    plane.each(|at, rows, columns| unsafe {
        let gradient = E::load(dy.as_ptr().add(at * E::LEN));
        let shared = Shared::<S>::of([rows, columns], gradient, taps.map(|taps| &taps[at * S::LANES..]));
        let first = dx.wrapping_add((rows.start * plane.width + columns.start) * E::LEN);
        of_extents!(rows, columns, |extents| {
            let [height, width] = extents;
            for row in 0..height {
                for column in 0..width {
                    // As a sum would be, which has no zero below 0.
                    let share = S::add(S::zero(), shared.share(row * width + column));
                    E::store(first.add((row * plane.width + column) * E::LEN), share);
                }
            }
        });
    });
}

impl Blocked {
    fn plane(&self) -> Plane<'_> {
        Plane { method: self.method, rows: &self.rows, columns: &self.columns, width: self.width }
    }

    /// The bytes of a plane's taps.
    fn taps_of(&self, plane: usize) -> Range<usize> {
        plane * self.maxima..(plane + 1) * self.maxima
    }
}

impl LayerKernel for Blocked {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn scratch(&self) -> usize {
        self.sums
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        for plane in grain.share(self.planes) {
            let from = plane * self.input..(plane + 1) * self.input;
            let to = plane * self.output..(plane + 1) * self.output;
            // SAFETY: grains have planes of their own.
            let (x, y, taps) = unsafe {
                (
                    grain.memory.read(self.bottom.part(from)),
                    grain.memory.write(self.top.part(to)),
                    self.taps.map(|taps| grain.memory.write_bytes(taps, self.taps_of(plane))),
                )
            };
            let (plane, rectifies) = (self.plane(), self.rectifies);
            with_stored(self.isa, self.precision, Forward { plane, x, y, taps, rectifies });
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        for plane in grain.share(self.planes) {
            let to = plane * self.input..(plane + 1) * self.input;
            let from = plane * self.output..(plane + 1) * self.output;
            // SAFETY: grains have planes of their own.
            let (dx, dy, taps) = unsafe {
                (
                    grain.memory.write(bottom_grad.part(to)),
                    grain.memory.read(top_grad.part(from)),
                    self.taps.map(|taps| grain.memory.read_bytes(taps, self.taps_of(plane))),
                )
            };
            let sums = &mut grain.scratch[..self.sums];
            with_stored(self.isa, self.precision, Backward { plane: self.plane(), dy, dx, sums, taps });
        }
    }
}
