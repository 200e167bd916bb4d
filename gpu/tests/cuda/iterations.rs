//! Whole iterations against the oracle, updates by every rule, and the same bits in every run.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{
    BatchNorm, Concat, Convolution, Dropout, Eltwise, EltwiseOperation, Filler, Layer, Lrn, NormRegion,
    PoolMethod, Pooling, Relu, Scale, Slice,
};
use quadrille_core::net::{LayerSpec, Net, NetSpec, NetState, ParamSpec, Phase, StorageNeeds};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::{Decay, Elastic, PackedRule, Rule, RuleKind, Step, update};
use quadrille_gpu::{Arithmetic, Cuda, CudaDevice, Libraries, Options, Order, Program};

use crate::bench::ORDERS;
use crate::common::{
    convolution, fractions, gpu, inner_product, input, integers, labels, loss, network, own, plan,
};

pub const BATCH: usize = 6;
const CLASSES: usize = 5;

/// Of the longest sums of the nets, those of gradients of weights over places: as many terms as 6 images of 12 × 12 pixels have,
/// in each of the layers that a value goes through.
const ROUNDINGS: f64 = 4.0 * 6.0 * 144.0;

fn relu(name: &str) -> LayerSpec {
    LayerSpec::new(&format!("relu_{name}"), Layer::Relu(Relu::default()), &[name], &[name])
}

fn ends(mut layers: Vec<LayerSpec>, bottom: &str) -> NetSpec {
    let images = vec![input("data", &[BATCH, 3, 12, 12]), input("label", &[BATCH])];
    layers.splice(0..0, images);
    let score = Layer::InnerProduct(inner_product(CLASSES));
    layers.push(LayerSpec::new("score", score, &[bottom], &["score"]));
    layers.push(LayerSpec::new("loss", loss(1), &["score", "label"], &["loss"]));
    network(layers, false)
}

/// The layers of AlexNet and GoogLeNet in small.
pub fn branching() -> NetSpec {
    let conv = |name: &str, outputs: usize, kernel: usize, bottom: &str| {
        let layer = Convolution { pad: [kernel / 2; 2], ..convolution(outputs, [kernel; 2]) };
        LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
    };
    let pool = |method| Layer::Pooling(Pooling { method, kernel: Some([3; 2]), pad: [1; 2], stride: [2; 2] });
    let lrn = Lrn { region: NormRegion::AcrossChannels, local_size: 5, alpha: 0.5, beta: 0.75, k: 1.0 };
    let slice = Slice { axis: 1, points: vec![5], tops: 2 };
    let drop = Layer::Dropout(Dropout { ratio: 0.4, active: true });
    let ip = Layer::InnerProduct(inner_product(20));
    let layers = vec![
        conv("conv", 12, 3, "data"),
        relu("conv"),
        LayerSpec::new("norm", Layer::Lrn(lrn), &["conv"], &["norm"]),
        LayerSpec::new("pool", pool(PoolMethod::Max), &["norm"], &["pool"]),
        conv("one", 7, 1, "pool"),
        conv("two", 9, 3, "pool"),
        LayerSpec::new("slice", Layer::Slice(slice), &["two"], &["left", "right"]),
        LayerSpec::new("mean", pool(PoolMethod::Average), &["right"], &["mean"]),
        LayerSpec::new("side", Layer::Concat(Concat { axis: 1, bottoms: 2 }), &["one", "left"], &["side"]),
        LayerSpec::new("again", pool(PoolMethod::Average), &["side"], &["again"]),
        LayerSpec::new("all", Layer::Concat(Concat { axis: 1, bottoms: 2 }), &["again", "mean"], &["all"]),
        LayerSpec::new("ip", ip, &["all"], &["ip"]),
        relu("ip"),
        LayerSpec::new("drop", drop, &["ip"], &["ip"]),
    ];
    ends(layers, "ip")
}

/// A block of a residual net.
pub fn residual() -> NetSpec {
    let norm =
        || Layer::BatchNorm(BatchNorm { use_global_stats: None, moving_average_fraction: 0.9, eps: 1e-3 });
    let scale = || {
        let (filler, bias_filler) = (Filler::Constant(1.0), Filler::Constant(0.1));
        Layer::Scale(Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler })
    };
    let conv = || Layer::Convolution(Convolution { bias: false, pad: [1, 1], ..convolution(10, [3, 3]) });
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    let sum = Layer::Eltwise(Eltwise { bottoms: 2, operation });
    let layers = vec![
        LayerSpec::new("conv1", conv(), &["data"], &["conv1"]),
        LayerSpec::new("bn1", norm(), &["conv1"], &["bn1"]),
        LayerSpec::new("scale1", scale(), &["bn1"], &["bn1"]),
        relu("bn1"),
        LayerSpec::new("conv2", conv(), &["bn1"], &["conv2"]),
        LayerSpec::new("bn2", norm(), &["conv2"], &["bn2"]),
        LayerSpec::new("scale2", scale(), &["bn2"], &["bn2"]),
        LayerSpec::new("sum", sum, &["bn1", "bn2"], &["sum"]),
        relu("sum"),
    ];
    ends(layers, "sum")
}

