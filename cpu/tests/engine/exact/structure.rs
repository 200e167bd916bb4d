//! Cases of the layers that arrange, look up or make up values, and of convolutions over any number of axes.

use quadrille_core::device::{Device, Region};
use quadrille_core::layer::{
    ArgMax, BatchReindex, ConvolutionNd, Crop, DummyData, Embed, Filler, Filter, Im2col, Layer, NewExtent,
    Operand, Parameter, Relu, Reshape, Silence, Tile, Windows,
};
use quadrille_core::net::{LayerSpec, Net, NetState, Phase};
use quadrille_core::plan::Stage;
use quadrille_core::run::{StepTimes, run_step};

use crate::common::{self, inner_product, input, labels, loss, options, tiers, worker};
use crate::exact::bench::{exact, exact_on};
use crate::exact::case::Case;

fn windows(kernel: &[usize], pad: &[usize], stride: &[usize], dilation: &[usize]) -> Windows {
    let [kernel, pad, stride, dilation] = [kernel, pad, stride, dilation].map(<[usize]>::to_vec);
    Windows { kernel, pad, stride, dilation }
}

fn convolved(transposed: bool, num_output: usize, windows: Windows) -> ConvolutionNd {
    let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
    ConvolutionNd {
        transposed,
        num_output,
        windows,
        axis: 1,
        group: 1,
        bias: true,
        weight_filler,
        bias_filler,
    }
}

#[test]
fn deconvolutions() {
    let plain = |num_output, windows| convolved(true, num_output, windows);
    let layers: [(ConvolutionNd, &[usize]); 7] = [
        (plain(5, windows(&[3], &[1], &[1], &[1])), &[3, 4, 5]),
        (plain(3, windows(&[4], &[1], &[2], &[1])), &[2, 6, 7]),
        (ConvolutionNd { bias: false, ..plain(6, windows(&[2, 3], &[0], &[2, 3], &[1])) }, &[5, 4, 3]),
        (ConvolutionNd { group: 3, ..plain(6, windows(&[3], &[2, 1], &[2, 1], &[2, 1])) }, &[9, 5, 4]),
        (plain(4, windows(&[1], &[0], &[1], &[1])), &[17, 4, 3]),
        (ConvolutionNd { group: 2, ..plain(32, windows(&[4], &[1], &[2], &[1])) }, &[32, 7, 6]),
        (plain(3, windows(&[2], &[0], &[2], &[1])), &[4, 3]),
    ];
    let case = |n: usize, layer: &ConvolutionNd, dims: &[usize]| {
        Case::new(Layer::ConvolutionNd(layer.clone()), &[&[&[n], dims].concat()])
    };
    let all =
        [1, 2, 5].into_iter().flat_map(|n| layers.iter().map(move |(layer, dims)| case(n, layer, dims)));
    exact("deconvolutions", &all.collect::<Vec<_>>());
    let apart = plain(2, windows(&[1, 2], &[0], &[2, 3], &[1]));
    exact(
        "deconvolutions",
        &[case(3, &apart, &[3, 3, 4]).zeros("what lies between the windows is the bias or 0")],
    );
    // Enough for several grains.
    exact("large deconvolutions", &[case(9, &plain(8, windows(&[4], &[1], &[2], &[1])), &[8, 8, 7])]);
}

#[test]
fn convolutions_over_other_axes_than_two() {
    let plain = |num_output, windows| convolved(false, num_output, windows);
    let layers: [(ConvolutionNd, &[usize]); 6] = [
        (plain(5, windows(&[3, 2, 3], &[1], &[1, 2, 1], &[1])), &[2, 5, 6, 4]),
        (ConvolutionNd { group: 2, ..plain(6, windows(&[2], &[1], &[1], &[2])) }, &[4, 5, 4, 6]),
        (plain(7, windows(&[5], &[2], &[2], &[1])), &[3, 33]),
        (plain(9, windows(&[1], &[0], &[1], &[1])), &[13]),
        (ConvolutionNd { axis: 2, ..plain(4, windows(&[3], &[0], &[1], &[1])) }, &[3, 5, 9]),
        (
            ConvolutionNd { transposed: true, ..plain(3, windows(&[2, 3, 2], &[0, 1, 0], &[2], &[1])) },
            &[4, 2, 4, 3],
        ),
    ];
    let case = |n: usize, layer: &ConvolutionNd, dims: &[usize]| {
        Case::new(Layer::ConvolutionNd(layer.clone()), &[&[&[n], dims].concat()])
    };
    let all = [1, 4].into_iter().flat_map(|n| layers.iter().map(move |(layer, dims)| case(n, layer, dims)));
    exact("convolutions over other axes", &all.collect::<Vec<_>>());
}

