//! How the CPU does each layer: one file per layer family, chosen through an ordered list.

mod accuracy;
mod convolution;
mod inner_product;
mod pooling;
mod reference;
mod relu;
mod select;
mod softmax;
mod softmax_loss;
mod split;
mod update;

pub use select::Choice;
pub(crate) use select::{Binder, bind};
pub(crate) use update::Update;

use std::ops::Range;

use quadrille_core::device::Scalars;
use quadrille_core::layer::SubTask;

use crate::memory::Memory;

/// What a thread gets with a grain.
pub(crate) struct Grain<'a> {
    /// The device's memory.
    pub memory: &'a Memory,
    /// Which grain.
    pub index: usize,
    /// Of how many.
    pub grains: usize,
    /// Memory of the thread's own, as long as the kernel asked for.
    pub scratch: &'a mut [f32],
    /// What changes from step to step.
    pub scalars: Scalars,
    /// The device's first image, counted over the worker's whole mini-batch.
    pub first_image: usize,
}

impl Grain<'_> {
    /// This grain's share of `count` things in a row: near-equal, the larger shares first.
    pub fn share(&self, count: usize) -> Range<usize> {
        share(count, self.index, self.grains)
    }
}

/// Share `index` of `count` things in a row cut into `shares`.
pub(crate) fn share(count: usize, index: usize, shares: usize) -> Range<usize> {
    let (each, more) = (count / shares, count % shares);
    let first = index * each + index.min(more);
    first..first + each + usize::from(index < more)
}

/// How one layer is computed: the five methods of every backend's layers. A kernel is bound to one layer of one
/// net and knows where its arrays lie.
///
/// The cut into grains is the kernel's, a function of shapes and machine table only. Each grain writes what no
/// other grain of its task touches; `combine` runs once when all are done, for what needs them all.
pub(crate) trait LayerKernel: Send + Sync {
    /// Grains of a sub-task, at least 1.
    fn grains(&self, sub: SubTask) -> usize;

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

    /// Computes the gradient of the bias.
    fn grad_bias(&self, _grain: &mut Grain<'_>) {}

    /// Applies the solver's rule to the layer's parameters; a kernel that fuses it with the weight gradient
    /// overrides this.
    fn update(&self, rule: &Update, grain: &mut Grain<'_>) {
        rule.run(grain);
    }

    /// Runs once after the last grain of `sub`.
    fn combine(&self, _sub: SubTask, _memory: &Memory) {}
}
