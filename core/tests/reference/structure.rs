//! Layers that arrange, look up or make up values, and convolutions over any number of axes: examples worked by hand,
//! Caffe's rules, and gradients.

use quadrille_core::layer::{
    ArgMax, BatchReindex, ConvolutionNd, Crop, DummyData, Embed, Filler, Filter, Im2col, Layer, NewExtent,
    Operand, Parameter, Reshape, Silence, SubTask, Tile, Windows,
};
use quadrille_core::reference::Arrays;
use quadrille_core::rng::Draw;

use crate::case::{Case, convolution, labels};

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
fn deconvolution_spreads_each_value_over_its_window() {
    let layer = convolved(true, 1, windows(&[2], &[0], &[2], &[1]));
    let case = Case::new(Layer::ConvolutionNd(layer.clone()), &[&[1, 1, 1, 2]]);
    let y: Vec<f64> = case.forward(&[&[1.0, 10.0]], &[&[1.0, 2.0, 3.0, 4.0], &[0.5]]);
    assert_eq!(y, [1.5, 2.5, 10.5, 20.5, 3.5, 4.5, 30.5, 40.5]);
    // Windows that overlap add up; padding takes away the border.
    let layer = ConvolutionNd { windows: windows(&[1, 3], &[0, 1], &[1, 1], &[1, 1]), bias: false, ..layer };
    let case = Case::new(Layer::ConvolutionNd(layer), &[&[1, 1, 1, 2]]);
    let y: Vec<f64> = case.forward(&[&[1.0, 10.0]], &[&[1.0, 2.0, 3.0]]);
    assert_eq!(y, [12.0, 23.0]);
}

/// A convolution over two axes is the convolution of images; a deconvolution's forward is its ∇A and the other way round.
#[test]
fn convolutions_over_two_axes_are_those_of_images() {
    let (w, group) = (windows(&[3, 2], &[2, 1], &[2, 1], &[1, 2]), 2);
    let nd = |transposed, num_output| ConvolutionNd { group, ..convolved(transposed, num_output, w.clone()) };
    let mut image = convolution(6, [3, 2]);
    (image.pad, image.stride, image.dilation, image.group) = ([2, 1], [2, 1], [1, 2], group);
    let bottom: &[usize] = &[2, 4, 5, 5];
    let there = Case::new(Layer::ConvolutionNd(nd(false, 6)), &[bottom]);
    let images = Case::new(Layer::Convolution(image), &[bottom]);
    assert_eq!(there.tops, images.tops);
    let mut expected = images.random(1, &[]);
    expected.insert(Operand::TopGrad(0), crate::case::distinct(9, images.tops[0].count()));
    let mut found = expected.clone();
    for sub in [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight, SubTask::GradBias] {
        images.run(sub, &mut expected);
        there.run(sub, &mut found);
    }
    for operand in [Operand::Top(0), Operand::BottomGrad(0), Operand::ParamGrad(0), Operand::ParamGrad(1)] {
        assert_eq!(expected.get(operand), found.get(operand), "{operand:?}");
    }
    let back = ConvolutionNd { bias: false, ..nd(true, 4) };
    let back = Case::new(Layer::ConvolutionNd(back), &[there.tops[0].dims()]);
    assert_eq!(back.tops, there.bottoms);
    let y: Vec<f64> = back.forward(&[found.get(Operand::TopGrad(0))], &[found.get(Operand::Param(0))]);
    assert_eq!(y, found.get(Operand::BottomGrad(0)));
}

