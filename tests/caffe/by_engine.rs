//! A fixture by the engine of the CPU.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::net::{LayerId, Net, StorageId};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_cpu::isa::{Isa, Precision};
use quadrille_cpu::{CpuDevice, CpuWorker, CrewSpec, EngineOptions, Program, implementations};

use crate::by_reference::Computed;
use crate::network::Prepared;

const THREADS: usize = 2;

/// The tiers that this CPU has; says aloud which of them `test` has to leave out.
pub fn tiers(test: &str) -> Vec<Isa> {
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        println!("left out: {test} on {isa}: this CPU does not have it");
    }
    Isa::available().collect()
}

/// Options with `kernels` forced and an update by `rule`.
pub fn options(isa: Isa, kernels: Vec<(String, String)>, rule: Rule) -> EngineOptions {
    EngineOptions { isa, precision: Precision::F32, kernels, rule, elastic: false, spin: false }
}

/// Lists of forced implementations, so that each layer is computed by each of its own in one of them.
pub fn every_implementation(net: &Net, isa: Isa) -> Vec<Vec<(String, String)>> {
    let lists: Vec<(&str, Vec<&str>)> = net
        .layers
        .iter()
        .enumerate()
        .map(|(index, layer)| (layer.name.as_str(), implementations(net, LayerId(index), isa)))
        .collect();
    let longest = lists.iter().map(|(_, list)| list.len()).max().unwrap_or(0);
    let nth = |at: usize| {
        let of =
            |(name, list): &(&str, Vec<&str>)| (name.to_string(), list[at.min(list.len() - 1)].to_owned());
        lists.iter().map(of).collect()
    };
    (0..longest).map(nth).collect()
}

/// A net on one device, with a plan for what its phase does.
pub struct Run {
    net: Net,
    plan: Plan,
    /// For a mini-batch that is not the last of its iteration.
    part: Option<Plan>,
    device: CpuDevice,
    /// Histories of each weight.
    histories: usize,
    times: StepTimes<quadrille_cpu::CpuEvent>,
}

impl Run {
    /// The net with these weights.
    pub fn new(net: &Net, weights: &[f32], options: &EngineOptions) -> Self {
        let stage = if net.backward { Stage::Iteration } else { Stage::Forward };
        let nets = std::slice::from_ref(net);
        let planned = |stage| Plan::build(nets, PlanOptions::new(stage)).expect("a plan");
        let plan = planned(stage);
        let part = (net.parts > 1).then(|| planned(Stage::Part));
        let plans: Vec<&Plan> = part.iter().chain([&plan]).collect();
        let crew = CrewSpec::roaming("quadrant 0", THREADS);
        let worker = CpuWorker::new(&[crew], &[Program { nets, plans: &plans }], options).expect("a worker");
        let device = worker.devices(0).remove(0);
        let histories = options.rule.kind.histories();
        let run = Self { net: net.clone(), plan, part, device, histories, times: StepTimes::default() };
        run.write(Packed::Weights, weights);
        run
    }

    /// Sets a packed buffer.
    pub fn write(&self, packed: Packed, values: &[f32]) {
        self.device.write(Region::Packed(packed), values).expect("a packed buffer");
    }

    /// A packed buffer.
    pub fn read(&self, packed: Packed) -> Vec<f32> {
        let times = if packed == Packed::Histories { self.histories } else { 1 };
        let mut values = vec![0.0; times * self.net.params.len()];
        self.device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
        values
    }

    fn storage(&self, id: StorageId, count: usize) -> Vec<f64> {
        let mut values = vec![0.0; count];
        self.device.read(Region::Storage(id), &mut values).expect("a storage");
        values.into_iter().map(f64::from).collect()
    }

    /// One step on `inputs`, with an update at `rate` in phase TRAIN.
    pub fn step<'a>(
        &mut self,
        inputs: impl IntoIterator<Item = (&'a str, &'a [f32])>,
        iteration: u64,
        rate: f32,
    ) {
        self.part(inputs, iteration, rate, true);
    }

    /// One mini-batch of an iteration, the last of which is a step.
    pub fn part<'a>(
        &mut self,
        inputs: impl IntoIterator<Item = (&'a str, &'a [f32])>,
        iteration: u64,
        rate: f32,
        last: bool,
    ) {
        for (name, values) in inputs {
            let blob = self.net.blobs.iter().find(|blob| blob.name == name).expect("an input");
            self.device.write(Region::Stage(blob.data), values).expect("a stage");
        }
        let scalars = Scalars { iteration, rate, ..Scalars::default() };
        let plan = self.part.as_ref().filter(|_| !last).unwrap_or(&self.plan);
        run_step(std::slice::from_ref(&self.device), plan, &scalars, &mut self.times).expect("a step");
    }

    /// Values of a blob; after layers in place, what the last of them left.
    pub fn blob(&self, name: &str) -> Option<Vec<f64>> {
        let blob = self.net.blobs.iter().rfind(|blob| blob.name == name)?;
        Some(self.storage(blob.data, blob.shape.count()))
    }

    /// Gradient of a blob; of several by this name that below the first layer in place or split.
    fn blob_grad(&self, name: &str) -> Option<Vec<f64>> {
        let mut named = self.net.blobs.iter().filter(|blob| blob.name == name);
        let (grad, count) = named.find_map(|blob| blob.grad.map(|grad| (grad, blob.shape.count())))?;
        Some(self.storage(grad, count))
    }
}

/// Runs a step; in phase TRAIN with backward, and with an update at rate 0, which changes nothing but statistics.
pub fn compute(prepared: &Prepared, net: &Net, options: &EngineOptions) -> Computed {
    let weights = prepared.weights();
    let mut run = Run::new(net, &weights, options);
    run.step(prepared.inputs.iter().map(|(name, values)| (name.as_str(), values.as_slice())), 0, 0.0);
    let mut computed = Computed::new();
    for blob in &net.blobs {
        let name = &blob.name;
        computed.extend(run.blob(name).map(|values| (format!("blob/{name}"), values)));
        computed.extend(run.blob_grad(name).map(|values| (format!("diff/{name}"), values)));
    }
    let (gradients, after) = (run.read(Packed::Gradients), run.read(Packed::Weights));
    for view in net.params.views() {
        let double = |packed: &[f32]| packed[view.range()].iter().map(|value| f64::from(*value)).collect();
        if prepared.running_sum(&view.name).is_some() {
            computed.insert(format!("param_after/{}", view.name), double(&after));
        } else {
            computed.insert(format!("pdiff/{}", view.name), double(&gradients));
            assert_eq!(after[view.range()], weights[view.range()], "{}: a rate of 0 changed it", view.name);
        }
    }
    computed
}
