//! Concats without copies: which they are, and the same bits as with copies.

use quadrille_core::layer::{
    BatchNorm, Concat, Convolution, Dropout, Filler, Layer, PoolMethod, Pooling, Scale,
};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetSpec};
use quadrille_core::plan::Stage;
use quadrille_cpu::isa::{Isa, Numerics};
use quadrille_cpu::{EngineError, EngineOptions, NAN_HALVES, storage_needs};

use crate::common::{convolution, network, numerics, options, plan, worker};
use crate::lifetime::{How, PLAINLY, STEPS, Spec, check_finite, made, momentum, sharing, train};
use crate::whole_nets::{head, images, part_blocks, relu, whole_blocks};

/// Each net, and how many of its Concats copy nothing, fused and on a tier with vectors.
pub const NETS: [(&str, Spec, usize); 8] = [
    ("inception", inception, 2),
    ("normalised branches", normalised, 1),
    ("nested", nested, 2),
    ("a bottom read twice", read_twice, 1),
    ("dense", dense, 2),
    ("a ReLU in place behind", rectified_behind, 0),
    ("one bottom twice", twice, 0),
    ("parts of blocks", part_blocks, 0),
];

fn conv(name: &str, outputs: usize, kernel: usize, bottom: &str) -> LayerSpec {
    let layer = Convolution { pad: [kernel / 2; 2], ..convolution(outputs, [kernel; 2]) };
    LayerSpec::new(name, Layer::Convolution(layer), &[bottom], &[name])
}

fn pool(name: &str, method: PoolMethod, stride: usize, bottom: &str) -> LayerSpec {
    let pad = if stride == 1 { [1; 2] } else { [0; 2] };
    let layer = Pooling { method, kernel: Some([3; 2]), pad, stride: [stride; 2] };
    LayerSpec::new(name, Layer::Pooling(layer), &[bottom], &[name])
}

fn concat(name: &str, bottoms: &[&str]) -> LayerSpec {
    LayerSpec::new(name, Layer::Concat(Concat { axis: 1, bottoms: bottoms.len() }), bottoms, &[name])
}

/// What a net of images is between its first convolution and its scores, which see `last`.
fn between(batch: usize, layers: impl IntoIterator<Item = LayerSpec>, last: &str) -> NetSpec {
    let mut all = images(batch);
    all.extend([conv("stem", 32, 3, "data"), relu("stem")]);
    all.extend(layers);
    head(&mut all, last);
    network(all, false)
}

/// Two modules of GoogLeNet in small, the second with poolings of either kind among its branches: 1×1, 3×3, by
/// Winograd's transforms where they pay, 5×5, and 1×1 of stride 2.
pub fn inception(batch: usize) -> NetSpec {
    let stride = Convolution { stride: [2; 2], ..convolution(16, [1; 2]) };
    let drop = Layer::Dropout(Dropout { ratio: 0.25, active: true });
    let layers = [
        conv("one", 32, 1, "stem"),
        relu("one"),
        conv("reduce", 64, 1, "stem"),
        relu("reduce"),
        conv("three", 64, 3, "reduce"),
        relu("three"),
        conv("five", 16, 5, "stem"),
        relu("five"),
        pool("around", PoolMethod::Max, 1, "stem"),
        conv("proj", 20, 1, "around"),
        relu("proj"),
        concat("cat", &["one", "three", "five", "proj"]),
        pool("max", PoolMethod::Max, 2, "cat"),
        pool("average", PoolMethod::Average, 2, "stem"),
        LayerSpec::new("stride", Layer::Convolution(stride), &["cat"], &["stride"]),
        relu("stride"),
        concat("cat2", &["average", "stride", "max"]),
        LayerSpec::new("drop", drop, &["cat2"], &["dropped"]),
    ];
    between(batch, layers, "dropped")
}

/// Convolutions with normalisation, scale and ReLU, the last without a ReLU.
fn normalised(batch: usize) -> NetSpec {
    let norm = BatchNorm { use_global_stats: None, moving_average_fraction: 0.9, eps: 1e-5 };
    let (filler, bias_filler) = (Filler::Constant(1.0), Filler::Constant(0.1));
    let scale = Scale { bottoms: 1, axis: 1, num_axes: 1, bias: true, filler, bias_filler };
    let chain = |name: &str, outputs: usize, kernel: usize| {
        let [norms, scales] = ["norm", "scale"].map(|kind| format!("{kind}_{name}"));
        [
            conv(name, outputs, kernel, "stem"),
            LayerSpec::new(&norms, Layer::BatchNorm(norm.clone()), &[name], &[name]),
            LayerSpec::new(&scales, Layer::Scale(scale.clone()), &[name], &[name]),
        ]
    };
    let [one, three] = [chain("one", 32, 1), chain("three", 16, 3)];
    let layers = one.into_iter().chain([relu("one")]).chain(three).chain([concat("cat", &["one", "three"])]);
    between(batch, layers.chain([conv("last", 16, 3, "cat")]), "last")
}

/// A Concat of a Concat.
pub fn nested(batch: usize) -> NetSpec {
    let layers = [
        conv("one", 16, 1, "stem"),
        relu("one"),
        conv("three", 48, 3, "stem"),
        concat("inner", &["one", "three"]),
        conv("five", 16, 5, "stem"),
        relu("five"),
        concat("outer", &["five", "inner"]),
        conv("last", 16, 1, "outer"),
    ];
    between(batch, layers, "last")
}

