//! What the engine refuses and how it says so, and that it never hangs.

use crate::common::{crews, fractions, labels, nets, network, options, plan, small_lenet, worker};
use crate::watchdog::must_end;
use quadrille_core::device::{Device, DeviceError, Event, Packed, Region, Scalars};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net, NetState, Phase, StorageId};
use quadrille_core::plan::{Plan, Stage};
use quadrille_core::run::{StepError, StepTimes, run_step};
use quadrille_core::task::{Copy, DeviceId, LaneId, Task, Tile};
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::{CpuWorker, CrewSpec, EngineError, EngineOptions, Program};

fn lenet(batch: usize, quadrants: usize, stage: Stage) -> (Vec<Net>, Plan) {
    let nets = nets(small_lenet, batch, quadrants);
    let plan = plan(&nets, stage);
    (nets, plan)
}

fn layer(net: &Net, name: &str) -> LayerId {
    LayerId(net.layers.iter().position(|l| l.name == name).expect("a layer"))
}

fn fastest() -> EngineOptions {
    options(Isa::detect())
}

#[test]
fn what_the_device_was_not_built_for_is_refused() {
    let (nets, plan) = lenet(4, 1, Stage::Iteration);
    let worker = worker(&nets, &plan, 1, &fastest()).expect("a worker");
    let device = &worker.devices(0)[0];
    let unknown = |result: Result<(), DeviceError>, what: &str| match result {
        Err(DeviceError::Unknown { what: said, .. }) => {
            assert!(said.contains(what), "{said:?} names {what:?}")
        }
        other => panic!("{what}: {other:?}"),
    };
    let task = |layer, sub| Task { layer, sub, tile: Tile { first: 0, images: 4 } };
    let submit = |lane, task: Task| device.submit(LaneId(lane), &task).map(|_| ());
    let forward = task(layer(&nets[0], "conv1"), SubTask::Forward);
    let lanes = plan.lanes.len();
    unknown(submit(lanes, forward), &format!("lane {lanes}"));
    // Its workspace is that of the lane in which the plan has it.
    unknown(submit(1, forward), "in lane 1");
    unknown(submit(usize::MAX, forward), "lane");
    unknown(submit(0, task(LayerId(nets[0].layers.len()), SubTask::Forward)), "layer");
    unknown(submit(0, task(LayerId(usize::MAX), SubTask::Update)), "layer");
    // Sums over devices move named parts and come as copies.
    unknown(submit(1, task(layer(&nets[0], "conv1"), SubTask::Accumulate)), "accumulate");
    let copy = Copy { from: DeviceId(0), to: DeviceId(0), range: 0..16, add: true };
    unknown(device.copy(LaneId(1), &copy).map(|_| ()), "Copy");
    let len = nets[0].params.len();
    unknown(device.write(Region::Packed(Packed::Weights), &vec![0.0; len + 1]), "Weights");
    unknown(device.read(Region::Packed(Packed::Centre), &mut [0.0]), "Centre");
    unknown(device.read(Region::Storage(StorageId(nets[0].storages.len())), &mut []), "Storage");
    let conv1 = nets[0].blob(nets[0].layer(layer(&nets[0], "conv1")).tops[0]).data;
    unknown(device.write(Region::Stage(conv1), &[]), "Stage");
    // And after all that it still works.
    assert_eq!(submit(0, forward), Ok(()));
    assert_eq!(device.synchronize(), Ok(()));
}

#[test]
fn events_of_another_worker_are_refused() {
    let (nets, plan) = lenet(2, 1, Stage::Iteration);
    let workers = [0, 1].map(|_| worker(&nets, &plan, 1, &fastest()).expect("a worker"));
    let task = plan.nodes[0].task;
    let devices = [&workers[0].devices(0)[0], &workers[1].devices(0)[0]].map(Clone::clone);
    let event = devices[0].submit(LaneId(0), &task).expect("a known task");
    let refused = devices[1].wait_on(LaneId(1), &event);
    assert!(matches!(refused, Err(DeviceError::Unknown { what, .. }) if what.contains("another worker")));
    assert_eq!(devices[0].wait_on(LaneId(1), &event), Ok(()));
    must_end("a wait", move || devices.iter().for_each(|d| d.synchronize().expect("alive")));
    assert!(event.is_done() && event.span().is_some_and(|span| span.start <= span.end));
}