pub fn build(spec: &NetSpec) -> Net {
    Net::build(spec, &NetState::new(Phase::Train), 1.0).expect("a net")
}

/// As the program rewrites it for a GPU.
pub fn rewritten(net: Net) -> Net {
    let net = net.fused();
    let needs = StorageNeeds::from(net.storages.clone());
    net.sharing_memory(&needs)
}

fn compare(what: &str, expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len(), "{what}: length");
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let bound = ROUNDINGS * f64::from(f32::EPSILON) * f64::from(largest) + f64::from(f32::MIN_POSITIVE);
    for (at, (e, f)) in expected.iter().zip(found).enumerate() {
        let close = (f64::from(*e) - f64::from(*f)).abs() <= bound;
        assert!(close, "at {at}: {f} is not {e} ± {bound:e}: {what}");
    }
}

/// One mini-batch: images and labels.
fn batch(seed: u64) -> [Vec<f32>; 2] {
    [fractions(seed, BATCH * 3 * 144), labels(seed, BATCH, CLASSES)]
}

fn load(net: &Net, device: &CudaDevice, seed: u64) {
    let sources = net.layers.iter().filter(|layer| layer.layer.is_source());
    let tops = sources.map(|layer| net.blob(layer.tops[0]).data);
    for (top, values) in tops.zip(batch(seed)) {
        device.write(Region::Stage(top), &values).expect("a staged mini-batch");
    }
}

fn read(device: &CudaDevice, packed: Packed, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    device.read(Region::Packed(packed), &mut values).expect("a packed buffer");
    values
}

