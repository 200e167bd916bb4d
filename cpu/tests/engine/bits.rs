//! Training gives the same bits in every run and for any number of threads, and all quadrants hold the same weights.

use crate::common::{fractions, labels, nets, numerics, options, plan, small_lenet, tiers, worker};
use quadrille_core::device::{Device, DeviceError, Packed, Region, Scalars};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{BlobId, Net};
use quadrille_core::plan::{Node, Stage};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::run::{Running, StepTimes, run_step, run_step_beside};
use quadrille_core::solver::Rule;
use quadrille_core::task::TaskId;
use quadrille_cpu::isa::Numerics;
use quadrille_cpu::{CpuDevice, EngineOptions};

/// Images of a mini-batch, which 2 and 3 quadrants cut into uneven tiles. Enough for several grains a layer.
const BATCH: usize = 97;
const STEPS: u64 = 4;

fn top(net: &Net, name: &str) -> BlobId {
    BlobId(net.blobs.iter().position(|b| b.name == name).expect("a blob"))
}

/// Puts the mini-batch of a step on the stages: each quadrant gets its images.
fn stage(devices: &[CpuDevice], nets: &[Net], step: u64) {
    let (images, classes) = (fractions(100 + step, BATCH * 256), labels(200 + step, BATCH, 10));
    let mut first = 0;
    for (device, net) in devices.iter().zip(nets) {
        let end = first + net.batch();
        let stage = |name| Region::Stage(net.blob(top(net, name)).data);
        device.write(stage("data"), &images[first * 256..end * 256]).expect("a stage");
        device.write(stage("label"), &classes[first..end]).expect("a stage");
        first = end;
    }
}

fn read(device: &CpuDevice, net: &Net, packed: Packed) -> Vec<f32> {
    let mut values = vec![0.0; net.params.len()];
    device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
    values
}

/// The weights of all quadrants after some steps.
fn train(quadrants: usize, threads: usize, options: &EngineOptions, steps: u64) -> Vec<Vec<f32>> {
    train_staging([quadrants, threads], options, steps, false)
}

/// The same; with `ahead`, each mini-batch but the first is staged beside the step before.
fn train_staging(
    [quadrants, threads]: [usize; 2],
    options: &EngineOptions,
    steps: u64,
    ahead: bool,
) -> Vec<Vec<f32>> {
    let nets = nets(small_lenet, BATCH, quadrants);
    let plan = plan(&nets, Stage::Iteration);
    let worker = worker(&nets, &plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let mut weights = vec![0.0; nets[0].params.len()];
    nets[0].params.fill(7, &mut weights);
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    }
    let mut times = StepTimes::default();
    for step in 0..steps {
        if step == 0 || !ahead {
            stage(&devices, &nets, step);
        }
        let scalars = Scalars { iteration: step, rate: 0.05, ..Scalars::default() };
        let mut was_called = false;
        let beside = |_: &Running<'_, CpuDevice>| {
            was_called = true;
            if ahead {
                stage(&devices, &nets, step + 1);
            }
        };
        run_step_beside(&devices, &plan, &scalars, &mut times, beside).expect("a step");
        assert!(was_called);
        assert_eq!(times.spans().len(), plan.nodes.len());
        assert!(times.spans().iter().all(|span| span.start <= span.end), "a task ends after it starts");
    }
    devices.iter().zip(&nets).map(|(device, net)| read(device, net, Packed::Weights)).collect()
}

fn momentum(numerics: Numerics) -> EngineOptions {
    EngineOptions { rule: Rule::sgd(0.9, 5e-4), ..options(numerics) }
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| w.to_bits()).collect()
}

#[test]
fn the_next_mini_batch_may_be_staged_beside_a_step() {
    let isa = numerics("staging ahead").pop().expect("a tier");
    for cut in [[1, 1], [1, 2], [3, 1]] {
        let [apart, ahead] = [false, true].map(|ahead| train_staging(cut, &momentum(isa), STEPS, ahead));
        assert!(apart == ahead, "{cut:?}");
    }
}

