//! What tasks are made of, where there is no GPU: every launch fits its kernel, and stays in its memory.

use quadrille_core::layer::{
    Accuracy, BatchNorm, Concat, Convolution, Dropout, Eltwise, EltwiseOperation, Filler, InnerProduct,
    Input, Layer, Lrn, NormRegion, PoolMethod, Pooling, Relu, Scale, Slice, SoftmaxWithLoss,
};
use quadrille_core::net::{GivenState, LayerSpec, Net, NetSpec, NetState, Phase, StorageNeeds};
use quadrille_core::plan::lanes::spread;
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::solver::{Rule, RuleKind};
use quadrille_core::task::Task;

use crate::layout::channels_last;
use crate::memory::{PackedMap, Space};
use crate::op::{Argument, Direction, Geometry, Op, Span};
use crate::program::MappedProgram;
use crate::source::Signatures;
use crate::spec::{Arithmetic, CudaError, Options, Order, Program};

use super::DnnWorkspace;

fn layers() -> Vec<LayerSpec> {
    let input = |name: &str, dims: &[usize]| {
        LayerSpec::new(name, Layer::Input(Input { shapes: vec![dims.to_vec()], tops: 1 }), &[], &[name])
    };
    let conv = |name: &str, bottom: &str, group: usize| {
        let layer = Convolution {
            num_output: 8,
            kernel: [3, 3],
            pad: [1, 1],
            stride: [1, 1],
            dilation: [1, 1],
            group,
            bias: group > 1,
            relu: false,
            weight_filler: Filler::default(),
            bias_filler: Filler::default(),
        };
        LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
    };
    let relu =
        |name: &str| LayerSpec::new(&format!("relu_{name}"), Layer::Relu(Relu::default()), &[name], &[name]);
    let norm = BatchNorm { use_global_stats: None, moving_average_fraction: 0.9, eps: 1e-5 };
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler };
    let lrn = Lrn { region: NormRegion::AcrossChannels, local_size: 5, alpha: 1.0, beta: 0.75, k: 1.0 };
    let pool = Pooling { method: PoolMethod::Max, kernel: Some([3; 2]), pad: [0; 2], stride: [2; 2] };
    let sum = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    let ip = InnerProduct {
        num_output: 10,
        bias: true,
        axis: 1,
        transpose: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    };
    let loss = SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Default::default() };
    let accuracy = Accuracy { top_k: 1, axis: 1, ignore_label: None };
    vec![
        input("data", &[3, 4, 9, 9]),
        input("label", &[3]),
        conv("conv1", "data", 2),
        relu("conv1"),
        LayerSpec::new("lrn", Layer::Lrn(lrn), &["conv1"], &["lrn"]),
        conv("conv2", "lrn", 1),
        LayerSpec::new("bn", Layer::BatchNorm(norm), &["conv2"], &["bn"]),
        LayerSpec::new("scale", Layer::Scale(scale), &["bn"], &["bn"]),
        relu("bn"),
        LayerSpec::new(
            "sum",
            Layer::Eltwise(Eltwise { bottoms: 2, operation: sum }),
            &["bn", "lrn"],
            &["sum"],
        ),
        relu("sum"),
        LayerSpec::new(
            "cut",
            Layer::Slice(Slice { axis: 1, points: vec![3], tops: 2 }),
            &["sum"],
            &["a", "b"],
        ),
        LayerSpec::new("join", Layer::Concat(Concat { axis: 1, bottoms: 2 }), &["b", "a"], &["join"]),
        LayerSpec::new("pool", Layer::Pooling(pool), &["join"], &["pool"]),
        LayerSpec::new("ip", Layer::InnerProduct(ip), &["pool"], &["ip"]),
        LayerSpec::new("drop", Layer::Dropout(Dropout { ratio: 0.5, active: true }), &["ip"], &["ip"]),
        LayerSpec::new("accuracy", Layer::Accuracy(accuracy), &["ip", "label"], &["accuracy"]),
        LayerSpec::new("loss", Layer::SoftmaxWithLoss(loss), &["ip", "label"], &["loss"]),
    ]
}

fn net(layers: Vec<LayerSpec>) -> Net {
    let spec = NetSpec {
        name: "test".into(),
        file: "made".into(),
        force_backward: false,
        state: GivenState::default(),
        layers,
        notes: Vec::new(),
    };
    Net::build(&spec, &NetState::new(Phase::Train), 1.0).expect("a net")
}

fn plan(net: &Net, stage: Stage) -> Plan {
    let options = PlanOptions::new(stage);
    Plan::build(std::slice::from_ref(net), options).expect("a plan")
}

/// All arrays that an operation names.
fn spans(op: &Op) -> Vec<Span> {
    match op {
        Op::Launch(launch) => {
            let array = |argument: &Argument| match argument {
                Argument::Array(span) => Some(*span),
                _ => None,
            };
            launch.arguments.iter().filter_map(array).collect()
        }
        Op::Copy { from, to } => vec![*from, *to],
        Op::Product(p) => [p.a.values, p.b.values, p.c].into_iter().chain(p.bias).collect(),
        Op::Convolve(c) => vec![c.first, c.second, c.result, c.workspace],
    }
}

