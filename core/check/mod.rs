//! The validator: says whether a plan is one that computes what it should, whoever made it.
//!
//! It knows nothing of how plans are built. Order is taken from the lanes and the waits alone (vector clocks), so
//! a missing wait shows itself as a race; sums over devices, and over layers that share a parameter, are followed
//! symbolically, so a gradient that is missing, counted twice, or added in another order on another device shows
//! itself, too.

mod order;

use std::collections::HashMap;
use std::fmt;

use crate::layer::SubTask;
use crate::net::{LayerId, Net, ParamId, ParamRule};
use crate::plan::{Node, Plan, Stage};
use crate::task::{Buffer, DeviceId, Place, Task, TaskId, Tile};

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The plan is for another number of devices than there are nets.
    Devices,
    /// A task names a device, lane or layer that does not exist.
    Unknown(TaskId),
    /// A task waits for itself or a later one: it would never start.
    WaitsForLater(TaskId),
    /// Two tasks touch one buffer, at least one writes it, and nothing orders them.
    Race(TaskId, TaskId, Place),
    /// A task reads what nobody has written.
    ReadBeforeWrite(TaskId, Place),
    /// A task reads an array over which another, which shares memory with it, has been written since.
    Overwritten(TaskId, TaskId, Place),
    /// A task reads a weight that another task of the plan has changed already: a step's weights are those that it found.
    Changed(TaskId, TaskId, Place),
    /// A task touches two arrays that overlap in memory.
    Overlap(TaskId, Place, Place),
    /// A task reads or writes something else than its layer's sub-task does.
    WrongAccesses(TaskId),
    /// A transfer whose range is not that of the gradients it names.
    WrongCopy(TaskId),
    /// Work that the stage needs and the plan lacks.
    Missing(DeviceId, LayerId, SubTask),
    /// Work that is there twice or does not belong.
    Unexpected(TaskId),
    /// The devices' tiles of a layer do not cover the mini-batch, each image once.
    Tiles(LayerId),
    /// A layer updates its weight as it finds the gradient, but the gradient is needed: other devices, other layers or other
    /// workers have a part in it, or the update is in another plan.
    GradientNeeded(LayerId),
    /// At its use, a parameter's gradient is not the sum over all devices and all layers that
    /// have it, each once, in one order everywhere.
    WrongSum(DeviceId, ParamId),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices => write!(f, "the plan is for another number of devices"),
            Self::Unknown(t) => write!(f, "task {} names a device, lane or layer that does not exist", t.0),
            Self::WaitsForLater(t) => write!(f, "task {} waits for itself or a later task", t.0),
            Self::Race(a, b, place) => write!(f, "tasks {} and {} race for {place}", a.0, b.0),
            Self::ReadBeforeWrite(t, place) => {
                write!(f, "task {} reads {place}, which nobody has written", t.0)
            }
            Self::Overwritten(t, by, place) => {
                write!(f, "task {} reads {place}, over which task {} has written another array", t.0, by.0)
            }
            Self::Changed(t, by, place) => {
                write!(f, "task {} reads {place}, which task {} has changed already", t.0, by.0)
            }
            Self::Overlap(t, one, other) => {
                write!(f, "task {} touches {one} and {other}, which overlap in memory", t.0)
            }
            Self::WrongAccesses(t) => write!(f, "task {} touches other buffers than its sub-task does", t.0),
            Self::WrongCopy(t) => write!(f, "task {} moves another range than the gradients it names", t.0),
            Self::Missing(d, l, sub) => write!(f, "device {} lacks {sub} of layer {}", d.0, l.0),
            Self::Unexpected(t) => write!(f, "task {} is there twice or does not belong to the stage", t.0),
            Self::Tiles(l) => write!(f, "the tiles of layer {} do not cover the mini-batch", l.0),
            Self::GradientNeeded(l) => {
                write!(f, "layer {} updates its weight as it finds a gradient that others need", l.0)
            }
            Self::WrongSum(d, p) => {
                write!(f, "device {}: the gradient of parameter {} is not the sum over all devices", d.0, p.0)
            }
        }
    }
}

impl std::error::Error for Violation {}

/// Checks `plan` against the nets that it is to train, one for each device.
///
/// # Errors
/// The first violation found.
pub fn check(plan: &Plan, nets: &[Net]) -> Result<(), Violation> {
    check_names(plan, nets)?;
    check_steps(plan, nets)?;
    check_work(plan, nets)?;
    check_accesses(plan, nets)?;
    order::check_order(plan, nets)?;
    check_sums(plan, nets)
}

