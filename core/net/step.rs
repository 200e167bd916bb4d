//! ∇W and update in one pass: a weight is updated as its gradient is found, block by block, and the gradient is never
//! stored.
//!
//! Apart, ∇W writes a gradient as large as the weight, and the update reads it again. Where the weight is large beside what
//! its layer computes, as that of an inner product of few images, both are bound by memory, and the gradient is a third of
//! what they move. Nothing but the order of the work changes: the sums are the same, and so is the rule.

use super::{LayerId, Net, ParamRule};
use crate::layer::{Accesses, Operand, SubTask};

impl Net {
    /// The same net with the weights updated as their gradients are found in those layers that `can` do so and where nobody
    /// else asks for the gradient: the net computes the whole mini-batch of its worker, which is all of an iteration, no
    /// norm is asked for, no other layer has the weight, the solver changes it by its rule, and all of the gradient is ∇W's.
    ///
    /// Such a net has the gradients of these weights nowhere, so it is for plans of whole iterations
    /// ([`Stage::Iteration`](crate::plan::Stage)) on one device; there is no plan of another stage with an update. Comes after [`Net::fused`].
    pub fn stepping(mut self, can: impl Fn(LayerId) -> bool) -> Self {
        for id in (0..self.layers.len()).map(LayerId) {
            self.layers[id.0].steps_weight |= self.may_step(id) && can(id);
        }
        self
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
        by_itself && by_rule && users == 1 && self.share == 1.0 && self.updates_at_once()
    }

    /// What a layer reads and writes that updates its weight as it finds the gradient: what ∇W reads, and the weight.
    pub(super) fn step_accesses(&self, id: LayerId) -> Option<Accesses> {
        let mut accesses = self.accesses_apart(id, SubTask::GradWeight)?;
        accesses.reads.push(Operand::Param(0));
        accesses.writes = vec![Operand::Param(0)];
        Some(accesses)
    }
}
