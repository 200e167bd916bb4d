//! Every network and solver in `models` is understood, has the published number of parameters, and runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quadrille_core::layer::{Layer, SubTask};
use quadrille_core::net::{BlobMemory, LayerId, Net, NetSpec, NetState, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::solver::Rule;
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::{CrewSpec, EngineOptions, MappedWorker, Program, storage_needs};
use quadrille_io::prototxt::{read_net, read_solver};

/// Networks, the shape of their samples as they are stored, and their parameters: learned values, heads included,
/// BatchNorm's statistics not.
pub const NETWORKS: [(&str, [usize; 3], usize); 16] = [
    ("lenet", [1, 28, 28], 431_080),
    ("siamese", [2, 28, 28], 431_102),
    ("cifar10_quick", [3, 32, 32], 145_578),
    ("cifar10_full", [3, 32, 32], 89_578),
    ("alexnet", [3, 256, 256], 60_965_224),
    ("alexnet_cifar10", [3, 32, 32], 35_910_026),
    ("caffenet", [3, 256, 256], 60_965_224),
    ("googlenet", [3, 256, 256], 13_378_280),
    ("vgg16", [3, 256, 256], 138_357_544),
    ("vgg19", [3, 256, 256], 143_667_240),
    ("resnet18", [3, 256, 256], 11_689_512),
    ("resnet34", [3, 256, 256], 21_797_672),
    ("resnet50", [3, 256, 256], 25_557_032),
    ("resnet101", [3, 256, 256], 44_549_160),
    ("resnet152", [3, 256, 256], 60_192_808),
    ("inception_v3", [3, 320, 320], 27_161_264),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn network_file(name: &str) -> PathBuf {
    root().join("models").join(name).join("train_val.prototxt")
}

pub fn network(name: &str) -> NetSpec {
    read_net(&network_file(name)).unwrap_or_else(|error| panic!("{error}"))
}

pub fn build(spec: NetSpec, phase: Phase, sample: [usize; 3]) -> Net {
    build_batch(spec, phase, sample, 1)
}

fn build_batch(mut spec: NetSpec, phase: Phase, sample: [usize; 3], batch: usize) -> Net {
    for layer in &mut spec.layers {
        if let Layer::Data(data) = &mut layer.layer {
            (data.sample, data.batch) = (Some(sample), batch);
        }
    }
    Net::build(&spec, &NetState::new(phase), 1.0).unwrap_or_else(|error| panic!("{error}"))
}

/// Learned values: those that the solver changes.
fn learned(net: &Net) -> usize {
    let layers = net.layers.iter().filter(|layer| layer.layer.type_name() != "BatchNorm");
    let mut params: Vec<usize> = layers.flat_map(|layer| layer.params.iter().map(|p| p.0)).collect();
    params.sort_unstable();
    // Two layers may share one.
    params.dedup();
    params.into_iter().map(|p| net.params.views()[p].shape.count()).sum()
}

#[test]
fn networks_have_the_published_number_of_parameters() {
    for (name, sample, parameters) in NETWORKS {
        let spec = network(name);
        for phase in [Phase::Train, Phase::Test] {
            assert_eq!(learned(&build(spec.clone(), phase, sample)), parameters, "{name} in phase {phase}");
        }
    }
}

/// Memory of values and gradients by what is in use at one time, which no placement can go below: 1.12 at the worst.
const MOST_WASTE: f64 = 1.15;

#[test]
fn networks_share_memory_with_little_waste() {
    for (name, sample, _) in NETWORKS {
        for phase in [Phase::Train, Phase::Test] {
            let net = build(network(name), phase, sample).fused();
            let needs = net.storages.clone().into();
            let BlobMemory { apart, taken, least } = net.sharing_memory(&needs).blob_memory();
            let waste = taken as f64 / least as f64;
            assert!(waste <= MOST_WASTE, "{name} in phase {phase}: {taken} of {least} elements");
            assert!(taken < apart, "{name} in phase {phase} shares nothing");
        }
    }
}

/// The branches of GoogLeNet are whole blocks of channels of every tier.
#[test]
fn the_branches_of_googlenet_lie_in_their_joint() {
    let isa = Isa::detect();
    if isa == Isa::Portable {
        return println!("skipped: joined branches: {isa} has no blocks of channels");
    }
    let (name, sample, _) = NETWORKS.into_iter().find(|(name, ..)| *name == "googlenet").expect("a network");
    let bf16 = isa.has_bf16().then_some(Numerics::bf16(isa));
    for numerics in std::iter::once(Numerics::from(isa)).chain(bf16) {
        for phase in [Phase::Train, Phase::Test] {
            let net = build(network(name), phase, sample).fused();
            let needs = storage_needs(&net, numerics, &[]).unwrap_or_else(|error| panic!("{error}"));
            let net = net.sharing_memory(&needs);
            let concats = (0..net.layers.len()).map(LayerId);
            let concats: Vec<LayerId> =
                concats.filter(|id| matches!(net.layer(*id).layer, Layer::Concat(_))).collect();
            let joined = concats.iter().filter(|id| net.is_joined(**id)).count();
            assert_eq!((concats.len(), joined), (9, 9), "{numerics} in phase {phase}");
        }
    }
}

/// Fewest grains of a convolution's products: with fewer, even two threads wait for each other.
const FEWEST_GRAINS: u32 = 4;

/// Networks each of whose convolutions has work for several threads, with mini-batches that are usual on a node of a CPU.
const BATCHES: [(&str, usize); 7] = [
    ("lenet", 64),
    ("cifar10_quick", 100),
    ("alexnet", 64),
    ("googlenet", 16),
    ("vgg16", 8),
    ("resnet50", 16),
    ("inception_v3", 16),
];

/// Grains of the products of each convolution's sub-tasks in a network: layer, implementation, sub-task, grains.
fn grains_of_convolutions(nets: &[Net], numerics: Numerics) -> Vec<(String, &'static str, SubTask, u32)> {
    let plan = Plan::build(nets, PlanOptions::new(Stage::Iteration)).expect("a plan");
    let options = EngineOptions {
        isa: numerics.isa,
        precision: numerics.precision,
        kernels: Vec::new(),
        rule: Rule::default(),
        elastic: false,
        spin: false,
    };
    let program = Program { nets, plans: &[&plan] };
    let worker = MappedWorker::new(&[CrewSpec::roaming("all", 2)], &[program], &options);
    let worker = worker.unwrap_or_else(|error| panic!("{numerics}: {error}"));
    let convolutions = worker.choices().iter().filter(|choice| choice.type_name == "Convolution");
    convolutions
        .flat_map(|choice| {
            choice.grains.iter().filter(|(sub, _)| *sub != SubTask::GradBias).map(|(sub, stages)| {
                // Stages that pack and that add up are beside the products; Winograd's gradients have no stage before them.
                let sums = choice.implementation.starts_with("winograd") && *sub == SubTask::GradWeight;
                let products = if sums { stages.first() } else { stages.iter().max() };
                (choice.layer.clone(), choice.implementation, *sub, *products.expect("a stage"))
            })
        })
        .collect()
}

#[test]
fn convolutions_are_shared_out_among_threads() {
    let bf16 = Isa::available().filter(|isa| isa.has_bf16()).map(Numerics::bf16);
    let numerics: Vec<Numerics> = Isa::available().map(Numerics::from).chain(bf16).collect();
    for (name, batch) in BATCHES {
        let (_, sample, _) = NETWORKS.into_iter().find(|(known, ..)| *known == name).expect("a network");
        let nets = [build_batch(network(name), Phase::Train, sample, batch).fused()];
        for numerics in numerics.clone() {
            for (layer, implementation, sub, grains) in grains_of_convolutions(&nets, numerics) {
                let what = format!("{numerics}: {name}, {layer} ({implementation}), {sub}: {grains} grains");
                assert!(grains >= FEWEST_GRAINS, "{what}");
            }
        }
    }
}

#[test]
fn every_folder_has_a_network_and_solvers_for_it() {
    let folders = fs::read_dir(root().join("models")).expect("models").map(|e| e.expect("an entry").path());
    let mut names: Vec<String> = folders
        .filter(|p| p.is_dir())
        .map(|p| p.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut known: Vec<String> = NETWORKS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    known.sort();
    assert_eq!(names, known);
    for name in names {
        let folder = root().join("models").join(&name);
        let files = fs::read_dir(&folder).expect("a folder").map(|e| e.expect("an entry").path());
        let solvers: Vec<PathBuf> =
            files.filter(|f| f.file_name().is_some_and(|n| n.to_string_lossy().contains("solver"))).collect();
        assert!(!solvers.is_empty(), "{name} has no solver");
        for file in solvers {
            let solver = read_solver(&file).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(
                solver.train_net.name(),
                format!("models/{name}/train_val.prototxt"),
                "{}",
                file.display()
            );
            assert!(solver.ignored.is_empty(), "{}: {:?}", file.display(), solver.ignored);
        }
    }
}

#[test]
fn small_networks_run() {
    for name in ["lenet", "cifar10_quick", "cifar10_full", "siamese"] {
        let time = Command::new(env!("CARGO_BIN_EXE_quadrille"))
            .args(["time", "--iterations", "1", "--batch", "2", "--json", "--model"])
            .arg(network_file(name))
            .output()
            .expect("the program starts");
        assert!(time.status.success(), "{name}: {}", String::from_utf8_lossy(&time.stderr));
    }
}
