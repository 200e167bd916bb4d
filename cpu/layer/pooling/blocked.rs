//! Pooling over blocked channels: a window is reduced a whole block at a time.
//!
//! Maxima remember which tap of their window they came from, one byte each, so that backward compares instead of
//! scattering.

use quadrille_core::layer::{Layer, Operand, PoolMethod, SubTask, Window};
use quadrille_core::net::{LayerId, Net};

use super::along;
use crate::isa::Isa;
use crate::kernel::vectorised::{Vectorised, on};
use crate::layer::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

/// Taps of the largest window whose maxima a byte can name.
const MAX_TAPS: usize = 256;

/// Whether blocks can do a layer: on tiers with vectors, for windows whose taps a byte can name.
pub(in crate::layer) fn fits(net: &Net, id: LayerId, isa: Isa) -> bool {
    let Layer::Pooling(pooling) = &net.layer(id).layer else { return false };
    let bottom = net.bottom_shapes(id).swap_remove(0);
    let [rows, columns] = pooling.kernel_over([bottom.dim(2), bottom.dim(3)]);
    isa != Isa::Portable && rows.saturating_mul(columns) <= MAX_TAPS && bottom.axes() == 4
}

struct Blocked {
    isa: Isa,
    block: usize,
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
        block: input.layout.block,
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

/// The windows of a plane.
#[derive(Clone, Copy)]
struct Windows<'a> {
    rows: &'a [Window],
    columns: &'a [Window],
    /// Pixels of a row of the input.
    width: usize,
}

impl Windows<'_> {
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

    /// Calls `each(input pixel)` for every tap of a window.
    #[inline(always)]
    fn taps(&self, rows: &Window, columns: &Window, mut each: impl FnMut(usize)) {
        for row in rows.start..rows.end {
            for column in columns.start..columns.end {
                each(row * self.width + column);
            }
        }
    }
}

/// The maxima of a plane and their taps.
struct Maximum<'a, const BLOCK: usize> {
    windows: Windows<'a>,
    x: &'a [[f32; BLOCK]],
    y: &'a mut [[f32; BLOCK]],
    taps: &'a mut [[u8; BLOCK]],
}

impl<const BLOCK: usize> Vectorised for Maximum<'_, BLOCK> {
    #[inline(always)]
    fn run(self) {
        let Self { windows, x, y, taps } = self;
        windows.each(|at, rows, columns| {
            // The first value stands until a greater one comes, as in the oracle.
            let mut best = x[rows.start * windows.width + columns.start];
            let (mut from, mut tap) = ([0i32; BLOCK], 0i32);
            windows.taps(rows, columns, |pixel| {
                let values = &x[pixel];
                for lane in 0..BLOCK {
                    let greater = values[lane] > best[lane];
                    best[lane] = if greater { values[lane] } else { best[lane] };
                    from[lane] = if greater { tap } else { from[lane] };
                }
                tap += 1;
            });
            y[at] = best;
            taps[at] = from.map(|tap| tap as u8);
        });
    }
}

/// The gradients of a plane's maxima go to where they came from.
struct MaximumBack<'a, const BLOCK: usize> {
    windows: Windows<'a>,
    dy: &'a [[f32; BLOCK]],
    taps: &'a [[u8; BLOCK]],
    dx: &'a mut [[f32; BLOCK]],
}

impl<const BLOCK: usize> Vectorised for MaximumBack<'_, BLOCK> {
    #[inline(always)]
    fn run(self) {
        let Self { windows, dy, taps, dx } = self;
        dx.fill([0.0; BLOCK]);
        windows.each(|at, rows, columns| {
            let (gradients, from) = (&dy[at], taps[at].map(i32::from));
            let mut tap = 0i32;
            windows.taps(rows, columns, |pixel| {
                let sums = &mut dx[pixel];
                for lane in 0..BLOCK {
                    sums[lane] += if from[lane] == tap { gradients[lane] } else { 0.0 };
                }
                tap += 1;
            });
        });
    }
}

