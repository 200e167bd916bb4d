//! Runs the sub-tasks of a case on the engine, one worker for each tier and number of threads.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{Operand, SubTask};
use quadrille_core::reference::Arrays;
use quadrille_core::task::{DeviceId, Task, Tile};
use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_cpu::{CpuDevice, EngineOptions, implementations};

use crate::common::{options, tiers_of_bf16, ways, worker};
use crate::exact::case::{Case, SUBS};

/// Compares all sub-tasks of `cases` with the oracle, with tolerance 0, [`everywhere`].
pub fn exact(test: &str, cases: &[Case]) {
    cases.iter().for_each(|case| exact_on(test, case, &case.integers()));
}

/// The same for a case with arrays of its own, such as indices.
pub fn exact_on(test: &str, case: &Case, arrays: &Arrays<f32>) {
    let expected = |case: &Case| {
        let mut expected = arrays.clone();
        case.reference(&mut expected);
        expected
    };
    // Behind other layers a layer draws other numbers.
    let (alone, behind) = (expected(case), case.in_blocks().as_ref().map(expected));
    everywhere(test, case, arrays, |case, how, found| {
        let expected = behind.as_ref().filter(|_| case.after_blocks).unwrap_or(&alone);
        compare_all(case, how, expected, found);
    });
}

/// The same on two threads, by one implementation where there is one of that name: for arrays so large that every way would take minutes.
pub fn exact_by(implementation: &str, test: &str, case: &Case) {
    let arrays = case.integers();
    let mut expected = arrays.clone();
    case.reference(&mut expected);
    let ways = ways(test, &case.net, case.id);
    let named: Vec<_> = ways.iter().filter(|(_, name)| *name == implementation).collect();
    let has_vectors = |(numerics, _): &(Numerics, _)| numerics.isa != Isa::Portable;
    assert!(!named.is_empty() || !ways.iter().any(has_vectors), "{case} has no {implementation}");
    for &&(numerics, _) in &named {
        let text = format!("{case}, {implementation} on {numerics}, 2 threads");
        let found = run_with(case, implementation, numerics, 2, &arrays);
        compare_all(case, &How { text, numerics }, &expected, &found);
    }
}

/// Compares everything that the sub-tasks of a case write.
fn compare_all(case: &Case, how: &How, expected: &Arrays<f32>, found: &Arrays<f32>) {
    for (sub, operand) in written(case) {
        let what = format!("{sub} {operand:?} of {how}");
        let kept = kept(case, how.numerics, operand);
        compare(&what, case, expected.get(operand), found.get(operand), kept);
    }
}

