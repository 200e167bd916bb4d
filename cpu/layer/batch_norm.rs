//! Batch normalisation, alone or with the scale and perhaps a sum and the ReLU behind it.
//!
//! Forward reads its bottom for the statistics, reads it again, adds the shortcut if there is one, and writes its top.
//! Backward reads twice what its two sums are of, and writes; the sums are also the gradients of a scale's parameters. Alone, the layer may have
//! overwritten its bottom, and backward finds the normalised values in the top; with a scale it finds the bottom
//! unchanged and normalises again, by the same operations and so with the same bits.

use quadrille_core::layer::{BatchNorm, Layer, Normalize, Operand, SubTask};

use super::channels::{Cell, Channels};
use super::{Array, Binder, Grain, LayerKernel, Stages};
use crate::kernel::channels::{Affine, Numbers, Slope};
use crate::memory::Span;

/// The scale behind a normalisation.
struct Scale {
    factors: Span,
    bias: Option<Span>,
    factors_grad: Option<Span>,
    bias_grad: Option<Span>,
    relu: bool,
}

/// What is added to what is normalised, and where its gradient goes.
struct Shortcut {
    bottom: Array,
    grad: Option<Array>,
}

struct Kernel {
    norm: BatchNorm,
    scale: Option<Scale>,
    shortcut: Option<Shortcut>,
    share: f32,
    channels: Channels,
    bottom: Array,
    top: Array,
    /// Mean and variance that forward normalised with.
    statistics: [Span; 2],
    /// Mean, variance, factor.
    running: Vec<Span>,
    running_grads: [Option<Span>; 3],
    bottom_grad: Option<Array>,
    top_grad: Option<Array>,
    /// Moments of the cells, and the sums of backward.
    moments: Span,
    sums: Span,
}

pub(super) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let (norm, scale, backward) = match &binder.layer().layer {
        Layer::BatchNorm(norm) => (norm, None, SubTask::GradActivation),
        Layer::Normalize(layer) => (&layer.norm, Some(layer.relu), layer.backward()),
        _ => return None,
    };
    let scale = match scale {
        Some(relu) => Some(Scale {
            factors: binder.span(Operand::Param(Normalize::FACTORS))?,
            bias: binder.span(Operand::Param(Normalize::BIAS)),
            factors_grad: binder.span(Operand::ParamGrad(Normalize::FACTORS)),
            bias_grad: binder.span(Operand::ParamGrad(Normalize::BIAS)),
            relu,
        }),
        None => None,
    };
    let shortcut = match &binder.layer().layer {
        Layer::Normalize(Normalize { sum: true, .. }) => Some(Shortcut {
            bottom: binder.array(Operand::Bottom(1))?,
            grad: binder.array(Operand::BottomGrad(1)),
        }),
        _ => None,
    };
    let channels = Channels::new(&binder.arrangement(Operand::Bottom(0))?, binder);
    Some(Box::new(Kernel {
        norm: norm.clone(),
        scale,
        shortcut,
        share: binder.net.share,
        bottom: binder.array(Operand::Bottom(0))?,
        top: binder.array(Operand::Top(0))?,
        statistics: [binder.span(Operand::Aux(0))?, binder.span(Operand::Aux(1))?],
        running: (0..3).map(|i| binder.span(Operand::Param(i))).collect::<Option<_>>()?,
        running_grads: [0, 1, 2].map(|i| binder.span(Operand::ParamGrad(i))),
        bottom_grad: binder.array(Operand::BottomGrad(0)),
        top_grad: binder.array(Operand::TopGrad(0)),
        moments: binder.workspace(SubTask::Forward, channels.workspace()),
        sums: binder.workspace(backward, channels.workspace()),
        channels,
    }))
}

impl Kernel {
    fn kept(&self) -> bool {
        self.norm.uses_kept_statistics()
    }

    fn relu(&self) -> bool {
        self.scale.as_ref().is_some_and(|scale| scale.relu)
    }

    /// Whether backward needs sums: of the batch for its statistics, or for the scale's parameters.
    fn needs_sums(&self) -> bool {
        !self.kept() || self.scale.is_some()
    }

