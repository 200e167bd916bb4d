//! From nets to a plan.

use std::fmt;

use super::layout::Layout;
use super::priority::{Analysis, Estimates, LaneLimits, edges};
use super::{Node, Plan, Schedule, Stage};
use crate::device::Lane;
use crate::layer::{Operand, SubTask};
use crate::net::{BlobId, LayerId, Net, NetLayer, ParamId, ParamRule};
use crate::task::{Buffer, Copy, DeviceId, LaneId, Place, Task, Tile};

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// What it covers.
    pub stage: Stage,
    /// Whether updates are pulled by the centre (EASGD).
    pub elastic: bool,
    /// Layers with parameters whose gradients are summed over devices in one go (CGDP's chunk), at least 1.
    pub chunk_layers: usize,
    /// How its tasks are put into lanes.
    pub schedule: Schedule,
    /// What the devices have room for.
    pub limits: LaneLimits,
}

impl PlanOptions {
    /// A plan of a stage for a worker without a centre that sums the gradients of each layer by itself.
    pub fn new(stage: Stage) -> Self {
        let (schedule, limits) = (Schedule::default(), LaneLimits::default());
        Self { stage, elastic: false, chunk_layers: 1, schedule, limits }
    }
}

/// Nets that cannot be planned together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError(pub String);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Plans one iteration (or a part of it) of `nets`, one for each device of a worker: the same layers, each on
    /// its own images of the mini-batch.
    ///
    /// # Errors
    /// If there is no net, the nets differ in more than their batch, or a layer updates its weight as it finds the gradient
    /// ([`Net::stepping`]) although the plan has other use for the gradient or no update, or not on all devices.
    pub fn build(nets: &[Net], options: PlanOptions) -> Result<Self, PlanError> {
        Self::build_by(nets, options, &Estimates::default())
    }

    /// The same for tasks that take what `estimates` say.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn build_by(nets: &[Net], options: PlanOptions, estimates: &Estimates) -> Result<Self, PlanError> {
        let nodes = nodes_of(nets, options)?;
        let after = edges(nets, &nodes);
        let (stage, devices) = (options.stage, nets.len());
        if options.schedule == Schedule::Layerwise {
            let lanes = vec![Lane { id: LaneId(0), priority: 0 }];
            let nodes = Layout { devices, lanes: &lanes, nodes, after }.with_waits();
            return Ok(Self { stage, devices, lanes, nodes });
        }
        let analysis = Analysis::new(nets, options, estimates)?;
        let mut lanes = analysis.lanes.lanes.clone();
        let mut layout = Layout { devices, lanes: &lanes, nodes, after };
        for node in &mut layout.nodes {
            node.lane = analysis.lane_of(node.task.layer, node.task.sub);
        }
        if options.schedule == Schedule::Critical {
            let order = analysis.order(&layout.nodes, &layout.after);
            layout = layout.ordered(&order);
            for (waits, on) in analysis.extra_waits(&layout.nodes) {
                let after = &mut layout.after[waits.0];
                after.push(on);
                after.sort_unstable();
                after.dedup();
            }
        }
        let nodes = layout.with_waits();
        if options.schedule == Schedule::Concurrent {
            lanes.iter_mut().for_each(|lane| lane.priority = 0);
        }
        Ok(Self { stage, devices, lanes, nodes })
    }
}

/// The tasks of a plan, in an order in which they may run one after the other, without lanes and waits.
pub(super) fn nodes_of(nets: &[Net], options: PlanOptions) -> Result<Vec<Node>, PlanError> {
    let first = nets.first().ok_or_else(|| PlanError("a plan needs at least one device".into()))?;
    for (device, net) in nets.iter().enumerate() {
        if net.params != first.params || net.layers.len() != first.layers.len() {
            return Err(PlanError(format!("the net of device {device} is another one than device 0's")));
        }
    }
    if let Some(net) = nets.iter().find(|net| (net.parts, net.clips) != (first.parts, first.clips)) {
        return Err(PlanError(format!(
            "one net has {} mini-batches in an iteration and the norm of gradients {}, another {} and {}",
            first.parts, first.clips, net.parts, net.clips
        )));
    }
    check_steps(nets, options.stage)?;
    let mut builder = Builder::new(nets, options);
    let layers = (0..first.layers.len()).map(LayerId);
    for layer in layers.clone() {
        builder.compute_everywhere(layer, &[SubTask::Load, SubTask::Forward]);
    }
    for layer in layers.rev() {
        builder.compute_everywhere(layer, &[SubTask::GradActivation, SubTask::GradWeight]);
        // Behind ∇A of all devices, which reads the weight that it changes everywhere.
        builder.compute_everywhere(layer, &[SubTask::StepWeight, SubTask::GradBias]);
        builder.add_shared(layer);
        builder.add_parts(layer);
        builder.sum_and_update(layer);
    }
    builder.finish_chunk();
    builder.update_clipped();
    Ok(builder.nodes)
}