/// Bottoms that convolutions and a pooling read, too, where they lie in the top.
pub fn read_twice(batch: usize) -> NetSpec {
    let stride = Convolution { stride: [2; 2], ..convolution(16, [1; 2]) };
    let layers = [
        conv("one", 64, 1, "stem"),
        relu("one"),
        conv("three", 64, 3, "one"),
        relu("three"),
        concat("cat", &["one", "three"]),
        conv("beside", 16, 3, "three"),
        pool("half", PoolMethod::Max, 2, "beside"),
        pool("max", PoolMethod::Max, 2, "one"),
        LayerSpec::new("stride", Layer::Convolution(stride), &["three"], &["stride"]),
        pool("cat_half", PoolMethod::Average, 2, "cat"),
        // Parts of blocks at the end, so that these are copied.
        conv("few", 7, 1, "cat_half"),
        concat("all", &["few", "half", "max", "stride"]),
    ];
    between(batch, layers, "all")
}

/// Each layer sees all before it: a bottom that two Concats read lies in the first.
fn dense(batch: usize) -> NetSpec {
    let layers = [
        conv("one", 16, 3, "stem"),
        relu("one"),
        concat("cat1", &["stem", "one"]),
        conv("two", 16, 3, "cat1"),
        relu("two"),
        concat("cat2", &["cat1", "two"]),
        conv("three", 16, 1, "cat2"),
        concat("cat3", &["stem", "three"]),
    ];
    between(batch, layers, "cat3")
}

/// The ReLU overwrites the top, whose parts the layers below ask for in backward.
fn rectified_behind(batch: usize) -> NetSpec {
    let layers = [
        conv("one", 16, 1, "stem"),
        relu("one"),
        conv("three", 16, 3, "stem"),
        concat("cat", &["one", "three"]),
        relu("cat"),
    ];
    between(batch, layers, "cat")
}

/// One array cannot lie in two places.
fn twice(batch: usize) -> NetSpec {
    between(batch, [conv("one", 16, 1, "stem"), concat("cat", &["one", "one"])], "cat")
}

fn joined(net: &Net) -> usize {
    (0..net.layers.len()).filter(|id| net.is_joined(LayerId(*id))).count()
}

fn is_blocked(numerics: Numerics) -> bool {
    numerics.isa != Isa::Portable
}

#[test]
fn concats_of_whole_blocks_copy_nothing() {
    for numerics in numerics("concats without copies") {
        for (name, spec, expected) in NETS.into_iter().chain([("whole blocks", whole_blocks as Spec, 1)]) {
            let net = made(spec, true)(1).remove(0);
            assert_eq!(joined(&net), 0, "{name}: only shared memory joins arrays");
            let found = joined(&sharing(net, &options(numerics)));
            assert_eq!(found, if is_blocked(numerics) { expected } else { 0 }, "{name} on {numerics}");
        }
    }
}

#[test]
fn a_concat_without_copies_changes_no_bit() {
    for numerics in numerics("bits without copies") {
        for (name, spec, _) in NETS {
            for (fused, quadrants) in [(false, 1), (true, 1), (true, 3)] {
                let (make, options) = (made(spec, fused), momentum(numerics));
                let expected = train(&make, &options, How { quadrants, ..PLAINLY });
                check_finite(&expected, name);
                for threads in [1, 3] {
                    let poison = Some(NAN_HALVES);
                    let how = How { quadrants, threads, shares: true, poison, steps: STEPS };
                    let found = train(&make, &options, how);
                    assert!(found == expected, "{name} on {numerics}, fused {fused}: {how:?}");
                }
            }
        }
    }
}

/// Kernels that do not find images apart get none: one that is forced leaves its Concats to copies.
#[test]
fn forced_kernels_change_which_concats_copy() {
    let isa = Isa::detect();
    if !is_blocked(isa.into()) {
        return println!("skipped: forced kernels of joined arrays: {isa} has no blocks");
    }
    let net = made(inception, true)(1).remove(0);
    for (layer, kernel, expected) in [
        ("cat", "stream", 0),
        ("five", "im2col-gemm", 1),
        ("average", "windows", 1),
        ("drop", "reference", 2),
    ] {
        let kernels = vec![(layer.to_owned(), kernel.to_owned())];
        let options = EngineOptions { kernels, ..momentum(isa.into()) };
        let shared = sharing(net.clone(), &options);
        assert_eq!(joined(&shared), expected, "{layer} by {kernel}");
        let make = made(inception, true);
        let expected = train(&make, &options, PLAINLY);
        let found = train(&make, &options, How { shares: true, poison: Some(NAN_HALVES), ..PLAINLY });
        assert!(found == expected, "{layer} by {kernel}");
    }
}

#[test]
fn parts_planned_for_other_kernels_are_refused() {
    let options = options(Isa::detect());
    if !is_blocked(options.numerics()) {
        return println!("skipped: parts for other kernels: {} has no blocks", options.isa);
    }
    let net = made(inception, true)(1).remove(0);
    let forced = [("cat".to_owned(), "stream".to_owned())];
    let mut needs = storage_needs(&net, options.numerics(), &[]).expect("kernels");
    // As long as any kernel might want, so that only the parts are wrong.
    needs.lengths.iter_mut().for_each(|len| *len *= 4);
    let nets = [net.sharing_memory(&needs)];
    let plan = plan(&nets, Stage::Iteration);
    let options = EngineOptions { kernels: forced.to_vec(), ..options };
    match worker(&nets, &plan, 1, &options).map(|_| ()) {
        Err(EngineError::Kernel(reason)) => assert!(reason.contains("inside others"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