#[test]
fn a_full_queue_is_said_and_survived() {
    let (nets, plan) = lenet(64, 1, Stage::Iteration);
    // One naive task takes far longer than the submission of all others.
    let kernels = vec![("Convolution".to_owned(), "reference".to_owned())];
    let worker = worker(&nets, &plan, 1, &EngineOptions { kernels, ..fastest() }).expect("a worker");
    let device = worker.devices(0)[0].clone();
    let task =
        Task { layer: layer(&nets[0], "conv1"), sub: SubTask::Forward, tile: Tile { first: 0, images: 64 } };
    let mut submitted = 0;
    let refused = loop {
        match device.submit(LaneId(0), &task) {
            Ok(_) => submitted += 1,
            Err(error) => break error,
        }
        assert!(submitted < 1 << 20, "the queue never fills");
    };
    assert!(matches!(refused, DeviceError::QueueFull { capacity, .. } if capacity <= submitted), "{refused}");
    let room = device.clone();
    must_end("a full queue", move || room.synchronize().expect("alive"));
    assert!(device.submit(LaneId(0), &task).is_ok(), "there is room again");
    must_end("the last task", move || device.synchronize().expect("alive"));
}

/// The queue holds every plan that the worker was made for, with all its waits in one lane.
#[test]
fn a_plan_fits_the_queue() {
    for quadrants in [1, 3, 5] {
        let (nets, plan) = lenet(10, quadrants, Stage::Iteration);
        let worker = worker(&nets, &plan, 1, &fastest()).expect("a worker");
        let devices = worker.devices(0);
        for _ in 0..3 {
            run_step(&devices, &plan, &Scalars::default(), &mut StepTimes::default()).expect("a step");
        }
        let few = run_step(&devices[1..], &plan, &Scalars::default(), &mut StepTimes::default());
        assert_eq!(few, Err(StepError::Devices { planned: quadrants, given: quadrants - 1 }));
    }
}

#[test]
fn forced_kernels_are_taken_or_refused() {
    let (nets, plan) = lenet(2, 1, Stage::Iteration);
    let made = |forced: &[(&str, &str)]| {
        let kernels = forced.iter().map(|(l, k)| ((*l).to_owned(), (*k).to_owned())).collect();
        worker(&nets, &plan, 1, &EngineOptions { kernels, ..fastest() })
    };
    for (forced, expected) in [
        (("conv9", "reference"), "conv9"),
        (("conv1", "winograd"), "im2col-gemm, reference"),
        (("ip1", "im2col-gemm"), "gemm, reference"),
    ] {
        match made(&[forced]) {
            Err(EngineError::Kernel(said)) => assert!(said.contains(expected), "{said}"),
            other => panic!("{forced:?}: {:?}", other.map(|_| ())),
        }
    }
    // By type, and a name after it wins.
    let worker = made(&[("Convolution", "reference"), ("conv2", "im2col-gemm")]).expect("a worker");
    let chosen =
        |name: &str| worker.choices().iter().find(|c| c.layer == name).expect("a layer").implementation;
    assert_eq!([chosen("conv1"), chosen("conv2"), chosen("ip1")], ["reference", "im2col-gemm", "tiles"]);
}

#[test]
fn workers_that_cannot_be_are_refused() {
    let (nets, plan) = lenet(6, 2, Stage::Iteration);
    let made = |crews: &[CrewSpec], nets: &[Net], plan: &Plan, options: &EngineOptions| {
        let made = CpuWorker::new(crews, &[Program { nets, plans: &[plan] }], options);
        made.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(made(&crews(2, 1), &nets, &plan, &fastest()), "");
    assert!(made(&crews(2, 0), &nets, &plan, &fastest()).contains("no thread"));
    assert!(made(&crews(3, 1), &nets, &plan, &fastest()).contains("2 nets for 3 quadrants"));
    assert!(made(&crews(1, 1), &nets[..1], &plan, &fastest()).contains("invalid plan"));
    let mut racing = plan.clone();
    racing.nodes.iter_mut().for_each(|n| n.waits.clear());
    assert!(made(&crews(2, 1), &nets, &racing, &fastest()).contains("race"));
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        assert!(made(&crews(2, 1), &nets, &plan, &options(isa)).contains("this CPU has no"));
    }
    for isa in Isa::available() {
        let refusal = made(&crews(2, 1), &nets, &plan, &options(Numerics::bf16(isa)));
        assert_eq!(refusal.is_empty(), isa.has_bf16(), "{refusal}");
        let reason = if Isa::Avx512Bf16.is_available() { "has no bf16" } else { "no AVX-512 BF16" };
        assert!(isa.has_bf16() || refusal.contains(reason), "{refusal}");
    }
    let absurd = [CrewSpec { cpus: vec![Some(usize::MAX)], ..CrewSpec::roaming("far", 1) }];
    let one = lenet(2, 1, Stage::Iteration);
    let worker = CpuWorker::new(&absurd, &[Program { nets: &one.0, plans: &[&one.1] }], &fastest());
    let notes = worker.expect("a worker whose thread roams").notes().join("\n");
    assert!(notes.contains("not pinned"), "{notes:?}");
}