fn tasks(plan: &Plan) -> impl Iterator<Item = (TaskId, &Node)> {
    plan.nodes.iter().enumerate().map(|(i, n)| (TaskId(i), n))
}

fn check_names(plan: &Plan, nets: &[Net]) -> Result<(), Violation> {
    if plan.devices != nets.len() || nets.is_empty() {
        return Err(Violation::Devices);
    }
    for (id, node) in tasks(plan) {
        let copy_ok = node.copy.as_ref().is_none_or(|c| c.from.0 < nets.len() && c.to == node.device);
        let device_ok = node.device.0 < nets.len() && node.lane.0 < plan.lanes.len() && copy_ok;
        let places_ok = node.reads.iter().chain(&node.writes).all(|place| place.device.0 < nets.len());
        if !device_ok || !places_ok || node.task.layer.0 >= nets[node.device.0].layers.len() {
            return Err(Violation::Unknown(id));
        }
        if node.waits.iter().any(|w| *w >= id) {
            return Err(Violation::WaitsForLater(id));
        }
    }
    Ok(())
}

/// A weight is updated as its gradient is found only where every device finds all of it and nobody else asks for it.
fn check_steps(plan: &Plan, nets: &[Net]) -> Result<(), Violation> {
    let alone = matches!(plan.stage, Stage::Iteration | Stage::Forward);
    for net in nets {
        let whole = alone && net.parts == 1 && !net.clips;
        for (id, layer) in net.layers.iter().enumerate().filter(|(_, layer)| layer.steps_weight) {
            let users =
                |param: &ParamId| net.layers.iter().flat_map(|l| &l.params).filter(|p| *p == param).count();
            let by_gradient = |param: &ParamId| net.params.view(*param).rule == ParamRule::Gradient;
            let own = layer.params.first().is_some_and(|param| users(param) == 1 && by_gradient(param));
            let everywhere = nets.iter().all(|n| n.layers.get(id).is_some_and(|l| l.steps_weight))
                && (nets.len() == 1 || !layer.steps_in_passing);
            if !whole || !own || !everywhere {
                return Err(Violation::GradientNeeded(LayerId(id)));
            }
        }
    }
    Ok(())
}

/// Every sub-task of every layer exactly once on every device, as a whole or in chunks of its images, and tiles that cover the
/// mini-batch.
fn check_work(plan: &Plan, nets: &[Net]) -> Result<(), Violation> {
    let mut found: HashMap<(DeviceId, LayerId, SubTask), Vec<Tile>> = HashMap::new();
    for (id, node) in tasks(plan) {
        let Task { layer, sub, tile } = node.task;
        let is_transfer = matches!(sub, SubTask::Accumulate | SubTask::Broadcast);
        if is_transfer != node.copy.is_some() || !plan.stage.includes(sub) {
            return Err(Violation::Unexpected(id));
        }
        if !is_transfer {
            let known = expected(&nets[node.device.0], layer, sub).is_some();
            let tiles = found.entry((node.device, layer, sub)).or_default();
            if !known || tiles.iter().any(|other| other.meets(&tile)) {
                return Err(Violation::Unexpected(id));
            }
            tiles.push(tile);
        }
    }
    let batch: usize = nets.iter().map(Net::batch).sum();
    for layer in (0..nets[0].layers.len()).map(LayerId) {
        for sub in SubTask::ALL.into_iter().filter(|s| plan.stage.includes(*s)) {
            let mut tiles = Vec::new();
            for (device, net) in nets.iter().enumerate().filter(|(_, n)| expected(n, layer, sub).is_some()) {
                let device = DeviceId(device);
                let found = found.get(&(device, layer, sub)).ok_or(Violation::Missing(device, layer, sub))?;
                if sub == SubTask::StepWeight {
                    // Each device for itself, of all images.
                    if *found != [Tile { first: 0, images: batch }] {
                        return Err(Violation::Tiles(layer));
                    }
                    continue;
                }
                let whole = joined(found).filter(|whole| whole.images == net.batch());
                let whole = whole.filter(|_| found.len() == 1 || net.computes_images_apart(layer, sub));
                tiles.push(whole.ok_or(Violation::Tiles(layer))?);
            }
            if !tiles.is_empty() && joined(&tiles) != Some(Tile { first: 0, images: batch }) {
                return Err(Violation::Tiles(layer));
            }
        }
    }
    Ok(())
}

/// The tile that others are together, if they lie side by side.
fn joined(tiles: &[Tile]) -> Option<Tile> {
    let mut sorted = tiles.to_vec();
    sorted.sort_unstable();
    let side_by_side = sorted.windows(2).all(|pair| pair[0].end() == pair[1].first);
    let first = sorted.first().filter(|_| side_by_side)?.first;
    Some(Tile { first, images: sorted.iter().map(|tile| tile.images).sum() })
}

