//! What a solver's `debug_info` shows: mean magnitudes of all values and gradients, in the lines of Caffe.
//!
//! A plan is run task by task, and after each layer its arrays are read, before a later layer in place changes them. This
//! needs every array in memory of its own and every layer by itself, so such a run neither fuses nor shares memory.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{BlobId, LayerId, ParamId, ParamRule, StorageId};
use quadrille_core::plan::{Node, Plan, Stage, normed_params};
use quadrille_core::run::{StepTimes, run_step};

use crate::engine::WorkerEvent;
use crate::failure::Failure;
use crate::pass::Pass;
use crate::progress::six_digits;

/// Runs `plan` as [`run_step`] does, and adds what it shows to `lines`.
pub fn run(
    pass: &Pass,
    plan: &Plan,
    scalars: &Scalars,
    times: &mut StepTimes<WorkerEvent>,
    lines: &mut Vec<String>,
) -> Result<(), Failure> {
    let weights = packed(pass, Packed::Weights)?;
    let mut run = Run { pass, plan, scalars, times, lines };
    let mut nodes = plan.nodes.iter().peekable();
    let layers = (0..pass.nets[0].layers.len()).map(LayerId);
    let is_forward = |node: &Node| matches!(node.task.sub, SubTask::Load | SubTask::Forward);
    for layer in layers.clone() {
        while let Some(node) = nodes.next_if(|node| is_forward(node) && node.task.layer == layer) {
            run.node(node)?;
        }
        if plan.stage.includes(SubTask::Forward) {
            run.show_forward(layer)?;
        }
    }
    for layer in layers.rev() {
        while let Some(node) = nodes.next_if(|node| node.task.layer == layer) {
            run.node(node)?;
        }
        if plan.stage.includes(SubTask::GradActivation) {
            run.show_backward(layer)?;
        }
    }
    if plan.stage.includes(SubTask::GradActivation) {
        run.show_norms(&weights)?;
    }
    nodes.try_for_each(|node| run.node(node))
}

/// A packed buffer of the first device.
fn packed(pass: &Pass, packed: Packed) -> Result<Vec<f32>, Failure> {
    let mut values = vec![0.0; pass.nets[0].params.len()];
    pass.read(Region::Packed(packed), &mut values)?;
    Ok(values)
}

/// Sum of the magnitudes, and of the squares.
fn sums(values: &[f32]) -> (f64, f64) {
    values.iter().map(|value| f64::from(*value)).fold((0.0, 0.0), |(l1, l2), v| (l1 + v.abs(), l2 + v * v))
}

fn mean(values: &[f32]) -> f64 {
    six_digits((sums(values).0 / values.len().max(1) as f64) as f32)
}

struct Run<'a> {
    pass: &'a Pass,
    plan: &'a Plan,
    scalars: &'a Scalars,
    times: &'a mut StepTimes<WorkerEvent>,
    lines: &'a mut Vec<String>,
}