/// Refuses nets that update a weight as they find its gradient where the gradient is asked for by others.
fn check_steps(nets: &[Net], stage: Stage) -> Result<(), PlanError> {
    let whole = matches!(stage, Stage::Iteration | Stage::Forward);
    for layer in nets.iter().flat_map(|net| net.layers.iter().enumerate()) {
        let (index, layer) = layer;
        let everywhere = nets.iter().all(|net| net.layers[index].steps_weight);
        let passing = nets.iter().any(|net| net.layers[index].steps_in_passing);
        if layer.steps_weight && !(whole && everywhere && (nets.len() == 1 || !passing)) {
            let on = match (everywhere, passing) {
                (false, _) => " on which it does so on some devices only",
                (true, true) => " on several devices, of which none has the whole gradient,",
                (true, false) => "",
            };
            return Err(PlanError(format!(
                "layer {:?} updates its weight as it finds the gradient; a plan of stage {stage:?}{on} needs the two apart",
                layer.name
            )));
        }
    }
    Ok(())
}

struct Builder<'a> {
    nets: &'a [Net],
    options: PlanOptions,
    tiles: Vec<Tile>,
    nodes: Vec<Node>,
    /// Layers whose gradients wait for their chunk to be full, in backward order.
    chunk: Vec<LayerId>,
    /// Layers whose updates wait for the norm of all gradients, in backward order.
    clipped: Vec<LayerId>,
}

impl<'a> Builder<'a> {
    fn new(nets: &'a [Net], options: PlanOptions) -> Self {
        let (nodes, chunk, clipped) = (Vec::new(), Vec::new(), Vec::new());
        Self { nets, options, tiles: tiles(nets), nodes, chunk, clipped }
    }

    fn compute_everywhere(&mut self, layer: LayerId, subs: &[SubTask]) {
        let stage = self.options.stage;
        for device in 0..self.nets.len() {
            for sub in subs.iter().filter(|s| stage.includes(**s)) {
                let Some(accesses) = self.nets[device].accesses(layer, *sub) else { continue };
                if *sub == SubTask::StepWeight {
                    self.step(DeviceId(device), layer);
                    continue;
                }
                let buffers = |operands: &[Operand]| -> Vec<Buffer> {
                    operands.iter().flat_map(|o| task_buffers(self.nets, device, layer, *o)).collect()
                };
                let mut writes = buffers(&accesses.writes);
                let mut reads = buffers(&accesses.reads);
                let net = &self.nets[device];
                if net.stepping_task(layer) == Some(*sub) {
                    self.add_history(net, net.layer(layer).params[0], &mut reads, &mut writes);
                }
                if *sub == SubTask::Load {
                    reads.extend(writes.iter().map(|b| match b {
                        Buffer::Storage(id) => Buffer::Stage(*id),
                        other => *other,
                    }));
                }
                self.push(DeviceId(device), layer, *sub, &reads, &writes);
            }
        }
    }

