//! What a GPU refuses, and what is said without one.

use quadrille_core::device::{Device, DeviceError, Packed, Region, Scalars};
use quadrille_core::layer::{
    ArgMax, BatchNorm, Convolution, Eltwise, EltwiseOperation, Filler, Layer, Normalize, Scale, Silence,
    SubTask,
};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetLayer, NetState, Phase};
use quadrille_core::plan::Stage;
use quadrille_core::solver::Rule;
use quadrille_core::task::{LaneId, Task, Tile};
use quadrille_gpu::{Cuda, CudaError, Options, Program, describe};

use crate::common::{convolution, gpu, inner_product, input, loss, network, own, plan};

/// With or without a driver: a GPU that does not exist is an error of the environment, in one line.
#[test]
fn a_gpu_that_is_not_there_is_an_error_of_the_environment() {
    let error = Cuda::open(9999).err().expect("no machine has so many");
    assert!(matches!(&error, DeviceError::Environment { device, .. } if device == "cuda:9999"), "{error}");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    assert_eq!(describe().lines().count(), 1);
}

fn net() -> Net {
    let layers = vec![
        input("x", &[2, 3]),
        input("label", &[2]),
        LayerSpec::new("it", Layer::InnerProduct(inner_product(4)), &["x"], &["y"]),
        LayerSpec::new("loss", loss(1), &["y", "label"], &["loss"]),
    ];
    Net::build(&network(layers, false), &NetState::new(Phase::Train), 1.0).expect("a net")
}

#[test]
fn what_a_device_was_not_built_for_is_unknown_to_it() {
    let Some(gpu) = gpu("what a device was not built for") else { return };
    let net = net();
    let forward = plan(std::slice::from_ref(&net), Stage::Forward);
    let worker =
        gpu.worker(&[Program { net: &net, plans: &[&forward] }], &own(Rule::default())).expect("a worker");
    let device = worker.device(0);
    let unknown = |result: Result<(), DeviceError>| matches!(result, Err(DeviceError::Unknown { .. }));
    let tile = Tile { first: 0, images: 2 };
    let task = |layer, sub| Task { layer: LayerId(layer), sub, tile };
    device.begin(&Scalars::default()).expect("alive");
    let submit = |lane, task: Task| device.submit(LaneId(lane), &task).map(|_| ());
    assert!(unknown(submit(0, task(2, SubTask::GradWeight))), "no plan has it");
    assert!(unknown(submit(0, task(77, SubTask::Forward))));
    assert!(unknown(submit(9, task(2, SubTask::Forward))));
    let other = Task { tile: Tile { first: 0, images: 1 }, ..task(2, SubTask::Forward) };
    assert!(unknown(submit(0, other)));
    assert!(submit(0, task(2, SubTask::Forward)).is_ok(), "a refusal ends nothing");
    assert!(device.synchronize().is_ok());
    assert!(unknown(device.write(Region::Packed(Packed::Centre), &[0.0])));
    assert!(unknown(device.write(Region::Packed(Packed::Weights), &vec![0.0; net.params.len() + 1])));
}

#[test]
fn a_layer_without_a_kernel_is_refused_by_name() {
    let Some(gpu) = gpu("a layer without a kernel") else { return };
    let layers = vec![
        input("x", &[2, 3]),
        input("label", &[2]),
        LayerSpec::new("it", Layer::InnerProduct(inner_product(4)), &["x"], &["y"]),
        LayerSpec::new(
            "odd",
            Layer::ArgMax(ArgMax { out_max_val: false, top_k: 1, axis: None }),
            &["y"],
            &["z"],
        ),
        LayerSpec::new("quiet", Layer::Silence(Silence { bottoms: 1 }), &["z"], &[]),
    ];
    let net = Net::build(&network(layers, false), &NetState::new(Phase::Test), 1.0).expect("a net");
    let forward = plan(std::slice::from_ref(&net), Stage::Forward);
    let refused = gpu.worker(&[Program { net: &net, plans: &[&forward] }], &own(Rule::default())).err();
    let said = refused.map(|error| (matches!(error, CudaError::Layer(_)), error.to_string()));
    assert!(
        said.as_ref()
            .is_some_and(|(layer, text)| *layer && text.contains("\"odd\"") && text.contains("ArgMax")),
        "{said:?}"
    );
}

