//! Runs the sub-tasks of a case on a GPU.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::reference::Arrays;
use quadrille_core::solver::Rule;
use quadrille_core::task::{DeviceId, Task, Tile};
use quadrille_gpu::{Cuda, CudaDevice, Options, Order, Program};

use crate::case::{Case, SUBS};
use crate::common::own;

/// The orders in which values are made to lie.
pub const ORDERS: [Order; 2] = [Order::ChannelsFirst, Order::ChannelsLast];

/// What each sub-task writes, state aside, which cannot be read.
pub fn written(case: &Case) -> impl Iterator<Item = (SubTask, Operand)> {
    let accesses = SUBS.into_iter().filter_map(|sub| case.net.accesses(case.id, sub).map(|a| (sub, a)));
    let each = accesses.flat_map(|(sub, a)| a.writes.into_iter().map(move |operand| (sub, operand)));
    each.filter(|(_, operand)| !matches!(operand, Operand::Aux(_)))
}

/// Compares all sub-tasks of `cases` with the oracle, with tolerance 0: on small integers all sums are exact. What libraries
/// compute has a bound instead, since they may multiply by transforms.
pub fn exact(gpu: &Cuda, cases: &[Case]) {
    for case in cases {
        exact_on(gpu, case, &case.integers());
    }
}

/// The same for a case with arrays of its own.
pub fn exact_on(gpu: &Cuda, case: &Case, arrays: &Arrays<f32>) {
    let mut expected = arrays.clone();
    case.reference(&mut expected);
    for order in ORDERS {
        let found = run(gpu, case, &Options { order, ..own(Rule::default()) }, arrays);
        for (sub, operand) in written(case) {
            let what = format!("{sub} {operand:?} of {case}, {order:?}");
            compare(&what, case, expected.get(operand), found.get(operand));
        }
        if matches!(case.layer, Layer::Convolution(_) | Layer::InnerProduct(_)) {
            by_libraries(gpu, case, arrays, &expected, order);
        }
    }
}

fn compare(what: &str, case: &Case, expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len(), "{what}: length");
    let zeros = expected.iter().filter(|v| **v == 0.0).count();
    assert!(
        case.zeros.is_some() || 2 * zeros <= expected.len(),
        "mistrusted: {zeros} of {} results are 0: {what}",
        expected.len()
    );
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest < (1 << 24) as f32, "mistrusted: sums up to {largest} are not exact: {what}");
    let same = |at: &usize| found[*at] == expected[*at] || (found[*at].is_nan() && expected[*at].is_nan());
    if let Some(at) = (0..expected.len()).find(|at| !same(at)) {
        panic!("at {at}: {} is not {}: {what}", found[at], expected[at]);
    }
}

/// The same sub-tasks by cuBLAS and cuDNN, where they are: each sum within as many roundings as its terms' magnitudes allow,
/// with the factor that transforms of 4 × 4 tiles have.
fn by_libraries(gpu: &Cuda, case: &Case, arrays: &Arrays<f32>, expected: &Arrays<f32>, order: Order) {
    const TRANSFORMS: f64 = 64.0;
    let mut magnitudes = Arrays::new();
    let operands =
        [0, 1].into_iter().flat_map(|i| [Operand::Bottom(i), Operand::Param(i), Operand::TopGrad(i)]);
    for operand in operands {
        if let Some(values) = arrays.find(operand) {
            magnitudes.insert(operand, values.iter().map(|v| f64::from(v.abs())).collect());
        }
    }
    case.reference(&mut magnitudes);
    let found = run(gpu, case, &Options { order, ..Options::new(Rule::default(), false) }, arrays);
    for (sub, operand) in written(case) {
        let what = format!("{sub} {operand:?} of {case} by libraries, {order:?}");
        let bounds = magnitudes.get(operand).iter().map(|m| TRANSFORMS * f64::from(f32::EPSILON) * m);
        let pairs = expected.get(operand).iter().zip(found.get(operand)).zip(bounds).enumerate();
        for (at, ((e, f), bound)) in pairs {
            // Written so that NaN fails.
            assert!(
                (f64::from(*e) - f64::from(*f)).abs() <= bound,
                "at {at}: {f} is not {e} ± {bound:e}: {what}"
            );
        }
    }
}