/// What a sub-task of a layer must write, or `None` if it has nothing to do. Stated again here, from the layer's
/// own declaration, and not taken from the planner.
fn expected(net: &Net, layer: LayerId, sub: SubTask) -> Option<Vec<Buffer>> {
    use crate::plan::{normed_params, operand_buffers, trained_params};
    if matches!(sub, SubTask::Gather | SubTask::Total) {
        let params = trained_params(net, layer);
        let gradients = params.iter().map(|p| Buffer::Gradient(*p)).filter(|_| sub == SubTask::Total);
        let writes: Vec<Buffer> = params.iter().map(|p| Buffer::Sum(*p)).chain(gradients).collect();
        return (net.parts > 1 && !writes.is_empty()).then_some(writes);
    }
    if sub == SubTask::Norm {
        let wanted = net.clips && !normed_params(net, layer).is_empty();
        return wanted.then(|| vec![Buffer::Norm(layer)]);
    }
    if sub == SubTask::Update {
        let params = trained_params(net, layer);
        let has_history = |p: &&ParamId| net.params.view(**p).rule == ParamRule::Gradient;
        let histories = params.iter().filter(has_history).map(|p| Buffer::History(*p));
        let writes = params.iter().map(|p| Buffer::Weight(*p)).chain(histories).collect();
        return (!params.is_empty()).then_some(writes);
    }
    if sub == SubTask::StepWeight {
        let stepped = net.layer(layer).params.first().filter(|_| net.stepping_task(layer) == Some(sub));
        // Which rows of the weight, and where, [`expected_writes`] knows.
        return stepped.map(|p| vec![Buffer::History(*p)]);
    }
    if sub == SubTask::AddShared {
        let writes: Vec<Buffer> =
            net.layer(layer).grads_to_add().map(|(_, param)| Buffer::Gradient(param)).collect();
        return (net.layer(layer).under_loss && !writes.is_empty()).then_some(writes);
    }
    let accesses = net.accesses(layer, sub)?;
    let writes = accesses.writes.iter().flat_map(|o| operand_buffers(net, net.layer(layer), *o));
    let weight = net.layer(layer).params.first().filter(|_| net.stepping_task(layer) == Some(sub));
    Some(writes.chain(weight.map(|weight| Buffer::History(*weight))).collect())
}

/// What a task touches of a buffer of its device: the images of its own, where these are not all.
fn touched(net: &Net, node: &Node, buffer: Buffer) -> Buffer {
    let is_chunk = node.task.tile.images < net.batch();
    if is_chunk { buffer.of_images(node.task.tile) } else { buffer }
}

/// What a task that is no transfer must write, and where: on its own device, but for rows of a weight that it updates for all.
fn expected_writes(nets: &[Net], node: &Node) -> Vec<Place> {
    let Task { layer, sub, .. } = node.task;
    let net = &nets[node.device.0];
    let own = expected(net, layer, sub).unwrap_or_default().into_iter();
    let own = own.map(|buffer| touched(net, node, buffer));
    let mut writes: Vec<Place> = own.map(|buffer| Place { device: node.device, buffer }).collect();
    if let (SubTask::StepWeight, Some(weight)) = (sub, net.layer(layer).params.first()) {
        let buffer = crate::plan::stepped_rows(nets, *weight, node.device);
        writes.extend((0..nets.len()).map(|device| Place { device: DeviceId(device), buffer }));
    }
    writes
}