    /// First the moments of the cells, unless statistics are kept, then the top.
    fn normalise(&self, grain: &Grain<'_>) {
        if self.kept() {
            return self.channels.cells(grain).for_each(|cell| self.apply(grain, cell));
        }
        self.channels.for_cells_twice(grain, |second, cell| {
            if second { self.apply(grain, cell) } else { self.measure(grain, cell) }
        });
    }

    fn measure(&self, grain: &Grain<'_>, cell: Cell) {
        // SAFETY: only read in this stage, or, where it has both passes of a plane in one grain, not written by another.
        let read = |place| unsafe { grain.memory.read(self.bottom.part(place)) };
        let moments = self.channels.passes.measure(self.channels.places(cell).map(read));
        self.channels.leave(grain, self.moments, cell, moments);
    }

    fn apply(&self, grain: &Grain<'_>, cell: Cell) {
        let statistics = self.statistics(grain, cell.plane);
        if cell.part == 0 {
            for (numbers, to) in statistics.iter().zip(self.statistics) {
                self.channels.write(grain, to, cell.plane, numbers);
            }
        }
        let affine = self.affine(grain, cell.plane, &statistics);
        if let Some(shortcut) = &self.shortcut {
            return self.add(grain, cell, &affine, shortcut.bottom);
        }
        let planes = self.planes(grain, cell, (self.bottom, self.top));
        self.channels.passes.apply(&affine, self.relu(), planes);
    }

    /// The top is the sum of what is normalised and a shortcut.
    fn add(&self, grain: &Grain<'_>, cell: Cell, affine: &Affine, shortcut: Array) {
        let planes = self.channels.places(cell).map(|place| {
            // SAFETY: cells have elements of their own; the top lies apart from what is added up.
            unsafe {
                let read = |array: Array| grain.memory.read(array.part(place.clone()));
                (read(self.bottom), read(shortcut), grain.memory.write(self.top.part(place.clone())))
            }
        });
        self.channels.passes.add(affine, self.relu(), planes);
    }

