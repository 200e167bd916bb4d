//! Updates, loads, and the sums of gradients over quadrants: what belongs to no layer's arithmetic.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerSpec, Net, NetState, ParamSpec, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::solver::{Decay, Elastic, Rule, RuleKind, Step, update};
use quadrille_core::task::{DeviceId, Task, Tile};
use quadrille_cpu::EngineOptions;

use crate::common::{
    convolution, fractions, inner_product, input, integers, loss, nets, network, options, plan, small_lenet,
    tiers, worker,
};
use crate::exact::case::Case;

/// A layer with more parameters than a grain updates, each parameter with factors of its own.
fn net() -> Net {
    let mut ip = LayerSpec::new("it", Layer::InnerProduct(inner_product(300)), &["x"], &["y"]);
    ip.params = vec![ParamSpec::with(0.5, 2.0), ParamSpec::with(2.0, 0.0)];
    let layers = vec![
        input("x", &[2, 137]),
        input("label", &[2]),
        ip,
        LayerSpec::new("loss", loss(1), &["y", "label"], &["loss"]),
    ];
    Net::build(&network(layers, false), &NetState::new(Phase::Train), 1.0).expect("a net")
}

/// The packed buffers before an update.
struct Before([Vec<f32>; 4]);

impl Before {
    /// The same with as many histories as a rule keeps, none of them negative, since some are sums of squares.
    fn with_histories(&self, kind: RuleKind) -> Self {
        let [weights, gradients, histories, centre] = self.0.clone();
        let histories: Vec<f32> = histories.iter().map(|h| h.abs()).collect();
        Self([weights, gradients, histories.repeat(kind.histories()), centre])
    }
}

/// Every solver.
pub fn kinds() -> [RuleKind; 6] {
    [
        RuleKind::Sgd { momentum: 0.9 },
        RuleKind::Nesterov { momentum: 0.9 },
        RuleKind::AdaGrad { delta: 1e-6 },
        RuleKind::RmsProp { decay: 0.98, delta: 1e-6 },
        RuleKind::AdaDelta { momentum: 0.95, delta: 1e-6 },
        RuleKind::Adam { momentum: 0.9, momentum2: 0.999, delta: 1e-8 },
    ]
}

const BUFFERS: [Packed; 4] = [Packed::Weights, Packed::Gradients, Packed::Histories, Packed::Centre];

fn check_update(net: &Net, options: &EngineOptions, threads: usize, before: &Before) {
    let built = Plan::build(
        std::slice::from_ref(net),
        PlanOptions { elastic: options.elastic, ..PlanOptions::new(Stage::Update) },
    );
    let plan = built.expect("a plan");
    let worker = worker(std::slice::from_ref(net), &plan, threads, options).expect("a worker");
    let device = &worker.devices(0)[0];
    for (packed, values) in BUFFERS.into_iter().zip(&before.0).take(if options.elastic { 4 } else { 3 }) {
        device.write(Region::Packed(packed), values).expect("a packed buffer");
    }
    let scalars = Scalars { iteration: 3, rate: 0.25, elastic: 0.125, ..Scalars::default() };
    device.begin(&scalars).expect("alive");
    let [mut weights, gradients, mut histories, centre] = before.0.clone();
    let (first, second) = histories.split_at_mut(net.params.len());
    for node in &plan.nodes {
        device.submit(node.lane, &node.task).expect("a known task");
    }
    device.synchronize().expect("alive");
    for view in net.params.views() {
        let step = Step {
            rule: options.rule,
            iteration: scalars.iteration,
            scale: 1.0,
            rate: scalars.rate * view.lr_mult,
            decay: options.rule.weight_decay * view.decay_mult,
            elastic: options
                .elastic
                .then(|| Elastic { centre: &centre[view.range()], strength: scalars.elastic }),
        };
        let range = view.range();
        // A rule with one history has nothing behind it.
        let second = second.get_mut(range.clone()).unwrap_or_default();
        update(&step, &mut weights[range.clone()], &gradients[range.clone()], &mut first[range], second);
    }
    // Bit for bit, padding between the parameters included.
    for (packed, expected) in [(Packed::Weights, weights), (Packed::Histories, histories)] {
        let mut found = vec![0.0; expected.len()];
        device.read(Region::Packed(packed), &mut found).expect("a packed buffer");
        let at = (0..found.len()).find(|i| found[*i].to_bits() != expected[*i].to_bits());
        let how =
            format!("{:?} elastic {} on {}, {threads} threads", options.rule, options.elastic, options.isa);
        assert_eq!(at.map(|i| (i, expected[i], found[i])), None, "update of {packed:?}: {how}");
    }
}

#[test]
fn updates_are_the_rules() {
    let net = net();
    let len = net.params.len();
    // Integers are exact with rates of powers of two; fractions are rounded, but no tier may fuse or reorder.
    let exact = Before([1, 2, 3, 4].map(|seed| integers(seed, len, 64)));
    let rounded = Before([1, 2, 3, 4].map(|seed| fractions(seed, len)));
    for isa in tiers("updates") {
        for threads in [1, 2, 3] {
            for elastic in [false, true] {
                for (momentum, weight_decay, decay) in [
                    (0.0, 0.0, Decay::L2),
                    (0.5, 0.25, Decay::L2),
                    (0.5, 0.25, Decay::L1),
                    (0.9, 5e-4, Decay::L2),
                ] {
                    let rule = Rule { decay, ..Rule::sgd(momentum, weight_decay) };
                    let options = EngineOptions { rule, elastic, ..options(isa) };
                    check_update(&net, &options, threads, &exact);
                    check_update(&net, &options, threads, &rounded);
                }
            }
        }
    }
}

