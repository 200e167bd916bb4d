//! How the CPU does each layer: one file per layer family, chosen through an ordered list.

mod accuracy;
mod arrange;
mod array;
mod batch_norm;
mod bias;
mod bind;
mod channels;
mod contrastive_loss;
mod convolution;
mod distance_loss;
mod dropout;
mod eltwise;
mod flatten;
mod gradients;
mod infogain_loss;
mod inner_product;
mod joined;
mod label_loss;
mod layout_pass;
mod lookup;
mod loss_term;
mod lrn;
mod made_up;
mod mvn;
mod neuron;
mod pieces;
mod pooling;
mod prelu;
mod recurrent;
mod reduction;
mod reference;
mod relu;
mod reorder;
mod scale;
mod select;
mod softmax;
mod softmax_loss;
mod split;
mod tally;
mod update;

pub(crate) use array::Array;
pub(crate) use bind::{Binder, Bound, bind};
pub use bind::{Choice, adders, passing_layers, rectifying_layers, stepping_layers, storage_needs};
pub(crate) use gradients::{Gradients, Norms};
pub use select::implementations;
pub(crate) use update::{Soon, Update};

use std::ops::Range;

use quadrille_core::device::Scalars;
use quadrille_core::layer::SubTask;
use quadrille_core::task::DeviceId;

use crate::crew::MAX_GRAINS;
use crate::kernel::element::Element;
use crate::layout::Arrangement;
use crate::memory::{Memory, Span};
use crate::program::BoundNet;

/// What a thread gets with a grain.
pub(crate) struct Grain<'a> {
    /// The device's memory.
    pub memory: &'a Memory,
    /// Which grain.
    pub index: usize,
    /// Of how many.
    pub grains: usize,
    /// In which stage of the task.
    pub stage: usize,
    /// Memory of the thread's own, as long as the kernel asked for.
    pub scratch: &'a mut [f32],
    /// What changes from step to step.
    pub scalars: Scalars,
    /// The solver's rule on the layer's parameters.
    pub update: &'a Update,
    /// The device's first image, counted over the worker's whole mini-batch.
    pub first_image: usize,
    /// What ∇W of the layer sums up.
    pub everywhere: Everywhere<'a>,
}

/// What ∇W of a layer sums up on a device, for kernels that find the gradient over the images of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradientSource {
    /// What the layer read.
    pub bottom: Span,
    /// How it lies.
    pub lies: Arrangement,
    /// The gradient of the layer's top.
    pub top_grad: Span,
    /// Images of both.
    pub images: usize,
}

/// What ∇W of a layer sums up: on the device alone, or on all devices of the worker if each of them updates its weight as it
/// finds the gradient of the whole mini-batch.
#[derive(Clone, Copy)]
pub(crate) struct Everywhere<'a> {
    nets: &'a [BoundNet],
    sources: &'a [(DeviceId, GradientSource)],
}

impl<'a> Everywhere<'a> {
    /// `sources` lie in the memory of those of `nets` that they name.
    pub fn new(nets: &'a [BoundNet], sources: &'a [(DeviceId, GradientSource)]) -> Self {
        Self { nets, sources }
    }

    /// Memory and source number `index`.
    pub fn of(&self, index: usize) -> (&'a Memory, &'a GradientSource) {
        let (device, source) = &self.sources[index];
        (&self.nets[device.0].memory, source)
    }

    /// The memory of devices that have a span elsewhere than `memory`, one of all that have it in one place.
    pub fn others(&self, memory: &'a Memory, span: Span) -> impl Iterator<Item = &'a Memory> {
        let elsewhere =
            move |other: &&Memory| other.owns(span) && other.pointer(span) != memory.pointer(span);
        self.iter().map(|(other, _)| other).filter(elsewhere)
    }

    /// All of them, by device.
    pub fn iter(&self) -> impl Iterator<Item = (&'a Memory, &'a GradientSource)> {
        (0..self.sources.len()).map(|index| self.of(index))
    }
}

impl<'a> Grain<'a> {
    /// This grain's [`share`] of `count` things in a row.
    pub fn share(&self, count: usize) -> Range<usize> {
        share(count, self.index, self.grains)
    }

    /// The numbers of a part of a blob.
    ///
    /// # Safety
    /// As for [`Memory::read`].
    pub unsafe fn read<E: Element>(&self, span: Span) -> &'a [E] {
        let memory: &'a Memory = self.memory;
        // SAFETY: by contract.
        E::of(unsafe { memory.read(span) })
    }

    /// The numbers of a part of a blob, to be changed.
    ///
    /// # Safety
    /// As for [`Memory::write`].
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn write<E: Element>(&self, span: Span) -> &'a mut [E] {
        let memory: &'a Memory = self.memory;
        // SAFETY: by contract.
        E::of_mut(unsafe { memory.write(span) })
    }
}

