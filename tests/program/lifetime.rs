//! Every network in `models` trains to the same bits whether it shares memory or not, and whatever that held before.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::net::{Net, Phase};
use quadrille_core::plan::{self, Plan, PlanOptions};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::{CpuWorker, CrewSpec, EngineOptions, NAN_HALVES, Program, storage_needs};

use crate::common;
use crate::models::{NETWORKS, build, network};

/// Weights after two steps on one image from some weights on. `poison` is what lies in memory before each of them.
fn train(weights: &[f32], net: Net, numerics: Numerics, threads: usize, poison: Option<f32>) -> Vec<f32> {
    let nets = [net];
    let options = PlanOptions::new(plan::Stage::Iteration);
    let plan = Plan::build(&nets, options).expect("a plan");
    let crews = [CrewSpec::roaming("quadrant", threads)];
    let rule = Rule::sgd(0.9, 5e-4);
    let options = EngineOptions {
        isa: numerics.isa,
        precision: numerics.precision,
        kernels: Vec::new(),
        rule,
        elastic: false,
        spin: false,
    };
    let programs = [Program { nets: &nets, plans: &[&plan] }];
    let worker = CpuWorker::new(&crews, &programs, &options).expect("a worker");
    let devices = worker.devices(0);
    let [net] = nets;
    devices[0].write(Region::Packed(Packed::Weights), weights).expect("weights");
    let source = net.layers.iter().find(|l| l.layer.is_source()).expect("a source");
    let [data, label] = [0, 1].map(|top| net.blob(source.tops[top]));
    let stream = Stream::new(5, Purpose::Dummy, 0);
    let image: Vec<f32> = (0..data.shape.count() as u64).map(|i| stream.uniform(i) - 0.5).collect();
    devices[0].write(Region::Stage(data.data), &image).expect("a stage");
    devices[0].write(Region::Stage(label.data), &vec![1.0; label.shape.count()]).expect("a stage");
    for step in 0..2 {
        if let Some(value) = poison {
            devices[0].fill_transient(value).expect("memory");
        }
        let scalars = Scalars { iteration: step, rate: 1e-4, seed: step, ..Scalars::default() };
        run_step(&devices, &plan, &scalars, &mut StepTimes::default()).expect("a step");
    }
    let mut trained = vec![0.0; weights.len()];
    devices[0].read(Region::Packed(Packed::Weights), &mut trained).expect("weights");
    trained
}

#[test]
fn networks_train_to_the_same_bits_in_shared_memory() {
    let isa = Isa::detect();
    let bf16 = isa.has_bf16().then_some(Numerics::bf16(isa));
    if bf16.is_none() {
        println!("skipped: bf16 in shared memory: {isa} has none");
    }
    for (name, sample, _) in NETWORKS {
        let net = build(network(name), Phase::Train, sample).fused();
        let mut weights = vec![0.0; net.params.len()];
        net.params.fill(7, &mut weights);
        for numerics in std::iter::once(Numerics::from(isa)).chain(bf16) {
            let needs = storage_needs(&net, numerics, &[]).expect("kernels");
            let apart = train(&weights, net.clone(), numerics, 2, None);
            assert!(apart.iter().all(|weight| weight.is_finite()), "{name} in {numerics}");
            assert!(apart != weights, "{name} in {numerics} did not learn");
            let shared = train(&weights, net.clone().sharing_memory(&needs), numerics, 3, Some(NAN_HALVES));
            let differ = apart.iter().zip(&shared).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            assert_eq!(differ, 0, "weights of {name} in {numerics}");
        }
    }
}

/// What is said of it, that training ends at the same weights either way, and that the flag reaches every command.
#[test]
fn memory_is_shared_unless_that_is_not_wished() {
    const SAVED: &str = "; without sharing ";
    let stage = common::Stage::new();
    for flags in ["--workers 2", "--workers 1 --quadrants 2"] {
        let [shared, apart] = ["", "--no-memory-sharing"].map(|sharing| {
            let run = format!("run {flags}{sharing}").replace([' ', '-'], "");
            let command = format!("train --solver solver.prototxt --run {run} {flags} {sharing}");
            (stage.succeed(&command).stdout, common::hash_of(&stage.summary(&run)))
        });
        let line = |text: &str| -> String {
            text.lines().find(|line| line.starts_with("memory ")).expect("a line about memory").to_owned()
        };
        assert!(line(&shared.0).contains(SAVED), "{}", shared.0);
        assert!(!line(&apart.0).contains(SAVED), "{}", apart.0);
        assert_eq!(shared.1, apart.1, "{flags}");
    }
    let time = |flag: &str| stage.succeed(&format!("time --model net.prototxt --iterations 1 {flag}")).stdout;
    assert!(time("").contains(SAVED) && !time("--no-memory-sharing").contains(SAVED));
}
