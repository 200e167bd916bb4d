//! Which lane each task of a net runs in, as its plans say: the workspace that a kernel uses belongs to the lane.

use quadrille_core::device::Lane;
use quadrille_core::layer::SubTask;
use quadrille_core::net::LayerId;
use quadrille_core::plan::Plan;
use quadrille_core::task::{DeviceId, LaneId};

use crate::worker::EngineError;

/// The lanes of a device's tasks.
#[derive(Debug, Default)]
pub(crate) struct LaneTable(Vec<[Option<LaneId>; SubTask::ALL.len()]>);

impl LaneTable {
    /// Those of all `plans` of a program on one of its devices.
    ///
    /// # Errors
    /// If a task runs in one lane by one plan and in another by another: its workspace lies in one.
    pub fn new(plans: &[&Plan], device: DeviceId) -> Result<Self, EngineError> {
        let mut table = Self::default();
        let of_device = |plan: &&'_ Plan| -> Vec<_> {
            let tasks = plan.nodes.iter().filter(|node| node.device == device && node.copy.is_none());
            tasks.map(|node| (node.task.layer, node.task.sub, node.lane)).collect()
        };
        for (layer, sub, lane) in plans.iter().flat_map(of_device) {
            let layers = table.0.len().max(layer.0 + 1);
            table.0.resize(layers, Default::default());
            let Some(index) = index_of(sub) else { continue };
            let known = table.0[layer.0][index].get_or_insert(lane);
            if *known != lane {
                let (layer, lanes) = (layer.0, [known.0, lane.0]);
                return Err(EngineError::Plan(format!(
                    "{sub} of layer {layer} runs in lane {} by one plan and in lane {} by another",
                    lanes[0], lanes[1]
                )));
            }
        }
        Ok(table)
    }

    /// The lane of a sub-task; `None` if no plan has it.
    pub fn of(&self, layer: LayerId, sub: SubTask) -> Option<LaneId> {
        *self.0.get(layer.0)?.get(index_of(sub)?)?
    }

    /// The lane in whose workspace a kernel's memory for a sub-task lies: ∇W is found alone or with the update. That of
    /// a sub-task that never runs is the first.
    pub fn workspace_of(&self, layer: LayerId, sub: SubTask) -> LaneId {
        let also = (sub == SubTask::GradWeight).then_some(SubTask::StepWeight);
        let found = [Some(sub), also].into_iter().flatten().find_map(|sub| self.of(layer, sub));
        found.unwrap_or(LaneId(0))
    }
}

fn index_of(sub: SubTask) -> Option<usize> {
    SubTask::ALL.iter().position(|other| *other == sub)
}

/// The lanes that a device needs for all `plans` of a program.
///
/// # Errors
/// If two of them give one lane different priorities, which are fixed.
pub(crate) fn lanes_of<'a>(plans: impl Iterator<Item = &'a Plan>) -> Result<Vec<Lane>, EngineError> {
    let mut lanes: Vec<Lane> = Vec::new();
    for plan in plans {
        if let Some((known, lane)) = lanes.iter().zip(&plan.lanes).find(|(known, lane)| known != lane) {
            return Err(EngineError::Plan(format!(
                "lane {} has priority {} in one plan and {} in another",
                known.id.0, known.priority, lane.priority
            )));
        }
        lanes.extend(plan.lanes.iter().skip(lanes.len()));
    }
    Ok(lanes)
}
