//! The order of tasks: races, and what a task finds where it reads.

use std::collections::HashMap;

use super::{Violation, tasks};
use crate::net::Net;
use crate::plan::{Node, Plan, Stage};
use crate::task::{Buffer, Place, TaskId, Tile, parts_meet};

/// Whether the stage finds a buffer filled when it starts.
fn is_given(net: &Net, stage: Stage, buffer: Buffer) -> bool {
    match buffer {
        Buffer::Weight(_)
        | Buffer::Rows(..)
        | Buffer::History(_)
        | Buffer::Centre(_)
        | Buffer::Sum(_)
        | Buffer::Stage(_) => true,
        Buffer::Gradient(_) => stage == Stage::Update,
        // It was left by the step before, and is 0 in the first.
        Buffer::Aux(id) | Buffer::AuxImages(id, _) => net.keeps_state(id),
        Buffer::Storage(_) | Buffer::Images(..) | Buffer::Norm(_) => false,
    }
}

/// What a task did to an array, or to some images of it.
#[derive(Clone, Copy)]
struct Touch {
    task: TaskId,
    /// The whole array.
    array: Place,
    part: Option<Tile>,
    writes: bool,
}

impl Touch {
    /// Whether it is of what some images of an array, or all of it, are in memory.
    fn meets(&self, array: Place, part: Option<Tile>) -> bool {
        self.array != array || parts_meet(self.part, part)
    }
}

/// Races, by vector clocks over the lanes: task `a` is before `b` if `b`'s clock of `a`'s lane has reached `a`. Arrays that
/// overlap in memory are followed together: whoever reads one must find what was written to it, and not another's values.
pub(super) fn check_order(plan: &Plan, nets: &[Net]) -> Result<(), Violation> {
    let lanes = plan.devices * plan.lanes.len();
    let lane_of = |node: &Node| node.device.0 * plan.lanes.len() + node.lane.0;
    let mut lane_clock = vec![vec![None::<TaskId>; lanes]; lanes];
    let mut clocks: Vec<Vec<Option<TaskId>>> = Vec::with_capacity(plan.nodes.len());
    let mut touched: HashMap<Place, Vec<Touch>> = HashMap::new();
    for (id, node) in tasks(plan) {
        let lane = lane_of(node);
        let mut clock = lane_clock[lane].clone();
        for wait in &node.waits {
            for (mine, theirs) in clock.iter_mut().zip(&clocks[wait.0]) {
                *mine = (*mine).max(*theirs);
            }
        }
        let before = |earlier: TaskId| clock[lane_of(&plan.nodes[earlier.0])].is_some_and(|s| s >= earlier);
        let touches = node.reads.iter().map(|p| (p, false)).chain(node.writes.iter().map(|p| (p, true)));
        for (place, writes) in touches {
            let (array, part) = place.whole();
            let overlapping = nets[array.device.0].overlapping_buffers(array.buffer).into_iter();
            let touches = overlapping.filter_map(|buffer| touched.get(&Place { buffer, ..array }));
            let earlier: Vec<Touch> =
                touches.flatten().filter(|touch| touch.meets(array, part)).copied().collect();
            if !writes && !is_given(&nets[array.device.0], plan.stage, place.buffer) {
                check_found(id, *place, nets[array.device.0].batch(), &earlier)?;
            }
            for other in &earlier {
                match other.task == id {
                    true if other.array != array => {
                        return Err(Violation::Overlap(id, other.array, array));
                    }
                    false if (writes || other.writes) && !before(other.task) => {
                        return Err(Violation::Race(other.task, id, *place));
                    }
                    _ => {}
                }
            }
            if !writes {
                check_unchanged(id, *place, &earlier)?;
            }
            touched.entry(array).or_default().push(Touch { task: id, array, part, writes });
        }
        clock[lane] = Some(id);
        lane_clock[lane].clone_from(&clock);
        clocks.push(clock);
    }
    Ok(())
}

/// Whether a weight that task `id` reads at `place` is that of the step's beginning. `earlier` is what was done to it so far.
fn check_unchanged(id: TaskId, place: Place, earlier: &[Touch]) -> Result<(), Violation> {
    let is_weight = matches!(place.buffer, Buffer::Weight(_) | Buffer::Rows(..));
    match earlier.iter().find(|touch| is_weight && touch.writes && touch.task != id) {
        Some(change) => Err(Violation::Changed(id, change.task, place)),
        None => Ok(()),
    }
}

/// Whether what task `id` reads at `place` has been written, each of its images, and nothing else over it. `earlier` is what was
/// done to that memory so far; where there is no race, writes come in the order of submission.
fn check_found(id: TaskId, place: Place, images: usize, earlier: &[Touch]) -> Result<(), Violation> {
    let (array, part) = place.whole();
    let writes = || earlier.iter().filter(|touch| touch.writes && touch.task != id);
    let own = |after: Option<TaskId>| writes().filter(move |t| t.array == array && Some(t.task) > after);
    if !cover(own(None), part, images) {
        return Err(Violation::ReadBeforeWrite(id, place));
    }
    let other = writes().filter(|touch| touch.array != array).map(|touch| touch.task).max();
    match other {
        Some(last) if !cover(own(other), part, images) => Err(Violation::Overwritten(id, last, place)),
        _ => Ok(()),
    }
}

/// Whether writes to an array of `images` images, one of them or several of some images each, wrote all of a part of it.
fn cover<'a>(writes: impl Iterator<Item = &'a Touch>, part: Option<Tile>, images: usize) -> bool {
    let mut tiles = Vec::new();
    for write in writes {
        match write.part {
            None => return true,
            Some(tile) => tiles.push(tile),
        }
    }
    tiles.sort_unstable();
    let Some(first) = tiles.first().map(|tile| tile.first) else { return false };
    let wanted = part.unwrap_or(Tile { first, images });
    let mut next = wanted.first;
    for tile in tiles.iter().filter(|tile| tile.meets(&wanted)) {
        if tile.first > next {
            return false;
        }
        next = next.max(tile.end());
    }
    next >= wanted.end()
}