#[test]
fn convolutions_over_any_number_of_axes_have_the_gradients_of_their_forward() {
    let cases: [(ConvolutionNd, &[usize]); 12] = [
        (convolved(false, 3, windows(&[3, 2, 3], &[1], &[1, 2, 1], &[1])), &[2, 2, 4, 5, 3]),
        (convolved(false, 2, windows(&[2], &[1], &[2], &[2])), &[2, 3, 7]),
        (convolved(false, 2, windows(&[1], &[0], &[1], &[1])), &[3, 4]),
        (ConvolutionNd { axis: 2, ..convolved(false, 2, windows(&[2], &[0], &[1], &[1])) }, &[2, 2, 3, 4]),
        (ConvolutionNd { axis: 0, ..convolved(false, 4, windows(&[2], &[0], &[1], &[1])) }, &[2, 3, 4]),
        (convolved(true, 2, windows(&[4], &[1], &[2], &[1])), &[2, 3, 3, 4]),
        (convolved(true, 3, windows(&[3], &[1], &[1], &[2])), &[2, 2, 4, 3]),
        (ConvolutionNd { bias: false, ..convolved(true, 2, windows(&[2], &[0], &[3], &[1])) }, &[2, 3, 3, 3]),
        (
            ConvolutionNd { group: 3, ..convolved(true, 6, windows(&[2, 3], &[0, 1], &[1, 2], &[1])) },
            &[2, 3, 4, 3],
        ),
        (convolved(true, 5, windows(&[1], &[0], &[1], &[1])), &[2, 3, 4, 5]),
        (convolved(true, 2, windows(&[2, 1, 3], &[0, 0, 1], &[2, 1, 1], &[1])), &[1, 2, 2, 3, 3]),
        (ConvolutionNd { axis: -1, ..convolved(true, 3, windows(&[1], &[0], &[1], &[1])) }, &[2, 3, 4]),
    ];
    for (seed, (layer, bottom)) in cases.into_iter().enumerate() {
        Case::new(Layer::ConvolutionNd(layer), &[bottom]).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn im2col_puts_taps_into_channels() {
    let layer = Im2col { windows: windows(&[1, 2], &[0, 1], &[1, 1], &[1]), axis: 1 };
    let case = Case::new(Layer::Im2col(layer), &[&[1, 2, 1, 2]]);
    let y: Vec<f64> = case.forward(&[&[1.0, 2.0, 3.0, 4.0]], &[]);
    assert_eq!(y, [0.0, 1.0, 2.0, 1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 3.0, 4.0, 0.0]);
    let layer = Im2col { windows: windows(&[2, 3], &[1, 0], &[2, 1], &[1, 2]), axis: 1 };
    Case::new(Layer::Im2col(layer), &[&[2, 3, 4, 6]]).check_gradients(1, &[], 0.0);
    let layer = Im2col { windows: windows(&[2], &[0], &[1], &[1]), axis: 2 };
    Case::new(Layer::Im2col(layer), &[&[2, 3, 2, 4]]).check_gradients(2, &[], 0.0);
}

#[test]
fn a_reshape_hands_gradients_down_as_they_are() {
    let layer = Reshape { extents: vec![NewExtent::Of(4), NewExtent::Inferred], axis: 1, num_axes: -1 };
    Case::new(Layer::Reshape(layer), &[&[2, 3, 4]]).check_gradients(1, &[], 0.0);
}

#[test]
fn a_crop_takes_what_lies_behind_its_offsets() {
    let crop = |axis, offsets: &[usize]| Layer::Crop(Crop { axis, offsets: offsets.to_vec() });
    let case = Case::new(crop(-1, &[1]), &[&[2, 3], &[1, 2]]);
    let y: Vec<f64> = case.forward(&[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[9.0; 2]], &[]);
    assert_eq!(y, [2.0, 3.0, 5.0, 6.0]);
    for (seed, (axis, offsets, like)) in [
        (2, &[1, 2][..], [2, 3, 2, 2]),
        (1, &[1, 0, 2], [1, 2, 3, 2]),
        (0, &[0], [1, 3, 4, 5]),
        (2, &[], [9, 9, 1, 5]),
    ]
    .into_iter()
    .enumerate()
    {
        // Only the extents of the second bottom count.
        Case::new(crop(axis, offsets), &[&[2, 3, 4, 5], &like]).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn a_tile_repeats_an_axis() {
    let case = Case::new(Layer::Tile(Tile { axis: 0, tiles: 2 }), &[&[1, 2]]);
    assert_eq!(case.forward::<f64>(&[&[1.0, 2.0]], &[]), [1.0, 2.0, 1.0, 2.0]);
    let case = Case::new(Layer::Tile(Tile { axis: 0, tiles: 2 }), &[&[2, 1]]);
    assert_eq!(case.forward::<f64>(&[&[1.0, 2.0]], &[]), [1.0, 2.0, 1.0, 2.0]);
    let case = Case::new(Layer::Tile(Tile { axis: 1, tiles: 2 }), &[&[2, 1]]);
    assert_eq!(case.forward::<f64>(&[&[1.0, 2.0]], &[]), [1.0, 1.0, 2.0, 2.0]);
    for (seed, axis) in [0, 1, 2, -1].into_iter().enumerate() {
        Case::new(Layer::Tile(Tile { axis, tiles: 3 }), &[&[2, 3, 4]]).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn images_are_reindexed_and_their_gradients_add_up() {
    let case = Case::new(Layer::BatchReindex(BatchReindex), &[&[3, 2], &[4]]);
    let x: [f64; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(case.forward(&[&x, &[2.0, 0.0, 0.9, 2.0]], &[]), [5.0, 6.0, 1.0, 2.0, 1.0, 2.0, 5.0, 6.0]);
    let y = case.forward(&[&x, &[0.0, 3.0, -1.0, f64::NAN]], &[]);
    assert!(y[..2] == x[..2] && y[2..].iter().all(|y| y.is_nan()), "{y:?}");
    let case = Case::new(Layer::BatchReindex(BatchReindex), &[&[4, 3, 2], &[6]]);
    case.check_gradients(1, &[3.0, 0.0, 3.0, 1.0, 3.0, 0.0], 0.0);
}

#[test]
fn a_filter_moves_marked_images_to_the_front() {
    let case = Case::new(Layer::Filter(Filter { bottoms: 3 }), &[&[4, 2], &[4], &[4, 1]]);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    arrays.insert(Operand::Bottom(1), vec![0.1, 0.2, 0.3, 0.4]);
    arrays.insert(Operand::Bottom(2), vec![0.0, -1.0, 0.0, 0.5]);
    case.run::<f64>(SubTask::Forward, &mut arrays);
    assert_eq!(arrays.get(Operand::Top(0)), [3.0, 4.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(arrays.get(Operand::Top(1)), [0.2, 0.4, 0.0, 0.0]);
}

#[test]
fn argmax_prefers_the_larger_place_of_equal_values() {
    let argmax = |out_max_val, top_k, axis, dims: &[usize], x: &[f64]| {
        Case::new(Layer::ArgMax(ArgMax { out_max_val, top_k, axis }), &[dims]).forward(&[x], &[])
    };
    let x = [3.0, 7.0, 7.0, 1.0, 5.0, 5.0, 5.0, 9.0];
    assert_eq!(argmax(false, 3, None, &[2, 4], &x), [2.0, 1.0, 0.0, 3.0, 2.0, 1.0]);
    assert_eq!(argmax(true, 2, None, &[2, 2, 2], &x), [2.0, 1.0, 7.0, 7.0, 3.0, 2.0, 9.0, 5.0]);
    assert_eq!(argmax(false, 2, Some(0), &[4, 2], &x), [1.0, 3.0, 3.0, 0.0]);
    assert_eq!(argmax(true, 1, Some(-1), &[4, 2], &x), [7.0, 7.0, 5.0, 9.0]);
    let some = argmax(false, 3, None, &[1, 3], &[f64::NAN, 1.0, 2.0]);
    assert!(some[..2] == [2.0, 1.0] && some[2].is_nan(), "{some:?}");
}

#[test]
fn embed_looks_rows_up() {
    let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
    let embed = |bias| {
        let (num_output, input_dim) = (2, 3);
        let [weight_filler, bias_filler] = [&weight_filler, &bias_filler].map(Filler::clone);
        Layer::Embed(Embed { num_output, input_dim, bias, weight_filler, bias_filler })
    };
    let w: [f64; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let y = Case::new(embed(true), &[&[2]]).forward(&[&[2.0, 0.0]], &[&w, &[0.5, -0.5]]);
    assert_eq!(y, [5.5, 5.5, 1.5, 1.5]);
    let y = Case::new(embed(false), &[&[2]]).forward(&[&[3.0, 1.0]], &[&w]);
    assert!(y[..2].iter().all(|y| y.is_nan()) && y[2..] == w[2..4], "{y:?}");
    for bias in [false, true] {
        Case::new(embed(bias), &[&[4, 3]]).check_gradients(1, &labels(2, 12, 3), 0.0);
    }
}

#[test]
fn a_parameter_is_its_top() {
    let case = Case::new(Layer::Parameter(Parameter { shape: vec![2, 3] }), &[]);
    let w: [f64; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(case.forward(&[], &[&w]), w);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::TopGrad(0), w.to_vec());
    case.run(SubTask::GradWeight, &mut arrays);
    assert_eq!(arrays.get(Operand::ParamGrad(0)), w);
}

#[test]
fn dummy_data_is_what_its_fillers_make() {
    let fillers = vec![Filler::Constant(2.5), Filler::Uniform { min: 1.0, max: 2.0 }];
    let layer = Layer::DummyData(DummyData { shapes: vec![vec![2], vec![3, 40]], fillers, tops: 2 });
    let run = |seed| {
        let case = Case { draw: Draw { seed, ..Draw::default() }, ..Case::new(layer.clone(), &[]) };
        let mut arrays = Arrays::<f64>::new();
        case.run(SubTask::Forward, &mut arrays);
        arrays
    };
    let (first, second) = (run(1), run(2));
    assert_eq!(first.get(Operand::Top(0)), [2.5; 2]);
    assert!(first.get(Operand::Top(1)).iter().all(|v| (1.0..2.0).contains(v)));
    assert_ne!(first.get(Operand::Top(1)), second.get(Operand::Top(1)));
    assert_eq!(first, run(1));
}

#[test]
fn nothing_flows_back_from_a_silence() {
    let case = Case::new(Layer::Silence(Silence { bottoms: 2 }), &[&[2], &[3]]);
    assert!(case.tops.is_empty() && case.layer.accesses(SubTask::Forward).is_none());
    let mut arrays = Arrays::<f64>::new();
    case.run(SubTask::GradActivation, &mut arrays);
    assert_eq!(
        (arrays.get(Operand::BottomGrad(0)), arrays.get(Operand::BottomGrad(1))),
        (&[0.0; 2][..], &[0.0; 3][..])
    );
}
