//! Convolution as a matrix product over unfolded windows, one image at a time.
//!
//! Per image and group, with O output channels, K = channels × taps and P output pixels:
//! forward `Y[O×P] = W[O×K] · cols[K×P] + b`; ∇A `dcols[K×P] = Wᵀ · dY`, folded back; ∇W `dW[O×K] = Σ dY · colsᵀ`.
//! A deconvolution's forward is that ∇A and its ∇A that forward; in ∇W bottom and top change places. Windows may lie over
//! any number of axes.

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, Net};

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
    /// Channels of a group on the small side, which has one place for each window: the top's, or a deconvolution's
    /// bottom's. On the other, large side the windows lie.
    outputs: usize,
    images: usize,
    /// Elements of an image of the small side and of the large side.
    small_image: usize,
    large_image: usize,
    /// Whether it is a deconvolution: its bottom is the small side and its top the large one.
    transposed: bool,
    /// Elements of a channel of the top.
    top_plane: usize,
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

/// What a layer of either kind is to this kernel.
struct Kind {
    geometry: Geometry,
    groups: usize,
    images: usize,
    small: usize,
    transposed: bool,
    relu: bool,
}

fn kind(net: &Net, id: LayerId) -> Option<Kind> {
    let (bottom, top) = (net.bottom_shapes(id).swap_remove(0), net.top_shapes(id).swap_remove(0));
    match &net.layer(id).layer {
        Layer::Convolution(conv) => Some(Kind {
            geometry: Geometry::new(
                conv,
                bottom.dim(1),
                [bottom.dim(2), bottom.dim(3)],
                [top.dim(2), top.dim(3)],
            ),
            groups: conv.group,
            images: bottom.images(),
            small: conv.num_output,
            transposed: false,
            relu: conv.relu,
        }),
        Layer::ConvolutionNd(conv) => {
            let sides = conv.sides(&bottom).ok()?;
            Some(Kind {
                geometry: Geometry::of_sides(&sides),
                groups: sides.group,
                images: sides.images,
                small: sides.small.channels,
                transposed: conv.transposed,
                relu: false,
            })
        }
        _ => None,
    }
}

pub(in crate::layer) fn build(binder: &mut Binder<'_>) -> Option<Box<dyn LayerKernel>> {
    let (net, id) = (binder.net, binder.id);
    let Kind { geometry, groups, images, small, transposed, relu } = kind(net, id)?;
    let flops = net.flops(id, SubTask::Forward);
    let image_grains = binder.machine.grains(flops, images);
    let reduction_grains = image_grains.min(binder.machine.reduction_grains);
    let weight = binder.span(Operand::Param(0))?;
    let trained = net.accesses(id, SubTask::GradWeight).is_some();
    let partials =
        binder.workspace(SubTask::GradWeight, if trained { reduction_grains * weight.len() } else { 0 });
    let (small_image, large_image) = (small * geometry.columns(), groups * geometry.image());
    Some(Box::new(Im2colGemm {
        isa: binder.isa,
        groups,
        outputs: small / groups,
        images,
        small_image,
        large_image,
        transposed,
        top_plane: if transposed { geometry.input.iter().product() } else { geometry.columns() },
        bottom: binder.span(Operand::Bottom(0))?,
        top: binder.span(Operand::Top(0))?,
        weight,
        bias: binder.span(Operand::Param(1)),
        relu,
        bottom_grad: binder.span(Operand::BottomGrad(0)),
        top_grad: binder.span(Operand::TopGrad(0)),
        weight_grad: binder.span(Operand::ParamGrad(0)),
        bias_grad: binder.span(Operand::ParamGrad(1)),
        partials,
        image_grains,
        reduction_grains,
        sum_grains: binder.stream_grains(weight.len()),
        geometry,
    }))
}

impl Im2colGemm {
    fn gather_extents(&self) -> Extents {
        Extents { rows: self.outputs, columns: self.geometry.columns(), depth: self.geometry.rows() }
    }