/// The means of a plane.
struct Average<'a, const BLOCK: usize> {
    windows: Windows<'a>,
    x: &'a [[f32; BLOCK]],
    y: &'a mut [[f32; BLOCK]],
}

impl<const BLOCK: usize> Vectorised for Average<'_, BLOCK> {
    #[inline(always)]
    fn run(self) {
        let Self { windows, x, y } = self;
        windows.each(|at, rows, columns| {
            let mut sums = [0.0f32; BLOCK];
            windows.taps(rows, columns, |pixel| {
                for lane in 0..BLOCK {
                    sums[lane] += x[pixel][lane];
                }
            });
            let counted = (rows.counted * columns.counted) as f32;
            y[at] = sums.map(|sum| sum / counted);
        });
    }
}

/// The gradients of a plane's means are shared out.
struct AverageBack<'a, const BLOCK: usize> {
    windows: Windows<'a>,
    dy: &'a [[f32; BLOCK]],
    dx: &'a mut [[f32; BLOCK]],
}

impl<const BLOCK: usize> Vectorised for AverageBack<'_, BLOCK> {
    #[inline(always)]
    fn run(self) {
        let Self { windows, dy, dx } = self;
        dx.fill([0.0; BLOCK]);
        windows.each(|at, rows, columns| {
            let counted = (rows.counted * columns.counted) as f32;
            let shares = dy[at].map(|gradient| gradient / counted);
            windows.taps(rows, columns, |pixel| {
                for lane in 0..BLOCK {
                    dx[pixel][lane] += shares[lane];
                }
            });
        });
    }
}

impl Blocked {
    fn windows(&self) -> Windows<'_> {
        Windows { rows: &self.rows, columns: &self.columns, width: self.width }
    }

    fn forward_blocks<const BLOCK: usize>(&self, grain: &Grain<'_>) {
        let (input, output) = (self.input, self.output);
        for plane in grain.share(self.planes) {
            let (from, to) = (plane * input..(plane + 1) * input, plane * output..(plane + 1) * output);
            // SAFETY: grains have planes of their own.
            let (x, y, taps) = unsafe {
                (
                    grain.memory.read(self.bottom.part(from)),
                    grain.memory.write(self.top.part(to.clone())),
                    self.taps.map(|taps| grain.memory.write_bytes(taps, to)),
                )
            };
            let (x, y, windows) = (x.as_chunks().0, y.as_chunks_mut().0, self.windows());
            match (self.method, taps) {
                (PoolMethod::Max, Some(taps)) => {
                    let taps = taps.as_chunks_mut().0;
                    on(self.isa, Maximum::<BLOCK> { windows, x, y, taps });
                }
                _ => on(self.isa, Average::<BLOCK> { windows, x, y }),
            }
        }
    }

    fn backward_blocks<const BLOCK: usize>(&self, grain: &Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let (input, output) = (self.input, self.output);
        for plane in grain.share(self.planes) {
            let (to, from) = (plane * input..(plane + 1) * input, plane * output..(plane + 1) * output);
            // SAFETY: grains have planes of their own.
            let (dx, dy, taps) = unsafe {
                (
                    grain.memory.write(bottom_grad.part(to)),
                    grain.memory.read(top_grad.part(from.clone())),
                    self.taps.map(|taps| grain.memory.read_bytes(taps, from)),
                )
            };
            let (dx, dy, windows) = (dx.as_chunks_mut().0, dy.as_chunks().0, self.windows());
            match (self.method, taps) {
                (PoolMethod::Max, Some(taps)) => {
                    on(self.isa, MaximumBack::<BLOCK> { windows, dy, taps: taps.as_chunks().0, dx });
                }
                _ => on(self.isa, AverageBack::<BLOCK> { windows, dy, dx }),
            }
        }
    }
}

impl LayerKernel for Blocked {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        match self.block {
            8 => self.forward_blocks::<8>(grain),
            _ => self.forward_blocks::<16>(grain),
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        match self.block {
            8 => self.backward_blocks::<8>(grain),
            _ => self.backward_blocks::<16>(grain),
        }
    }
}
