//! Convolution as a matrix product over unfolded windows, one image at a time.
//!
//! Per image and group, with O output channels, K = channels × taps and P output pixels:
//! forward `Y[O×P] = W[O×K] · cols[K×P] + b`; ∇A `dcols[K×P] = Wᵀ · dY`, folded back; ∇W `dW[O×K] = Σ dY · colsᵀ`.

use quadrille_core::layer::{Layer, Operand, SubTask};

use crate::isa::Isa;
use crate::kernel::elements::{Change, rectified};
use crate::kernel::gemm::{Extents, Into, Matrix, Product, gemm, scratch};
use crate::kernel::im2col::Geometry;
use crate::kernel::vectorised::on;
use crate::layer::{Binder, Grain, LayerKernel, Stages};
use crate::memory::Span;

struct Im2colGemm {
    isa: Isa,
    geometry: Geometry,
    groups: usize,
    /// Output channels of a group.
    outputs: usize,
    images: usize,
    /// Elements of an image of the bottom and of the top.
    bottom_image: usize,
    top_image: usize,
    bottom: Span,
    top: Span,
    weight: Span,
    bias: Option<Span>,
    relu: bool,
    bottom_grad: Option<Span>,
    top_grad: Option<Span>,
    weight_grad: Option<Span>,
    bias_grad: Option<Span>,
    /// Sums over the images of each grain of ∇W, one after the other.
    partials: Span,
    image_grains: usize,
    reduction_grains: usize,
    sum_grains: usize,
}

pub(in crate::layer) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let Layer::Convolution(conv) = &binder.layer().layer else { return None };
    let (net, id) = (binder.net, binder.id);
    let (bottom, top) = (net.bottom_shapes(id).swap_remove(0), net.top_shapes(id).swap_remove(0));
    let geometry =
        Geometry::new(conv, bottom.dim(1), [bottom.dim(2), bottom.dim(3)], [top.dim(2), top.dim(3)]);
    let images = bottom.images();
    let flops = net.flops(id, SubTask::Forward);
    let image_grains = binder.machine.grains(flops, images);
    let reduction_grains = image_grains.min(binder.machine.reduction_grains);
    let weight = binder.span(Operand::Param(0))?;
    let trained = net.accesses(id, SubTask::GradWeight).is_some();
    let partials =
        binder.workspace(SubTask::GradWeight, if trained { reduction_grains * weight.len() } else { 0 });
    Some(Box::new(Im2colGemm {
        isa: binder.isa,
        geometry,
        groups: conv.group,
        outputs: conv.num_output / conv.group,
        images,
        bottom_image: bottom.per_image(),
        top_image: top.per_image(),
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        weight,
        bias: binder.span(Operand::Param(1)),
        relu: conv.relu,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        weight_grad: binder.span(Operand::ParamGrad(0)),
        bias_grad: binder.span(Operand::ParamGrad(1)),
        partials,
        image_grains,
        reduction_grains,
        sum_grains: binder.stream_grains(weight.len()),
    }))
}

impl Im2colGemm {
    fn forward_extents(&self) -> Extents {
        Extents { rows: self.outputs, columns: self.geometry.columns(), depth: self.geometry.rows() }
    }

    fn activation_extents(&self) -> Extents {
        Extents { rows: self.geometry.rows(), columns: self.geometry.columns(), depth: self.outputs }
    }

    fn weight_extents(&self) -> Extents {
        Extents { rows: self.outputs, columns: self.geometry.rows(), depth: self.geometry.columns() }
    }

    /// Elements of the unfolded matrix.
    fn columns_len(&self) -> usize {
        self.geometry.rows() * self.geometry.columns()
    }

    fn image(span: Span, image: usize, len: usize) -> Span {
        span.part(image * len..(image + 1) * len)
    }

    /// The bottom and top parts of a group in an image, and the weight's.
    fn group(&self, group: usize) -> [std::ops::Range<usize>; 3] {
        let part = |len: usize| group * len..(group + 1) * len;
        [
            part(self.geometry.image()),
            part(self.outputs * self.geometry.columns()),
            part(self.outputs * self.geometry.rows()),
        ]
    }

    /// Adds the partial sums of ∇W in the order of their grains: each grain a part of the weights.
    fn sum_partials(&self, grain: &Grain<'_>) {
        let Some(weight_grad) = self.weight_grad else { return };
        let part = grain.share(self.weight.len());
        for partial in 0..self.reduction_grains {
            let start = partial * self.weight.len();
            // SAFETY: grains have parts of their own; the partial sums were done in the stage before.
            let (dw, sums) = unsafe {
                (
                    grain.memory.write(weight_grad.part(part.clone())),
                    grain.memory.read(self.partials.part(start + part.start..start + part.end)),
                )
            };
            match partial {
                0 => dw.copy_from_slice(sums),
                _ => dw.iter_mut().zip(sums).for_each(|(sum, value)| *sum += value),
            }
        }
    }
}

