//! Parameters that several layers have, by the name that the file gives them.
//!
//! The packed buffer holds such a parameter once, under the first layer that has it. Its gradient is the sum of what
//! each of its layers finds, in the order of backward: the last of them writes it, each of the others has an array of
//! its own (state of the layer, [`AuxId`]) and adds that when it is done. So no kernel has to know of sharing, and
//! two layers' weight gradients still run side by side.

use std::collections::HashMap;

use super::params::{ParamRule, ParamView};
use super::spec::{LayerSpec, ParamSpec, ShareMode};
use super::{AuxId, LayerId, Net, ParamId};
use crate::layer::{Operand, ParamShape, SubTask};
use crate::site::Fault;

/// A layer's part in the gradient of a parameter that other layers add to as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedGrad {
    /// Which of the layer's parameters.
    pub index: usize,
    /// Where the layer's own gradient lies until it is added; `None` for the layer whose gradient is the first.
    pub own: Option<AuxId>,
    /// Whether the gradient is complete when this layer has added its part.
    pub is_last: bool,
}

/// What is known of a named parameter.
struct Named {
    id: ParamId,
    /// The layer that has it first.
    layer: String,
    /// The multipliers that some layer gave; others may give the same or none.
    lr_mult: Option<f32>,
    decay_mult: Option<f32>,
}

/// The named parameters so far.
#[derive(Default)]
pub(super) struct Names(HashMap<String, Named>);

impl Names {
    /// The parameter `index` of a layer: a new one, or one that an earlier layer has under the same name.
    pub fn place(
        &mut self,
        net: &mut Net,
        spec: &LayerSpec,
        index: usize,
        param: &ParamShape,
    ) -> Result<ParamId, Fault> {
        let mut said = spec.params.get(index).cloned().unwrap_or_default();
        let rule = spec.layer.param_rule(index);
        if let ParamRule::RunningSum { .. } = rule {
            if said.name.is_some() {
                return Err(
                    Fault::new("param.name", "running sums cannot be shared yet").hint("leave it out")
                );
            }
            said = ParamSpec { lr_mult: Some(0.0), decay_mult: Some(0.0), ..said };
        }
        if let Some(named) = said.name.as_ref().and_then(|name| self.0.get_mut(name)) {
            named.check_shape(net, &said, param)?;
            named.agree(net, &said)?;
            return Ok(named.id);
        }
        let id = net.params.push(ParamView {
            name: format!("{}/{index}", spec.name),
            shape: param.shape.clone(),
            offset: 0,
            rule,
            lr_mult: said.lr_mult.unwrap_or(1.0),
            decay_mult: said.decay_mult.unwrap_or(1.0),
            filler: param.filler.clone(),
        });
        if let Some(name) = said.name {
            let ParamSpec { lr_mult, decay_mult, .. } = said;
            self.0.insert(name, Named { id, layer: spec.name.clone(), lr_mult, decay_mult });
        }
        Ok(id)
    }
}

impl Named {
    fn check_shape(&self, net: &Net, said: &ParamSpec, param: &ParamShape) -> Result<(), Fault> {
        let (first, here) = (&net.params.view(self.id).shape, &param.shape);
        let same_count = first.count() == here.count();
        let (fits, expected) = match said.share {
            ShareMode::Strict => (first == here, "the same shape"),
            ShareMode::Permissive => (same_count, "as many values"),
        };
        if fits {
            return Ok(());
        }
        let fault = Fault::new(
            "param.name",
            format!(
                "{:?} has shape {first} in layer {:?} and {here} here; expected {expected}",
                said.name.as_deref().unwrap_or_default(),
                self.layer
            ),
        );
        Err(if same_count {
            fault.hint("share_mode: PERMISSIVE asks for as many values only")
        } else {
            fault.hint("leave the name out, and each layer has a parameter of its own")
        })
    }

    /// Takes over what `said` is the first to say, and complains if it says something else.
    fn agree(&mut self, net: &mut Net, said: &ParamSpec) -> Result<(), Fault> {
        let view = net.params.view_mut(self.id);
        for (field, here, there, value) in [
            ("lr_mult", said.lr_mult, &mut self.lr_mult, &mut view.lr_mult),
            ("decay_mult", said.decay_mult, &mut self.decay_mult, &mut view.decay_mult),
        ] {
            match (here, *there) {
                (Some(here), Some(there)) if here != there => {
                    let name = said.name.as_deref().unwrap_or_default();
                    return Err(Fault::new(
                        &format!("param.{field}"),
                        format!("{here} for {name:?}, which layer {:?} shares with {there}", self.layer),
                    )
                    .hint("give the same in both layers, or leave it out in one"));
                }
                (Some(here), None) => (*there, *value) = (Some(here), here),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Net {
    /// Gives the layers that share a parameter their parts in its gradient. Comes after the gradients of blobs, which
    /// decide who takes part in backward.
    pub(super) fn share_gradients(&mut self) {
        let mut parts: HashMap<ParamId, Vec<(LayerId, usize)>> = HashMap::new();
        for id in (0..self.layers.len()).map(LayerId) {
            for (index, param) in self.layer(id).params.iter().enumerate() {
                if self.finds_gradient(id, index) {
                    parts.entry(*param).or_default().push((id, index));
                }
            }
        }
        // In the order of parameters, so that every net of a plan numbers its arrays alike.
        let mut shared: Vec<_> = parts.into_iter().filter(|(_, layers)| layers.len() > 1).collect();
        shared.sort_unstable_by_key(|(param, _)| *param);
        for (param, layers) in shared {
            let count = self.params.view(param).shape.count();
            for (place, (id, index)) in layers.iter().copied().enumerate() {
                let own = (place + 1 < layers.len()).then(|| {
                    self.aux.push(count);
                    AuxId(self.aux.len() - 1)
                });
                self.layers[id.0].shared.push(SharedGrad { index, own, is_last: place == 0 });
            }
        }
    }

    /// Whether a sub-task of the layer computes the gradient of its parameter `index`.
    pub fn finds_gradient(&self, id: LayerId, index: usize) -> bool {
        SubTask::BACKWARD
            .into_iter()
            .filter_map(|sub| self.accesses(id, sub))
            .any(|accesses| accesses.writes.contains(&Operand::ParamGrad(index)))
    }
}
