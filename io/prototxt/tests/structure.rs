//! Layers that arrange, look up or make up values, recurrent ones, and windows over any number of axes: what is understood,
//! and what is refused with its line and field.

use quadrille_core::layer::{
    ArgMax, BatchReindex, Cell, ConvolutionNd, Crop, DummyData, Embed, Filler, Filter, Im2col, Layer,
    NewExtent, Parameter, PoolMethod, PyramidLevel, Recurrent, Reshape, Silence, Tile, VarianceNorm, Windows,
};
use quadrille_core::net::LayerSpec;

use super::super::*;
use super::{Net, NetState, Phase};

fn parsed(text: &str) -> Vec<LayerSpec> {
    parse_net(text, "some.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}")).layers
}

/// A layer of a type with two bottoms and a top.
fn of(kind: &str, inside: &str) -> Layer {
    let text =
        format!("layer {{ name: \"x\" type: \"{kind}\" bottom: \"a\" bottom: \"b\" top: \"c\" {inside} }}");
    parsed(&text).remove(0).layer
}

#[test]
fn windows_over_any_number_of_axes() {
    let windows = |kernel: &[usize], pad: &[usize], stride: &[usize], dilation: &[usize]| {
        let [kernel, pad, stride, dilation] = [kernel, pad, stride, dilation].map(<[usize]>::to_vec);
        Windows { kernel, pad, stride, dilation }
    };
    let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
    let plain = ConvolutionNd {
        transposed: true,
        num_output: 2,
        windows: windows(&[3], &[0], &[1], &[1]),
        axis: 1,
        group: 1,
        bias: true,
        weight_filler,
        bias_filler,
    };
    let deconvolution =
        |inside: &str| of("Deconvolution", &format!("convolution_param {{ num_output: 2 {inside} }}"));
    assert_eq!(deconvolution("kernel_size: 3"), Layer::ConvolutionNd(plain.clone()));
    assert_eq!(
        deconvolution(
            "kernel_h: 4 kernel_w: 2 stride: 2 pad_h: 1 dilation: [1, 2] group: 2 bias_term: false engine: CAFFE \
             weight_filler { type: \"msra\" variance_norm: FAN_OUT }"
        ),
        Layer::ConvolutionNd(ConvolutionNd {
            windows: windows(&[4, 2], &[1, 0], &[2], &[1, 2]),
            group: 2,
            bias: false,
            weight_filler: Filler::Msra(VarianceNorm::FanOut),
            ..plain.clone()
        })
    );
    let volume = "convolution_param { num_output: 2 kernel_size: [3, 2, 1] stride: [1, 2, 1] pad: 1 axis: -4 \
                  force_nd_im2col: true }";
    let windows = windows(&[3, 2, 1], &[1], &[1, 2, 1], &[1]);
    assert_eq!(
        of("Convolution", volume),
        Layer::ConvolutionNd(ConvolutionNd {
            transposed: false,
            axis: -4,
            windows: windows.clone(),
            ..plain
        })
    );
    assert_eq!(of("Im2col", volume), Layer::Im2col(Im2col { windows, axis: -4 }));
}

#[test]
fn layers_that_arrange_values() {
    let reshape = |inside: &str| of("Reshape", &format!("reshape_param {{ {inside} }}"));
    let extents = vec![NewExtent::Copied, NewExtent::Inferred, NewExtent::Of(7)];
    assert_eq!(
        reshape("shape { dim: 0 dim: -1 dim: 7 }"),
        Layer::Reshape(Reshape { extents, axis: 0, num_axes: -1 })
    );
    assert_eq!(
        reshape("axis: -2 num_axes: 1"),
        Layer::Reshape(Reshape { extents: vec![], axis: -2, num_axes: 1 })
    );
    let crop = |axis, offsets: &[usize]| Layer::Crop(Crop { axis, offsets: offsets.to_vec() });
    assert_eq!(of("Crop", ""), crop(2, &[]));
    assert_eq!(of("Crop", "crop_param { axis: -1 offset: 3 }"), crop(-1, &[3]));
    assert_eq!(of("Crop", "crop_param { axis: 1 offset: [1, 0, 2] }"), crop(1, &[1, 0, 2]));
    assert_eq!(of("Tile", "tile_param { tiles: 3 }"), Layer::Tile(Tile { axis: 1, tiles: 3 }));
    assert_eq!(of("Tile", "tile_param { tiles: 1 axis: -1 }"), Layer::Tile(Tile { axis: -1, tiles: 1 }));
    let argmax = |out_max_val, top_k, axis| Layer::ArgMax(ArgMax { out_max_val, top_k, axis });
    assert_eq!(of("ArgMax", ""), argmax(false, 1, None));
    assert_eq!(
        of("ArgMax", "argmax_param { out_max_val: true top_k: 3 axis: -1 }"),
        argmax(true, 3, Some(-1))
    );
    assert_eq!(of("BatchReindex", ""), Layer::BatchReindex(BatchReindex));
    assert_eq!(of("Filter", ""), Layer::Filter(Filter { bottoms: 2 }));
    assert_eq!(of("Silence", ""), Layer::Silence(Silence { bottoms: 2 }));
}