impl LayerKernel for Im2colGemm {
    fn stages(&self, sub: SubTask) -> Stages {
        match sub {
            SubTask::GradWeight => Stages::one(self.reduction_grains).then(self.sum_grains),
            SubTask::GradBias => Stages::one(1),
            _ => Stages::one(self.image_grains),
        }
    }

    fn scratch(&self) -> usize {
        let products = [self.forward_extents(), self.activation_extents(), self.weight_extents()];
        let largest = products.into_iter().map(|e| scratch(self.isa, e)).max().unwrap_or(0);
        self.columns_len() + largest
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        let pixels = self.geometry.columns();
        for n in grain.share(self.images) {
            // SAFETY: grains have images of their own; the rest is only read in this task.
            let (x, y, weight, bias) = unsafe {
                (
                    grain.memory.read(Self::image(self.bottom, n, self.bottom_image)),
                    grain.memory.write(Self::image(self.top, n, self.top_image)),
                    grain.memory.read(self.weight),
                    self.bias.map(|b| grain.memory.read(b)),
                )
            };
            let (columns, scratch) = grain.scratch.split_at_mut(self.columns_len());
            for g in 0..self.groups {
                let [from, to, w] = self.group(g);
                self.geometry.unfold(&x[from], columns);
                gemm(
                    self.isa,
                    &Product {
                        extents: self.forward_extents(),
                        a: Matrix::rows(&weight[w], self.geometry.rows()),
                        b: Matrix::rows(columns, pixels),
                        into: Into::Replace,
                    },
                    &mut y[to],
                    pixels,
                    scratch,
                );
            }
            for (plane, b) in y.chunks_mut(pixels).zip(bias.unwrap_or(&[])) {
                plane.iter_mut().for_each(|v| *v += b);
            }
            if self.relu {
                on(self.isa, Change { y, f: |y: f32| rectified(y, 0.0) });
            }
        }
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        let pixels = self.geometry.columns();
        for n in grain.share(self.images) {
            // SAFETY: grains have images of their own; the rest is only read in this task.
            let (dx, dy, weight) = unsafe {
                (
                    grain.memory.write(Self::image(bottom_grad, n, self.bottom_image)),
                    grain.memory.read(Self::image(top_grad, n, self.top_image)),
                    grain.memory.read(self.weight),
                )
            };
            let (columns, scratch) = grain.scratch.split_at_mut(self.columns_len());
            for g in 0..self.groups {
                let [to, from, w] = self.group(g);
                gemm(
                    self.isa,
                    &Product {
                        extents: self.activation_extents(),
                        a: Matrix::rows(&weight[w], self.geometry.rows()).transposed(),
                        b: Matrix::rows(&dy[from], pixels),
                        into: Into::Replace,
                    },
                    columns,
                    pixels,
                    scratch,
                );
                self.geometry.fold(columns, &mut dx[to]);
            }
        }
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        if grain.stage == 1 {
            return self.sum_partials(grain);
        }
        let Some(top_grad) = self.top_grad else { return };
        let pixels = self.geometry.columns();
        let partial =
            self.partials.part(grain.index * self.weight.len()..(grain.index + 1) * self.weight.len());
        // SAFETY: each grain has a partial sum of its own.
        let sums = unsafe { grain.memory.write(partial) };
        let images = grain.share(self.images);
        for n in images.clone() {
            // SAFETY: only read in this task.
            let (x, dy) = unsafe {
                (
                    grain.memory.read(Self::image(self.bottom, n, self.bottom_image)),
                    grain.memory.read(Self::image(top_grad, n, self.top_image)),
                )
            };
            let (columns, scratch) = grain.scratch.split_at_mut(self.columns_len());
            for g in 0..self.groups {
                let [bottom, top, w] = self.group(g);
                self.geometry.unfold(&x[bottom], columns);
                gemm(
                    self.isa,
                    &Product {
                        extents: self.weight_extents(),
                        a: Matrix::rows(&dy[top], pixels),
                        b: Matrix::rows(columns, pixels).transposed(),
                        into: if n == images.start { Into::Replace } else { Into::Add },
                    },
                    &mut sums[w],
                    self.geometry.rows(),
                    scratch,
                );
            }
        }
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        let (Some(bias_grad), Some(top_grad)) = (self.bias_grad, self.top_grad) else { return };
        // SAFETY: the task's only grain.
        let (db, dy) = unsafe { (grain.memory.write(bias_grad), grain.memory.read(top_grad)) };
        db.fill(0.0);
        for image in dy.chunks(self.top_image) {
            for (sum, plane) in db.iter_mut().zip(image.chunks(self.geometry.columns())) {
                *sum += plane.iter().sum::<f32>();
            }
        }
    }
}
