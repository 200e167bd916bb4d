//! One net on one device: kernels bound to their arrays, first without memory and then with it.

use std::ops::Range;
use std::sync::Arc;

use quadrille_core::device::Packed;
use quadrille_core::layer::{Layer, SubTask};
use quadrille_core::net::{LayerId, Net, rows_to_step};
use quadrille_core::plan::Plan;
use quadrille_core::task::{DeviceId, Tile};

use crate::arena::{Homes, OutOfMemory};
use crate::device::COPY_GRAIN;
use crate::lanes::LaneTable;
use crate::layer::{Bound, Choice, GradientSource, Gradients, LayerKernel, Norms, Update, bind};
use crate::memory::{LaneMemory, Memory, MemoryMap, PackedMemory, Span};
use crate::worker::{EngineError, EngineOptions};

/// One layer on one device.
pub(crate) struct BoundLayer {
    /// How it is computed.
    pub kernel: Box<dyn LayerKernel>,
    /// Whether it is bound by arithmetic rather than by memory.
    pub computes: bool,
    /// How its parameters change.
    pub update: Update,
    /// What else is done with its gradients.
    pub gradients: Gradients,
    /// The devices whose gradients the update adds up, in this order.
    pub terms: Vec<DeviceId>,
    /// What its ∇W sums up, and on which devices that lies.
    pub sources: Vec<(DeviceId, GradientSource)>,
    /// The parts of the packed weights that it updates as it finds the gradient on each of several devices, which have the
    /// histories of these parts only.
    pub stepped: Vec<Range<usize>>,
    /// What is loaded: from where, and to where, a piece for each grain.
    pub loads: Vec<(Span, Span)>,
    /// Gradients of the layer's own, and to which of shared parameters they are added: a piece for each grain.
    pub shared: Vec<(Span, Span)>,
}

/// A net whose arrays have places, but no memory yet: devices share some of it between nets.
pub(crate) struct MappedNet {
    layers: Vec<BoundLayer>,
    tile: Tile,
    whole: Tile,
    lanes: LaneTable,
    /// Where everything lies.
    pub map: MemoryMap,
    /// What was chosen for each layer.
    pub choices: Vec<Choice>,
    /// Elements of scratch that a thread needs.
    pub scratch: usize,
}

impl MappedNet {
    /// Binds every layer of net number `device` of `nets`, which computes the images of `tile` with tasks in these lanes.
    pub fn new(
        nets: &[Net],
        device: usize,
        tile: Tile,
        options: &EngineOptions,
        lanes: LaneTable,
    ) -> Result<Self, EngineError> {
        let Bound { kernels, choices, mut map } =
            bind(nets, device, &lanes, options.numerics(), &options.kernels).map_err(EngineError::Kernel)?;
        let net = &nets[device];
        let norms = Norms::new(net, &mut map);
        let scratch = kernels.iter().map(|k| k.scratch()).max().unwrap_or(0);
        let layers = kernels
            .into_iter()
            .enumerate()
            .map(|(index, kernel)| {
                let id = LayerId(index);
                let tops = net.layer(id).tops.iter().map(|t| net.blob(*t).data);
                let loads = tops.filter_map(|s| map.stage(s).map(|stage| (stage, map.storage(s))));
                let loads = loads.flat_map(|(from, to)| pieces(from, to)).collect();
                let update = Update::new(net, id, options, &norms);
                let source = kernel.gradient_source().map(|source| (DeviceId(device), source));
                let norm_lane = lanes.workspace_of(id, SubTask::Norm);
                let gradients = Gradients::new(net, id, &norms, (&mut map, norm_lane), options.isa);
                BoundLayer {
                    kernel,
                    computes: computes(net, id),
                    update,
                    gradients,
                    terms: Vec::new(),
                    sources: source.into_iter().collect(),
                    stepped: stepped_parts(nets, net, id),
                    loads,
                    shared: shared_pieces(net, id, &mut map),
                }
            })
            .collect();
        let images = nets.iter().map(Net::batch).sum();
        Ok(Self { layers, tile, whole: Tile { first: 0, images }, lanes, map, choices, scratch })
    }