/// What cuDNN does not do, our own kernels do, and the first lines say so. (Only the emulated library is known to refuse this one:
/// windows that lie in the padding alone.)
#[test]
fn what_cudnn_refuses_is_said() {
    let Some(gpu) = gpu("what cuDNN refuses") else { return };
    let padded = Convolution { pad: [3, 3], ..convolution(3, [1, 1]) };
    let layers = vec![
        input("x", &[2, 3, 4, 4]),
        input("label", &[2]),
        LayerSpec::new("conv", Layer::Convolution(padded), &["x"], &["conv"]),
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(4)), &["conv"], &["y"]),
        LayerSpec::new("loss", loss(1), &["y", "label"], &["loss"]),
    ];
    let net = Net::build(&network(layers, false), &NetState::new(Phase::Train), 1.0).expect("a net");
    let forward = plan(std::slice::from_ref(&net), Stage::Forward);
    let options = Options::new(Rule::default(), false);
    let worker = gpu.worker(&[Program { net: &net, plans: &[&forward] }], &options).expect("a worker");
    let says = |text: &str| worker.notes().iter().any(|note| note.contains(text));
    if std::env::var_os("QUADRILLE_CUDA_EMULATOR").is_none() || !says("convolutions by cuDNN") {
        println!("skipped: what cuDNN refuses: the emulated library is not there");
        return;
    }
    let line =
        "1 convolution(s) by kernels of our own: cuDNN, choosing an algorithm: CUDNN_STATUS_NOT_SUPPORTED";
    assert!(says(line), "{:?}", worker.notes());
    assert!(
        worker.choices().iter().any(|(layer, by)| layer == "conv" && *by != "cudnn"),
        "{:?}",
        worker.choices()
    );
}

/// A normalisation whose top is added to what it normalises, and whose layers are one.
fn with_shortcut() -> Net {
    let norm = BatchNorm { use_global_stats: None, moving_average_fraction: 0.9, eps: 1e-5 };
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler };
    let operation = EltwiseOperation::Sum { coefficients: Vec::new(), relu: false };
    let sum = Layer::Eltwise(Eltwise { bottoms: 2, operation });
    let layers = vec![
        input("x", &[2, 3, 2, 2]),
        input("label", &[2]),
        LayerSpec::new("conv", Layer::Convolution(convolution(3, [1, 1])), &["x"], &["conv"]),
        LayerSpec::new("norm", Layer::BatchNorm(norm), &["conv"], &["norm"]),
        LayerSpec::new("scale", Layer::Scale(scale), &["norm"], &["norm"]),
        LayerSpec::new("sum", sum, &["norm", "conv"], &["sum"]),
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(4)), &["sum"], &["y"]),
        LayerSpec::new("loss", loss(1), &["y", "label"], &["loss"]),
    ];
    let net = Net::build(&network(layers, false), &NetState::new(Phase::Train), 1.0).expect("a net");
    net.fused().summing()
}

/// A GPU's kernels know nothing of what a CPU's do for their neighbours.
#[test]
fn nets_that_were_rewritten_for_other_kernels_are_refused() {
    let Some(gpu) = gpu("nets that were rewritten") else { return };
    let marked = |mark: fn(&mut NetLayer)| {
        let mut net = net();
        mark(&mut net.layers[2]);
        net
    };
    let sums = |layer: &NetLayer| matches!(layer.layer, Layer::Normalize(Normalize { sum: true, .. }));
    assert!(with_shortcut().layers.iter().any(sums), "mistrusted: no shortcut is added");
    let nets = [
        with_shortcut(),
        marked(|layer| layer.adds_gradient = true),
        marked(|layer| layer.steps_weight = true),
        marked(|layer| layer.rectifies_gradient = true),
    ];
    for (number, net) in nets.iter().enumerate() {
        let forward = plan(std::slice::from_ref(net), Stage::Forward);
        let refused = gpu.worker(&[Program { net, plans: &[&forward] }], &own(Rule::default())).err();
        let said = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains("rewritten for other kernels"), "net {number}: {said:?}");
    }
}