fn check_accesses(plan: &Plan, nets: &[Net]) -> Result<(), Violation> {
    use crate::plan::{normed_params, norms, task_buffers};
    for (id, node) in tasks(plan) {
        let net = &nets[node.device.0];
        let Some(copy) = &node.copy else {
            let at = |buffer| Place { device: node.device, buffer };
            let all_writes = expected_writes(nets, node);
            let writes: Vec<Buffer> = all_writes
                .iter()
                .filter(|place| place.device == node.device)
                .map(|place| place.buffer)
                .collect();
            let layer = net.layer(node.task.layer);
            let whole = |operand| task_buffers(nets, node.device.0, node.task.layer, operand).into_iter();
            let buffers = |operand| whole(operand).map(|buffer| touched(net, node, buffer));
            let reads: Vec<Buffer> = match node.task.sub {
                // The gradients are elsewhere, perhaps.
                SubTask::Update => writes.iter().copied().chain(norms(net)).collect(),
                SubTask::Gather => {
                    let gradient = |b: &Buffer| match b {
                        Buffer::Sum(p) => Some(Buffer::Gradient(*p)),
                        _ => None,
                    };
                    writes.iter().copied().chain(writes.iter().filter_map(gradient)).collect()
                }
                SubTask::Total => writes.clone(),
                SubTask::Norm => {
                    normed_params(net, node.task.layer).into_iter().map(Buffer::Gradient).collect()
                }
                SubTask::StepWeight => {
                    let found = layer.layer.accesses(SubTask::GradWeight).unwrap_or_default().reads;
                    let found = found.into_iter().flat_map(buffers);
                    found.chain(writes.iter().copied()).collect()
                }
                SubTask::AddShared => {
                    let own = layer.grads_to_add().map(|(own, _)| Buffer::Aux(own));
                    own.chain(writes.iter().copied()).collect()
                }
                sub => net
                    .accesses(node.task.layer, sub)
                    .map_or(Vec::new(), |a| a.reads.iter().copied().flat_map(buffers).collect()),
            };
            let same_writes = node.writes.len() == all_writes.len()
                && all_writes.iter().all(|place| node.writes.contains(place));
            let reads_all = reads.iter().all(|b| node.reads.contains(&at(*b)));
            if !same_writes || !reads_all || !reads_terms(net, node) || !reads_everywhere(nets, node) {
                return Err(Violation::WrongAccesses(id));
            }
            continue;
        };
        let mut covered = Vec::new();
        for place in &node.writes {
            match place.buffer {
                Buffer::Gradient(p) if place.device == copy.to => covered.push(net.params.view(p).range()),
                _ => return Err(Violation::WrongCopy(id)),
            }
        }
        covered.sort_unstable_by_key(|r| r.start);
        let ends = covered.first().zip(covered.last()).map(|(a, b)| a.start..b.end);
        // Only padding may lie between the named gradients.
        let gap = covered.windows(2).any(|w| w[1].start - w[0].end >= crate::net::ALIGNMENT);
        let reads_source = node.writes.iter().all(|w| {
            node.reads.contains(&Place { device: copy.from, buffer: w.buffer })
                && (!copy.add || node.reads.contains(w))
        });
        if ends != Some(copy.range.clone()) || gap || !reads_source || copy.from == copy.to {
            return Err(Violation::WrongCopy(id));
        }
    }
    Ok(())
}

/// Whether a task, if it is an update, reads all its gradients on one device or on the same several, and no others: all
/// that a device knows of where they are.
fn reads_terms(net: &Net, node: &Node) -> bool {
    if node.task.sub != SubTask::Update {
        return true;
    }
    let params = crate::plan::trained_params(net, node.task.layer);
    let terms = node.terms();
    let wanted = |param: &ParamId| {
        let buffer = Buffer::Gradient(*param);
        terms.iter().all(|device| node.reads.contains(&Place { device: *device, buffer }))
    };
    let gradients = node.reads.iter().filter(|place| matches!(place.buffer, Buffer::Gradient(_))).count();
    !terms.is_empty() && gradients == params.len() * terms.len() && params.iter().all(wanted)
}

/// Whether a task, if it updates a weight as it finds the gradient, reads what ∇W reads on every device: its own images are not
/// all of the mini-batch.
fn reads_everywhere(nets: &[Net], node: &Node) -> bool {
    let of_device = |(device, net): (usize, &Net)| {
        let layer = net.layer(node.task.layer);
        let found = layer.layer.accesses(SubTask::GradWeight).unwrap_or_default().reads.into_iter();
        let mut buffers = found.flat_map(|operand| crate::plan::operand_buffers(net, layer, operand));
        buffers.all(|buffer| node.reads.contains(&Place { device: DeviceId(device), buffer }))
    };
    node.task.sub != SubTask::StepWeight || nets.iter().enumerate().all(of_device)
}

/// The layer that found a part of a gradient, or nothing for all that was gathered of earlier mini-batches.
type Source = Option<LayerId>;

/// What a device's gradient of a parameter is at some moment: what which layer found on which device, and in which
/// order it was added.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sum {
    Part(DeviceId, Source),
    Of(Box<(Sum, Sum)>),
}

impl Sum {
    fn of(one: Self, other: Self) -> Self {
        Self::Of(Box::new((one, other)))
    }

    fn parts(&self, found: &mut Vec<(DeviceId, Source)>) {
        match self {
            Self::Part(device, layer) => found.push((*device, *layer)),
            Self::Of(both) => {
                both.0.parts(found);
                both.1.parts(found);
            }
        }
    }
}