/// Gradients of a step; with `doubles`, each part of them was read and doubled on all quadrants as soon as its tasks were done. And
/// how often that was before the last of all was found.
fn gradients(cut: [usize; 2], options: &EngineOptions, doubles: bool) -> (Vec<Vec<f32>>, usize) {
    let [quadrants, threads] = cut;
    let nets = nets(small_lenet, BATCH, quadrants);
    let plan = plan(&nets, Stage::Gradients);
    let worker = worker(&nets, &plan, threads, options).expect("a worker");
    let devices = worker.devices(0);
    let mut weights = vec![0.0; nets[0].params.len()];
    nets[0].params.fill(7, &mut weights);
    for device in &devices {
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    }
    stage(&devices, &nets, 0);
    let is_gradient = |node: &Node| node.task.sub == SubTask::GradWeight;
    let last = TaskId(plan.nodes.iter().rposition(is_gradient).expect("a gradient"));
    let mut early = 0;
    let beside = |step: &Running<'_, CpuDevice>| {
        for part in nets[0].params.buckets(1).into_iter().filter(|_| doubles) {
            for task in plan.gradient_tasks(&nets, &part) {
                step.settle(task).expect("a task that ends");
            }
            early += usize::from(!step.is_done(last));
            let region = Region::PackedFrom(Packed::Gradients, part.start);
            let mut values = vec![0.0; part.len()];
            devices[0].read(region, &mut values).expect("a part");
            values.iter_mut().for_each(|value| *value *= 2.0);
            devices.iter().for_each(|device| device.write(region, &values).expect("a part"));
        }
    };
    let scalars = Scalars { rate: 0.05, ..Scalars::default() };
    run_step_beside(&devices, &plan, &scalars, &mut StepTimes::default(), beside).expect("a step");
    let read = |(device, net)| read(device, net, Packed::Gradients);
    (devices.iter().zip(&nets).map(read).collect(), early)
}

#[test]
fn gradients_may_leave_and_come_back_while_backward_runs() {
    let isa = numerics("gradients beside backward").pop().expect("a tier");
    let options = momentum(isa);
    let mut early = 0;
    for cut in [[1, 1], [1, 2], [2, 1], [3, 2]] {
        let expected = gradients(cut, &options, false).0;
        let expected: Vec<u32> = expected[0].iter().map(|gradient| (2.0 * gradient).to_bits()).collect();
        for _ in 0..20 {
            let (found, were_early) = gradients(cut, &options, true);
            early += were_early;
            assert!(found.iter().all(|gradients| bits(gradients) == expected), "{cut:?}");
        }
    }
    assert!(early > 0, "no part was whole before the last");
}

#[test]
fn a_part_of_a_packed_buffer_is_read_and_written_where_it_lies() {
    let nets = nets(small_lenet, BATCH, 1);
    let plan = plan(&nets, Stage::Gradients);
    let isa = numerics("parts").pop().expect("a tier");
    let worker = worker(&nets, &plan, 1, &momentum(isa)).expect("a worker");
    let device = &worker.devices(0)[0];
    let len = nets[0].params.len();
    let whole: Vec<f32> = (0..len).map(|i| i as f32).collect();
    device.write(Region::Packed(Packed::Weights), &whole).expect("weights");
    let mut part = [0.0; 3];
    device.read(Region::PackedFrom(Packed::Weights, len - 3), &mut part).expect("the end");
    assert_eq!(part[..], whole[len - 3..]);
    device.write(Region::PackedFrom(Packed::Weights, 5), &[-1.0]).expect("a weight");
    assert_eq!(read(device, &nets[0], Packed::Weights)[4..7], [4.0, -1.0, 6.0]);
    for (packed, first) in [(Packed::Weights, len - 2), (Packed::Weights, len + 1), (Packed::Histories, 0)] {
        let refused = device.read(Region::PackedFrom(packed, first), &mut part).expect_err("no such part");
        assert!(matches!(refused, DeviceError::Unknown { .. }), "{refused}");
    }
}

