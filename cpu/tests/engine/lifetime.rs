//! Shared memory, and memory that held something else before: the same bits, whatever lay there.

use quadrille_core::device::{Device, DeviceError, Packed, Region, Scalars};
use quadrille_core::layer::Layer;
use quadrille_core::net::{Blob, LayerId, Net, NetSpec, NetState, Phase};
use quadrille_core::plan::Stage;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::{EngineError, EngineOptions, NAN_HALVES, implementations, storage_needs};

use crate::common::{fractions, nets, numerics, options, plan, small_lenet, small_residual, worker};
use crate::functions::functions;
use crate::joined;
use crate::running_sums::normalized;
use crate::sharing::siamese;
use crate::whole_nets::{flattened, part_blocks, whole_blocks};

/// Images of a mini-batch, which 3 quadrants cut into uneven tiles.
const BATCH: usize = 7;
pub const STEPS: u64 = 3;

pub type Spec = fn(usize) -> NetSpec;

/// Every kind of layer and wiring, apart and fused.
const NETS: [(&str, Spec); 8] = [
    ("lenet", small_lenet),
    ("residual", small_residual),
    ("flattened", flattened),
    ("whole blocks", whole_blocks),
    ("part blocks", part_blocks),
    ("siamese", siamese),
    ("normalized", normalized),
    ("functions", functions),
];

pub fn sharing(net: Net, options: &EngineOptions) -> Net {
    let needs = storage_needs(&net, options.numerics(), &options.kernels).expect("kernels");
    net.sharing_memory(&needs)
}

/// How a net is run.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub quadrants: usize,
    pub threads: usize,
    /// Whether memory is shared.
    pub shares: bool,
    /// What is left in memory before each step.
    pub poison: Option<f32>,
    pub steps: u64,
}

pub const PLAINLY: How = How { quadrants: 1, threads: 2, shares: false, poison: None, steps: STEPS };

/// Weights, gradients and histories of the first quadrant after some steps, as bits.
pub fn train(make: &dyn Fn(usize) -> Vec<Net>, options: &EngineOptions, how: How) -> Vec<u32> {
    let nets = make(how.quadrants).into_iter();
    let nets: Vec<Net> = nets.map(|net| if how.shares { sharing(net, options) } else { net }).collect();
    let plan = plan(&nets, Stage::Iteration);
    let worker = worker(&nets, &plan, how.threads, options).expect("a worker");
    let devices = worker.devices(0);
    let mut weights = vec![0.0; nets[0].params.len()];
    nets[0].params.fill(7, &mut weights);
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    }
    let mut first = 0;
    for (device, net) in devices.iter().zip(&nets) {
        for source in net.layers.iter().filter(|l| l.layer.is_source()) {
            let top = net.blob(source.tops[0]);
            let each = top.shape.per_image();
            let all = fractions(each as u64, BATCH * each);
            // Labels are classes.
            let whole = |v: &f32| if each == 1 { (v.abs() * 4.0).floor() } else { *v };
            let part: Vec<f32> = all[first * each..(first + net.batch()) * each].iter().map(whole).collect();
            device.write(Region::Stage(top.data), &part).expect("a stage");
        }
        first += net.batch();
    }
    let mut times = StepTimes::default();
    for step in 0..how.steps {
        if let Some(value) = how.poison {
            devices.iter().for_each(|device| device.fill_transient(value).expect("memory"));
        }
        let scalars = Scalars { iteration: step, rate: 0.05, seed: step, ..Scalars::default() };
        run_step(&devices, &plan, &scalars, &mut times).expect("a step");
    }
    let mut found = Vec::new();
    for packed in [Packed::Weights, Packed::Gradients, Packed::Histories] {
        let mut values = vec![0.0; weights.len()];
        devices[0].read(Region::Packed(packed), &mut values).expect("a packed buffer");
        found.extend(values.into_iter().map(f32::to_bits));
    }
    found
}

