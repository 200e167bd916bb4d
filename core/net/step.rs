//! ∇W and update in one pass: a weight is updated as its gradient is found, block by block, and the gradient is never
//! stored.
//!
//! Apart, ∇W writes a gradient as large as the weight, and the update reads it again. Where the weight is large beside what
//! its layer computes, as that of an inner product of few images, both are bound by memory, and the gradient is a third of
//! what they move. Nothing but the order of the work changes: the sums are the same, and so is the rule.
//!
//! On several devices each finds the gradient of the worker's whole mini-batch for some rows of the weight, from what the layer
//! read and from the gradients of its tops on all devices, and writes the new rows to the weights of all devices. What it reads
//! is small beside the weight if the images are few, and then it takes less time than to write a gradient on every device, to
//! read all of them again, and to add them up; each device has the history of its own rows only.
//!
//! Where ∇A is bound by memory, too, it reads the weight just to multiply it, and the update reads it again. One device that has all
//! images does both in one pass: block by block of the weight, first ∇A, then ∇W and the update.

use std::ops::Range;

use super::{LayerId, Net, ParamId, ParamRule};
use crate::layer::{Accesses, Operand, SubTask};
use crate::task::{DeviceId, Tile};

/// The rows of a weight, extents of its first axis, that one of a worker's devices updates if they find its gradient together:
/// in proportion to their images. `nets` are those of all devices, in their order.
pub fn rows_to_step(nets: &[Net], weight: ParamId, device: DeviceId) -> Range<usize> {
    let images: Vec<usize> = nets.iter().map(Net::batch).collect();
    let rows = nets[device.0].params.view(weight).shape.dims().first().copied().unwrap_or(1);
    let share = Tile::shares(rows, &images)[device.0];
    share.first..share.first + share.images
}

impl Net {
    /// The same net with the weights updated as their gradients are found in those layers that `can` do so and where nobody
    /// else asks for the gradient: the worker's mini-batch is all of an iteration, no norm is asked for, no other layer has the
    /// weight, the solver changes it by its rule, and all of the gradient is ∇W's.
    ///
    /// Such a net has the gradients of these weights nowhere, so it is for plans of whole iterations
    /// ([`Stage::Iteration`](crate::plan::Stage)); there is no plan of another stage with an update. On several devices the nets
    /// of all must have the same layers marked. Comes after [`Net::fused`].
    pub fn stepping(mut self, can: impl Fn(LayerId) -> bool) -> Self {
        for id in (0..self.layers.len()).map(LayerId) {
            self.layers[id.0].steps_weight |= self.may_step(id) && can(id);
        }
        self
    }

    /// The same net with the weights updated where their layer's ∇A reads them anyway, in those layers that update them as they find
    /// the gradient, that have a ∇A, and that `can` do both: the weight is then read once less. For nets of which one device has the
    /// whole mini-batch. Comes after [`Net::stepping`].
    pub fn stepping_in_passing(mut self, can: impl Fn(LayerId) -> bool) -> Self {
        for id in (0..self.layers.len()).map(LayerId) {
            let both = self.layer(id).steps_weight && self.accesses(id, SubTask::GradActivation).is_some();
            self.layers[id.0].steps_in_passing |= both && can(id);
        }
        self
    }

    /// The sub-task that updates the layer's weight as the gradient is found, if one does.
    pub fn stepping_task(&self, id: LayerId) -> Option<SubTask> {
        let layer = self.layer(id);
        let task = if layer.steps_in_passing { SubTask::GradActivation } else { SubTask::StepWeight };
        layer.steps_weight.then_some(task)
    }

    /// Whether only the update asks for the gradient of the layer's weight.
    fn may_step(&self, id: LayerId) -> bool {
        let Some(weight) = self.layer(id).params.first().copied() else { return false };
        let view = self.params.view(weight);
        let found_by: Vec<(SubTask, Accesses)> = SubTask::BACKWARD
            .into_iter()
            .filter_map(|sub| Some((sub, self.accesses(id, sub)?)))
            .filter(|(_, accesses)| accesses.writes.contains(&Operand::ParamGrad(0)))
            .collect();
        let by_itself = match &found_by[..] {
            [(SubTask::GradWeight, accesses)] => accesses.writes == [Operand::ParamGrad(0)],
            _ => false,
        };
        let users =
            self.layers.iter().flat_map(|layer| &layer.params).filter(|param| **param == weight).count();
        let by_rule = view.rule == ParamRule::Gradient && view.lr_mult != 0.0;
        by_itself && by_rule && users == 1 && self.updates_at_once()
    }

    /// What a layer reads and writes that updates its weight as it finds the gradient: what ∇W reads, and the weight.
    pub(super) fn step_accesses(&self, id: LayerId) -> Option<Accesses> {
        let mut accesses = self.accesses_apart(id, SubTask::GradWeight)?;
        accesses.reads.push(Operand::Param(0));
        accesses.writes = vec![Operand::Param(0)];
        Some(accesses)
    }

    /// What it reads and writes if it does so in passing: what ∇A does, too.
    pub(super) fn passing_accesses(&self, id: LayerId) -> Option<Accesses> {
        let mut accesses = self.accesses_apart(id, SubTask::GradActivation)?;
        let step = self.step_accesses(id)?;
        let more = step.reads.into_iter().filter(|read| !accesses.reads.contains(read)).collect::<Vec<_>>();
        accesses.reads.extend(more);
        accesses.writes.extend(step.writes);
        Some(accesses)
    }
}