    /// What a cell has of two arrays, of which the second is written; without the first if both are the same.
    fn planes<'a>(
        &self,
        grain: &Grain<'a>,
        cell: Cell,
        (from, to): (Array, Array),
    ) -> impl Iterator<Item = (Option<&'a [f32]>, &'a mut [f32])> {
        let memory = grain.memory;
        self.channels.places(cell).map(move |place| {
            // SAFETY: cells have elements of their own; in place, only the target is made a slice.
            unsafe {
                ((from != to).then(|| memory.read(from.part(place.clone()))), memory.write(to.part(place)))
            }
        })
    }

    /// Mean and variance of a plane's channels: kept, or of what the stage before measured.
    fn statistics(&self, grain: &Grain<'_>, plane: usize) -> [Numbers; 2] {
        if !self.kept() {
            return self.channels.statistics(grain, self.moments, plane);
        }
        // SAFETY: parameters, only read in this task.
        let read = |i: usize| unsafe { grain.memory.read(self.running[i]) };
        let factor = read(2)[0];
        let scale = if factor == 0.0 { 0.0 } else { 1.0 / factor };
        [read(0), read(1)].map(|sums| self.channels.numbers(plane, |c| scale * sums[c]))
    }

    /// Numbers of a plane's channels out of an array that the task only reads.
    fn numbers(&self, grain: &Grain<'_>, span: Span, plane: usize) -> Numbers {
        // SAFETY: parameters, or state that backward only reads.
        let numbers = unsafe { grain.memory.read(span) };
        self.channels.numbers(plane, |c| numbers[c])
    }

    /// Mean and variance of a plane's channels, as forward left them.
    fn saved(&self, grain: &Grain<'_>, plane: usize) -> [Numbers; 2] {
        self.statistics.map(|span| self.numbers(grain, span, plane))
    }

    /// `1 / √(variance + eps)`, and 0 for padding, which stays 0 by it.
    fn inverse(&self, plane: usize, variance: &Numbers) -> Numbers {
        let first = self.channels.channels(plane).start;
        self.channels.numbers(plane, |c| 1.0 / (variance[c - first] + self.norm.eps).sqrt())
    }

    /// What forward does to a plane before the ReLU.
    fn affine(&self, grain: &Grain<'_>, plane: usize, [mean, variance]: &[Numbers; 2]) -> Affine {
        let (mut factor, mut bias) = (self.inverse(plane, variance), Numbers::default());
        if let Some(scale) = &self.scale {
            let factors = self.numbers(grain, scale.factors, plane);
            factor.iter_mut().zip(factors).for_each(|(f, s)| *f *= s);
            bias = scale.bias.map_or(bias, |bias| self.numbers(grain, bias, plane));
        }
        Affine { mean: *mean, factor, bias }
    }

    /// What backward takes the normalised values from, and how: the bottom, or the top as it is.
    fn source(&self, grain: &Grain<'_>, plane: usize) -> (Array, Affine) {
        match self.scale {
            Some(_) => (self.bottom, self.affine(grain, plane, &self.saved(grain, plane))),
            None => (self.top, Affine::IDENTITY),
        }
    }

    /// First the sums of the cells, if they are needed, then all gradients.
    fn back(&self, grain: &Grain<'_>, top_grad: Array) {
        if !self.needs_sums() {
            let Some(to) = self.bottom_grad else { return };
            return self.channels.cells(grain).for_each(|cell| self.pass_on(grain, cell, to, top_grad));
        }
        self.channels.for_cells_twice(grain, |second, cell| {
            if !second {
                return self.correlate(grain, cell, top_grad);
            }
            if cell.part == 0 && self.scale.is_some() {
                self.leave_gradients(grain, cell.plane);
                self.leave_terms(grain, cell.plane);
            }
            if let Some(to) = self.bottom_grad {
                self.differentiate(grain, cell, to, top_grad);
            }
        });
    }

    /// Σ dy and Σ dy · x, x being the source's distances from their mean.
    fn correlate(&self, grain: &Grain<'_>, cell: Cell, top_grad: Array) {
        let (source, affine) = self.source(grain, cell.plane);
        if let Some(grad) = self.shortcut.as_ref().and_then(|shortcut| shortcut.grad) {
            return self.pass_on_and_correlate(grain, cell, (top_grad, grad), &affine);
        }
        // SAFETY: arrays that this stage only reads, or no other of its grains writes, as above.
        let read = |array: Array, place| unsafe { grain.memory.read(array.part(place)) };
        let planes =
            self.channels.places(cell).map(|place| (read(top_grad, place.clone()), read(source, place)));
        let sums = self.channels.passes.correlate(&affine, self.relu(), planes);
        self.channels.leave(grain, self.sums, cell, sums);
    }

    /// The same where the gradient, as the ReLU lets it pass, is also that of a shortcut: it is written there.
    fn pass_on_and_correlate(
        &self,
        grain: &Grain<'_>,
        cell: Cell,
        (top_grad, grad): (Array, Array),
        affine: &Affine,
    ) {
        // SAFETY: top and bottom are only read in this task.
        let read = |array: Array, place| unsafe { grain.memory.read(array.part(place)) };
        let gradients = self.planes(grain, cell, (top_grad, grad));
        let planes = self
            .channels
            .places(cell)
            .zip(gradients)
            .map(|(place, (dy, to))| (dy, read(self.top, place.clone()), read(self.bottom, place), to));
        let sums = self.channels.passes.pass_on(affine, self.relu(), planes);
        self.channels.leave(grain, self.sums, cell, sums);
    }

    /// `dx = s · (dy − mean(dy) − mean(dy · n) · n) / deviation`, n being normalised: the source's distances from their
    /// mean, over the deviation unless they are that already.
    fn differentiate(&self, grain: &Grain<'_>, cell: Cell, bottom_grad: Array, top_grad: Array) {
        let (source, affine) = self.source(grain, cell.plane);
        let slope = self.slope(grain, cell.plane);
        // What is a shortcut's gradient has passed the ReLU already.
        let passed = self.shortcut.as_ref().and_then(|shortcut| shortcut.grad);
        let (top_grad, relu) = passed.map_or((top_grad, self.relu()), |grad| (grad, false));
        // SAFETY: the source is only read in this task.
        let sources =
            self.channels.places(cell).map(|place| unsafe { grain.memory.read(source.part(place)) });
        let planes = self.planes(grain, cell, (top_grad, bottom_grad)).zip(sources);
        let planes = planes.map(|((dy, dx), x)| (dy, x, dx));
        self.channels.passes.back((&affine, &slope), relu, planes);
    }

    fn slope(&self, grain: &Grain<'_>, plane: usize) -> Slope {
        let inverse = self.inverse(plane, &self.saved(grain, plane)[1]);
        let (mut factor, mut square) = (inverse, [1.0; _]);
        if let Some(scale) = &self.scale {
            let factors = self.numbers(grain, scale.factors, plane);
            factor.iter_mut().zip(factors).for_each(|(f, s)| *f *= s);
            square = inverse.map(|inverse| f64::from(inverse) * f64::from(inverse));
        }
        let (mut slope, mut offset) = (Numbers::default(), Numbers::default());
        if !self.kept() {
            let [dy, product] = self.channels.sums(grain, self.sums, plane);
            let values = self.channels.values() as f64;
            for channel in 0..factor.len() {
                let factor = f64::from(factor[channel]) / values;
                slope[channel] = (factor * product[channel] * square[channel]) as f32;
                offset[channel] = (factor * dy[channel]) as f32;
            }
        }
        Slope { factor, slope, offset }
    }

    /// `dx = dy / deviation`.
    fn pass_on(&self, grain: &Grain<'_>, cell: Cell, to: Array, top_grad: Array) {
        let factor = self.inverse(cell.plane, &self.saved(grain, cell.plane)[1]);
        let planes = self.planes(grain, cell, (top_grad, to));
        self.channels.passes.apply(&Affine { factor, ..Affine::IDENTITY }, false, planes);
    }

    /// The gradients of a scale's factors and bias.
    fn leave_gradients(&self, grain: &Grain<'_>, plane: usize) {
        let Some(scale) = &self.scale else { return };
        let [dy, product] = self.channels.sums(grain, self.sums, plane);
        let inverse = self.inverse(plane, &self.saved(grain, plane)[1]);
        if let Some(to) = scale.factors_grad {
            let factors = std::array::from_fn(|c| (product[c] * f64::from(inverse[c])) as f32);
            self.channels.write(grain, to, plane, &factors);
        }
        if let Some(to) = scale.bias_grad {
            self.channels.write(grain, to, plane, &dy.map(|sum| sum as f32));
        }
    }

    /// This device's terms of the running sums, unless statistics are kept.
    fn leave_terms(&self, grain: &Grain<'_>, plane: usize) {
        if self.kept() {
            return;
        }
        let correction = BatchNorm::bias_correction(self.channels.values());
        let [mean, variance] = self.saved(grain, plane);
        let terms = [mean.map(|m| self.share * m), variance.map(|v| self.share * (correction * v))];
        for (term, to) in terms.iter().zip(self.running_grads) {
            if let Some(to) = to {
                self.channels.write(grain, to, plane, term);
            }
        }
        if let (0, Some(factor)) = (plane, self.running_grads[2]) {
            // SAFETY: the grain of the first plane writes it.
            unsafe { grain.memory.write(factor) }.fill(self.share);
        }
    }

    fn backward(&self, grain: &Grain<'_>) {
        if let Some(top_grad) = self.top_grad {
            self.back(grain, top_grad);
        }
    }
}

impl LayerKernel for Kernel {
    fn stages(&self, sub: SubTask) -> Stages {
        let twice = match sub {
            SubTask::Forward => !self.kept(),
            SubTask::GradWeight if self.scale.is_none() => return Stages::one(1),
            _ => self.needs_sums(),
        };
        if twice { self.channels.twice() } else { self.channels.once() }
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        self.normalise(grain);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        self.backward(grain);
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        if self.scale.is_some() {
            return self.backward(grain);
        }
        for plane in 0..self.channels.planes() {
            self.leave_terms(grain, plane);
        }
    }
}