/// How a case was run.
pub struct How {
    text: String,
    pub numerics: Numerics,
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Calls `check(case, how, what its sub-tasks write)` for every implementation on every tier, in each precision and number of threads, and
/// once more with bottoms in blocks of channels, which in bf16 hold bf16. The naive implementation is the same code on every tier, in one
/// grain, and takes longer than all others together: two threads do.
pub fn everywhere(test: &str, case: &Case, arrays: &Arrays<f32>, check: impl Fn(&Case, &How, &Arrays<f32>)) {
    let check = |case: &Case, implementation: &str, numerics: Numerics, threads| {
        let text = format!("{case}, {implementation} on {numerics}, {threads} threads");
        let found = run_with(case, implementation, numerics, threads, arrays);
        check(case, &How { text, numerics }, &found);
    };
    let blocked = case.in_blocks();
    let fits = |case: &Case, name: &str, numerics: Numerics| {
        implementations(&case.net, case.id, numerics).contains(&name)
    };
    for (numerics, implementation) in ways(test, &case.net, case.id) {
        let has_vectors = numerics.isa != Isa::Portable;
        let threads: &[usize] = if implementation == "reference" { &[2] } else { &[1, 2, 3] };
        threads.iter().for_each(|threads| check(case, implementation, numerics, *threads));
        let blocked = blocked.as_ref().filter(|_| has_vectors);
        if let Some(blocked) = blocked.filter(|case| fits(case, implementation, numerics)) {
            check(blocked, implementation, numerics, 2);
        }
    }
    let Some(blocked) = &blocked else { return };
    for numerics in tiers_of_bf16(test).into_iter().map(Numerics::bf16) {
        for implementation in implementations(&blocked.net, blocked.id, numerics) {
            check(blocked, implementation, numerics, 2);
        }
    }
}

/// What an operand keeps of a number: blobs in blocks are kept in bf16.
pub fn kept(case: &Case, numerics: Numerics, operand: Operand) -> fn(f32) -> f32 {
    let is_bf16 = numerics.precision == Precision::Bf16 && case.storage(operand).is_some();
    if is_bf16 { rounded } else { |value| value }
}

/// The number in bf16 that is nearest, ties to even; below the smallest normal number, 0.
pub fn rounded(value: f32) -> f32 {
    if value.is_nan() {
        return value;
    }
    if value.abs() < f32::MIN_POSITIVE {
        return 0.0f32.copysign(value);
    }
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// [`run`] with one implementation.
fn run_with(
    case: &Case,
    implementation: &str,
    numerics: Numerics,
    threads: usize,
    arrays: &Arrays<f32>,
) -> Arrays<f32> {
    let kernels = vec![(case.net.layer(case.id).name.clone(), implementation.to_owned())];
    run(case, &EngineOptions { kernels, ..options(numerics) }, threads, arrays)
}

/// What each sub-task writes, state aside, which cannot be read.
pub fn written(case: &Case) -> impl Iterator<Item = (SubTask, Operand)> {
    let accesses = SUBS.into_iter().filter_map(|sub| case.net.accesses(case.id, sub).map(|a| (sub, a)));
    let each = accesses.flat_map(|(sub, a)| a.writes.into_iter().map(move |operand| (sub, operand)));
    each.filter(|(_, operand)| !matches!(operand, Operand::Aux(_)))
}

/// Compares what was found with what `kept` leaves of what is expected.
fn compare(what: &str, case: &Case, expected: &[f32], found: &[f32], kept: fn(f32) -> f32) {
    assert_eq!(expected.len(), found.len(), "{what}: length");
    let zeros = expected.iter().filter(|v| **v == 0.0).count();
    assert!(
        case.zeros.is_some() || 2 * zeros <= expected.len(),
        "mistrusted: {zeros} of {} results are 0: {what}",
        expected.len()
    );
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest < (1 << 24) as f32, "mistrusted: sums up to {largest} are not exact: {what}");
    // A blob that lies plain is not rounded.
    let is = |at: &usize| found[*at] == expected[*at] || found[*at] == kept(expected[*at]);
    if let Some(at) = (0..expected.len()).find(|at| !is(at)) {
        panic!("at {at}: {} is not {}: {what}", found[at], expected[at]);
    }
}

/// Everything that the layer's sub-tasks write when they read `arrays`: forward alone, then all of backward at once,
/// each sub-task in its own lane.
pub fn run(case: &Case, options: &EngineOptions, threads: usize, arrays: &Arrays<f32>) -> Arrays<f32> {
    let plan = case.plan();
    let worker = worker(std::slice::from_ref(&case.net), &plan, threads, options).expect("a worker");
    let device = &worker.devices(0)[0];
    device.begin(&Scalars::default()).expect("the device is alive");
    let has = |sub: &SubTask| case.net.accesses(case.id, *sub).is_some();
    let mut found = Arrays::new();
    // Twice: nothing of a step may be left over in the next.
    for subs in [&SUBS[..1], &SUBS[..1], &SUBS[1..], &SUBS[1..]] {
        let subs: Vec<SubTask> = subs.iter().copied().filter(has).collect();
        // What is not overwritten stays NaN, and so does what is summed up with what was there.
        subs.iter().for_each(|sub| poison(case, device, *sub));
        subs.iter().for_each(|sub| fill(case, device, *sub, arrays));
        for sub in &subs {
            let tile = Tile { first: 0, images: case.net.batch() };
            let task = Task { layer: case.id, sub: *sub, tile };
            let lane = plan.lane_of(DeviceId(0), case.id, *sub).expect("a task of the plan");
            device.submit(lane, &task).expect("a known task");
        }
        device.synchronize().expect("the device is alive");
        for sub in &subs {
            for (_, operand) in written(case).filter(|(s, _)| s == sub) {
                found.insert(operand, read(case, device, operand));
            }
        }
    }
    found
}

fn poison(case: &Case, device: &CpuDevice, sub: SubTask) {
    for (_, operand) in written(case).filter(|(s, _)| *s == sub) {
        match case.storage(operand) {
            Some(id) => {
                let values = vec![f32::NAN; case.net.storages[id.0]];
                device.write(Region::Storage(id), &values).expect("a storage");
            }
            None => {
                let values = vec![f32::NAN; case.net.params.len()];
                device.write(Region::Packed(Packed::Gradients), &values).expect("gradients");
            }
        }
    }
}

/// Writes what `sub` reads, if `arrays` has it; the rest is there from forward.
fn fill(case: &Case, device: &CpuDevice, sub: SubTask, arrays: &Arrays<f32>) {
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

fn read(case: &Case, device: &CpuDevice, operand: Operand) -> Vec<f32> {
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