/// No tier fuses or reorders the arithmetic of any rule, so all of them have the bits of `core::solver`.
#[test]
fn every_rule_has_the_same_bits_in_every_tier() {
    let net = net();
    let len = net.params.len();
    let before = Before([1, 2, 3, 4].map(|seed| fractions(seed, len)));
    for isa in tiers("rules") {
        for kind in kinds() {
            for (threads, elastic, decay) in
                [(1, false, Decay::L2), (3, false, Decay::L1), (2, true, Decay::L2)]
            {
                let rule = Rule { kind, decay, weight_decay: 5e-4, clip: None };
                let options = EngineOptions { rule, elastic, ..options(isa) };
                check_update(&net, &options, threads, &before.with_histories(kind));
            }
        }
    }
}

#[test]
fn frozen_parameters_stay() {
    let mut spec = small_lenet(2);
    let frozen = vec![ParamSpec::with(0.0, 1.0); 2];
    spec.layers.iter_mut().find(|l| l.name == "conv2").expect("a layer").params = frozen;
    let net = Net::build(&spec, &NetState::new(Phase::Train), 1.0).expect("a net");
    let before = [1, 2, 3].map(|seed| fractions(seed, net.params.len()));
    let plan = plan(std::slice::from_ref(&net), Stage::Update);
    let worker =
        worker(std::slice::from_ref(&net), &plan, 2, &options(tiers("frozen")[0])).expect("a worker");
    let device = &worker.devices(0)[0];
    for (packed, values) in BUFFERS.into_iter().zip(&before) {
        device.write(Region::Packed(packed), values).expect("a packed buffer");
    }
    let scalars = Scalars { rate: 0.25, ..Scalars::default() };
    quadrille_core::run::run_step(&worker.devices(0), &plan, &scalars, &mut Default::default())
        .expect("a step");
    let mut weights = vec![0.0; net.params.len()];
    device.read(Region::Packed(Packed::Weights), &mut weights).expect("weights");
    for view in net.params.views() {
        let same = weights[view.range()] == before[0][view.range()];
        assert_eq!(same, view.name.starts_with("conv2"), "{}", view.name);
    }
}

/// More than one grain.
#[test]
fn loads_copy_the_stage() {
    for isa in tiers("loads") {
        let case = Case::new(Layer::Convolution(convolution(2, [2, 2])), &[&[40, 3, 20, 21]]);
        let plan = case.plan();
        let worker = worker(std::slice::from_ref(&case.net), &plan, 2, &options(isa)).expect("a worker");
        let device = &worker.devices(0)[0];
        let x = integers(8, case.bottoms[0].count(), 100);
        let storage = case.storage(Operand::Bottom(0)).expect("a storage");
        device.write(Region::Stage(storage), &x).expect("a stage");
        let source = case.net.blob(case.net.layer(case.id).bottoms[0]).producer;
        let task = Task { layer: source, sub: SubTask::Load, tile: Tile { first: 0, images: 40 } };
        let lane = plan.lane_of(DeviceId(0), source, SubTask::Load).expect("a task of the plan");
        device.submit(lane, &task).expect("a known task");
        device.synchronize().expect("alive");
        let mut loaded = vec![0.0; x.len()];
        device.read(Region::Storage(storage), &mut loaded).expect("a storage");
        assert_eq!(x, loaded, "load on {isa}");
    }
}

/// Sums over quadrants, in the lanes and with the waits of their plan: the tree's transfers alone.
#[test]
fn gradients_are_summed_over_quadrants() {
    for (quadrants, threads, chunk_layers) in [(2, 1, 1), (3, 2, 2), (4, 3, 99), (5, 1, 1)] {
        let nets = nets(small_lenet, 20, quadrants);
        let options = options(tiers("sums over quadrants")[0]);
        let built = Plan::build(&nets, PlanOptions { chunk_layers, ..PlanOptions::new(Stage::Gradients) });
        let plan = built.expect("a plan");
        let worker = worker(&nets, &plan, threads, &options).expect("a worker");
        let devices = worker.devices(0);
        let parts: Vec<Vec<f32>> =
            (0..quadrants).map(|q| integers(q as u64, nets[0].params.len(), 1000)).collect();
        for (device, part) in devices.iter().zip(&parts) {
            device.write(Region::Packed(Packed::Gradients), part).expect("gradients");
        }
        let mut events = vec![None; plan.nodes.len()];
        for (id, node) in plan.nodes.iter().enumerate() {
            let Some(copy) = &node.copy else { continue };
            let device = &devices[node.device.0];
            for event in node.waits.iter().filter_map(|w| events[w.0].as_ref()) {
                device.wait_on(node.lane, event).expect("an event of this worker");
            }
            events[id] = Some(device.copy(node.lane, copy).expect("a known copy"));
        }
        devices.iter().for_each(|d| d.synchronize().expect("alive"));
        for (q, device) in devices.iter().enumerate() {
            let mut found = vec![0.0; nets[0].params.len()];
            device.read(Region::Packed(Packed::Gradients), &mut found).expect("gradients");
            for view in nets[0].params.views() {
                for i in view.range() {
                    let sum: f32 = parts.iter().map(|p| p[i]).sum();
                    assert_eq!(found[i], sum, "{} of quadrant {q} of {quadrants}", view.name);
                }
            }
        }
    }
}