#[test]
fn layers_for_sequences_and_for_what_stands_for_data() {
    let [weight_filler, bias_filler] = [Filler::default(), Filler::Constant(1.0)];
    let embed = Embed {
        num_output: 4,
        input_dim: 7,
        bias: true,
        weight_filler: weight_filler.clone(),
        bias_filler: weight_filler.clone(),
    };
    let text = |more: &str| format!("embed_param {{ num_output: 4 input_dim: 7 {more} }}");
    assert_eq!(of("Embed", &text("")), Layer::Embed(embed.clone()));
    assert_eq!(of("Embed", &text("bias_term: false")), Layer::Embed(Embed { bias: false, ..embed }));
    let recurrent = Recurrent {
        cell: Cell::Lstm,
        num_output: 5,
        expose_hidden: true,
        bottoms: 2,
        weight_filler,
        bias_filler,
    };
    assert_eq!(
        of(
            "LSTM",
            "recurrent_param { num_output: 5 expose_hidden: true debug_info: true bias_filler { value: 1 } }"
        ),
        Layer::Recurrent(recurrent.clone())
    );
    let rnn =
        Recurrent { cell: Cell::Rnn, expose_hidden: false, bias_filler: Filler::default(), ..recurrent };
    assert_eq!(of("RNN", "recurrent_param { num_output: 5 }"), Layer::Recurrent(rnn));
    let shape = vec![2, 3];
    assert_eq!(
        of("Parameter", "parameter_param { shape { dim: [2, 3] } }"),
        Layer::Parameter(Parameter { shape })
    );
    let dummy = |shapes: &[&[usize]], fillers: &[Filler]| {
        let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
        Layer::DummyData(DummyData { shapes, fillers: fillers.to_vec(), tops: 1 })
    };
    assert_eq!(of("DummyData", "dummy_data_param { shape { dim: [2, 3] } }"), dummy(&[&[2, 3]], &[]));
    assert_eq!(
        of(
            "DummyData",
            "dummy_data_param { num: 4 channels: 3 height: 2 width: 1 data_filler { type: \"xavier\" } }"
        ),
        dummy(&[&[4, 3, 2, 1]], &[Filler::Xavier(VarianceNorm::FanIn)])
    );
    let two = "layer { name: \"x\" type: \"DummyData\" top: \"c\" top: \"d\" dummy_data_param { num: 4 channels: [3, 5] \
               height: 2 width: 1 } }";
    let shapes = vec![vec![4, 3, 2, 1], vec![4, 5, 2, 1]];
    assert_eq!(parsed(two).remove(0).layer, Layer::DummyData(DummyData { shapes, fillers: vec![], tops: 2 }));
}