/// Everything that the layer's sub-tasks write when they read `arrays`: forward alone, then all of backward at once, each
/// sub-task in its own lane.
pub fn run(gpu: &Cuda, case: &Case, options: &Options, arrays: &Arrays<f32>) -> Arrays<f32> {
    let plan = case.plan();
    let program = Program { net: &case.net, plans: &[&plan] };
    let worker = gpu.worker(&[program], options).unwrap_or_else(|error| panic!("{case}: {error}"));
    let device = worker.device(0);
    let has = |sub: &SubTask| case.net.accesses(case.id, *sub).is_some();
    let mut found = Arrays::new();
    // Twice: nothing of a step may be left over in the next.
    for subs in [&SUBS[..1], &SUBS[..1], &SUBS[1..], &SUBS[1..]] {
        let subs: Vec<SubTask> = subs.iter().copied().filter(has).collect();
        // What is not overwritten stays NaN, and so does what is summed up with what was there.
        subs.iter().for_each(|sub| poison(case, &device, *sub));
        subs.iter().for_each(|sub| fill(case, &device, *sub, arrays));
        device.begin(&Scalars::default()).expect("the device is alive");
        for sub in &subs {
            let tile = Tile { first: 0, images: case.net.batch() };
            let task = Task { layer: case.id, sub: *sub, tile };
            device
                .submit(plan.lane_of(DeviceId(0), case.id, *sub).expect("a task of the plan"), &task)
                .expect("a known task");
        }
        device.synchronize().unwrap_or_else(|error| panic!("{case}: {error}"));
        for sub in &subs {
            for (_, operand) in written(case).filter(|(s, _)| s == sub) {
                found.insert(operand, read(case, &device, operand));
            }
        }
    }
    found
}

fn poison(case: &Case, device: &CudaDevice, sub: SubTask) {
    for (_, operand) in written(case).filter(|(s, _)| *s == sub) {
        let (region, len) = match case.storage(operand) {
            Some(id) => (Region::Storage(id), case.net.storages[id.0]),
            None => (Region::Packed(Packed::Gradients), case.net.params.len()),
        };
        device.write(region, &vec![f32::NAN; len]).expect("a region");
    }
}

/// Writes what `sub` reads, if `arrays` has it; the rest is there from forward.
fn fill(case: &Case, device: &CudaDevice, sub: SubTask, arrays: &Arrays<f32>) {
    let reads = case.net.accesses(case.id, sub).expect("the layer has the sub-task").reads;
    for operand in reads {
        let Some(values) = arrays.find(operand) else { continue };
        match (operand, case.storage(operand)) {
            // In place the bottom is gone after forward, and nobody asks for it.
            (_, Some(id)) => device.write(Region::Storage(id), values).expect("a storage"),
            (Operand::Param(i), None) => {
                let mut weights = vec![0.0; case.net.params.len()];
                device.read(Region::Packed(Packed::Weights), &mut weights).expect("weights");
                let param = case.net.layer(case.id).params[i];
                weights[case.net.params.view(param).range()].copy_from_slice(values);
                device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
            }
            _ => {}
        }
    }
}

fn read(case: &Case, device: &CudaDevice, operand: Operand) -> Vec<f32> {
    if let Some(id) = case.storage(operand) {
        let mut values = vec![0.0; case.net.storages[id.0]];
        device.read(Region::Storage(id), &mut values).expect("a storage");
        return values;
    }
    let Operand::ParamGrad(i) = operand else { panic!("{operand:?} cannot be read") };
    let mut gradients = vec![0.0; case.net.params.len()];
    device.read(Region::Packed(Packed::Gradients), &mut gradients).expect("gradients");
    gradients[case.net.params.view(case.net.layer(case.id).params[i]).range()].to_vec()
}