    /// Learns from a plan where device number `device` finds the terms of its gradients.
    ///
    /// # Errors
    /// If another plan has them elsewhere, since a task says what is done and not in which plan, or there are more than two.
    pub fn find_terms(&mut self, plan: &Plan, device: DeviceId) -> Result<(), EngineError> {
        let updates = plan.nodes.iter().filter(|n| n.device == device && n.task.sub == SubTask::Update);
        for node in updates {
            let layer = &mut self.layers[node.task.layer.0];
            if node.terms().len() > 2 {
                let reason = format!("layer {} is updated by more than two gradients", node.task.layer.0);
                return Err(EngineError::Plan(reason));
            }
            let found = std::mem::replace(&mut layer.terms, node.terms());
            if !found.is_empty() && found != layer.terms {
                let reason = format!("layer {} is updated by gradients of other devices", node.task.layer.0);
                return Err(EngineError::Plan(format!("{reason} in one plan than in another")));
            }
        }
        Ok(())
    }

    /// Tells those layers that update their weights by gradients of the whole mini-batch what all of `nets`, one for each
    /// device, have to sum up.
    pub fn find_sources(nets: &mut [Self]) {
        for layer in 0..nets.first().map_or(0, |net| net.layers.len()) {
            let all: Vec<_> = nets.iter().flat_map(|net| net.layers[layer].sources.clone()).collect();
            for net in nets.iter_mut().filter(|net| net.layers[layer].update.steps_weight()) {
                net.layers[layer].sources.clone_from(&all);
            }
        }
    }

    /// The net in memory, as that of program number `program`.
    pub fn placed(
        self,
        packed: &Arc<PackedMemory>,
        lanes: &Arc<LaneMemory>,
        program: usize,
        homes: &Homes,
    ) -> Result<BoundNet, OutOfMemory> {
        let memory = Memory::new(packed.clone(), lanes.clone(), self.map, program, homes)?;
        Ok(BoundNet { layers: self.layers, memory, tile: self.tile, whole: self.whole, lanes: self.lanes })
    }
}

/// One net on one device.
pub(crate) struct BoundNet {
    /// Its layers.
    pub layers: Vec<BoundLayer>,
    /// Its memory.
    pub memory: Memory,
    /// The images of every task of the net but those that find gradients of the worker's whole mini-batch.
    pub tile: Tile,
    /// That.
    pub whole: Tile,
    /// The lane of each task, whose workspace it uses.
    pub lanes: LaneTable,
}

/// Grains of a task, a layer's or a transfer, that are worth running at once on so many threads: of what is bound by memory, half
/// as many, since fewer threads than a quadrant has take all of its bandwidth; but not of a load, beside which there is nothing to
/// run.
pub(crate) fn width(task: Option<(&BoundLayer, SubTask)>, threads: usize) -> u32 {
    match task {
        Some((_, SubTask::Load)) => u32::MAX,
        Some((layer, sub)) if layer.computes && sub != SubTask::Update => u32::MAX,
        _ => u32::try_from(threads.div_ceil(2)).unwrap_or(u32::MAX),
    }
}

/// The part of the packed weights that each of several devices updates as it finds a layer's gradient; none of one device.
fn stepped_parts(nets: &[Net], net: &Net, id: LayerId) -> Vec<Range<usize>> {
    let Some(weight) = net.layer(id).params.first().filter(|_| net.layer(id).steps_weight && nets.len() > 1)
    else {
        return Vec::new();
    };
    let view = net.params.view(*weight);
    let row = view.shape.dims().iter().skip(1).product::<usize>();
    let part = |device| {
        let rows = rows_to_step(nets, *weight, DeviceId(device));
        view.range().start + rows.start * row..view.range().start + rows.end * row
    };
    (0..nets.len()).map(part).collect()
}

/// Whether a layer does many operations with each number that it reads.
fn computes(net: &Net, id: LayerId) -> bool {
    let layer = &net.layer(id).layer;
    matches!(
        layer,
        Layer::Convolution(_) | Layer::ConvolutionNd(_) | Layer::InnerProduct(_) | Layer::Recurrent(_)
    )
}

/// What a layer adds to gradients of shared parameters, in pieces that are worth a grain.
fn shared_pieces(net: &Net, id: LayerId, map: &mut MemoryMap) -> Vec<(Span, Span)> {
    let mut all = Vec::new();
    for (own, param) in net.layer(id).grads_to_add() {
        let (own, gradient) = (map.aux(own, net.aux[own.0]), MemoryMap::param(net, Packed::Gradients, param));
        all.extend(pieces(own, gradient));
    }
    all
}

/// Two spans of the same length in pieces that are worth a grain.
fn pieces(from: Span, to: Span) -> impl Iterator<Item = (Span, Span)> {
    (0..from.len()).step_by(COPY_GRAIN).map(move |start| {
        let part = start..(start + COPY_GRAIN).min(from.len());
        (from.part(part.clone()), to.part(part))
    })
}
