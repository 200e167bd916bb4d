//! A plan in words.

use quadrille_core::device::Scalars;
use quadrille_core::net::{LayerId, Net};
use quadrille_core::plan::priority::{Analysis, Block, Estimates, SubTaskGraph};
use quadrille_core::plan::{Node, Plan, Schedule};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::sim::{DeviceModel, SimDevice};

use super::training::lanes_of;
use crate::failure::Failure;
use crate::pool::{chunk_name, is_chunk};

/// The most blocks, and tasks of the critical path, that are shown one by one.
const SHOWN: usize = 40;

/// What there is to say of a plan.
pub struct Explanation<'a> {
    /// Its nets.
    pub nets: &'a [Net],
    /// It.
    pub plan: &'a Plan,
    /// What was found out about the nets.
    pub analysis: &'a Analysis,
    /// What tasks take.
    pub estimates: &'a Estimates,
    /// How it was made.
    pub schedule: Schedule,
    /// Of a machine that is described, for a simulation.
    pub device: Option<DeviceModel>,
    /// By what times were estimated.
    pub by: String,
}

impl Explanation<'_> {
    /// The lines.
    pub fn lines(&self) -> Result<Vec<String>, Failure> {
        let net = &self.nets[0];
        let mut lines = vec![
            format!("network     {} ({})", net.name, net.file),
            format!("schedule    {}; {}", self.schedule, lanes_of(self.plan)),
            format!(
                "tasks       {} in stage {} on {} quadrant(s)",
                self.plan.nodes.len(),
                self.plan.stage.name(),
                self.plan.devices
            ),
            format!("times       by {}", self.by),
        ];
        self.lanes(&mut lines);
        self.blocks(&mut lines);
        self.times(&mut lines)?;
        Ok(lines)
    }

    fn time(&self, node: &Node) -> f64 {
        self.estimates.of(self.nets, node)
    }

    /// A line for each lane: how urgent it is, how many tasks it has, how long they take, and what they are.
    fn lanes(&self, lines: &mut Vec<String>) {
        for (id, lane) in self.plan.lanes.iter().enumerate() {
            let tasks = || self.plan.nodes.iter().filter(move |node| node.lane.0 == id);
            let mut what: Vec<String> = Vec::new();
            for (path, _) in
                self.analysis.paths.iter().zip(&self.analysis.lanes.of).filter(|(_, of)| of.0 == id)
            {
                what.push(match self.analysis.layers.width() {
                    1 => path.kind.to_string(),
                    _ => format!("{} {}", path.kind, path.rank),
                });
            }
            let of_pool = tasks().any(|node| is_chunk(&self.nets[node.device.0], node));
            let what = match self.schedule {
                _ if of_pool => "chunks of images, of a pool".to_owned(),
                Schedule::Layerwise => "all".to_owned(),
                _ => what.join(", "),
            };
            let ms = tasks().map(|node| self.time(node)).sum::<f64>() * 1e-6;
            let count = tasks().count();
            lines.push(format!("lane {id:<7}priority {}: {count} tasks, {ms:.3} ms: {what}", lane.priority));
        }
        let name = |layer: &LayerId| self.nets[0].layer(*layer).name.as_str();
        let mut joined: Vec<String> =
            self.analysis.joined.iter().map(|(layer, sub)| format!("{sub} of {}", name(layer))).collect();
        joined.sort();
        if !joined.is_empty() && self.schedule != Schedule::Layerwise {
            lines.push(format!(
                "            with activations, since the next step asks for it: {}",
                joined.join(", ")
            ));
        }
    }

    fn blocks(&self, lines: &mut Vec<String>) {
        let layers = &self.analysis.layers;
        let several = |block: &&Block| block.paths.len() > 1;
        let found: Vec<&Block> = layers.blocks.iter().filter(several).collect();
        lines.push(format!(
            "blocks      {}, {} of them with several layer paths, at most {} side by side",
            layers.blocks.len(),
            found.len(),
            layers.width()
        ));
        let name = |layer: Option<LayerId>, none: &str| {
            layer.map_or(none.to_owned(), |layer| self.nets[0].layer(layer).name.clone())
        };
        for block in found.iter().take(SHOWN) {
            let paths: Vec<String> = block
                .paths
                .iter()
                .map(|path| {
                    let names: Vec<&str> =
                        path.layers.iter().map(|layer| self.nets[0].layer(*layer).name.as_str()).collect();
                    format!("{:.3} ms {}", path.time * 1e-6, names.join(" > "))
                })
                .collect();
            let (fork, merge) = (name(block.fork, "the inputs"), name(block.merge, "a loss"));
            lines.push(format!("            {fork} .. {merge}: {}", paths.join(" | ")));
        }
        if found.len() > SHOWN {
            lines.push(format!("            and {} more", found.len() - SHOWN));
        }
    }

    fn times(&self, lines: &mut Vec<String>) -> Result<(), Failure> {
        let graph = SubTaskGraph::new(self.nets, &self.plan.nodes);
        let times: Vec<f64> = self.plan.nodes.iter().map(|node| self.time(node)).collect();
        let (path, least) = graph.critical_path(&times);
        let mut devices = vec![0.0; self.plan.devices];
        for (node, time) in self.plan.nodes.iter().zip(&times) {
            devices[node.device.0] += time;
        }
        let serial = devices.into_iter().fold(0.0, f64::max);
        lines.push(format!(
            "critical    {:.3} ms in {} tasks, {:.1} % of all {:.3} ms one after the other; {:.3} ms beside them",
            least * 1e-6,
            path.len(),
            100.0 * least / serial.max(f64::MIN_POSITIVE),
            serial * 1e-6,
            (serial - least).max(0.0) * 1e-6
        ));
        let mut chain: Vec<String> = Vec::new();
        for task in &path {
            let node = &self.plan.nodes[task.0];
            let net = &self.nets[node.device.0];
            let images = chunk_name(net, node);
            chain.push(format!("{}/{}{images}", net.layer(node.task.layer).name, node.task.sub));
        }
        if chain.len() > SHOWN {
            chain.splice(SHOWN / 2..chain.len() - SHOWN / 2, ["...".to_owned()]);
        }
        lines.push(format!("            {}", chain.join(" > ")));
        let simulated = match &self.device {
            Some(device) => {
                let devices = SimDevice::of_model(self.nets, &[self.plan], device);
                let mut times = StepTimes::default();
                run_step(&devices, self.plan, &Scalars::default(), &mut times)?;
                format!("; {:.3} ms on simulated devices (sim)", times.elapsed() as f64 * 1e-6)
            }
            None => String::new(),
        };
        lines.push(format!(
            "expected    from {:.3} ms, if there were threads for all, to {:.3} ms{simulated}",
            least * 1e-6,
            serial * 1e-6
        ));
        Ok(())
    }
}