pub fn check_finite(bits: &[u32], what: &str) {
    assert!(bits.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{what}: not finite");
    let zeros = bits.iter().filter(|bits| **bits == 0).count();
    assert!(zeros * 2 < bits.len(), "mistrusted: {zeros} of {} are 0 in {what}", bits.len());
}

pub fn momentum(numerics: Numerics) -> EngineOptions {
    let rule = Rule::sgd(0.9, 5e-4);
    EngineOptions { rule, ..options(numerics) }
}

/// A net of `spec`, fused or not, for each quadrant.
pub fn made(spec: Spec, fused: bool) -> impl Fn(usize) -> Vec<Net> {
    move |quadrants| {
        let nets = nets(spec, BATCH, quadrants).into_iter();
        nets.map(|net| if fused { net.fused() } else { net }).collect()
    }
}

#[test]
fn shared_memory_changes_no_bit() {
    for numerics in numerics("bits in shared memory") {
        for (name, spec) in NETS {
            for (fused, quadrants) in [(false, 1), (true, 1), (true, 3)] {
                let (make, options) = (made(spec, fused), momentum(numerics));
                let expected = train(&make, &options, How { quadrants, ..PLAINLY });
                check_finite(&expected, name);
                for threads in [1, 2, 3] {
                    for poison in [None, Some(NAN_HALVES)] {
                        let how = How { quadrants, threads, shares: true, poison, steps: STEPS };
                        assert!(
                            train(&make, &options, how) == expected,
                            "{name} on {numerics}, fused {fused}: {how:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Every implementation of every layer, one after the other: what it does not write it must not read, padding and state
/// included.
#[test]
fn no_kernel_depends_on_what_memory_held() {
    let mut compared = 0;
    for numerics in numerics("kernels in used memory") {
        for (name, spec) in NETS {
            for fused in [false, true] {
                let make = made(spec, fused);
                let net = make(1).remove(0);
                if fused && net == made(spec, false)(1).remove(0) {
                    continue;
                }
                for id in (0..net.layers.len()).map(LayerId) {
                    for implementation in implementations(&net, id, numerics) {
                        let kernels = vec![(net.layer(id).name.clone(), implementation.to_owned())];
                        let options = EngineOptions { kernels, ..momentum(numerics) };
                        let plainly = How { steps: 1, ..PLAINLY };
                        let expected = train(&make, &options, plainly);
                        check_finite(&expected, name);
                        let poisoned = How { poison: Some(NAN_HALVES), ..plainly };
                        let same = train(&make, &options, poisoned) == expected;
                        assert!(same, "{name} on {numerics}: {:?}", options.kernels);
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 100, "only {compared} kernels were compared");
}

#[test]
fn a_test_phase_puts_out_the_same_in_shared_memory() {
    for numerics in numerics("outputs in shared memory") {
        let joined = joined::NETS.map(|(name, spec, _)| (name, spec));
        for (name, spec) in NETS.into_iter().chain(joined) {
            let outputs = |shares: bool| {
                let options = options(numerics);
                let net = Net::build(&spec(BATCH), &NetState::new(Phase::Test), 1.0).expect("a net").fused();
                let nets = [if shares { sharing(net, &options) } else { net }];
                let plan = plan(&nets, Stage::Forward);
                let worker = worker(&nets, &plan, 2, &options).expect("a worker");
                let device = &worker.devices(0)[0];
                // Variances and counts are above 0.
                let weights: Vec<f32> =
                    fractions(3, nets[0].params.len()).iter().map(|v| v.abs() + 0.05).collect();
                device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
                for source in nets[0].layers.iter().filter(|l| matches!(l.layer, Layer::Input(_))) {
                    let top = nets[0].blob(source.tops[0]);
                    let values: Vec<f32> = fractions(5, top.shape.count()).iter().map(|v| v.abs()).collect();
                    device.write(Region::Stage(top.data), &values).expect("a stage");
                }
                if shares {
                    device.fill_transient(NAN_HALVES).expect("memory");
                }
                run_step(&worker.devices(0), &plan, &Scalars::default(), &mut StepTimes::default())
                    .expect("a step");
                let blobs = nets[0].outputs().map(|id| nets[0].blob(id));
                let read = |blob: &Blob| {
                    let mut values = vec![0.0; blob.shape.count()];
                    device.read(Region::Storage(blob.data), &mut values).expect("an output");
                    values
                };
                blobs.flat_map(read).map(f32::to_bits).collect::<Vec<u32>>()
            };
            let apart = outputs(false);
            assert!(
                !apart.is_empty() && apart.iter().all(|bits| f32::from_bits(*bits).is_finite()),
                "{name}"
            );
            assert!(outputs(true) == apart, "{name} on {numerics}");
        }
    }
}

/// The host cannot know what lies in shared memory after a step, nor what it would overwrite.
#[test]
fn shared_memory_is_not_for_the_host() {
    let options = options(Isa::detect());
    let nets = [sharing(nets(small_lenet, BATCH, 1).remove(0), &options)];
    let plan = plan(&nets, Stage::Iteration);
    let worker = worker(&nets, &plan, 1, &options).expect("a worker");
    let device = &worker.devices(0)[0];
    let shares = |blob: &&Blob| nets[0].overlapping(blob.data).count() > 1;
    let shared = nets[0].blobs.iter().find(shares).expect("some memory is shared");
    let loss = nets[0].blobs.iter().find(|b| b.name == "loss").expect("a loss");
    let refused = |result: Result<(), DeviceError>| match result {
        Err(DeviceError::Unknown { what, .. }) => assert!(what.contains("shares its memory"), "{what}"),
        other => panic!("{other:?}"),
    };
    refused(device.read(Region::Storage(shared.data), &mut vec![0.0; shared.shape.count()]));
    refused(device.write(Region::Storage(shared.data), &vec![0.0; shared.shape.count()]));
    assert_eq!(device.read(Region::Storage(loss.data), &mut [0.0]), Ok(()));
}

#[test]
fn memory_planned_for_shorter_arrays_is_refused() {
    let options = options(Isa::detect());
    let net = nets(small_lenet, BATCH, 1).remove(0);
    let mut needs = storage_needs(&net, options.numerics(), &[]).expect("kernels");
    needs.lengths[4] /= 2;
    let nets = [net.sharing_memory(&needs)];
    let plan = plan(&nets, Stage::Iteration);
    match worker(&nets, &plan, 1, &options).map(|_| ()) {
        Err(EngineError::Kernel(reason)) => assert!(reason.contains("array 4 takes"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