fn check(net: &Net, rule: Rule, libraries: bool, arithmetic: Arithmetic) {
    let cut = |plan| spread(plan, std::slice::from_ref(net), |_| 2);
    let plans = [plan(net, Stage::Iteration), cut(plan(net, Stage::Iteration)), plan(net, Stage::Forward)];
    assert!(plans[1].nodes.iter().any(|node| node.task.tile.images < net.batch()));
    let part = (net.parts > 1).then(|| plan(net, Stage::Part));
    let plans: Vec<&Plan> = plans.iter().chain(&part).collect();
    let (mut space, options) = (Space::default(), Options { arithmetic, ..Options::new(rule, false) });
    let gathers = net.parts > 1;
    let packed = PackedMap::new(&mut space, net.params.len(), rule.kind.histories(), false, gathers);
    let scalars = space.reserve(6);
    let ask: DnnWorkspace<'_> = &|geometry: &Geometry, direction| {
        (direction != Direction::GradWeight || geometry.group == 1).then_some(100)
    };
    let program = Program { net, plans: &plans };
    let dnn = libraries.then_some(ask);
    let mapped = MappedProgram::new(&program, packed, scalars, &mut space, &options, libraries, dnn);
    let mapped = mapped.expect("every layer has its kernels");
    let signatures = Signatures::read();
    for (Task { layer, sub, tile }, task) in &mapped.tasks {
        let what = format!("{sub} of {:?}, {tile:?}", net.layer(*layer).name);
        for op in &task.ops {
            if let Op::Launch(launch) = op {
                assert_eq!(signatures.check(launch), Ok(()), "{what}");
            }
            for span in spans(op) {
                let end = if span.workspace { task.workspace } else { space.len() };
                assert!(span.start + span.len <= end, "{what}: {span:?} of {end}");
            }
        }
    }
    let nodes = plans.iter().flat_map(|plan| &plan.nodes);
    assert!(nodes.into_iter().all(|node| mapped.tasks.contains_key(&node.task)));
    let used = |lane| mapped.workspace(&plans, lane);
    assert!(used(0) > 0 && used(2) > 0 && used(99) == 0, "workspaces of the lanes that have tasks");
    let by_library = mapped.choices.iter().any(|(_, kernel)| *kernel == "cudnn");
    assert_eq!(by_library, libraries);
}

#[test]
fn every_launch_fits_its_kernel_and_stays_in_its_memory() {
    let (plain, bf16) = (Arithmetic::F32, Arithmetic::Bf16);
    for (libraries, arithmetic) in [(false, plain), (true, plain), (false, bf16), (true, bf16)] {
        for kind in [RuleKind::Sgd { momentum: 0.9 }, RuleKind::AdaDelta { momentum: 0.9, delta: 1e-6 }] {
            let rule = Rule { kind, clip: Some(1.0), ..Rule::default() };
            let apart = net(layers()).gathering(2).clipping(true);
            check(&apart, rule, libraries, arithmetic);
            let fused = net(layers()).fused();
            let needs = StorageNeeds::from(fused.storages.clone());
            check(&fused.sharing_memory(&needs), Rule { clip: None, ..rule }, libraries, arithmetic);
        }
    }
}

#[test]
fn nets_that_were_rewritten_for_other_kernels_are_refused() {
    let net = net(layers()).stepping(|_| true);
    let plan = plan(&net, Stage::Iteration);
    let (mut space, options) = (Space::default(), Options::new(Rule::default(), false));
    let packed = PackedMap::new(&mut space, net.params.len(), 1, false, false);
    let scalars = space.reserve(6);
    let program = Program { net: &net, plans: &[&plan] };
    let refused = MappedProgram::new(&program, packed, scalars, &mut space, &options, false, None);
    assert!(matches!(refused, Err(CudaError::Layer(reason)) if reason.contains("rewritten")));
}

/// Arrays between convolutions lie with their channels last, what a layer of one order touches does not, and what has one pixel has
/// both.
#[test]
fn channels_lie_last_between_convolutions_for_tensor_cores() {
    let every = layers();
    let of = |name: &str| every.iter().find(|layer| layer.name == name).expect("a layer").clone();
    let from = |name: &str, bottoms: &[&str], tops: &[&str]| {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        LayerSpec { name: tops[0].into(), bottoms: own(bottoms), tops: own(tops), ..of(name) }
    };
    let made = vec![
        of("data"),
        of("label"),
        from("conv2", &["data"], &["a"]),
        from("lrn", &["a"], &["b"]),
        from("pool", &["b"], &["c"]),
        from("conv2", &["c"], &["d"]),
        from("drop", &["d"], &["e"]),
        from("ip", &["e"], &["ip"]),
        of("loss"),
    ];
    let net = net(made);
    let lies_last = |options: &Options, by_dnn: bool| -> Vec<String> {
        let last = channels_last(&net, options, by_dnn);
        let blobs = net.blobs.iter().filter(|blob| last[blob.data.0].is_some());
        assert!(net.blobs.iter().all(|blob| {
            blob.grad.is_none_or(|grad| last[grad.0].is_some() == last[blob.data.0].is_some())
        }));
        blobs.map(|blob| blob.name.clone()).collect()
    };
    let options = |arithmetic| Options { arithmetic, ..Options::new(Rule::default(), false) };
    assert_eq!(lies_last(&options(Arithmetic::Tf32), true), ["data", "a", "b", "c"]);
    assert_eq!(lies_last(&options(Arithmetic::Bf16), true), ["data", "a", "b", "c"]);
    let first = Options { order: Order::ChannelsFirst, ..options(Arithmetic::Tf32) };
    for (options, by_dnn) in
        [(first, true), (options(Arithmetic::F32), true), (options(Arithmetic::Tf32), false)]
    {
        assert_eq!(lies_last(&options, by_dnn), Vec::<String>::new());
    }
    let unsuited = self::net(every.clone());
    let last = channels_last(&unsuited, &options(Arithmetic::Tf32), true);
    assert!(last.iter().all(Option::is_none), "conv1's groups of four channels are none for tensor cores");
    let always = Options { order: Order::ChannelsLast, ..options(Arithmetic::F32) };
    assert_eq!(lies_last(&always, false), ["data", "a", "b", "c"]);
}