    /// The update of a device's rows of a weight by their gradient of the whole mini-batch, found from what all devices have of
    /// it, and their new values on all devices.
    fn step(&mut self, device: DeviceId, layer: LayerId) {
        let nets = self.nets;
        let net = &nets[device.0];
        let weight = net.layer(layer).params[0];
        let rows = stepped_rows(nets, weight, device);
        let (mut reads, mut history) = (vec![rows], Vec::new());
        self.add_history(net, weight, &mut reads, &mut history);
        let own = |buffers: Vec<Buffer>| buffers.into_iter().map(|buffer| Place { device, buffer });
        let mut reads: Vec<Place> = own(reads).collect();
        let mut writes: Vec<Place> = own(history).collect();
        for device in 0..nets.len() {
            let operands =
                nets[device].accesses(layer, SubTask::StepWeight).unwrap_or_default().reads.into_iter();
            let buffers = operands
                .filter(|operand| *operand != Operand::Param(0))
                .flat_map(|operand| task_buffers(nets, device, layer, operand));
            let place = |buffer| Place { device: DeviceId(device), buffer };
            reads.extend(buffers.map(place));
            writes.push(place(rows));
        }
        let whole = Tile { first: 0, images: self.tiles.iter().map(|tile| tile.images).sum() };
        let task = Task { layer, sub: SubTask::StepWeight, tile: whole };
        self.push_task(device, task, None, reads, writes);
    }

    /// Adds what the layer found of the gradients of shared parameters, on every device.
    fn add_shared(&mut self, layer: LayerId) {
        if !self.options.stage.includes(SubTask::AddShared) {
            return;
        }
        for device in 0..self.nets.len() {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (own, param) in self.nets[device].layer(layer).grads_to_add() {
                reads.extend([Buffer::Aux(own), Buffer::Gradient(param)]);
                writes.push(Buffer::Gradient(param));
            }
            if !writes.is_empty() {
                self.push(DeviceId(device), layer, SubTask::AddShared, &reads, &writes);
            }
        }
    }

    /// Gathers the layer's gradients, or adds to those of the last mini-batch what was gathered, on every device.
    fn add_parts(&mut self, layer: LayerId) {
        let sub = if self.options.stage == Stage::Part { SubTask::Gather } else { SubTask::Total };
        if !self.options.stage.includes(sub) || self.nets[0].parts == 1 {
            return;
        }
        for device in 0..self.nets.len() {
            let params = trained_params(&self.nets[device], layer);
            let sums = params.iter().map(|p| Buffer::Sum(*p));
            let gradients = params.iter().map(|p| Buffer::Gradient(*p));
            let reads: Vec<Buffer> = sums.clone().chain(gradients.clone()).collect();
            let total = gradients.filter(|_| sub == SubTask::Total);
            let writes: Vec<Buffer> = sums.chain(total).collect();
            if !params.is_empty() {
                self.push(DeviceId(device), layer, sub, &reads, &writes);
            }
        }
    }

    /// The layer's gradients are on their way: sum them over the devices when the chunk is full, then update.
    fn sum_and_update(&mut self, layer: LayerId) {
        if !trained_params(&self.nets[0], layer).is_empty() {
            self.chunk.push(layer);
            if self.chunk.len() >= self.options.chunk_layers.max(1) {
                self.finish_chunk();
            }
        }
    }

    fn finish_chunk(&mut self) {
        let chunk = std::mem::take(&mut self.chunk);
        let Some(first) = chunk.first().copied() else { return };
        let params: Vec<ParamId> = chunk.iter().flat_map(|l| trained_params(&self.nets[0], *l)).collect();
        if self.options.stage.includes(SubTask::Accumulate) {
            self.sum_over_devices(first, &params);
        }
        if self.options.stage.includes(SubTask::Update) {
            let clips = self.nets[0].clips;
            for layer in chunk {
                for device in (0..self.nets.len()).map(DeviceId) {
                    if clips { self.norm(device, layer) } else { self.update(device, layer) }
                }
                self.clipped.extend(clips.then_some(layer));
            }
        }
    }

    /// The updates that waited for the last of the gradients.
    fn update_clipped(&mut self) {
        for layer in std::mem::take(&mut self.clipped) {
            (0..self.nets.len()).for_each(|device| self.update(DeviceId(device), layer));
        }
    }

    fn norm(&mut self, device: DeviceId, layer: LayerId) {
        let params = normed_params(&self.nets[device.0], layer);
        let reads: Vec<Buffer> = params.into_iter().map(Buffer::Gradient).collect();
        if !reads.is_empty() {
            self.push(device, layer, SubTask::Norm, &reads, &[Buffer::Norm(layer)]);
        }
    }

