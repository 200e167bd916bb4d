//! The simulated device: what its model says, worked out by hand.

use quadrille_core::device::{Device, DeviceError, Event, Lane, Scalars, Span};
use quadrille_core::layer::SubTask;
use quadrille_core::net::LayerId;
use quadrille_core::plan::lanes::Limits;
use quadrille_core::plan::{Node, Plan, Stage};
use quadrille_core::run::{StepError, StepTimes, run_step};
use quadrille_core::sim::{DeviceModel, GrainRule, Kernel, SimDevice};
use quadrille_core::task::{DeviceId, LaneId, Task, TaskId, Tile};

/// So many cores of one operation and two bytes a nanosecond, which share a memory of `memory` bytes a nanosecond.
fn cores(units: u32, memory: f64) -> DeviceModel {
    let limits = Limits { units, blocks: 1, threads: 1, registers: 0, shared: 0, kernels: 4, launch: 0.0 };
    DeviceModel {
        limits,
        flops: 1.0,
        bytes: 2.0,
        memory,
        levels: u8::MAX,
        wait: 0.0,
        start: 0.0,
        grain: 0.0,
        crew: false,
        compute: GrainRule::cores(1000.0, 64),
        stream: GrainRule::cores(1000.0, 64),
    }
}

/// A kernel of so many grains, each of so many operations and bytes.
fn kernel(grains: u64, flops: f64, bytes: f64) -> Kernel {
    let n = grains as f64;
    Kernel {
        grains,
        threads: 1,
        registers: 0,
        shared: 0,
        saturating: 1,
        width: u64::MAX,
        flops: n * flops,
        bytes: n * bytes,
    }
}

/// A task of a plan: device, lane, what it waits for, and its kernel.
type Given<'a> = (usize, usize, &'a [usize], Kernel);

