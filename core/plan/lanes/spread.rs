//! Tasks in chunks of images, dealt out to the lanes of pools.

use std::collections::{BTreeMap, HashSet};

use super::scheduler::Pool;
use crate::device::Lane;
use crate::net::Net;
use crate::plan::layout::Layout;
use crate::plan::priority::edges;
use crate::plan::{Node, Plan};
use crate::task::{LaneId, Task, TaskId, Tile};

/// The plan with some tasks in chunks of their images: as many as `worth` says that a task is worth lanes, each chunk in a lane of a
/// pool, in turn. Tasks whose lanes have one priority share a pool of that priority, which has as many lanes as any of them is worth;
/// lanes of pools come behind those of the plan. A task stays as it is if it is worth one lane, has one image, or does not compute
/// images apart ([`Net::computes_images_apart`]).
///
/// What a task waits for follows from what it reads and writes: a chunk waits for the images that it needs, and not for all chunks
/// of the layer before. No value depends on the cut where kernels compute an image alike whatever stands beside it.
pub fn spread(plan: Plan, nets: &[Net], worth: impl Fn(&Node) -> u32) -> Plan {
    let chunks = |node: &Node| match computes_apart(nets, node) {
        true => node.task.tile.chunks(worth(node) as usize),
        false => vec![node.task.tile],
    };
    let mut pools: BTreeMap<u8, Pool> = BTreeMap::new();
    for node in &plan.nodes {
        let (count, priority) = (chunks(node).len(), plan.lanes[node.lane.0].priority);
        if count > 1 {
            let pool = Pool { default: node.lane, first: LaneId(0), lanes: 0 };
            let pool = pools.entry(priority).or_insert(pool);
            pool.lanes = pool.lanes.max(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
    let mut lanes = plan.lanes.clone();
    for (priority, pool) in &mut pools {
        pool.first = LaneId(lanes.len());
        let own = (0..pool.lanes as usize)
            .map(|lane| Lane { id: LaneId(pool.first.0 + lane), priority: *priority });
        lanes.extend(own);
    }
    let places = |node: &Node| -> Vec<(Tile, LaneId)> {
        let tiles = chunks(node);
        let count = u32::try_from(tiles.len()).unwrap_or(u32::MAX);
        let pool = pools.get(&plan.lanes[node.lane.0].priority).filter(|_| count > 1);
        let lane = |chunk| pool.map_or(node.lane, |pool| pool.lane(chunk, count));
        tiles.into_iter().enumerate().map(|(chunk, tile)| (tile, lane(chunk))).collect()
    };
    cut(&plan, nets, lanes, places)
}

/// The plan with each task that computes images apart in so many chunks, all in its own lane: what the resource tracker runs at
/// first sight, to see what the kernels of such a chunk use.
pub fn first_sight(plan: &Plan, nets: &[Net], chunks: u32) -> Plan {
    let places = |node: &Node| {
        let tiles = match computes_apart(nets, node) {
            true => node.task.tile.chunks(chunks as usize),
            false => vec![node.task.tile],
        };
        tiles.into_iter().map(|tile| (tile, node.lane)).collect()
    };
    cut(plan, nets, plan.lanes.clone(), places)
}

/// The part of a task that is of some of its images.
pub fn chunk_of(node: &Node, tile: Tile) -> Node {
    let mut chunk = Node { task: Task { tile, ..node.task }, ..node.clone() };
    for place in chunk.reads.iter_mut().chain(&mut chunk.writes) {
        place.buffer = place.buffer.of_images(tile);
    }
    chunk
}

pub(super) fn computes_apart(nets: &[Net], node: &Node) -> bool {
    let net = &nets[node.device.0];
    node.copy.is_none()
        && node.task.tile.images == net.batch()
        && net.computes_images_apart(node.task.layer, node.task.sub)
}

/// The plan with each task in the tiles and lanes that `places` says.
fn cut(plan: &Plan, nets: &[Net], lanes: Vec<Lane>, places: impl Fn(&Node) -> Vec<(Tile, LaneId)>) -> Plan {
    let by_access = edges(nets, &plan.nodes);
    let mut nodes: Vec<Node> = Vec::new();
    // Where the chunks of each task are, and what it waits for although it touches nothing of it: emulated priorities.
    let (mut parts, mut asked): (Vec<Vec<TaskId>>, Vec<(TaskId, TaskId)>) = (Vec::new(), Vec::new());
    for (id, node) in plan.nodes.iter().enumerate() {
        let known: HashSet<&TaskId> = by_access[id].iter().collect();
        let mut own = Vec::new();
        for (tile, lane) in places(node) {
            let part = if tile == node.task.tile { node.clone() } else { chunk_of(node, tile) };
            let on = node.waits.iter().filter(|wait| !known.contains(wait)).flat_map(|wait| &parts[wait.0]);
            asked.extend(on.map(|on| (TaskId(nodes.len()), *on)));
            own.push(TaskId(nodes.len()));
            nodes.push(Node { lane, waits: Vec::new(), ..part });
        }
        parts.push(own);
    }
    let mut after = edges(nets, &nodes);
    for (task, on) in asked {
        let after = &mut after[task.0];
        after.push(on);
        after.sort_unstable();
        after.dedup();
    }
    let nodes = Layout { devices: plan.devices, lanes: &lanes, nodes, after }.with_waits();
    Plan { stage: plan.stage, devices: plan.devices, lanes, nodes }
}