    /// Whether updates add the last two terms of the sum over devices themselves. It saves the pass that would add them and
    /// those that would copy the sum back; nobody else may ask for it.
    fn sums_in_update(&self) -> bool {
        self.nets.len() > 1 && self.options.stage == Stage::Iteration && !self.nets[0].clips
    }

    /// The devices whose gradients a device's update adds up: those of the last step of the tree towards device 0, or, where
    /// the whole sum has come back, its own.
    fn terms(&self, device: DeviceId) -> Vec<DeviceId> {
        match self.sums_in_update() {
            true => vec![DeviceId(0), DeviceId(self.nets.len().next_power_of_two() / 2)],
            false => vec![device],
        }
    }

    /// A binomial tree towards device 0 and back, always in the same order: the same bits in every run, and the
    /// same bits on every device. Where updates take the last step of the sum, all before it.
    fn sum_over_devices(&mut self, layer: LayerId, params: &[ParamId]) {
        let devices = self.nets.len();
        let mut strides: Vec<usize> =
            std::iter::successors(Some(1), |s| Some(2 * s)).take_while(|stride| *stride < devices).collect();
        let in_update = self.sums_in_update();
        if in_update {
            strides.pop();
        }
        for &stride in &strides {
            for to in (0..devices - stride).step_by(2 * stride) {
                self.transfer(layer, params, DeviceId(to + stride), DeviceId(to), true);
            }
        }
        for stride in strides.into_iter().rev().filter(|_| !in_update) {
            for from in (0..devices - stride).step_by(2 * stride) {
                self.transfer(layer, params, DeviceId(from), DeviceId(from + stride), false);
            }
        }
    }

    /// One message: the packed gradients of the chunk. Its layers lie side by side in the buffer unless a frozen
    /// parameter lies between them; then there is a message for each contiguous part.
    fn transfer(&mut self, layer: LayerId, params: &[ParamId], from: DeviceId, to: DeviceId, add: bool) {
        let layout = &self.nets[0].params;
        let mut sorted = params.to_vec();
        sorted.sort_unstable();
        for part in sorted.chunk_by(|a, b| b.0 == a.0 + 1) {
            let range = layout.view(part[0]).range().start..layout.view(part[part.len() - 1]).range().end;
            let gradient = |device| part.iter().map(move |p| Place { device, buffer: Buffer::Gradient(*p) });
            let mut reads: Vec<Place> = gradient(from).collect();
            if add {
                reads.extend(gradient(to));
            }
            let writes: Vec<Place> = gradient(to).collect();
            let sub = if add { SubTask::Accumulate } else { SubTask::Broadcast };
            self.push_places(to, layer, sub, Some(Copy { from, to, range, add }), reads, writes);
        }
    }

    fn update(&mut self, device: DeviceId, layer: LayerId) {
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        let net = &self.nets[device.0];
        let params = trained_params(net, layer);
        for &param in &params {
            writes.push(Buffer::Weight(param));
            reads.push(Buffer::Weight(param));
            self.add_history(net, param, &mut reads, &mut writes);
        }
        reads.extend(norms(net));
        let own = |buffers: Vec<Buffer>| buffers.into_iter().map(|buffer| Place { device, buffer }).collect();
        let (mut reads, writes): (Vec<Place>, _) = (own(reads), own(writes));
        for device in self.terms(device) {
            reads.extend(params.iter().map(|param| Place { device, buffer: Buffer::Gradient(*param) }));
        }
        self.push_places(device, layer, SubTask::Update, None, reads, writes);
    }

    /// What the solver's rule needs beside a parameter and its gradient. A running sum has no history and is not pulled.
    fn add_history(&self, net: &Net, param: ParamId, reads: &mut Vec<Buffer>, writes: &mut Vec<Buffer>) {
        if net.params.view(param).rule == ParamRule::Gradient {
            writes.push(Buffer::History(param));
            reads.push(Buffer::History(param));
            if self.options.elastic {
                reads.push(Buffer::Centre(param));
            }
        }
    }

    fn push(&mut self, device: DeviceId, layer: LayerId, sub: SubTask, reads: &[Buffer], writes: &[Buffer]) {
        let places = |buffers: &[Buffer]| buffers.iter().map(|b| Place { device, buffer: *b }).collect();
        self.push_places(device, layer, sub, None, places(reads), places(writes));
    }