#[test]
fn a_pyramid_is_pooling_at_each_level_side_by_side() {
    let spp = |inside: &str| {
        format!(
            "layer {{ name: \"x\" type: \"Input\" top: \"x\" input_param {{ shape {{ dim: [2, 3, 9, 7] }} }} }}\n\
             layer {{ name: \"spp\" type: \"SPP\" bottom: \"x\" top: \"y\" spp_param {{ {inside} }} }}"
        )
    };
    let net = |inside: &str| {
        let spec = parse_net(spp(inside), "some.prototxt").unwrap();
        Net::build(&spec, &NetState::new(Phase::Test), 1.0).unwrap()
    };
    let whole = net("pyramid_height: 1");
    assert_eq!(whole.outputs().map(|b| whole.blob(b).shape.to_string()).collect::<Vec<_>>(), ["2x3x1x1"]);
    let three = net("pyramid_height: 3 pool: AVE engine: CAFFE");
    let shape = |name: &str| three.blobs.iter().find(|b| b.name == name).unwrap().shape.to_string();
    assert_eq!(["spp/level0", "spp/level1", "spp/level2"].map(shape), ["2x3x1x1", "2x3x2x2", "2x3x4x4"]);
    assert_eq!(three.outputs().map(|b| three.blob(b).shape.to_string()).collect::<Vec<_>>(), ["2x63"]);
    let level = parsed(&spp("pyramid_height: 2 pool: AVE")).remove(2).layer;
    assert!(matches!(level, Layer::Flatten(_)), "{level:?}");
    let level = parsed(&spp("pyramid_height: 2 pool: AVE")).remove(3).layer;
    assert_eq!(level, Layer::PyramidLevel(PyramidLevel { method: PoolMethod::Average, level: 1 }));
}

/// A type, what is in its message from the second line on, and line, field and part of the complaint.
const REFUSED: &[(&str, &str, u32, &str, &str)] = &[
    ("Deconvolution", "", 1, "convolution_param", "missing"),
    ("Deconvolution", "convolution_param { kernel_size: 3 }", 2, "convolution_param.num_output", "missing"),
    ("Deconvolution", "pooling_param { }", 2, "pooling_param", "this type reads convolution_param"),
    (
        "Deconvolution",
        "convolution_param { num_output: 1\n kernel_size: [3, 2] weight_filler { type: \"bilinear\" } }",
        3,
        "convolution_param.weight_filler.type",
        "square kernel, not 3x2",
    ),
    (
        "Im2col",
        "convolution_param {\n stride_w: 2 kernel_size: 3 }",
        2,
        "convolution_param.stride_h",
        "go together",
    ),
    ("Im2col", "", 1, "convolution_param", "missing"),
    ("SPP", "", 1, "spp_param.pyramid_height", "missing"),
    ("SPP", "spp_param {\n pyramid_height: 0 }", 3, "spp_param.pyramid_height", "expected 1 to 31"),
    ("SPP", "spp_param {\n pyramid_height: 4000000000 }", 3, "spp_param.pyramid_height", "expected 1 to 31"),
    ("SPP", "spp_param { pyramid_height: 2\n pool: STOCHASTIC }", 3, "spp_param.pool", "not supported yet"),
    ("Reshape", "reshape_param { shape {\n dim: -2 } }", 2, "reshape_param.shape", "-2; expected an extent"),
    ("Tile", "", 1, "tile_param.tiles", "missing"),
    ("Tile", "tile_param {\n tiles: -1 }", 3, "tile_param.tiles", "-1; expected at least 1"),
    ("Crop", "crop_param {\n offset: -1 }", 3, "crop_param.offset", "between 0 and"),
    ("BatchReindex", "crop_param { }", 2, "crop_param", "this type reads no parameters"),
    ("Embed", "", 1, "embed_param", "missing"),
    ("Embed", "embed_param { num_output: 3 }", 2, "embed_param.input_dim", "missing"),
    ("Embed", "embed_param { input_dim: 3 }", 2, "embed_param.num_output", "missing"),
    (
        "Embed",
        "embed_param { input_dim: 3 num_output: 3\n weight_filler { type: \"bilinear\" } }",
        3,
        "embed_param.weight_filler.type",
        "bilinear is for the weights of convolutions only",
    ),
    ("Parameter", "", 1, "parameter_param.shape", "missing"),
    ("Parameter", "parameter_param {\n shape { dim: -1 } }", 3, "parameter_param.shape", "-1; expected"),
    ("DummyData", "", 1, "dummy_data_param.shape", "missing"),
    ("DummyData", "dummy_data_param {\n num: 3 }", 2, "dummy_data_param.channels", "go together"),
    (
        "DummyData",
        "dummy_data_param { shape { dim: 1 }\n num: 3 }",
        3,
        "dummy_data_param.num",
        "conflicts with shape",
    ),
    (
        "DummyData",
        "dummy_data_param { shape { dim: 1 } data_filler {\n type: \"gausian\" } }",
        3,
        "dummy_data_param.data_filler.type",
        "did you mean \"gaussian\"?",
    ),
    (
        "LSTM",
        "recurrent_param { num_output: 3\n bias_filler { value: inf } }",
        3,
        "recurrent_param.bias_filler.value",
        "finite",
    ),
];

