//! Pooling by windows, plane by plane.

use quadrille_core::layer::{Layer, Operand, PoolMethod, SubTask, Window};

use super::along;
use crate::layer::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Windows {
    method: PoolMethod,
    /// Planes: images × channels.
    planes: usize,
    input: [usize; 2],
    rows: Vec<Window>,
    columns: Vec<Window>,
    bottom: Span,
    top: Span,
    positions: Option<Span>,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    grains: usize,
}

pub(in crate::layer) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Pooling(pooling) = &binder.layer().layer else { return None };
    let bottom = binder.net.bottom_shapes(binder.id).swap_remove(0);
    let top = binder.net.top_shapes(binder.id).swap_remove(0);
    let input = [bottom.dim(2), bottom.dim(3)];
    let planes = bottom.dim(0) * bottom.dim(1);
    Some(Box::new(Windows {
        method: pooling.method,
        planes,
        input,
        rows: along(pooling, 0, input, top.dim(2)),
        columns: along(pooling, 1, input, top.dim(3)),
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        positions: binder.span(Operand::Aux(0)),
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        grains: binder.stream_grains(bottom.count()).min(planes),
    }))
}

impl Windows {
    fn input_len(&self) -> usize {
        self.input[0] * self.input[1]
    }

    fn output_len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// The grain's planes in an array of planes of `len` elements.
    fn planes(&self, grain: &Grain<'_>, span: Span, len: usize) -> Span {
        let planes = grain.share(self.planes);
        span.part(planes.start * len..planes.end * len)
    }

    /// Calls `each` with every window of a plane, in the order of the outputs.
    fn each(&self, mut each: impl FnMut(usize, &Window, &Window)) {
        let mut at = 0;
        for row in &self.rows {
            for column in &self.columns {
                each(at, row, column);
                at += 1;
            }
        }
    }

    fn maximum(&self, x: &[f32], y: &mut [f32], positions: &mut [f32]) {
        let width = self.input[1];
        self.each(|at, rows, columns| {
            // The first value stands until a greater one comes, as in the oracle: no window is without a position.
            let mut position = rows.start * width + columns.start;
            let mut best = x[position];
            for row in rows.start..rows.end {
                let from = row * width + columns.start;
                for (i, value) in x[from..row * width + columns.end].iter().enumerate() {
                    if *value > best {
                        (best, position) = (*value, from + i);
                    }
                }
            }
            y[at] = best;
            positions[at] = position as f32;
        });
    }

    fn average(&self, x: &[f32], y: &mut [f32]) {
        let width = self.input[1];
        self.each(|at, rows, columns| {
            let mut sum = 0.0;
            for row in rows.start..rows.end {
                for value in &x[row * width + columns.start..row * width + columns.end] {
                    sum += value;
                }
            }
            y[at] = sum / (rows.counted * columns.counted) as f32;
        });
    }

    fn spread(&self, dy: &[f32], dx: &mut [f32]) {
        let width = self.input[1];
        self.each(|at, rows, columns| {
            let share = dy[at] / (rows.counted * columns.counted) as f32;
            for row in rows.start..rows.end {
                for value in &mut dx[row * width + columns.start..row * width + columns.end] {
                    *value += share;
                }
            }
        });
    }
}

impl LayerKernel for Windows {
    fn stages(&self, _: SubTask) -> Stages {
        Stages::one(self.grains)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let (input, output) = (self.input_len(), self.output_len());
        // SAFETY: grains have planes of their own.
        let (x, y, positions) = unsafe {
            (
                grain.memory.read(self.planes(grain, self.bottom, input)),
                grain.memory.write(self.planes(grain, self.top, output)),
                self.positions.map(|p| grain.memory.write(self.planes(grain, p, output))),
            )
        };
        let planes = x.chunks(input).zip(y.chunks_mut(output));
        match (self.method, positions) {
            (PoolMethod::Max, Some(positions)) => {
                for ((x, y), p) in planes.zip(positions.chunks_mut(output)) {
                    self.maximum(x, y, p);
                }
            }
            _ => planes.for_each(|(x, y)| self.average(x, y)),
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let (input, output) = (self.input_len(), self.output_len());
        // SAFETY: grains have planes of their own.
        let (dx, dy, positions) = unsafe {
            (
                grain.memory.write(self.planes(grain, bottom_grad, input)),
                grain.memory.read(self.planes(grain, top_grad, output)),
                self.positions.map(|p| grain.memory.read(self.planes(grain, p, output))),
            )
        };
        dx.fill(0.0);
        let planes = dx.chunks_mut(input).zip(dy.chunks(output));
        match (self.method, positions) {
            (PoolMethod::Max, Some(positions)) => {
                for ((dx, dy), p) in planes.zip(positions.chunks(output)) {
                    for (value, position) in dy.iter().zip(p) {
                        dx[*position as usize] += value;
                    }
                }
            }
            _ => planes.for_each(|(dx, dy)| self.spread(dy, dx)),
        }
    }
}