fn plan(priorities: &[u8], tasks: &[Given<'_>]) -> Plan {
    let node = |(id, (device, lane, waits, _)): (usize, &Given<'_>)| Node {
        task: Task { layer: LayerId(id), sub: SubTask::Forward, tile: Tile { first: 0, images: 1 } },
        device: DeviceId(*device),
        lane: LaneId(*lane),
        copy: None,
        reads: Vec::new(),
        writes: Vec::new(),
        waits: waits.iter().map(|w| TaskId(*w)).collect(),
    };
    let devices = tasks.iter().map(|t| t.0 + 1).max().unwrap_or(1);
    let lane = |(id, priority): (usize, &u8)| Lane { id: LaneId(id), priority: *priority };
    let lanes = priorities.iter().enumerate().map(lane).collect();
    Plan { stage: Stage::Forward, devices, lanes, nodes: tasks.iter().enumerate().map(node).collect() }
}

/// When each task ran in the first step, and how long the second took.
fn spans(model: &DeviceModel, priorities: &[u8], tasks: &[Given<'_>]) -> (Vec<(u64, u64)>, u64) {
    let plan = plan(priorities, tasks);
    let group = SimDevice::of_kernels(&[&plan], model, |node| tasks[node.task.layer.0].3);
    let mut times = StepTimes::default();
    run_step(&group, &plan, &Scalars::default(), &mut times).expect("a step");
    let first = times.spans().iter().map(|span| (span.start, span.end)).collect();
    run_step(&group, &plan, &Scalars::default(), &mut times).expect("another step");
    (first, times.elapsed())
}

#[test]
fn the_last_wave_leaves_room_for_lower_lanes() {
    let two_waves = kernel(32, 1000.0, 0.0);
    let alone = spans(&cores(17, 1e9), &[0, 1], &[(0, 0, &[], two_waves)]);
    assert_eq!(alone, (vec![(0, 2000)], 2000));
    // The second wave has 15 grains: two cores are left, and no more.
    let beside = |grains| {
        spans(&cores(17, 1e9), &[0, 1], &[(0, 0, &[], two_waves), (0, 1, &[], kernel(grains, 1000.0, 0.0))]).0
    };
    assert_eq!(beside(2), [(0, 2000), (1000, 2000)]);
    assert_eq!(beside(3), [(0, 2000), (1000, 3000)]);
    // In one lane they come one after the other.
    let after =
        spans(&cores(17, 1e9), &[0, 1], &[(0, 0, &[], two_waves), (0, 0, &[], kernel(2, 1000.0, 0.0))]);
    assert_eq!(after.0, [(0, 2000), (2000, 3000)]);
}

#[test]
fn priority_decides_and_nothing_is_interrupted() {
    let model = cores(2, 1e9);
    let long = kernel(4, 1000.0, 0.0);
    let tasks: &[Given<'_>] = &[(0, 0, &[], long), (0, 1, &[], long)];
    assert_eq!(spans(&model, &[0, 1], tasks).0, [(0, 2000), (2000, 4000)]);
    assert_eq!(spans(&model, &[1, 0], tasks).0, [(2000, 4000), (0, 2000)]);
    assert_eq!(spans(&model, &[0, 0], tasks).0, [(0, 2000), (2000, 4000)], "of equals the first");
    let crew = DeviceModel { crew: true, ..model };
    assert_eq!(spans(&crew, &[0, 0], tasks).0, [(0, 4000), (0, 4000)], "equals take turns in a crew");
    assert_eq!(spans(&crew, &[0, 1], tasks).0, [(0, 2000), (2000, 4000)]);
    // A device with one level knows no difference.
    assert_eq!(spans(&DeviceModel { levels: 1, ..model }, &[1, 0], tasks).0, [(0, 2000), (2000, 4000)]);
    // Ready first is served first, whatever the lane's number.
    let third: &[Given<'_>] = &[(0, 0, &[], kernel(1, 900.0, 0.0)), (0, 1, &[], long), (0, 0, &[], long)];
    assert_eq!(spans(&model, &[0, 0], third).0, [(0, 900), (0, 2900), (2000, 4900)]);
    // The critical lane gets a core as soon as a grain ends.
    let late: &[Given<'_>] =
        &[(0, 0, &[], kernel(1, 500.0, 0.0)), (0, 1, &[], long), (0, 0, &[], kernel(2, 1000.0, 0.0))];
    assert_eq!(spans(&model, &[0, 1], late).0, [(0, 500), (0, 3500), (500, 2000)]);
}

#[test]
fn grains_share_the_memory_evenly() {
    // Four cores could move 8 bytes a nanosecond; the memory gives 4.
    let model = cores(4, 4.0);
    let copy = kernel(4, 0.0, 1000.0);
    assert_eq!(spans(&model, &[0], &[(0, 0, &[], copy)]).0, [(0, 1000)]);
    assert_eq!(spans(&model, &[0], &[(0, 0, &[], kernel(2, 0.0, 1000.0))]).0, [(0, 500)], "two have enough");
    // Two ask for 0.5 each and get it; the others share the 3 that are left: 667 nanoseconds for 1000 bytes. Then there is enough.
    let little = kernel(2, 1000.0, 500.0);
    let mixed = spans(&model, &[0, 1], &[(0, 0, &[], little), (0, 1, &[], kernel(2, 0.0, 1000.0))]);
    assert_eq!(mixed.0, [(0, 1000), (0, 667)]);
    // Arithmetic beside memory is free.
    let both =
        spans(&model, &[0, 1], &[(0, 0, &[], kernel(2, 1000.0, 0.0)), (0, 1, &[], kernel(2, 0.0, 2000.0))]);
    assert_eq!(both.0, [(0, 1000), (0, 1000)]);
}

#[test]
fn what_is_bound_by_memory_leaves_cores_to_others_first() {
    let model = DeviceModel { crew: true, ..cores(4, 4.0) };
    let copy = model.kernel(0.0, 4000.0);
    assert_eq!((copy.grains, copy.width), (4, 2));
    assert_eq!(model.kernel(4000.0, 100.0).width, u64::MAX);
    let tasks: &[Given<'_>] = &[(0, 0, &[], copy), (0, 1, &[], kernel(2, 1000.0, 0.0))];
    assert_eq!(spans(&model, &[0, 1], tasks).0, [(0, 1000), (0, 1000)]);
    // Nobody else wants them: it has all four.
    assert_eq!(spans(&model, &[0, 1], &tasks[..1]).0, [(0, 1000)]);
    let eager = kernel(4, 0.0, 1000.0);
    assert_eq!(spans(&model, &[0, 1], &[(0, 0, &[], eager), tasks[1]]).0, [(0, 1000), (1000, 2000)]);
}

#[test]
fn small_tasks_wait_for_the_host() {
    let model = DeviceModel {
        limits: Limits { launch: 100.0, ..cores(4, 1e9).limits },
        wait: 30.0,
        start: 20.0,
        grain: 5.0,
        ..cores(4, 1e9)
    };
    let tiny = kernel(1, 10.0, 0.0);
    // Submitted at 100, 200, 300; the third waits for the first, which costs the host 30 more.
    let tasks: &[Given<'_>] = &[(0, 0, &[], tiny), (0, 0, &[], tiny), (0, 1, &[0], tiny)];
    let (first, second) = spans(&model, &[0, 1], tasks);
    assert_eq!(first, [(120, 135), (220, 235), (350, 365)]);
    assert_eq!(second, 365 - 120, "the next step is like the first");
    // A long one hides the host.
    let long = kernel(4, 1000.0, 0.0);
    assert_eq!(spans(&model, &[0], &[(0, 0, &[], long), (0, 0, &[], long)]).0, [(120, 1125), (1145, 2150)]);
    assert_eq!(model.alone(&long), 1025.0);
}

#[test]
fn a_multiprocessor_holds_what_its_limits_allow_and_hides_latencies_with_threads() {
    let limits =
        Limits { units: 2, blocks: 8, threads: 1024, registers: 4096, shared: 1000, kernels: 8, launch: 0.0 };
    let model = DeviceModel { limits, ..cores(2, 1e9) };
    let block = |grains, threads, registers, shared| Kernel {
        threads,
        registers,
        shared,
        saturating: 128,
        ..kernel(grains, 128.0, 0.0)
    };
    let time = |kernel: Kernel| {
        let spans = spans(&model, &[0], &[(0, 0, &[], kernel)]);
        assert_eq!(spans.1 as f64, model.alone(&kernel).ceil());
        spans.1
    };
    // One block of 32 threads on a unit gets a quarter of it; four fill it; eight take twice as long together.
    assert_eq!([2, 8, 16].map(|grains| time(block(grains, 32, 0, 0))), [512, 512, 1024]);
    assert_eq!(time(block(2, 128, 0, 0)), 128);
    // Eight blocks fit by number, two by threads, four by registers, three by shared memory: waves of twice as many.
    assert_eq!(time(block(17, 32, 0, 0)), 1024 + 512);
    assert_eq!(time(block(5, 512, 0, 0)), 256 + 128);
    assert_eq!(time(block(9, 32, 32, 0)), 512 + 512);
    assert_eq!(time(block(7, 32, 0, 300)), 512 + 512);
    // Another kernel finds room for what is left: 2 of 3 blocks' shared memory.
    let both: &[Given<'_>] = &[(0, 0, &[], block(4, 32, 0, 300)), (0, 1, &[], block(4, 32, 0, 400))];
    assert_eq!(spans(&model, &[0, 1], both).0, [(0, 512), (0, 1024)]);
}

#[test]
fn devices_of_a_group_share_one_time() {
    let model = cores(1, 1e9);
    let tasks: &[Given<'_>] = &[
        (0, 0, &[], kernel(1, 1000.0, 0.0)),
        (1, 0, &[0], kernel(1, 500.0, 0.0)),
        (0, 0, &[], kernel(1, 200.0, 0.0)),
        (0, 0, &[1], kernel(1, 100.0, 0.0)),
    ];
    let (first, second) = spans(&model, &[0], tasks);
    assert_eq!(first, [(0, 1000), (1000, 1500), (1000, 1200), (1500, 1600)]);
    assert_eq!(second, 1600);
}

#[test]
fn what_a_simulated_device_was_not_built_for_is_refused() {
    let tasks: &[Given<'_>] = &[(0, 0, &[], kernel(1, 1000.0, 0.0))];
    let plan = plan(&[0], tasks);
    let build = || SimDevice::of_kernels(&[&plan], &cores(1, 1e9), |_| tasks[0].3).remove(0);
    let (device, other) = (build(), build());
    let refused = |result: Result<(), DeviceError>| matches!(result, Err(DeviceError::Unknown { .. }));
    let task = plan.nodes[0].task;
    assert!(refused(device.submit(LaneId(1), &task).map(|_| ())));
    assert!(refused(device.submit(LaneId(0), &Task { layer: LayerId(7), ..task }).map(|_| ())));
    let event = other.submit(LaneId(0), &task).expect("a known task");
    assert!(refused(device.wait_on(LaneId(0), &event)));
    assert!(!event.is_done() && event.span().is_none());
    other.synchronize().expect("it ends");
    assert_eq!(event.span(), Some(Span { start: 0, end: 1000 }));
    let broken = run_step(&[device, other], &plan, &Scalars::default(), &mut StepTimes::default());
    assert!(matches!(broken, Err(StepError::Devices { .. })));
}

/// Grains that a measurement says take longer, or shorter, than the rates say.
#[test]
fn a_measurement_corrects_what_rates_say() {
    let model = DeviceModel { start: 10.0, grain: 5.0, ..cores(1, 4.0) };
    for (kernel, nanoseconds) in
        [(kernel(4, 100.0, 0.0), 1000.0), (kernel(4, 100.0, 900.0), 3000.0), (kernel(4, 100.0, 900.0), 300.0)]
    {
        let corrected = kernel.measured(&model, nanoseconds);
        assert!((model.alone(&corrected) - nanoseconds).abs() < 1e-6, "{corrected:?}");
        assert!(corrected.bytes <= kernel.bytes && corrected.grains == kernel.grains);
    }
}
