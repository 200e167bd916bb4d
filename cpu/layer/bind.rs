//! Binds the chosen implementation to every layer: from here on a kernel knows where its arrays lie.

use quadrille_core::device::Packed;
use quadrille_core::layer::{Layer, Normalize, Operand, SubTask};
use quadrille_core::net::{Adders, LayerId, Net, NetLayer, ParamId, StorageId, StorageNeeds};
use quadrille_core::task::DeviceId;

use super::array::Array;
use super::layout_pass::{Decisions, decide};
use super::select::{Candidate, Form};
use super::{KERNEL_SUB_TASKS, LayerKernel, flatten, joined, reorder};
use crate::isa::{Isa, Numerics};
use crate::lanes::LaneTable;
use crate::layout::Arrangement;
use crate::machine::{LINE, Machine};
use crate::memory::{MemoryMap, Span};

/// What was chosen for a layer, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The layer.
    pub layer: String,
    /// The layer and those that are computed with it.
    pub label: String,
    /// Its type.
    pub type_name: &'static str,
    /// The implementation.
    pub implementation: &'static str,
    /// The layout of its tops.
    pub layout: String,
    /// Whether some of its arrays are copied from and to another layout.
    pub reorders: bool,
    /// Grains of each stage of the sub-tasks that its kernel does.
    pub grains: Vec<(SubTask, Vec<u32>)>,
}

/// What a candidate needs to bind itself to a layer.
pub(crate) struct Binder<'a> {
    /// The net.
    pub net: &'a Net,
    /// The nets of all devices of the worker.
    pub everywhere: &'a [Net],
    /// Which of them is the device's.
    pub device: DeviceId,
    /// The layer.
    pub id: LayerId,
    /// The kernels' tier.
    pub isa: Isa,
    /// Its constants.
    pub machine: Machine,
    pub(super) decisions: &'a Decisions,
    pub(super) candidate: &'static Candidate,
    pub(super) map: &'a mut MemoryMap,
    pub(super) lanes: &'a LaneTable,
    /// Elements of workspace that each sub-task has taken.
    pub(super) taken: [usize; SubTask::ALL.len()],
    /// Arrays that lie otherwise than the implementation wants, and the copies that it gets in their place.
    pub(super) copies: Vec<(StorageId, Span)>,
}

impl<'a> Binder<'a> {
    /// The layer.
    pub fn layer(&self) -> &'a NetLayer {
        self.net.layer(self.id)
    }

    /// Where an operand lies; `None` if it does not exist in this net. State has the length of its meaning.
    /// The gradient of a shared parameter is the layer's own, where it has one.
    pub fn span(&mut self, operand: Operand) -> Option<Span> {
        if let Operand::Aux(i) = operand {
            let id = *self.layer().aux.get(i)?;
            return Some(self.map.aux(id, self.net.aux[id.0]));
        }
        if let Operand::ParamGrad(i) = operand
            && let Some(own) = self.layer().own_grad(i)
        {
            return Some(self.map.aux(own, self.net.aux[own.0]));
        }
        self.copy(operand).or_else(|| self.memory(operand))
    }

    /// The copy that stands for an operand's array, if there is one.
    fn copy(&self, operand: Operand) -> Option<Span> {
        let storage = self.storage(operand)?;
        self.copies.iter().find(|(original, _)| *original == storage).map(|(_, copy)| *copy)
    }

    /// The array of a blob's operand; `None` if it does not exist in this net or is not a blob's.
    pub(super) fn storage(&self, operand: Operand) -> Option<StorageId> {
        self.decisions.storage(self.net, self.id, operand)
    }

    /// Where an operand other than state lies in the net's memory, in the layout of its blob; of a gradient, whether it
    /// is shared or not, where the whole of it lies.
    pub(super) fn memory(&self, operand: Operand) -> Option<Span> {
        let param =
            |packed, i: usize| self.layer().params.get(i).map(|p| MemoryMap::param(self.net, packed, *p));
        match operand {
            Operand::Param(i) => param(Packed::Weights, i),
            Operand::ParamGrad(i) => param(Packed::Gradients, i),
            blobs => self.storage(blobs).map(|storage| self.map.storage(storage)),
        }
    }

    /// Where a blob's operand lies, and how; `None` if it does not exist in this net. For kernels that find images apart.
    pub fn array(&mut self, operand: Operand) -> Option<Array> {
        Some(Array { span: self.span(operand)?, lies: self.arrangement(operand)? })
    }

    /// How a blob's operand lies for this kernel.
    pub fn arrangement(&self, operand: Operand) -> Option<Arrangement> {
        let (lies, wanted) = self.decisions.arrangements(self.net, self.id, self.candidate, operand)?;
        // A reordered array lies as wanted; any other as it is, which is the same but for its name.
        let as_it_lies = matches!(self.candidate.form, Form::Any | Form::Exit) && lies.is_like(&wanted);
        Some(if as_it_lies { lies } else { wanted })
    }

    /// State `i` of the layer with `len` elements, for a kernel whose layout needs more than the meaning.
    pub fn state(&mut self, i: usize, len: usize) -> Option<Span> {
        let id = *self.layer().aux.get(i)?;
        Some(self.map.aux(id, len))
    }

    /// Memory for the kernel's own use while a task of `sub` runs. ∇W has the same whether it updates the weight or not.
    pub fn workspace(&mut self, sub: SubTask, len: usize) -> Span {
        let sub = if sub == SubTask::StepWeight { SubTask::GradWeight } else { sub };
        let taken = SubTask::ALL.iter().position(|s| *s == sub).map(|i| &mut self.taken[i]);
        let mut none = 0;
        let taken = taken.unwrap_or(&mut none);
        let offset = *taken;
        *taken = (offset + len).next_multiple_of(LINE);
        let lane = self.lanes.workspace_of(self.id, sub);
        self.map.workspace(lane, offset, len)
    }

    /// Grains for a streaming operation on `elements`.
    pub fn stream_grains(&self, elements: usize) -> usize {
        self.machine.stream_grains(elements)
    }
}

