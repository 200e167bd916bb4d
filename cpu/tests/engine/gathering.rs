//! Iterations of several mini-batches and clipped gradients, in every tier and for any number of threads and quadrants.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::net::{Net, ParamRule};
use quadrille_core::plan::{Plan, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::{Rule, RuleKind, Step, update};
use quadrille_core::task::Tile;
use quadrille_cpu::{CpuDevice, CpuWorker, EngineError, EngineOptions, NAN_HALVES, Program};

use crate::common::{crews, fractions, integers, labels, nets, options, plan, small_lenet, tiers, worker};
use crate::running_sums::normalized;

const BATCH: usize = 12;
const STEPS: u64 = 3;

/// A worker with the plans of an iteration, and a mini-batch for each part of each.
struct Training {
    nets: Vec<Net>,
    part: Option<Plan>,
    last: Plan,
    worker: CpuWorker,
}

impl Training {
    fn new(nets: Vec<Net>, threads: usize, options: &EngineOptions) -> Self {
        let last = plan(&nets, Stage::Iteration);
        let part = (nets[0].parts > 1).then(|| plan(&nets, Stage::Part));
        let plans: Vec<&Plan> = part.iter().chain([&last]).collect();
        let program = Program { nets: &nets, plans: &plans };
        let worker = CpuWorker::new(&crews(nets.len(), threads), &[program], options).expect("a worker");
        let training = Self { part, last, worker, nets };
        let mut weights = vec![0.0; training.nets[0].params.len()];
        training.nets[0].params.fill(7, &mut weights);
        training.devices().iter().for_each(|device| {
            device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
        });
        training
    }

    fn devices(&self) -> Vec<CpuDevice> {
        self.worker.devices(0)
    }

    /// Puts mini-batch `seed` where the next plan finds it.
    fn load(&self, seed: u64) {
        for ((device, net), tile) in
            self.devices().iter().zip(&self.nets).zip(Tile::cut(BATCH, self.nets.len()))
        {
            let put = |name: &str, values: Vec<f32>| {
                let blob = net.blobs.iter().find(|b| b.name == name).expect("a blob");
                let each = blob.shape.per_image();
                let part = &values[tile.first * each..(tile.first + tile.images) * each];
                device.write(Region::Stage(blob.data), part).expect("a stage");
            };
            let pixels = net.blobs.iter().find(|b| b.name == "data").expect("data").shape.per_image();
            put("data", fractions(100 + seed, BATCH * pixels));
            put("label", labels(200 + seed, BATCH, 10));
        }
    }

    /// An iteration over the mini-batches `seeds`.
    fn iterate(&self, iteration: u64, rate: f32, seeds: &[u64]) {
        assert_eq!(seeds.len(), self.nets[0].parts);
        let (devices, mut times) = (self.devices(), StepTimes::default());
        for (at, seed) in seeds.iter().enumerate() {
            self.load(*seed);
            devices.iter().for_each(|device| device.fill_transient(NAN_HALVES).expect("memory"));
            let plan = self.part.as_ref().filter(|_| at + 1 < seeds.len()).unwrap_or(&self.last);
            let scalars = Scalars { iteration, rate, ..Scalars::default() };
            run_step(&devices, plan, &scalars, &mut times).expect("a step");
        }
    }

    fn read(&self, packed: Packed) -> Vec<f32> {
        let mut values = vec![0.0; self.nets[0].params.len()];
        self.devices()[0].read(Region::Packed(packed), &mut values).expect("a packed buffer");
        values
    }

    /// Weights and histories of every device, as bits.
    fn bits(&self) -> Vec<u32> {
        let len = self.nets[0].params.len();
        let read = |device: CpuDevice| {
            [Packed::Weights, Packed::Histories].map(|packed| {
                let mut values = vec![0.0; len];
                device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
                values
            })
        };
        self.devices().into_iter().flat_map(read).flatten().map(f32::to_bits).collect()
    }
}

fn lenets(quadrants: usize, parts: usize, clips: bool) -> Vec<Net> {
    let nets = nets(small_lenet, BATCH, quadrants).into_iter();
    nets.map(|net| net.fused().gathering(parts).clipping(clips)).collect()
}

fn momentum(isa: quadrille_cpu::isa::Isa) -> EngineOptions {
    EngineOptions { rule: Rule::sgd(0.9, 5e-4), ..options(isa) }
}

/// Twice the same mini-batch has twice its gradient, to the last bit, and half of that is the gradient of one.
#[test]
fn the_mean_over_two_equal_mini_batches_is_one_of_them() {
    for isa in tiers("two mini-batches") {
        for (quadrants, threads) in [(1, 1), (1, 3), (2, 2), (3, 1)] {
            let one = Training::new(lenets(quadrants, 1, false), threads, &momentum(isa));
            let two = Training::new(lenets(quadrants, 2, false), threads, &momentum(isa));
            for step in 0..STEPS {
                one.iterate(step, 0.05, &[step]);
                two.iterate(step, 0.05, &[step, step]);
            }
            assert!(one.bits() == two.bits(), "{quadrants} quadrants, {threads} threads, {isa}");
            assert!(
                two.read(Packed::Sums).iter().all(|sum| *sum == 0.0),
                "sums are empty between iterations"
            );
        }
    }
}

/// Sums in the order of the mini-batches, whatever the threads.
#[test]
fn gathered_gradients_do_not_depend_on_threads() {
    for isa in tiers("gathered gradients") {
        for quadrants in [1, 2] {
            let bits = |threads| {
                let rule = Rule { clip: Some(0.5), ..Rule::sgd(0.9, 5e-4) };
                let options = EngineOptions { rule, ..options(isa) };
                let training = Training::new(lenets(quadrants, 3, true), threads, &options);
                for step in 0..STEPS {
                    training.iterate(step, 0.05, &[3 * step, 3 * step + 1, 3 * step + 2]);
                }
                training.bits()
            };
            let first = bits(1);
            assert!([2, 3, 2].into_iter().all(|threads| bits(threads) == first), "{quadrants}, {isa}");
        }
    }
}

/// Small integers, whose squares add up exactly: the norm is known to the last bit, and so is every weight.
#[test]
fn clipped_updates_are_the_rules_of_scaled_gradients() {
    for isa in tiers("clipping") {
        for (threads, parts, most) in [(1, 1, 10.0), (2, 4, 10.0), (3, 2, 1e6), (2, 1, 0.0)] {
            let kind = RuleKind::Nesterov { momentum: 0.9 };
            let rule = Rule { kind, clip: Some(most), ..Rule::sgd(0.0, 5e-4) };
            let net = lenets(1, parts, true).remove(0);
            let len = net.params.len();
            let buffers = [fractions(1, len), integers(2, len, 4), fractions(3, len)];
            let packed = [Packed::Weights, Packed::Gradients, Packed::Histories];
            let update_plan = plan(std::slice::from_ref(&net), Stage::Update);
            let options = EngineOptions { rule, ..options(isa) };
            let worker =
                worker(std::slice::from_ref(&net), &update_plan, threads, &options).expect("a worker");
            let devices = worker.devices(0);
            for (packed, values) in packed.into_iter().zip(&buffers) {
                devices[0].write(Region::Packed(packed), values).expect("a packed buffer");
            }
            devices[0].fill_transient(NAN_HALVES).expect("memory");
            let scalars = Scalars { iteration: 3, rate: 0.25, ..Scalars::default() };
            run_step(&devices, &update_plan, &scalars, &mut StepTimes::default()).expect("a step");

            let [mut weights, gradients, mut histories] = buffers;
            // Padding between parameters is no gradient.
            let squares = net.params.views().iter().flat_map(|view| &gradients[view.range()]).map(|g| g * g);
            let norm = squares.sum::<f32>().sqrt();
            assert!(norm > 100.0, "mistrusted: {norm}");
            let mean = 1.0 / parts as f32;
            let scale = if norm > most { most / norm * mean } else { mean };
            for view in net.params.views() {
                let (rate, decay) = (0.25 * view.lr_mult, rule.weight_decay * view.decay_mult);
                let step = Step { rule, iteration: 3, rate, decay, scale, elastic: None };
                let range = view.range();
                let (weight, history) = (&mut weights[range.clone()], &mut histories[range.clone()]);
                update(&step, weight, &gradients[range], history, &mut []);
            }
            let mut found = vec![0.0; len];
            devices[0].read(Region::Packed(Packed::Weights), &mut found).expect("weights");
            let at = (0..len).find(|i| found[*i].to_bits() != weights[*i].to_bits());
            assert_eq!(at.map(|i| (i, weights[i], found[i])), None, "{threads} threads, {rule:?}, {isa}");
        }
    }
}

/// Each mini-batch changes the running sums in turn. With a rate of 0 the statistics of a mini-batch are the same whether it
/// is an iteration or a part of one; the sums are rounded in another order, a few times for each mini-batch.
#[test]
fn running_sums_see_every_mini_batch() {
    const PARTS: usize = 3;
    for isa in tiers("running sums of several mini-batches") {
        for quadrants in [1, 2] {
            let nets = |parts: usize| -> Vec<Net> {
                let nets = nets(normalized, BATCH, quadrants).into_iter();
                nets.map(|net| net.fused().gathering(parts)).collect()
            };
            let apart = Training::new(nets(1), 2, &options(isa));
            let together = Training::new(nets(PARTS), 2, &options(isa));
            for step in 0..STEPS {
                let seeds: Vec<u64> = (0..PARTS as u64).map(|part| PARTS as u64 * step + part).collect();
                seeds.iter().for_each(|seed| apart.iterate(*seed, 0.0, &[*seed]));
                together.iterate(step, 0.0, &seeds);
            }
            let (expected, found) = (apart.read(Packed::Weights), together.read(Packed::Weights));
            let mut seen = 0;
            for view in apart.nets[0].params.views() {
                for i in view.range() {
                    let sum = view.rule != ParamRule::Gradient;
                    // Sums of at most 1 for each mini-batch; trained parameters stay at a rate of 0.
                    let bound =
                        if sum { 4.0 * (PARTS as f32 * STEPS as f32).powi(2) * f32::EPSILON } else { 0.0 };
                    assert!(
                        (found[i] - expected[i]).abs() <= bound,
                        "{}: {} {}",
                        view.name,
                        found[i],
                        expected[i]
                    );
                    seen += usize::from(sum && expected[i].abs() > 1e-3);
                }
            }
            assert!(seen >= 3, "mistrusted: {seen} sums are not small");
        }
    }
}

#[test]
fn a_bound_without_a_norm_is_refused() {
    let nets = lenets(1, 1, false);
    let rule = Rule { clip: Some(1.0), ..Rule::default() };
    let options = EngineOptions { rule, ..options(tiers("refusals")[0]) };
    match worker(&nets, &plan(&nets, Stage::Iteration), 1, &options).map(|_| ()) {
        Err(EngineError::Plan(reason)) => assert!(reason.contains("norm"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