/// Training and testing have their own blobs and one set of weights.
#[test]
fn programs_share_their_weights() {
    let (nets, plan) = lenet(6, 2, Stage::Iteration);
    let test: Vec<Net> = (0..2)
        .map(|_| Net::build(&small_lenet(5), &NetState::new(Phase::Test), 1.0).expect("a net"))
        .collect();
    let forward = crate::common::plan(&test, Stage::Forward);
    let programs = [Program { nets: &nets, plans: &[&plan] }, Program { nets: &test, plans: &[&forward] }];
    let worker = CpuWorker::new(&crews(2, 2), &programs, &fastest()).expect("a worker");
    let weights = fractions(1, nets[0].params.len());
    for device in worker.devices(0) {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    }
    let mut found = vec![0.0; weights.len()];
    for (program, plan) in [(0, &plan), (1, &forward), (0, &plan)] {
        let scalars = Scalars { rate: 0.1, ..Scalars::default() };
        run_step(&worker.devices(program), plan, &scalars, &mut StepTimes::default()).expect("a step");
    }
    worker.devices(1)[1].read(Region::Packed(Packed::Weights), &mut found).expect("weights");
    assert_ne!(found, weights, "trained through program 0, read through program 1");
    // A net with other parameters cannot lie in the same buffer.
    let other =
        network(small_lenet(5).layers.into_iter().filter(|l| !l.name.contains("conv2")).collect(), false);
    let mut layers = other.layers;
    layers.iter_mut().filter(|l| l.name == "pool2").for_each(|l| l.bottoms = vec!["pool1".into()]);
    let other = [Net::build(&network(layers, false), &NetState::new(Phase::Test), 1.0).expect("a net")];
    let one = lenet(6, 1, Stage::Iteration);
    let forward = crate::common::plan(&other, Stage::Forward);
    let programs = [Program { nets: &one.0, plans: &[&one.1] }, Program { nets: &other, plans: &[&forward] }];
    let refused = CpuWorker::new(&crews(1, 1), &programs, &fastest()).err();
    assert!(matches!(refused, Some(EngineError::Plan(_))));
}

/// Far more threads than CPUs, in three quadrants, for thousands of steps: every sleep must be woken.
#[test]
fn oversubscribed_crews_never_hang() {
    for (spin, threads, steps) in [(false, 8, 2000), (true, 8, 500), (false, 1, 1000)] {
        must_end("an oversubscribed worker", move || {
            let (nets, plan) = lenet(4, 3, Stage::Iteration);
            let worker =
                worker(&nets, &plan, threads, &EngineOptions { spin, ..fastest() }).expect("a worker");
            let devices = worker.devices(0);
            let mut times = StepTimes::default();
            for (device, net) in devices.iter().zip(&nets) {
                let label = net.blob(net.layer(layer(net, "label")).tops[0]).data;
                device.write(Region::Stage(label), &labels(1, net.batch(), 10)).expect("a stage");
            }
            for iteration in 0..steps {
                let scalars = Scalars { iteration, rate: 1e-3, ..Scalars::default() };
                run_step(&devices, &plan, &scalars, &mut times).expect("a step");
            }
        });
    }
}

/// In every step and on every tier a task starts only after those that it waits for.
#[test]
fn tasks_start_after_what_they_wait_for() {
    let (nets, plan) = lenet(60, 3, Stage::Iteration);
    let worker = worker(&nets, &plan, 2, &fastest()).expect("a worker");
    let devices = worker.devices(0);
    let mut times = StepTimes::default();
    for _ in 0..200 {
        run_step(&devices, &plan, &Scalars::default(), &mut times).expect("a step");
        let mut ends = vec![vec![0; plan.lanes.len()]; 3];
        for (id, node) in plan.nodes.iter().enumerate() {
            let span = times.spans()[id];
            for wait in &node.waits {
                assert!(times.spans()[wait.0].end <= span.start, "task {id} waits for {}", wait.0);
            }
            let lane = &mut ends[node.device.0][node.lane.0];
            assert!(*lane <= span.start, "task {id} starts before the one in front of it has ended");
            *lane = span.end;
        }
    }
}
