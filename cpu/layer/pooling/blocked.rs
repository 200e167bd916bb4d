//! Pooling over blocked channels: a window is reduced a whole block at a time.
//!
//! Maxima remember which tap of their window they came from, one byte each, so that backward compares instead of
//! scattering.

use quadrille_core::layer::{Layer, Operand, PoolMethod, SubTask, Window};
use quadrille_core::net::{LayerId, Net};

use super::along;
use crate::isa::{Isa, Numerics};
use crate::kernel::simd::Simd;
use crate::kernel::vectorised::{Explicit, with_vectors};
use crate::layer::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

/// Taps of the largest window whose maxima a byte can name.
const MAX_TAPS: usize = 256;

/// Whether blocks can do a layer: on tiers with vectors, for windows whose taps a byte can name.
pub(in crate::layer) fn fits(net: &Net, id: LayerId, numerics: Numerics) -> bool {
    let Layer::Pooling(pooling) = &net.layer(id).layer else { return false };
    let bottom = net.bottom_shapes(id).swap_remove(0);
    let [rows, columns] = pooling.kernel_over([bottom.dim(2), bottom.dim(3)]);
    numerics.isa != Isa::Portable && rows.saturating_mul(columns) <= MAX_TAPS && bottom.axes() == 4
}

struct Blocked {
    isa: Isa,
    method: PoolMethod,
    /// Blocks of channels, over all images.
    planes: usize,
    /// Elements of a plane of the bottom and of the top.
    input: usize,
    output: usize,
    width: usize,
    rows: Vec<Window>,
    columns: Vec<Window>,
    bottom: Span,
    top: Span,
    /// The tap of each maximum, a byte each.
    taps: Option<Span>,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
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
    let taps = if is_max { binder.state(0, output.len().div_ceil(size_of::<f32>())) } else { None };
    let grains = binder.stream_grains(input.len()).min(planes);
    Some(Box::new(Blocked {
        isa: binder.isa,
        method: pooling.method,
        planes,
        input: input.len() / planes,
        output: output.len() / planes,
        width: extents[1],
        rows: along(pooling, 0, extents, tops.dim(2)),
        columns: along(pooling, 1, extents, tops.dim(3)),
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        taps,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains,
    }))
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

    /// The pixels behind the last that a window can see, and the windows.
    fn extents(&self) -> (usize, usize) {
        let last = |windows: &[Window]| windows.iter().map(|w| w.end).max().unwrap_or(0);
        let rows = last(self.rows).saturating_sub(1) * self.width;
        (rows + last(self.columns), self.rows.len() * self.columns.len())
    }
}

struct Forward<'a> {
    plane: Plane<'a>,
    x: &'a [f32],
    y: &'a mut [f32],
    taps: Option<&'a mut [u8]>,
}

impl Explicit for Forward<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { plane, x, y, taps } = self;
        let (pixels, windows) = plane.extents();
        assert!(x.len() >= pixels * S::LANES && y.len() >= windows * S::LANES, "a plane is too short");
        assert!(taps.as_ref().is_none_or(|t| t.len() >= windows * S::LANES), "too few taps");
        let (x, y) = (x.as_ptr(), y.as_mut_ptr());
        // SAFETY: the CPU has the instruction set by contract; windows see pixels of the plane, as asserted.
        unsafe {
            match (plane.method, taps) {
                (PoolMethod::Max, Some(taps)) => plane.each(|at, rows, columns| {
                    // The first value stands until a greater one comes, as in the oracle.
                    let mut best = S::load(x.add((rows.start * plane.width + columns.start) * S::LANES));
                    let (mut from, mut tap) = (S::zero(), S::zero());
                    for row in rows.start..rows.end {
                        for column in columns.start..columns.end {
                            let value = S::load(x.add((row * plane.width + column) * S::LANES));
                            (best, from) = S::greater(value, best, tap, from);
                            tap = S::add(tap, S::splat(1.0));
                        }
                    }
                    S::store(y.add(at * S::LANES), best);
                    S::store_bytes(taps[at * S::LANES..].as_mut_ptr(), from);
                }),
                _ => plane.each(|at, rows, columns| {
                    let mut sum = S::zero();
                    for row in rows.start..rows.end {
                        for column in columns.start..columns.end {
                            sum = S::add(sum, S::load(x.add((row * plane.width + column) * S::LANES)));
                        }
                    }
                    let counted = S::splat((rows.counted * columns.counted) as f32);
                    S::store(y.add(at * S::LANES), S::divide(sum, counted));
                }),
            }
        }
    }
}

struct Backward<'a> {
    plane: Plane<'a>,
    dy: &'a [f32],
    dx: &'a mut [f32],
    taps: Option<&'a [u8]>,
}

impl Explicit for Backward<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { plane, dy, dx, taps } = self;
        let (pixels, windows) = plane.extents();
        assert!(dx.len() >= pixels * S::LANES && dy.len() >= windows * S::LANES, "a plane is too short");
        assert!(taps.as_ref().is_none_or(|t| t.len() >= windows * S::LANES), "too few taps");
        dx.fill(0.0);
        let (dy, dx) = (dy.as_ptr(), dx.as_mut_ptr());
        // SAFETY: the CPU has the instruction set by contract; windows see pixels of the plane, as asserted.
        unsafe {
            match (plane.method, taps) {
                (PoolMethod::Max, Some(taps)) => plane.each(|at, rows, columns| {
                    let gradient = S::load(dy.add(at * S::LANES));
                    let from = S::load_bytes(taps[at * S::LANES..].as_ptr());
                    let mut tap = S::zero();
                    for row in rows.start..rows.end {
                        for column in columns.start..columns.end {
                            let to = dx.add((row * plane.width + column) * S::LANES);
                            S::store(to, S::add(S::load(to), S::where_equal(from, tap, gradient)));
                            tap = S::add(tap, S::splat(1.0));
                        }
                    }
                }),
                _ => plane.each(|at, rows, columns| {
                    let counted = S::splat((rows.counted * columns.counted) as f32);
                    let share = S::divide(S::load(dy.add(at * S::LANES)), counted);
                    for row in rows.start..rows.end {
                        for column in columns.start..columns.end {
                            let to = dx.add((row * plane.width + column) * S::LANES);
                            S::store(to, S::add(S::load(to), share));
                        }
                    }
                }),
            }
        }
    }
}

impl Blocked {
    fn plane(&self) -> Plane<'_> {
        Plane { method: self.method, rows: &self.rows, columns: &self.columns, width: self.width }
    }
}

impl LayerKernel for Blocked {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        for plane in grain.share(self.planes) {
            let from = plane * self.input..(plane + 1) * self.input;
            let to = plane * self.output..(plane + 1) * self.output;
            // SAFETY: grains have planes of their own.
            let (x, y, taps) = unsafe {
                (
                    grain.memory.read(self.bottom.part(from)),
                    grain.memory.write(self.top.part(to.clone())),
                    self.taps.map(|taps| grain.memory.write_bytes(taps, to)),
                )
            };
            with_vectors(self.isa, Forward { plane: self.plane(), x, y, taps });
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
                    grain.memory.read(top_grad.part(from.clone())),
                    self.taps.map(|taps| grain.memory.read_bytes(taps, from)),
                )
            };
            with_vectors(self.isa, Backward { plane: self.plane(), dy, dx, taps });
        }
    }
}