/// All that belongs into the gradient of each parameter: one part of each layer that has it, on each device, and what was
/// gathered there if the stage has the last of several mini-batches.
fn parts_of(stage: Stage, nets: &[Net]) -> HashMap<ParamId, Vec<(DeviceId, Source)>> {
    let mut parts: HashMap<ParamId, Vec<(DeviceId, Source)>> = HashMap::new();
    for (device, net) in nets.iter().enumerate() {
        for layer in (0..net.layers.len()).map(LayerId) {
            for (index, param) in net.layer(layer).params.iter().enumerate() {
                if net.finds_gradient(layer, index) {
                    let found = parts.entry(*param).or_default();
                    let gathered = (DeviceId(device), None);
                    if net.parts > 1 && stage != Stage::Part && !found.contains(&gathered) {
                        found.push(gathered);
                    }
                    found.push((DeviceId(device), Some(layer)));
                }
            }
        }
    }
    parts
}

/// What a task leaves at the place of a gradient; `None` if what it needs for that is not there.
fn written(node: &Node, place: &Place, sums: &HashMap<Place, Sum>) -> Option<Sum> {
    match &node.copy {
        None => {
            let part = Sum::Part(node.device, Some(node.task.layer));
            match (node.task.sub, sums.get(place).cloned()) {
                (SubTask::Total, so_far) => {
                    so_far.map(|so_far| Sum::of(so_far, Sum::Part(node.device, None)))
                }
                (SubTask::AddShared, Some(so_far)) => Some(Sum::of(so_far, part)),
                (SubTask::AddShared, None) => None,
                _ => Some(part),
            }
        }
        Some(copy) => {
            let theirs = sums.get(&Place { device: copy.from, ..*place }).cloned();
            match (copy.add, sums.get(place).cloned(), theirs) {
                (true, Some(mine), Some(theirs)) => Some(Sum::of(mine, theirs)),
                (true, _, _) => None,
                (false, _, theirs) => theirs,
            }
        }
    }
}

/// Follows the sums over the devices; the order of submission will do, since there are no races by now.
fn check_sums(plan: &Plan, nets: &[Net]) -> Result<(), Violation> {
    if !plan.stage.includes(SubTask::GradWeight) {
        return Ok(());
    }
    let wanted = parts_of(plan.stage, nets);
    // Before the last mini-batch each device has a sum of its own.
    let apart = plan.stage == Stage::Part;
    let mut sums: HashMap<Place, Sum> = HashMap::new();
    let mut used: HashMap<ParamId, Sum> = HashMap::new();
    let mut use_sum = |device: DeviceId, param: ParamId, sum: Option<&Sum>| {
        let wrong = Violation::WrongSum(device, param);
        let sum = sum.ok_or(wrong.clone())?;
        let mut found = Vec::new();
        sum.parts(&mut found);
        found.sort_unstable();
        let same_everywhere = apart || *used.entry(param).or_insert_with(|| sum.clone()) == *sum;
        let here = |part: &&(DeviceId, Source)| !apart || part.0 == device;
        let complete = wanted.get(&param).is_some_and(|all| all.iter().filter(here).eq(&found));
        if complete && same_everywhere { Ok(()) } else { Err(wrong) }
    };
    for node in &plan.nodes {
        for place in &node.writes {
            let Buffer::Gradient(_) = place.buffer else { continue };
            let value = written(node, place, &sums);
            match value {
                Some(sum) => sums.insert(*place, sum),
                None => sums.remove(place),
            };
        }
        if matches!(node.task.sub, SubTask::Gather | SubTask::Norm) {
            for place in &node.reads {
                if let Buffer::Gradient(param) = place.buffer {
                    use_sum(place.device, param, sums.get(place))?;
                }
            }
        }
        if node.task.sub == SubTask::Update {
            for param in crate::plan::trained_params(&nets[node.device.0], node.task.layer) {
                let buffer = Buffer::Gradient(param);
                let terms =
                    node.terms().into_iter().map(|device| sums.get(&Place { device, buffer }).cloned());
                let sum = terms.reduce(|sum, term| Some(Sum::of(sum?, term?))).flatten();
                use_sum(node.device, param, sum.as_ref())?;
            }
        }
    }
    if plan.stage.includes(SubTask::Update) {
        // Every update is there, and it was for them.
        return Ok(());
    }
    // What leaves the stage must be the sum, too.
    for (device, net) in nets.iter().enumerate().map(|(d, n)| (DeviceId(d), n)) {
        for layer in (0..net.layers.len()).map(LayerId) {
            for param in crate::plan::trained_params(net, layer) {
                use_sum(device, param, sums.get(&Place { device, buffer: Buffer::Gradient(param) }))?;
            }
        }
    }
    Ok(())
}