    fn push_places(
        &mut self,
        device: DeviceId,
        layer: LayerId,
        sub: SubTask,
        copy: Option<Copy>,
        reads: Vec<Place>,
        writes: Vec<Place>,
    ) {
        let task = Task { layer, sub, tile: self.tiles[device.0] };
        self.push_task(device, task, copy, reads, writes);
    }

    fn push_task(
        &mut self,
        device: DeviceId,
        task: Task,
        copy: Option<Copy>,
        reads: Vec<Place>,
        writes: Vec<Place>,
    ) {
        let (lane, waits) = (LaneId(0), Vec::new());
        self.nodes.push(Node { task, device, lane, copy, reads, writes, waits });
    }
}

/// The images of each device's net: one tile after the other.
pub fn tiles(nets: &[Net]) -> Vec<Tile> {
    let mut first = 0;
    let tile = |net: &Net| {
        first += net.batch();
        Tile { first: first - net.batch(), images: net.batch() }
    };
    nets.iter().map(tile).collect()
}

/// The parameters of a layer that get a gradient and then an update: those whose gradient some sub-task writes; a shared one
/// belongs to the layer that adds to it last.
pub fn trained_params(net: &Net, layer: LayerId) -> Vec<ParamId> {
    let this = net.layer(layer);
    let trained = |index: &usize| net.finds_gradient(layer, *index) && this.completes_grad(*index);
    (0..this.params.len()).filter(trained).map(|index| this.params[index]).collect()
}

/// Those of them that are a part of the norm of all gradients: what travels as the term of a running sum is no gradient.
pub fn normed_params(net: &Net, layer: LayerId) -> Vec<ParamId> {
    let is_gradient = |param: &ParamId| net.params.view(*param).rule == ParamRule::Gradient;
    trained_params(net, layer).into_iter().filter(is_gradient).collect()
}

/// The sums of squares that every update of a net asks for.
pub(crate) fn norms(net: &Net) -> Vec<Buffer> {
    let layers = (0..if net.clips { net.layers.len() } else { 0 }).map(LayerId);
    layers.filter(|layer| !normed_params(net, *layer).is_empty()).map(Buffer::Norm).collect()
}

/// What a device updates of a weight in the pass that finds its gradient: all of it, or its rows, if other devices of the worker
/// update others.
pub(crate) fn stepped_rows(nets: &[Net], weight: ParamId, device: DeviceId) -> Buffer {
    if nets.len() == 1 { Buffer::Weight(weight) } else { Buffer::Rows(weight, device) }
}

/// The arrays behind an operand of a layer on one of the devices, where a weight that all of them update is one for each.
pub(crate) fn task_buffers(nets: &[Net], device: usize, layer: LayerId, operand: Operand) -> Vec<Buffer> {
    let (net, this) = (&nets[device], nets[device].layer(layer));
    match operand {
        Operand::Param(0) if this.steps_weight => {
            (0..nets.len()).map(|device| stepped_rows(nets, this.params[0], DeviceId(device))).collect()
        }
        operand => operand_buffers(net, this, operand),
    }
}

/// The arrays behind a layer's operand: one, or the parts that lie in its memory; none for a gradient that nobody needs.
pub(crate) fn operand_buffers(net: &Net, layer: &NetLayer, operand: Operand) -> Vec<Buffer> {
    let parts = |id| -> Vec<Buffer> { net.innermost(id).into_iter().map(Buffer::Storage).collect() };
    let grad = |blob: BlobId| net.blob(blob).grad.map_or(Vec::new(), parts);
    match operand {
        Operand::Bottom(i) => parts(net.blob(layer.bottoms[i]).data),
        Operand::Top(i) => parts(net.blob(layer.tops[i]).data),
        Operand::BottomGrad(i) => grad(layer.bottoms[i]),
        Operand::TopGrad(i) => grad(layer.tops[i]),
        Operand::Param(i) => vec![Buffer::Weight(layer.params[i])],
        Operand::ParamGrad(i) => {
            vec![layer.own_grad(i).map_or(Buffer::Gradient(layer.params[i]), Buffer::Aux)]
        }
        Operand::Aux(i) => vec![Buffer::Aux(layer.aux[i])],
    }
}