    fn spread_extents(&self) -> Extents {
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

    /// The parts of a group in an image of the large and of the small side, and in the weight.
    fn group(&self, group: usize) -> [std::ops::Range<usize>; 3] {
        let part = |len: usize| group * len..(group + 1) * len;
        [
            part(self.geometry.image()),
            part(self.outputs * self.geometry.columns()),
            part(self.outputs * self.geometry.rows()),
        ]
    }

    /// The small side of the large one: `small = W · cols(large)`.
    fn gather(&self, grain: &mut Grain<'_>, large: Span, small: Span) {
        let pixels = self.geometry.columns();
        for n in grain.share(self.images) {
            // SAFETY: grains have images of their own; the rest is only read in this task.
            let (from_image, to_image, weight) = unsafe {
                (
                    grain.memory.read(Self::image(large, n, self.large_image)),
                    grain.memory.write(Self::image(small, n, self.small_image)),
                    grain.memory.read(self.weight),
                )
            };
            let (columns, scratch) = grain.scratch.split_at_mut(self.columns_len());
            for g in 0..self.groups {
                let [from, to, w] = self.group(g);
                self.geometry.unfold(&from_image[from], columns);
                let (a, b) = (Matrix::rows(&weight[w], self.geometry.rows()), Matrix::rows(columns, pixels));
                let product = Product { extents: self.gather_extents(), a, b, into: Into::Replace };
                gemm(self.isa, &product, &mut to_image[to], pixels, scratch);
            }
        }
    }

    /// The large side of the small one: `large = fold(Wᵀ · small)`.
    fn spread(&self, grain: &mut Grain<'_>, small: Span, large: Span) {
        let pixels = self.geometry.columns();
        for n in grain.share(self.images) {
            // SAFETY: grains have images of their own; the rest is only read in this task.
            let (from_image, to_image, weight) = unsafe {
                (
                    grain.memory.read(Self::image(small, n, self.small_image)),
                    grain.memory.write(Self::image(large, n, self.large_image)),
                    grain.memory.read(self.weight),
                )
            };
            let (columns, scratch) = grain.scratch.split_at_mut(self.columns_len());
            for g in 0..self.groups {
                let [to, from, w] = self.group(g);
                let a = Matrix::rows(&weight[w], self.geometry.rows()).transposed();
                let b = Matrix::rows(&from_image[from], pixels);
                let product = Product { extents: self.spread_extents(), a, b, into: Into::Replace };
                gemm(self.isa, &product, columns, pixels, scratch);
                self.geometry.fold(columns, &mut to_image[to]);
            }
        }
    }

    /// Elements of an image of the top.
    fn top_image(&self) -> usize {
        if self.transposed { self.large_image } else { self.small_image }
    }

    /// Adds the bias to the images of a grain, and rectifies them if the layer does.
    fn finish(&self, grain: &Grain<'_>) {
        // SAFETY: only read in this task.
        let bias = self.bias.map_or(&[][..], |b| unsafe { grain.memory.read(b) });
        for n in grain.share(self.images) {
            // SAFETY: grains have images of their own, and no other slice of the top lives.
            let y = unsafe { grain.memory.write(Self::image(self.top, n, self.top_image())) };
            for (plane, b) in y.chunks_mut(self.top_plane).zip(bias) {
                plane.iter_mut().for_each(|v| *v += b);
            }
            if self.relu {
                on(self.isa, Change { y, f: |y: f32| rectified(y, 0.0) });
            }
        }
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
        let products = [self.gather_extents(), self.spread_extents(), self.weight_extents()];
        let largest = products.into_iter().map(|e| scratch(self.isa, e)).max().unwrap_or(0);
        self.columns_len() + largest
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        match self.transposed {
            false => self.gather(grain, self.bottom, self.top),
            true => self.spread(grain, self.bottom, self.top),
        }
        self.finish(grain);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        let (Some(bottom_grad), Some(top_grad)) = (self.bottom_grad, self.top_grad) else { return };
        match self.transposed {
            false => self.spread(grain, top_grad, bottom_grad),
            true => self.gather(grain, top_grad, bottom_grad),
        }
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        if grain.stage == 1 {
            return self.sum_partials(grain);
        }
        let Some(top_grad) = self.top_grad else { return };
        let (small, large) = if self.transposed { (self.bottom, top_grad) } else { (top_grad, self.bottom) };
        let pixels = self.geometry.columns();
        let partial =
            self.partials.part(grain.index * self.weight.len()..(grain.index + 1) * self.weight.len());
        // SAFETY: each grain has a partial sum of its own.
        let sums = unsafe { grain.memory.write(partial) };
        let images = grain.share(self.images);
        for n in images.clone() {
            // SAFETY: only read in this task.
            let (small, large) = unsafe {
                (
                    grain.memory.read(Self::image(small, n, self.small_image)),
                    grain.memory.read(Self::image(large, n, self.large_image)),
                )
            };
            let (columns, scratch) = grain.scratch.split_at_mut(self.columns_len());
            for g in 0..self.groups {
                let [of_large, of_small, w] = self.group(g);
                self.geometry.unfold(&large[of_large], columns);
                let into = if n == images.start { Into::Replace } else { Into::Add };
                let (a, b) =
                    (Matrix::rows(&small[of_small], pixels), Matrix::rows(columns, pixels).transposed());
                let product = Product { extents: self.weight_extents(), a, b, into };
                gemm(self.isa, &product, &mut sums[w], self.geometry.rows(), scratch);
            }
        }
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        let (Some(bias_grad), Some(top_grad)) = (self.bias_grad, self.top_grad) else { return };
        // SAFETY: the task's only grain.
        let (db, dy) = unsafe { (grain.memory.write(bias_grad), grain.memory.read(top_grad)) };
        db.fill(0.0);
        for image in dy.chunks(self.top_image()) {
            for (sum, plane) in db.iter_mut().zip(image.chunks(self.top_plane)) {
                *sum += plane.iter().sum::<f32>();
            }
        }
    }
}