#[test]
fn windows_as_channels() {
    let why = "padding";
    let layers = [
        (Im2col { windows: windows(&[3, 2], &[1, 0], &[2, 1], &[1, 2]), axis: 1 }, &[3, 5, 6][..]),
        (Im2col { windows: windows(&[2], &[1], &[1], &[1]), axis: -2 }, &[3, 4, 5]),
        (Im2col { windows: windows(&[2], &[0], &[2], &[1]), axis: 1 }, &[20, 40, 40]),
        (Im2col { windows: windows(&[2, 1, 2], &[0, 1, 0], &[1], &[1]), axis: 1 }, &[2, 3, 3, 4]),
    ];
    let case = |n: usize, layer: &Im2col, dims: &[usize]| {
        Case::new(Layer::Im2col(layer.clone()), &[&[&[n], dims].concat()]).zeros(why)
    };
    let all = [1, 5].into_iter().flat_map(|n| layers.iter().map(move |(layer, dims)| case(n, layer, dims)));
    exact("windows as channels", &all.collect::<Vec<_>>());
}

#[test]
fn values_elsewhere() {
    let mut cases = Vec::new();
    for n in [1, 2, 5] {
        let extents = vec![NewExtent::Copied, NewExtent::Inferred, NewExtent::Of(6)];
        let reshape = Layer::Reshape(Reshape { extents, axis: 0, num_axes: -1 });
        cases.push(Case::new(reshape, &[&[n, 4, 3, 5]]));
        for (axis, tiles) in [(0, 2), (1, 3), (2, 1), (-1, 2)] {
            cases
                .push(Case::new(Layer::Tile(Tile { axis, tiles }), &[&[n, 5, 4, 3]]).zeros("opposite signs"));
        }
        let crop = |axis, offsets: &[usize], like: &[usize]| {
            let layer = Layer::Crop(Crop { axis, offsets: offsets.to_vec() });
            Case::new(layer, &[&[n, 5, 6, 7], like]).zeros("what is cut off has no gradient")
        };
        cases.push(crop(2, &[1, 2], &[n, 5, 4, 5]));
        cases.push(crop(1, &[2, 0, 1], &[9, 3, 4, 5]));
        cases.push(crop(0, &[], &[1, 5, 6, 7]));
        cases.push(crop(-1, &[3], &[1, 1, 1, 4]));
    }
    // Enough for several grains.
    cases.push(
        Case::new(Layer::Tile(Tile { axis: 0, tiles: 3 }), &[&[9, 64, 14, 15]]).zeros("opposite signs"),
    );
    let crop = Layer::Crop(Crop { axis: 2, offsets: vec![3] });
    cases.push(Case::new(crop, &[&[9, 64, 14, 15], &[1, 1, 9, 11]]).zeros("what is cut off"));
    exact("values elsewhere", &cases);
}

#[test]
fn images_by_index() {
    for (dims, count) in [(&[4, 3, 5][..], 7), (&[1, 2], 1), (&[5, 20, 7, 3], 4), (&[40, 500], 60)] {
        let case =
            Case::new(Layer::BatchReindex(BatchReindex), &[dims, &[count]]).zeros("what no index names");
        let mut arrays = case.integers();
        arrays.insert(Operand::Bottom(1), labels(3, count, dims[0]));
        exact_on("images by index", &case, &arrays);
    }
    for (dims, marks) in
        [(&[5, 3][..], &[0.0, 2.0, -1.0, 0.0, 0.5][..]), (&[1, 4, 3, 2], &[0.0]), (&[2, 9], &[1.0; 2])]
    {
        let case = Case::new(Layer::Filter(Filter { bottoms: 3 }), &[dims, &[dims[0], 2], &[dims[0]]]);
        let case = case.zeros("what is not marked");
        let mut arrays = case.integers();
        arrays.insert(Operand::Bottom(2), marks.to_vec());
        exact_on("marked images", &case, &arrays);
    }
}