#[test]
fn what_cannot_be_is_refused() {
    for (kind, inside, line, field, says) in REFUSED {
        let text = format!("layer {{ name: \"x\" type: \"{kind}\" bottom: \"a\" top: \"c\"\n{inside} }}");
        let error = parse_net(&text, "some.prototxt").expect_err(&text);
        assert_eq!((error.line, error.field.as_str()), (*line, *field), "{text}\n{error}");
        assert!(error.to_string().contains(says), "{text}\n{error}");
    }
}

/// What follows an input of images; line, field and a part of the complaint of building the net.
const IMPOSSIBLE: &[(&str, u32, &str, &str)] = &[
    (
        "type: \"Convolution\" bottom: \"x\" top: \"y\"\n convolution_param { num_output: 1\n kernel_size: [3, 3, 3] }",
        4,
        "convolution_param.kernel_size",
        "3 given for a bottom with 2 axes behind the channels; expected 1 or 2 values",
    ),
    (
        "type: \"Deconvolution\" bottom: \"x\" top: \"y\"\n convolution_param { num_output: 1 kernel_size: 1\n pad: 9 }",
        4,
        "convolution_param.pad",
        "takes away all that the windows cover",
    ),
    (
        "type: \"SPP\" bottom: \"x\" top: \"y\"\n spp_param { pyramid_height: 5 }",
        3,
        "spp_param.pyramid_height",
        "cannot be cut into 2^2 windows",
    ),
    (
        "type: \"Reshape\" bottom: \"x\" top: \"y\"\n reshape_param { shape { dim: 5 } }",
        3,
        "reshape_param.shape",
        "write dim: -1",
    ),
    (
        "type: \"Crop\" bottom: \"x\" bottom: \"s\" top: \"y\"\n crop_param {\n offset: 5 }",
        4,
        "crop_param.offset",
        "do not lie in the 4 of axis 2",
    ),
    (
        "type: \"ArgMax\" bottom: \"x\" top: \"y\"\n argmax_param { top_k: 99 }",
        3,
        "argmax_param.top_k",
        "1 to 60",
    ),
    ("type: \"BatchReindex\" bottom: \"s\"\n bottom: \"x\" top: \"y\"", 2, "bottom", "expected one axis"),
    (
        "type: \"LSTM\" bottom: \"x\" bottom: \"s\" top: \"y\"",
        2,
        "recurrent_param.num_output",
        "expected at least 1",
    ),
    (
        "type: \"Filter\" bottom: \"x\" bottom: \"m\"\n top: \"y\" }\n layer { name: \"z\" type: \"ReLU\" bottom: \"y\" top: \"z\"",
        3,
        "top",
        "how many images a Filter lets through is known only when it runs",
    ),
    ("type: \"Silence\" bottom: \"x\"\n top: \"y\"", 3, "top", "1 given; a layer of type Silence has 0"),
];

#[test]
fn what_cannot_be_on_its_bottoms_is_refused() {
    for (layer, line, field, says) in IMPOSSIBLE {
        let text = format!(
            "layer {{ name: \"d\" type: \"Input\" top: \"x\" top: \"s\" top: \"m\" input_param {{ shape {{ dim: [2, 3, 4, 5] }} \
             shape {{ dim: [2, 3, 4, 5] }} shape {{ dim: 2 }} }} }}\nlayer {{ name: \"l\" {layer} }}"
        );
        let spec = parse_net(&text, "some.prototxt").unwrap_or_else(|error| panic!("{text}\n{error}"));
        let error = Net::build(&spec, &NetState::new(Phase::Test), 1.0).expect_err(&text);
        assert_eq!((error.line, error.field.as_str()), (*line, *field), "{text}\n{error}");
        assert!(error.to_string().contains(says), "{text}\n{error}");
    }
}