/// What an iteration of `parts` mini-batches finds, by the oracle: the packed gradients, summed up, and the last loss.
fn oracle(net: &Net, weights: &[f32], seeds: &[u64]) -> (Vec<f32>, f32) {
    let mut sums = vec![0.0f64; net.params.len()];
    let mut loss = 0.0;
    for seed in seeds {
        let mut reference: ReferenceNet<f64> = ReferenceNet::new(net.clone());
        reference.set_params(weights);
        for (name, values) in ["data", "label"].into_iter().zip(batch(*seed)) {
            reference.set_input(name, &values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        }
        reference.set_draw(*seed, 0);
        reference.forward();
        reference.backward();
        loss = reference.loss();
        for view in net.params.views() {
            let gradient = reference.param_grad(&view.name).expect("every parameter has one");
            // What was gathered of a running sum fades with each mini-batch.
            let stays = match view.rule {
                quadrille_core::net::ParamRule::Gradient => 1.0,
                quadrille_core::net::ParamRule::RunningSum { fraction } => f64::from(fraction),
            };
            let sums = sums[view.range()].iter_mut().zip(gradient);
            sums.for_each(|(sum, gradient)| *sum = stays * *sum + gradient);
        }
    }
    (sums.into_iter().map(|sum| sum as f32).collect(), loss as f32)
}

/// Runs iterations on a GPU, and compares each with what the oracle makes of the weights before it.
fn iterate(gpu: &Cuda, spec: &NetSpec, rule: Rule, parts: usize, libraries: Libraries, order: Order) {
    let prepared = build(spec).gathering(parts).clipping(rule.clip.is_some());
    for net in [prepared.clone(), rewritten(prepared)] {
        let nets = std::slice::from_ref(&net);
        let whole = plan(nets, Stage::Iteration);
        let part = (parts > 1).then(|| plan(nets, Stage::Part));
        let plans: Vec<&Plan> = part.iter().chain([&whole]).collect();
        let options = Options { libraries, order, ..own(rule) };
        let program = Program { net: &net, plans: &plans };
        let worker = gpu.worker(&[program], &options).expect("a worker");
        let device = worker.device(0);
        let packed = PackedRule::new(&net.params, rule, parts);
        let (mut weights, mut histories) = (vec![0.0; net.params.len()], vec![0.0; packed.history_len()]);
        net.params.fill(1, &mut weights);
        device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
        let mut times = StepTimes::default();
        for iteration in 0..3 {
            let seeds: Vec<u64> = (0..parts as u64).map(|part| 10 * iteration + part).collect();
            for (index, seed) in seeds.iter().enumerate() {
                load(&net, &device, *seed);
                let plan = part.as_ref().filter(|_| index + 1 < parts).unwrap_or(&whole);
                let scalars = Scalars { iteration, rate: 0.01, elastic: 0.0, seed: *seed };
                run_step(std::slice::from_ref(&device), plan, &scalars, &mut times).expect("a step");
            }
            let (gradients, loss) = oracle(&net_without_memory(spec, rule, parts), &weights, &seeds);
            let what =
                format!("iteration {iteration} of {} with {rule:?}, {parts} parts, {order:?}", spec.name);
            let (blob, _) = net.losses().next().expect("a loss");
            let mut found = [0.0];
            device.read(Region::Storage(net.blob(blob).data), &mut found).expect("the loss");
            compare(&format!("loss of {what}"), &[loss], &found);
            let found = read(&device, Packed::Gradients, net.params.len());
            for view in net.params.views() {
                let of = |values: &[f32]| values[view.range()].to_vec();
                compare(&format!("gradient of {} in {what}", view.name), &of(&gradients), &of(&found));
            }
            // By the GPU's own gradients, so that only the rule's own roundings differ.
            packed.apply(iteration, 0.01, &mut weights, &found, &mut histories);
            compare(
                &format!("histories of {what}"),
                &histories,
                &read(&device, Packed::Histories, histories.len()),
            );
            let found = read(&device, Packed::Weights, weights.len());
            compare(&format!("weights of {what}"), &weights, &found);
            weights = found;
            histories = read(&device, Packed::Histories, histories.len());
            assert!(times.elapsed() > 0 && times.spans().iter().all(|span| span.end >= span.start), "{what}");
        }
    }
}

/// The oracle's net: as the file has it.
fn net_without_memory(spec: &NetSpec, rule: Rule, parts: usize) -> Net {
    build(spec).gathering(parts).clipping(rule.clip.is_some())
}

#[test]
fn networks_of_all_kinds() {
    let Some(gpu) = gpu("networks of all kinds") else { return };
    for spec in [branching(), residual()] {
        for libraries in [Libraries::NONE, Libraries::ALL] {
            ORDERS.iter().for_each(|order| {
                iterate(gpu, &spec, Rule::sgd(0.9, 5e-4), 1, libraries, *order);
            });
        }
        iterate(gpu, &spec, Rule::sgd(0.9, 5e-4), 3, Libraries::NONE, Order::Chosen);
        let clipped = Rule { clip: Some(0.05), ..Rule::sgd(0.9, 5e-4) };
        iterate(gpu, &spec, clipped, 2, Libraries::NONE, Order::ChannelsLast);
    }
}

/// Every solver.
fn kinds() -> [RuleKind; 6] {
    [
        RuleKind::Sgd { momentum: 0.9 },
        RuleKind::Nesterov { momentum: 0.9 },
        RuleKind::AdaGrad { delta: 1e-6 },
        RuleKind::RmsProp { decay: 0.98, delta: 1e-6 },
        RuleKind::AdaDelta { momentum: 0.95, delta: 1e-6 },
        RuleKind::Adam { momentum: 0.9, momentum2: 0.999, delta: 1e-8 },
    ]
}

#[test]
fn updates_by_every_rule() {
    let mut ip = LayerSpec::new("it", Layer::InnerProduct(inner_product(300)), &["x"], &["y"]);
    ip.params = vec![ParamSpec::with(0.5, 2.0), ParamSpec::with(2.0, 0.0)];
    let layers = vec![
        input("x", &[2, 137]),
        input("label", &[2]),
        ip,
        LayerSpec::new("loss", loss(1), &["y", "label"], &["loss"]),
    ];
    let net = build(&network(layers, false));
    let Some(gpu) = gpu("updates by every rule") else { return };
    let rules = kinds().into_iter().flat_map(|kind| {
        [Decay::L2, Decay::L1].map(|decay| Rule { kind, weight_decay: 0.25, decay, clip: None })
    });
    for (rule, elastic) in rules.flat_map(|rule| [(rule, false), (rule, true)]) {
        let len = net.params.len();
        let plan_options = PlanOptions { elastic, ..PlanOptions::new(Stage::Update) };
        let plan = Plan::build(std::slice::from_ref(&net), plan_options).expect("a plan");
        let options = Options { libraries: Libraries::NONE, ..Options::new(rule, elastic) };
        let worker = gpu.worker(&[Program { net: &net, plans: &[&plan] }], &options).expect("a worker");
        let device = worker.device(0);
        let mut weights = integers(1, len, 4);
        let (gradients, centre) = (fractions(2, len), fractions(4, len));
        let mut histories: Vec<f32> =
            fractions(3, len * rule.kind.histories()).iter().map(|h| h.abs()).collect();
        let buffers =
            [(Packed::Weights, &weights), (Packed::Gradients, &gradients), (Packed::Histories, &histories)];
        for (packed, values) in buffers.into_iter().chain(elastic.then_some((Packed::Centre, &centre))) {
            device.write(Region::Packed(packed), values).expect("a packed buffer");
        }
        let scalars = Scalars { iteration: 4, rate: 0.5, elastic: 0.125, seed: 0 };
        run_step(std::slice::from_ref(&device), &plan, &scalars, &mut StepTimes::default()).expect("a step");
        for view in net.params.views() {
            let range = view.range();
            let (first, rest) = histories.split_at_mut(len);
            let rest = rest.get_mut(range.clone()).unwrap_or_default();
            let (rate, decay) = (scalars.rate * view.lr_mult, rule.weight_decay * view.decay_mult);
            let elastic = elastic.then(|| Elastic { centre: &centre[range.clone()], strength: 0.125 });
            let step = Step { rule, iteration: 4, rate, decay, scale: 1.0, elastic };
            update(&step, &mut weights[range.clone()], &gradients[range.clone()], &mut first[range], rest);
        }
        let what = format!("{rule:?}, elastic {elastic}");
        for (packed, expected) in [(Packed::Weights, &weights), (Packed::Histories, &histories)] {
            let found = read(&device, packed, expected.len());
            for (at, (e, f)) in expected.iter().zip(&found).enumerate() {
                // Ten operations or so, of which one takes the difference of what was before and the change.
                let bound = 32.0 * f32::EPSILON * (e.abs() + 4.0);
                assert!((e - f).abs() <= bound, "at {at}: {f} is not {e} ± {bound:e}: {packed:?} of {what}");
            }
        }
    }
}

/// Trains for five iterations with another forward pass in between, as plans or task by task; returns the bits of the weights.
fn trained(gpu: &Cuda, net: &Net, options: &Options, at_once: bool) -> Vec<u32> {
    let plans = [Stage::Iteration, Stage::Forward].map(|stage| plan(std::slice::from_ref(net), stage));
    trained_by(gpu, net, &plans, options, at_once)
}

/// The same by plans of an iteration and of a forward pass.
pub fn trained_by(
    gpu: &Cuda,
    net: &Net,
    [whole, forward]: &[Plan; 2],
    options: &Options,
    at_once: bool,
) -> Vec<u32> {
    let programs = [Program { net, plans: &[whole] }, Program { net, plans: &[forward] }];
    let worker = gpu.worker(&programs, options).expect("a worker");
    assert_eq!(worker.has_graphs(), options.graph, "{:?}", worker.notes());
    let (device, other) = (worker.device(0), worker.device(1));
    let mut weights = vec![0.0; net.params.len()];
    net.params.fill(1, &mut weights);
    device.write(Region::Packed(Packed::Weights), &weights).expect("weights");
    let mut times = StepTimes::default();
    for iteration in 0..5 {
        load(net, &device, iteration);
        let scalars =
            Scalars { iteration, rate: 0.01 / (1.0 + iteration as f32), elastic: 0.0, seed: iteration };
        match at_once {
            true => run_step(std::slice::from_ref(&device), whole, &scalars, &mut times).expect("a step"),
            // No plan of the worker's, and so no graph.
            false => {
                device.begin(&scalars).expect("alive");
                for node in &whole.nodes {
                    device.submit(node.lane, &node.task).expect("a known task");
                    device.synchronize().expect("alive");
                }
            }
        }
        assert!(times.spans().iter().all(|span| span.end >= span.start));
        load(net, &other, iteration);
        run_step(std::slice::from_ref(&other), forward, &scalars, &mut times).expect("a step");
        // Some steps have times for each task.
        worker.use_graphs(iteration != 2);
    }
    read(&device, Packed::Weights, net.params.len()).into_iter().map(f32::to_bits).collect()
}

#[test]
fn the_same_bits_in_every_run() {
    let Some(gpu) = gpu("the same bits in every run") else { return };
    let [first, last] = ORDERS;
    for (spec, libraries, order) in [
        (branching(), Libraries::ALL, first),
        (branching(), Libraries::ALL, last),
        (residual(), Libraries::NONE, first),
        (residual(), Libraries::ALL, last),
    ] {
        let net = rewritten(build(&spec));
        let arithmetic = if order == last { Arithmetic::Tf32 } else { Arithmetic::F32 };
        let options = Options { libraries, order, arithmetic, ..own(Rule::sgd(0.9, 5e-4)) };
        let first = trained(gpu, &net, &options, true);
        assert!((0..2).all(|_| trained(gpu, &net, &options, true) == first), "{libraries:?}");
        let mut weights = vec![0.0; net.params.len()];
        net.params.fill(1, &mut weights);
        assert_ne!(first, weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>(), "nothing was trained");
        let graph = Options { graph: true, ..options };
        assert!(trained(gpu, &net, &graph, true) == first, "as a graph, {libraries:?}");
        assert!(trained(gpu, &net, &graph, false) == first, "task by task, {libraries:?}");
    }
}