#[test]
fn weights_do_not_depend_on_threads_or_chance() {
    for isa in numerics("bits of training") {
        for quadrants in [1, 2, 3] {
            let mut first: Option<Vec<u32>> = None;
            for threads in [1, 2, 3, 1, 2, 3] {
                for (quadrant, weights) in train(quadrants, threads, &momentum(isa), STEPS).iter().enumerate()
                {
                    assert!(weights.iter().all(|w| w.is_finite()), "{quadrants} quadrants on {isa}");
                    let weights = bits(weights);
                    let expected = first.get_or_insert_with(|| weights.clone());
                    let same = *expected == weights;
                    assert!(same, "quadrant {quadrant} of {quadrants}, {threads} threads, {isa}");
                }
            }
        }
    }
}

/// The values and gradients of one net by the oracle in double precision, and by it on magnitudes.
struct Truth {
    gradients: Vec<f64>,
    scale: f64,
}

fn truth(weights: &[f32]) -> Truth {
    let net = nets(small_lenet, BATCH, 1).remove(0);
    let mut reference = ReferenceNet::<f64>::new(net.clone());
    reference.set_params(weights);
    let double = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    reference.set_input("data", &double(fractions(100, BATCH * 256)));
    reference.set_input("label", &double(labels(200, BATCH, 10)));
    reference.forward();
    reference.backward();
    let mut gradients = vec![0.0; net.params.len()];
    for view in net.params.views() {
        gradients[view.range()].copy_from_slice(reference.param_grad(&view.name).expect("a parameter"));
    }
    let scale = gradients.iter().fold(0.0f64, |m, g| m.max(g.abs()));
    Truth { gradients, scale }
}

/// The gradients of a whole net against the oracle, for the chosen kernels and for the naive ones. Maxima may tip when
/// two are equal but for rounding, so this compares the net as a whole: the error of the packed gradients, as a vector,
/// is at most that of one sum as long as the longest of the net. What holds for each element of each layer is in
/// `exact/`.
#[test]
fn gradients_of_a_whole_net() {
    let mut weights = vec![0.0; nets(small_lenet, BATCH, 1)[0].params.len()];
    nets(small_lenet, BATCH, 1)[0].params.fill(7, &mut weights);
    let truth = truth(&weights);
    assert!(truth.scale > 1e-3, "mistrusted: all gradients are small");
    for isa in tiers("gradients of a whole net") {
        for naive in [false, true] {
            let types =
                ["Convolution", "Pooling", "InnerProduct", "ReLU", "SoftmaxWithLoss", "Accuracy", "Split"];
            let kernels = types.iter().filter(|_| naive).map(|t| (t.to_string(), "reference".to_owned()));
            let options = EngineOptions { kernels: kernels.collect(), ..options(isa) };
            for quadrants in [1, 3] {
                let nets = nets(small_lenet, BATCH, quadrants);
                let plan = plan(&nets, Stage::Gradients);
                let worker = worker(&nets, &plan, 2, &options).expect("a worker");
                assert!(!naive || worker.choices().iter().all(|c| c.implementation == "reference"));
                let devices = worker.devices(0);
                for device in &devices {
                    device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
                }
                stage(&devices, &nets, 0);
                run_step(&devices, &plan, &Scalars::default(), &mut StepTimes::default()).expect("a step");
                for (device, net) in devices.iter().zip(&nets) {
                    let found = read(device, net, Packed::Gradients);
                    let (mut error, mut norm) = (0.0, 0.0);
                    for (f, e) in found.iter().zip(&truth.gradients) {
                        error += (f64::from(*f) - e).powi(2);
                        norm += e.powi(2);
                    }
                    // The longest sum is a weight of conv1: images × pixels; there are 8 layers.
                    let bound = (BATCH * 144 * 8) as f64 * f64::from(f32::EPSILON);
                    let relative = (error / norm).sqrt();
                    assert!(
                        relative <= bound,
                        "{relative:e} > {bound:e}: {isa}, naive {naive}, {quadrants} quadrants"
                    );
                }
            }
        }
    }
}