/// Every layer's kernel, what was chosen, and where everything lies.
pub(crate) struct Bound {
    /// One kernel for each layer.
    pub kernels: Vec<Box<dyn LayerKernel>>,
    /// For the log.
    pub choices: Vec<Choice>,
    /// Where everything lies.
    pub map: MemoryMap,
}

/// What the storages of `net` ask of memory, in words: how many each takes, padding included, and which are to lie inside
/// others. It is what [`Net::sharing_memory`] is to be told.
///
/// # Errors
/// As binding the net would: if a forced implementation does not exist or cannot do the layer, or names no layer.
pub fn storage_needs(
    net: &Net,
    numerics: Numerics,
    forced: &[(String, String)],
) -> Result<StorageNeeds, String> {
    let decisions = decide(net, numerics, forced)?;
    let lengths = decisions.storages.iter().map(Arrangement::len).collect();
    Ok(StorageNeeds { lengths, parts: joined::parts(net, &decisions) })
}

/// The layers of `net` whose implementation can update the weight as it finds the gradient: what [`Net::stepping`] is to be
/// told. Of a net that computes a part of the worker's mini-batch, those for which it pays to find the gradient of the whole: other
/// devices can read what the layer reads as it lies, and the images are few.
///
/// # Errors
/// As [`storage_needs`].
pub fn stepping_layers(
    net: &Net,
    numerics: Numerics,
    forced: &[(String, String)],
) -> Result<Vec<LayerId>, String> {
    let decisions = decide(net, numerics, forced)?;
    let whole = (net.batch() as f32 / net.share).round() as usize;
    let machine = Machine::of(numerics.isa);
    let few = whole <= machine.step_images;
    let can = |id: &LayerId| {
        let candidate = decisions.chosen[id.0];
        let large = |param: &ParamId| net.params.view(*param).shape.count() >= machine.step_elements;
        let large = || net.layer(*id).params.first().is_some_and(large);
        let together = || few && large() && decisions.is_native(net, *id, candidate);
        candidate.steps && (net.share == 1.0 || together())
    };
    Ok((0..decisions.chosen.len()).map(LayerId).filter(can).collect())
}

/// The layers of `net` for which it pays to update the weight where ∇A reads it: what [`Net::stepping_in_passing`] is to be told. These
/// are large weights, and so few images that ∇A is bound by memory: with more of them it hides the way of the weight.
///
/// # Errors
/// As [`storage_needs`].
pub fn passing_layers(
    net: &Net,
    numerics: Numerics,
    forced: &[(String, String)],
) -> Result<Vec<LayerId>, String> {
    let decisions = decide(net, numerics, forced)?;
    let machine = Machine::of(numerics.isa);
    let few = net.share == 1.0 && net.batch() <= machine.passing_images;
    let large = |param: &ParamId| net.params.view(*param).shape.count() >= machine.step_elements;
    let pays = |id: &LayerId| {
        let weight = net.layer(*id).params.first();
        few && decisions.chosen[id.0].steps && weight.is_some_and(large)
    };
    Ok((0..decisions.chosen.len()).map(LayerId).filter(pays).collect())
}

/// The layers of `net` whose implementation can do the backward of a ReLU that it reads: what [`Net::rectifying`] is to be told. A
/// ReLU for which an implementation is forced is left to that.
///
/// # Errors
/// As [`storage_needs`].
pub fn rectifying_layers(
    net: &Net,
    numerics: Numerics,
    forced: &[(String, String)],
) -> Result<Vec<LayerId>, String> {
    let decisions = decide(net, numerics, forced)?;
    let is_forced = |id: &LayerId| {
        let below = net.layer(*id).bottoms.iter().map(|blob| net.layer(net.blob(*blob).producer));
        below
            .flat_map(|below| [&*below.name, below.layer.type_name()])
            .any(|own| forced.iter().any(|(name, _)| name == own))
    };
    let can = |id: &LayerId| rectifies(net, *id, &decisions, numerics) && !is_forced(id);
    Ok((0..decisions.chosen.len()).map(LayerId).filter(can).collect())
}