/// Share `index` of `count` things in a row cut into `shares`: near-equal, none larger than the first or smaller than the last. Larger
/// ones are spread, since threads take neighbouring shares and are to have near-equal parts, too.
pub(crate) fn share(count: usize, index: usize, shares: usize) -> Range<usize> {
    let first = |index: usize| (index * count).div_ceil(shares);
    first(index)..first(index + 1)
}

/// How one layer is computed: the methods of every backend's layers. A kernel is bound to one layer of one
/// net and knows where its arrays lie.
///
/// A sub-task is done in one or several stages; all grains of a stage are done before the next one begins, since they
/// are entries of one in-order lane. The cut into grains is the kernel's, a function of shapes and machine table only.
/// Each grain writes what no other grain of its stage touches.
pub(crate) trait LayerKernel: Send + Sync {
    /// Grains of each stage of a sub-task: at least one stage and at most [`MAX_STAGES`], each of at least 1 grain.
    fn stages(&self, sub: SubTask) -> Stages;

    /// Elements of scratch that a thread needs for a grain.
    fn scratch(&self) -> usize {
        0
    }

    /// Computes the tops.
    fn forward(&self, grain: &mut Grain<'_>);

    /// Computes the gradients of the bottoms.
    fn grad_activation(&self, _grain: &mut Grain<'_>) {}

    /// Computes the gradient of the weight.
    fn grad_weight(&self, _grain: &mut Grain<'_>) {}

    /// Computes the gradient of the weight and updates the weight by it, piece by piece, in place of
    /// [`LayerKernel::grad_weight`]. Only kernels whose candidate `steps` are asked to.
    fn step_weight(&self, _grain: &mut Grain<'_>) {}

    /// What ∇W sums up on this device; only kernels whose candidate `steps` are asked.
    fn gradient_source(&self) -> Option<GradientSource> {
        None
    }

    /// Computes the gradient of the bias.
    fn grad_bias(&self, _grain: &mut Grain<'_>) {}

    /// Computes one of the five.
    fn compute(&self, sub: SubTask, grain: &mut Grain<'_>) {
        match sub {
            SubTask::Forward => self.forward(grain),
            SubTask::GradActivation => self.grad_activation(grain),
            SubTask::GradWeight => self.grad_weight(grain),
            SubTask::StepWeight => self.step_weight(grain),
            SubTask::GradBias => self.grad_bias(grain),
            SubTask::AddShared
            | SubTask::Gather
            | SubTask::Total
            | SubTask::Norm
            | SubTask::Update
            | SubTask::Load
            | SubTask::Accumulate
            | SubTask::Broadcast => {}
        }
    }
}

/// The sub-tasks that kernels compute: the five of [`LayerKernel::compute`].
pub(crate) const KERNEL_SUB_TASKS: [SubTask; 5] =
    [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight, SubTask::StepWeight, SubTask::GradBias];

/// Most stages of a task: a kernel's own are at most four, and its blobs may have to be copied before and after them.
pub(crate) const MAX_STAGES: usize = 6;

/// The grains of each stage of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stages {
    grains: [u32; MAX_STAGES],
    count: usize,
}

impl Stages {
    /// One stage of `grains` grains.
    pub fn one(grains: usize) -> Self {
        Self { grains: [0; MAX_STAGES], count: 0 }.then(grains)
    }

    /// One more stage.
    ///
    /// # Panics
    /// If there are [`MAX_STAGES`] already.
    pub fn then(mut self, grains: usize) -> Self {
        self.grains[self.count] = grains.clamp(1, MAX_GRAINS as usize) as u32;
        self.count += 1;
        self
    }

    /// The stages of `self` and then those of `next`.
    pub fn followed_by(self, next: Self) -> Self {
        next.iter().fold(self, |stages, grains| stages.then(grains as usize))
    }

    /// Grains of each stage.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.grains.into_iter().take(self.count)
    }

    /// Number of stages.
    pub fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_are_near_equal_and_so_are_neighbours_together() {
        for count in 0..70 {
            for shares in 1..40 {
                let all: Vec<_> = (0..shares).map(|index| share(count, index, shares)).collect();
                assert!(all.windows(2).all(|two| two[0].end == two[1].start), "{count} in {shares}: {all:?}");
                assert_eq!([all[0].start, all[shares - 1].end], [0, count]);
                let [most, fewest] = [0, shares - 1].map(|index| all[index].len());
                assert!(most - fewest <= 1, "{count} in {shares}: {all:?}");
                assert!(
                    all.iter().all(|share| (fewest..=most).contains(&share.len())),
                    "{count} in {shares}"
                );
                for threads in (1..=shares).filter(|threads| shares % threads == 0) {
                    let of_thread = |thread: usize| {
                        all[thread * shares / threads].start..all[(thread + 1) * shares / threads - 1].end
                    };
                    assert!((0..threads).all(|thread| of_thread(thread) == share(count, thread, threads)));
                }
            }
        }
    }
}
