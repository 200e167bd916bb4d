//! Dealing a plan's tasks out to lanes.

use crate::device::Lane;
use crate::net::{LayerId, Net};
use crate::plan::layout::Layout;
use crate::plan::priority::edges;
use crate::plan::{Node, Plan};
use crate::task::LaneId;

/// The layers that [`in_chunks`](super::in_chunks) made of the one of this name, in the order of their images; the layer itself if
/// it is in one piece.
pub fn chunks_of(net: &Net, name: &str) -> Vec<LayerId> {
    let find = |name: &str| net.layers.iter().position(|layer| layer.name == name).map(LayerId);
    let rest = (1..).map_while(|chunk| find(&format!("{name}/{chunk}")));
    find(name).into_iter().chain(rest).collect()
}

/// The plan with other lanes: `lane` says for each task in which it runs. Tasks keep their order; what they wait for follows from
/// what they read and write, so the result is right whatever lanes they are in.
pub fn deal(plan: Plan, nets: &[Net], lanes: Vec<Lane>, lane: impl Fn(&Node) -> LaneId) -> Plan {
    let after = edges(nets, &plan.nodes);
    let nodes = plan.nodes.into_iter().map(|node| Node { lane: lane(&node), ..node }).collect();
    let nodes = Layout { devices: plan.devices, lanes: &lanes, nodes, after }.with_waits();
    Plan { lanes, nodes, ..plan }
}