/// Whether the implementation that was chosen for a layer can do the backward of a ReLU that it reads.
fn rectifies(net: &Net, id: LayerId, decisions: &Decisions, numerics: Numerics) -> bool {
    let candidate = decisions.chosen[id.0];
    let precision = decisions.precision_of(net.layer(id), candidate);
    (candidate.rectifies)(net, id, Numerics { precision, ..numerics })
}

/// Where the implementations of `net` can add gradients up in place: what [`Net::adding`] is to be told.
///
/// # Errors
/// As [`storage_needs`].
pub fn adders(net: &Net, numerics: Numerics, forced: &[(String, String)]) -> Result<Adders, String> {
    let decisions = decide(net, numerics, forced)?;
    let mut found = Adders::default();
    for (index, (layer, candidate)) in net.layers.iter().zip(&decisions.chosen).enumerate() {
        let id = LayerId(index);
        let mut blobs = layer.bottoms.iter().chain(&layer.tops).map(|blob| decisions.layout(*blob));
        let first = blobs.next();
        let alike = blobs.all(|layout| Some(layout) == first);
        match &layer.layer {
            Layer::Split(_) if alike => found.splits.push(id),
            Layer::Eltwise(_) | Layer::Normalize(Normalize { sum: true, .. })
                if alike && candidate.form == Form::Any =>
            {
                found.sums.push(id);
            }
            _ => {
                // As it is built: in the precision in which it keeps its blobs.
                let precision = decisions.precision_of(layer, candidate);
                let adds = (candidate.adds)(net, id, Numerics { precision, ..numerics });
                if adds && decisions.is_native(net, id, candidate) {
                    found.layers.push(id);
                }
            }
        }
    }
    Ok(found)
}

/// Chooses and binds an implementation for every layer of net number `device` of `nets`, those of all devices of the worker,
/// whose tasks run in `lanes`.
/// `forced` holds (layer or type, implementation).
///
/// # Errors
/// If a forced implementation does not exist or cannot do the layer, or names no layer.
pub(crate) fn bind(
    nets: &[Net],
    device: usize,
    lanes: &LaneTable,
    numerics: Numerics,
    forced: &[(String, String)],
) -> Result<Bound, String> {
    let net = &nets[device];
    let mut decisions = decide(net, numerics, forced)?;
    decisions.join(net)?;
    let isa = numerics.isa;
    let mut map = MemoryMap::new(net, &decisions.storages)?;
    let mut kernels = Vec::new();
    let mut choices = Vec::new();
    for (index, (layer, candidate)) in net.layers.iter().zip(&decisions.chosen).enumerate() {
        let candidate: &'static Candidate = candidate;
        let native = nets.len() == 1 || decisions.is_native(net, LayerId(index), candidate);
        let cannot = match layer {
            _ if layer.steps_weight && !(candidate.steps && native) => {
                Some("update a weight as it finds the gradient")
            }
            _ if layer.rectifies_gradient && !rectifies(net, LayerId(index), &decisions, numerics) => {
                Some("do the backward of the ReLU before it")
            }
            _ => None,
        };
        if let Some(cannot) = cannot {
            return Err(format!(
                "layer {:?}: {:?} cannot {cannot}; the net was made for other kernels",
                layer.name, candidate.name
            ));
        }
        let mut binder = Binder {
            net,
            everywhere: nets,
            device: DeviceId(device),
            id: LayerId(index),
            isa,
            machine: Machine::of(isa),
            decisions: &decisions,
            candidate,
            map: &mut map,
            lanes,
            taken: [0; SubTask::ALL.len()],
            copies: Vec::new(),
        };
        let (reorders, joined) = (reorder::is_needed(&binder), net.is_joined(binder.id));
        let kernel = match (joined, reorders) {
            (true, _) => Some(flatten::view()),
            (false, true) => reorder::build(&mut binder, candidate),
            (false, false) => (candidate.build)(&mut binder),
        };
        let kernel = kernel.ok_or_else(|| {
            format!("layer {:?}: {:?} fits and does not bind: please report this", layer.name, candidate.name)
        })?;
        let subs = KERNEL_SUB_TASKS.into_iter().filter(|sub| lanes.of(LayerId(index), *sub).is_some());
        let top = layer.tops.first().map(|t| decisions.storages[net.blob(*t).data.0].layout);
        choices.push(Choice {
            layer: layer.name.clone(),
            label: layer.label(),
            type_name: layer.layer.type_name(),
            implementation: if joined { "view" } else { candidate.name },
            layout: top.map(|layout| layout.to_string()).unwrap_or_default(),
            reorders,
            grains: subs.map(|sub| (sub, kernel.stages(sub).iter().collect())).collect(),
        });
        kernels.push(kernel);
    }
    Ok(Bound { kernels, choices, map })
}