impl Run<'_> {
    /// Runs one task of the plan; of an update on the first device, shows what it changes.
    fn node(&mut self, node: &Node) -> Result<(), Failure> {
        let shows = node.task.sub == SubTask::Update && node.device.0 == 0;
        let before = if shows { packed(self.pass, Packed::Weights)? } else { Vec::new() };
        run_step(&self.pass.devices, &self.plan.alone(node), self.scalars, self.times)?;
        if shows {
            self.show_update(node.task.layer, &before)?;
        }
        Ok(())
    }

    /// All of a blob's values or gradients, over the devices.
    fn blob(
        &self,
        id: BlobId,
        array: fn(&quadrille_core::net::Blob) -> Option<StorageId>,
    ) -> Result<Option<f64>, Failure> {
        let (mut sum, mut count) = (0.0, 0);
        for (net, device) in self.pass.nets.iter().zip(&self.pass.devices) {
            let blob = net.blob(id);
            let Some(storage) = array(blob) else { return Ok(None) };
            let mut values = vec![0.0; blob.shape.count()];
            device.read(Region::Storage(storage), &mut values)?;
            sum += sums(&values).0;
            count += values.len();
        }
        Ok(Some(six_digits((sum / count.max(1) as f64) as f32)))
    }

    fn show_forward(&mut self, layer: LayerId) -> Result<(), Failure> {
        let net = &self.pass.nets[0];
        let name = &net.layer(layer).name;
        for top in &net.layer(layer).tops {
            if let Some(mean) = self.blob(*top, |blob| Some(blob.data))? {
                let blob = &net.blob(*top).name;
                self.lines.push(format!("    [Forward] Layer {name}, top blob {blob} data: {mean}"));
            }
        }
        let weights = packed(self.pass, Packed::Weights)?;
        for (index, param) in net.layer(layer).params.iter().enumerate() {
            let mean = mean(&weights[net.params.view(*param).range()]);
            self.lines.push(format!("    [Forward] Layer {name}, param blob {index} data: {mean}"));
        }
        Ok(())
    }

    /// The gradients so far of the iteration, as in Caffe, which adds those of a mini-batch to those before it.
    fn gradients(&self) -> Result<Vec<f32>, Failure> {
        packed(self.pass, if self.plan.stage == Stage::Part { Packed::Sums } else { Packed::Gradients })
    }

    fn show_backward(&mut self, layer: LayerId) -> Result<(), Failure> {
        let net = &self.pass.nets[0];
        let this = net.layer(layer);
        if !this.under_loss {
            return Ok(());
        }
        for bottom in &this.bottoms {
            if let Some(mean) = self.blob(*bottom, |blob| blob.grad)? {
                let (layer, blob) = (&this.name, &net.blob(*bottom).name);
                self.lines.push(format!("    [Backward] Layer {layer}, bottom blob {blob} diff: {mean}"));
            }
        }
        let gradients = self.gradients()?;
        for (index, param) in self.trained(layer) {
            let mean = mean(&gradients[net.params.view(param).range()]);
            self.lines.push(format!("    [Backward] Layer {}, param blob {index} diff: {mean}", this.name));
        }
        Ok(())
    }

    /// The parameters whose gradients are complete with this layer, with their places in it.
    fn trained(&self, layer: LayerId) -> Vec<(usize, ParamId)> {
        let net = &self.pass.nets[0];
        let trained = normed_params(net, layer);
        let params = net.layer(layer).params.iter().copied().enumerate();
        params.filter(|(_, param)| trained.contains(param)).collect()
    }

    fn show_norms(&mut self, weights: &[f32]) -> Result<(), Failure> {
        let params = &self.pass.nets[0].params;
        let mut gradients = self.gradients()?;
        // The terms of running sums are no gradients.
        for view in params.views().iter().filter(|view| view.rule != ParamRule::Gradient) {
            gradients[view.range()].fill(0.0);
        }
        let [data, diff] = [weights, &gradients].map(|values| {
            let (l1, l2) = sums(values);
            [l1 as f32, l2.sqrt() as f32].map(six_digits)
        });
        self.lines.push(format!(
            "    [Backward] All net params (data, diff): L1 norm = ({}, {}); L2 norm = ({}, {})",
            data[0], diff[0], data[1], diff[1]
        ));
        Ok(())
    }

    fn show_update(&mut self, layer: LayerId, before: &[f32]) -> Result<(), Failure> {
        let net = &self.pass.nets[0];
        let after = packed(self.pass, Packed::Weights)?;
        for (index, param) in self.trained(layer) {
            let range = net.params.view(param).range();
            let change: Vec<f32> =
                before[range.clone()].iter().zip(&after[range.clone()]).map(|(b, a)| b - a).collect();
            let name = &net.layer(layer).name;
            let (data, diff) = (mean(&before[range]), mean(&change));
            self.lines.push(format!("    [Update] Layer {name}, param {index} data: {data}; diff: {diff}"));
        }
        Ok(())
    }
}