#[test]
fn places_of_maxima() {
    let mut cases = Vec::new();
    for dims in [&[1, 3][..], &[5, 4, 3], &[2, 5, 3, 2], &[33, 70]] {
        for (out_max_val, top_k, axis) in
            [(false, 1, None), (true, 3, None), (false, 2, Some(1)), (true, 1, Some(-1))]
        {
            cases.push(
                Case::new(Layer::ArgMax(ArgMax { out_max_val, top_k, axis }), &[dims]).zeros("place 0"),
            );
        }
    }
    exact("places of maxima", &cases);
}

#[test]
fn rows_by_index() {
    for (dims, num_output, input_dim) in
        [(&[2, 3][..], 4, 7), (&[1], 1, 1), (&[64, 9], 33, 100), (&[3, 2, 2], 5, 3)]
    {
        for bias in [false, true] {
            let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
            let layer = Layer::Embed(Embed { num_output, input_dim, bias, weight_filler, bias_filler });
            let case = Case::new(layer, &[dims]).zeros("rows that no index names");
            let mut arrays = case.integers();
            arrays.insert(Operand::Bottom(0), labels(5, dims.iter().product(), input_dim));
            exact_on("rows by index", &case, &arrays);
        }
    }
}

#[test]
fn blobs_without_a_bottom() {
    let parameter = |shape: &[usize]| Case::new(Layer::Parameter(Parameter { shape: shape.to_vec() }), &[]);
    exact("parameters", &[parameter(&[7]), parameter(&[3, 20, 5, 7]), parameter(&[100, 700])]);
    for filler in [
        Filler::Constant(2.5),
        Filler::Uniform { min: -1.0, max: 3.0 },
        Filler::Gaussian { mean: 1.0, std: 2.0, sparse: None },
    ] {
        let layer = DummyData { shapes: vec![vec![5, 3, 4, 2]], fillers: vec![filler], tops: 1 };
        exact("made-up data", &[Case::new(Layer::DummyData(layer), &[])]);
    }
}

/// What is silenced has a gradient of 0 where backward is forced, whatever lay in its memory.
#[test]
fn a_silence_hands_down_zeros() {
    let relu = Layer::Relu(Relu { negative_slope: 0.0, applied: false });
    let layers = vec![
        input("x", &[2, 3]),
        input("label", &[2]),
        LayerSpec::new("relu", relu, &["x"], &["quiet"]),
        LayerSpec::new("silence", Layer::Silence(Silence { bottoms: 1 }), &["quiet"], &[]),
        LayerSpec::new("ip", Layer::InnerProduct(inner_product(2)), &["x"], &["score"]),
        LayerSpec::new("loss", loss(1), &["score", "label"], &["loss"]),
    ];
    let build =
        |forced| Net::build(&common::network(layers.clone(), forced), &NetState::new(Phase::Train), 1.0);
    let quiet = |net: &Net| net.blobs.iter().find(|b| b.name == "quiet").expect("a blob").grad;
    assert_eq!(quiet(&build(false).expect("a net")), None);
    let nets = [build(true).expect("a net")];
    let gradient = quiet(&nets[0]).expect("backward is forced");
    assert!(nets[0].outputs().all(|blob| nets[0].blob(blob).name == "loss"));
    let plan = common::plan(&nets, Stage::Iteration);
    for isa in tiers("silence") {
        let worker = worker(&nets, &plan, 2, &options(isa)).expect("a worker");
        let devices = worker.devices(0);
        devices[0].write(Region::Storage(gradient), &[f32::NAN; 6]).expect("a storage");
        run_step(&devices, &plan, &Default::default(), &mut StepTimes::default()).expect("a step");
        let mut found = [f32::NAN; 6];
        devices[0].read(Region::Storage(gradient), &mut found).expect("a storage");
        assert_eq!(found, [0.0; 6], "{isa}");
    }
}
