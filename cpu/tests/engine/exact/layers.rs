//! The cases.

use quadrille_core::layer::{
    Accuracy, Convolution, Eltwise, EltwiseOperation, Filler, InnerProduct, Layer, Operand, PoolMethod,
    Pooling, Relu, Scale, Softmax, Split,
};

use crate::common::{convolution, inner_product, labels, options, tiers};
use crate::exact::bench::exact;
use crate::exact::case::Case;

/// Mini-batches: one image, fewer than threads, odd, and enough for several grains.
const BATCHES: [usize; 4] = [1, 2, 5, 64];

fn conv_cases(layer: &Convolution, [c, h, w]: [usize; 3]) -> Vec<Case> {
    let case = |layer: &Convolution, n: usize| Case::new(Layer::Convolution(layer.clone()), &[&[n, c, h, w]]);
    let rectified = case(&with_relu(layer), 5).zeros(HALF);
    BATCHES.into_iter().map(|n| case(layer, n)).chain([rectified]).collect()
}

/// Why many outputs of [`with_relu`] are 0.
const HALF: &str = "a ReLU lets only sums above 0 pass";

fn with_relu(layer: &Convolution) -> Convolution {
    Convolution { relu: true, ..layer.clone() }
}

/// A convolution whose top is as large as its bottom.
pub(super) fn same(out: usize, k: usize) -> Convolution {
    Convolution { pad: [k / 2; 2], ..convolution(out, [k; 2]) }
}

pub(super) fn strided(layer: Convolution) -> Convolution {
    Convolution { stride: [2, 2], ..layer }
}

#[test]
fn convolutions_of_awkward_shapes() {
    let rectangular = Convolution { pad: [2, 1], stride: [2, 1], ..convolution(5, [3, 4]) };
    let cases = [
        conv_cases(&convolution(3, [1, 1]), [7, 3, 5]),
        conv_cases(&convolution(1, [3, 3]), [1, 3, 3]),
        conv_cases(&convolution(17, [3, 3]), [3, 6, 5]),
        conv_cases(&Convolution { bias: false, ..convolution(7, [5, 5]) }, [1, 9, 8]),
        conv_cases(&Convolution { pad: [1, 1], ..convolution(4, [3, 3]) }, [5, 4, 4]),
        conv_cases(&rectangular, [3, 7, 9]),
        conv_cases(&Convolution { stride: [2, 2], pad: [1, 2], ..convolution(6, [3, 5]) }, [2, 8, 7]),
        conv_cases(&Convolution { dilation: [2, 3], pad: [2, 3], ..convolution(3, [3, 3]) }, [2, 8, 9]),
        conv_cases(&Convolution { group: 3, pad: [1, 0], ..convolution(6, [3, 2]) }, [9, 5, 4]),
        conv_cases(&Convolution { group: 5, ..convolution(5, [2, 2]) }, [5, 4, 3]),
        // Padding larger than the kernel: whole windows see nothing but padding.
        conv_cases(&Convolution { pad: [3, 2], ..convolution(4, [2, 1]) }, [2, 4, 5]),
        // A kernel as large as the image: one output.
        conv_cases(&convolution(15, [4, 5]), [3, 4, 5]),
        // Odd sizes around the vectors and register tiles of all tiers.
        conv_cases(&convolution(13, [1, 3]), [2, 2, 35]),
        conv_cases(&convolution(33, [2, 2]), [3, 5, 5]),
    ];
    exact("convolutions", &cases.into_iter().flatten().collect::<Vec<_>>());
}

#[test]
fn convolutions_of_images() {
    let of = |n: usize, layer: &Convolution, [c, h, w]: [usize; 3]| {
        Case::of_images(Layer::Convolution(layer.clone()), &[n, c, h, w])
    };
    let layers = [
        (Convolution { stride: [4, 4], ..convolution(24, [11, 11]) }, [3, 43, 39]),
        (Convolution { stride: [2, 2], pad: [3, 3], bias: false, ..convolution(16, [7, 7]) }, [3, 21, 33]),
        (Convolution { pad: [1, 1], ..convolution(35, [3, 3]) }, [3, 17, 18]),
        (convolution(20, [5, 5]), [1, 28, 28]),
        // Rows of several vectors of tiles, and images of one, two and four channels.
        (same(19, 3), [1, 5, 70]),
        (Convolution { pad: [0, 2], ..convolution(9, [3, 3]) }, [2, 6, 31]),
        (Convolution { bias: false, ..same(32, 5) }, [3, 32, 32]),
        (Convolution { pad: [4, 0], ..convolution(18, [5, 5]) }, [4, 8, 72]),
        (Convolution { pad: [2, 2], dilation: [2, 1], ..convolution(7, [3, 5]) }, [4, 9, 31]),
        (Convolution { group: 3, ..convolution(48, [2, 2]) }, [3, 6, 6]),
    ];
    let cases = BATCHES.into_iter().flat_map(|n| layers.iter().map(move |(l, shape)| of(n, l, *shape)));
    let rectified = layers.iter().map(|(layer, shape)| of(2, &with_relu(layer), *shape).zeros(HALF));
    exact("convolutions of images", &cases.chain(rectified).collect::<Vec<_>>());
}

/// Shapes of the networks: whole blocks, odd channel counts, groups that begin at blocks, strides with gradients.
#[test]
fn convolutions_of_blocks() {
    let layers = [
        (same(64, 3), [32, 14, 14]),
        (same(16, 3), [48, 7, 7]),
        (same(50, 5), [20, 8, 8]),
        (same(48, 5), [24, 13, 13]),
        // The top has so many fewer tiles that ∇A goes over these, which overlap.
        (convolution(50, [5, 5]), [20, 12, 12]),
        (Convolution { pad: [1, 0], ..convolution(24, [5, 5]) }, [16, 9, 10]),
        (Convolution { group: 2, ..convolution(64, [3, 3]) }, [64, 6, 6]),
        (same(96, 1), [64, 7, 7]),
        (same(40, 1), [33, 20, 21]),
        (strided(same(32, 3)), [32, 15, 14]),
        (strided(same(64, 1)), [32, 14, 14]),
        (strided(same(16, 7)), [16, 12, 9]),
        (Convolution { group: 2, ..same(64, 5) }, [32, 9, 9]),
        (Convolution { group: 2, stride: [3, 2], ..same(32, 3) }, [64, 9, 10]),
        (Convolution { pad: [0, 3], ..convolution(32, [1, 7]) }, [32, 17, 17]),
        (Convolution { pad: [3, 0], ..convolution(32, [7, 1]) }, [32, 17, 17]),
        (Convolution { dilation: [2, 2], pad: [2, 2], ..convolution(32, [3, 3]) }, [32, 10, 30]),
    ];
    let case = |n: usize, layer: &Convolution, [c, h, w]: [usize; 3]| {
        let case = Case::new(Layer::Convolution(layer.clone()), &[&[n, c, h, w]]);
        let skips = layer.kernel < layer.stride;
        if skips { case.zeros("most pixels are seen by no tap") } else { case }
    };
    let cases = [1, 3].into_iter().flat_map(|n| layers.iter().map(move |(l, s)| case(n, l, *s)));
    let rectified = layers.iter().map(|(layer, shape)| case(2, &with_relu(layer), *shape).zeros(HALF));
    exact("convolutions of blocks", &cases.chain(rectified).collect::<Vec<_>>());
}

/// So many weights between few targets that several grains pack each tile, and turn it back, of every way and direction.
#[test]
fn convolutions_whose_tiles_several_grains_pack() {
    let layers = [
        (same(20, 1), [2111, 3, 3]),
        (same(2111, 1), [20, 3, 3]),
        (same(20, 3), [300, 7, 6]),
        (same(300, 3), [20, 7, 6]),
        (same(20, 5), [150, 7, 6]),
        (strided(same(20, 3)), [300, 7, 6]),
        (strided(same(300, 3)), [20, 7, 6]),
        (Convolution { group: 2, ..same(40, 3) }, [600, 4, 4]),
    ];
    let case = |(layer, [c, h, w]): &(Convolution, [usize; 3])| {
        Case::new(Layer::Convolution(layer.clone()), &[&[2, *c, *h, *w]])
    };
    exact("convolutions of many weights", &layers.iter().map(case).collect::<Vec<_>>());
}

/// So many images that gradients of weights copy what they read, of a layer whose blobs are copied, too, and which leaves pixels out:
/// as many stages as there are.
#[test]
fn strided_convolutions_whose_images_are_shared_out() {
    let layer = Convolution { stride: [2, 2], ..convolution(256, [1, 1]) };
    let case = Case::new(Layer::Convolution(layer), &[&[8, 64, 14, 14]]);
    exact("strided convolutions of many images", &[case.zeros("most pixels are seen by no tap")]);
}

/// Kernels and strides at every remainder: windows that overlap, touch or stand apart, and rows and columns behind the last that no
/// window sees. Channels of two blocks, so that what is read or written outside of one is seen in the other.
#[test]
fn windows_of_every_distance() {
    let layers = [2, 3, 4, 5].into_iter().flat_map(|kernel| {
        let strides = (2..=4).flat_map(move |stride| [0, 1].map(|pad| [stride, pad]));
        strides.map(move |[stride, pad]| Convolution {
            stride: [stride; 2],
            pad: [pad; 2],
            ..convolution(32, [kernel; 2])
        })
    });
    let of = |layer: Convolution| {
        [[7, 8], [9, 10], [10, 7]].map(|[height, width]| {
            let case = Case::new(Layer::Convolution(layer.clone()), &[&[2, 40, height, width]]);
            case.zeros("pixels that no window sees have no gradient")
        })
    };
    exact("windows of every distance", &layers.flat_map(of).collect::<Vec<_>>());
}

#[test]
fn a_stride_larger_than_the_kernel_leaves_pixels_out() {
    let layer = Convolution { stride: [3, 2], ..convolution(4, [1, 1]) };
    let beyond = Convolution { stride: [100_000, 1_000_000], ..convolution(32, [3, 3]) };
    let cases = conv_cases(&layer, [3, 7, 6]).into_iter().chain(conv_cases(&beyond, [16, 6, 5]));
    let why = "pixels between the windows have no gradient";
    exact("strided convolutions", &cases.map(|c| c.zeros(why)).collect::<Vec<_>>());
}

#[test]
fn taps_that_only_meet_padding() {
    let cases = conv_cases(&Convolution { pad: [1, 1], ..convolution(15, [5, 6]) }, [3, 3, 4]);
    let why = "the outer taps of a kernel as large as the padded image have no gradient";
    exact("padded convolutions", &cases.into_iter().map(|c| c.zeros(why)).collect::<Vec<_>>());
}

/// Enough work that every tier cuts it into several grains, and images that these do not divide.
#[test]
fn convolutions_of_several_grains() {
    let grouped = Convolution { group: 2, pad: [1, 1], ..convolution(32, [3, 3]) };
    let cases = [
        Case::new(Layer::Convolution(convolution(16, [5, 5])), &[&[61, 8, 12, 12]]),
        Case::new(Layer::Convolution(grouped), &[&[23, 16, 13, 11]]),
    ];
    exact("large convolutions", &cases);
}

/// More than a second-level cache holds of one image, so that gradients of weights see it in bands of rows.
#[test]
fn convolutions_in_bands_of_rows() {
    let large = Convolution { pad: [1, 1], ..convolution(4, [3, 3]) };
    let image = Convolution { stride: [2, 2], pad: [3, 3], ..convolution(4, [7, 7]) };
    let cases = [
        Case::new(Layer::Convolution(large), &[&[1, 64, 122, 71]]),
        Case::of_images(Layer::Convolution(image), &[1, 3, 230, 230]),
    ];
    exact("convolutions in bands", &cases);
}

#[test]
fn inner_products() {
    let mut cases = Vec::new();
    for n in BATCHES {
        for (outputs, dims) in [(1, [n, 3, 2, 2]), (10, [n, 5, 3, 1]), (17, [n, 1, 1, 1]), (33, [n, 7, 5, 3])]
        {
            for transpose in [false, true] {
                let layer = InnerProduct { transpose, ..inner_product(outputs) };
                cases.push(Case::new(Layer::InnerProduct(layer), &[&dims]));
            }
        }
        for axis in [0, 2, -1] {
            let layer = InnerProduct { axis, bias: axis != 2, ..inner_product(6) };
            cases.push(Case::new(Layer::InnerProduct(layer), &[&[n, 3, 4]]));
        }
    }
    exact("inner products", &cases);
}

/// Few images with rows, and columns, of several pieces: none of them, nor the outputs, is a multiple of what is worked on together.
#[test]
fn inner_products_of_few_images() {
    let case = |n, k, outputs| Case::new(Layer::InnerProduct(inner_product(outputs)), &[&[n, k]]);
    let mut cases = vec![case(7, 2500, 37), case(4, 1300, 34)];
    cases.extend([1, 3, 4, 5, 6, 8].map(|n| case(n, 70, 19)));
    exact("inner products of few images", &cases);
}

/// Depths beyond a packed block, and outputs that the grains do not divide.
#[test]
fn inner_products_of_several_grains() {
    let case = |transpose, n, k, outputs| {
        let layer = InnerProduct { transpose, ..inner_product(outputs) };
        Case::new(Layer::InnerProduct(layer), &[&[n, k]])
    };
    exact(
        "large inner products",
        &[case(false, 64, 530, 270), case(true, 37, 601, 299), case(false, 3, 9, 700)],
    );
}

/// So many more outputs than images that each half of the rows, of which one has an odd number, has sums of ∇A of its own.
#[test]
fn inner_products_of_rows_in_parts() {
    let case = |n, k, outputs| Case::new(Layer::InnerProduct(inner_product(outputs)), &[&[n, k]]);
    exact("rows in parts", &[case(20, 300, 131), case(20, 1500, 302)]);
}

/// Inputs of which one grain has a tile less than another: that is cut into fewer blocks, and so into larger ones.
#[test]
fn inner_products_whose_grains_are_cut_unlike() {
    let case = |n, k, outputs| Case::new(Layer::InnerProduct(inner_product(outputs)), &[&[n, k]]);
    exact("unlike blocks of inputs", &[case(64, 720, 64), case(32, 1500, 100)]);
}

pub(super) fn pooling(
    method: PoolMethod,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
) -> Pooling {
    Pooling { method, kernel: Some(kernel), pad, stride }
}

/// The least common multiple of all divisors of an average, so that shares of multiples of it are integers.
pub(super) fn divisors(layer: &Pooling, input: [usize; 2]) -> f32 {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let (kernel, output) = (layer.kernel_over(input), layer.output(input).expect("possible"));
    let mut multiple = 1;
    for y in 0..output[0] {
        for x in 0..output[1] {
            let rows = layer.window(0, y, kernel[0], input[0]).counted;
            let divisor = rows * layer.window(1, x, kernel[1], input[1]).counted;
            multiple *= divisor / gcd(multiple, divisor);
        }
    }
    multiple as f32
}

fn pool_cases(layer: &Pooling, [c, h, w]: [usize; 3]) -> Vec<Case> {
    let case = |n: usize| {
        let case = Case::new(Layer::Pooling(layer.clone()), &[&[n, c, h, w]]);
        match layer.method {
            PoolMethod::Max => case.zeros("all but the maxima have no gradient"),
            PoolMethod::Average => case.scaled(divisors(layer, [h, w])),
        }
    };
    BATCHES.into_iter().map(case).collect()
}

#[test]
fn poolings_with_borders() {
    let mut cases = Vec::new();
    for method in [PoolMethod::Max, PoolMethod::Average] {
        let pool = |kernel, stride, pad| pooling(method, kernel, stride, pad);
        cases.extend(pool_cases(&pool([2, 2], [2, 2], [0, 0]), [5, 6, 4]));
        cases.extend(pool_cases(&pool([3, 3], [2, 2], [0, 0]), [3, 8, 8]));
        cases.extend(pool_cases(&pool([3, 3], [1, 1], [1, 1]), [2, 5, 7]));
        cases.extend(pool_cases(&pool([3, 3], [2, 2], [1, 1]), [4, 4, 6]));
        cases.extend(pool_cases(&pool([2, 3], [2, 1], [1, 2]), [3, 5, 6]));
        cases.extend(pool_cases(&pool([1, 1], [1, 1], [0, 0]), [3, 2, 9]));
        let global = Pooling { kernel: None, ..pool([1, 1], [1, 1], [0, 0]) };
        cases.extend(pool_cases(&global, [7, 5, 3]));
    }
    exact("poolings", &cases);
}

#[test]
fn poolings_of_several_grains() {
    let max =
        Case::new(Layer::Pooling(pooling(PoolMethod::Max, [3, 3], [2, 2], [0, 0])), &[&[13, 11, 21, 21]]);
    let average = pooling(PoolMethod::Average, [2, 2], [2, 2], [0, 0]);
    let average = Case::new(Layer::Pooling(average), &[&[7, 5, 40, 40]]).scaled(4.0);
    exact("large poolings", &[max.zeros("all but the maxima have no gradient"), average]);
}

#[test]
fn relus_in_place_and_not() {
    let why = "what is negative";
    let mut cases = Vec::new();
    // A slope of a power of two keeps integers exact; a negative slope cannot work in place.
    for slope in [0.0, 0.25, -0.5] {
        let layer = || Layer::Relu(Relu { negative_slope: slope, applied: false });
        for dims in [&[1, 1][..], &[2, 3, 5], &[5, 17], &[64, 20, 13, 3]] {
            cases.push(Case::new(layer(), &[dims]).zeros(why));
            if slope >= 0.0 {
                cases.push(Case::in_place(layer(), dims).zeros(why));
            }
        }
        for n in BATCHES {
            cases.push(Case::blocked(layer(), &[&[n, 20, 5, 7]]).zeros(why));
        }
    }
    exact("ReLU", &cases);
}

#[test]
fn splits_add_their_readers() {
    let mut cases = Vec::new();
    for tops in [2, 3] {
        for dims in [&[1, 1][..], &[5, 3, 7], &[64, 9, 11, 7]] {
            // Sums of two nonzero integers are 0 too often in an array of one.
            let why = "gradients of opposite sign";
            cases.push(Case::new(Layer::Split(Split { tops }), &[dims]).zeros(why));
        }
        cases.push(Case::blocked(Layer::Split(Split { tops }), &[&[3, 20, 5, 7]]).zeros("opposite signs"));
    }
    exact("splits", &cases);
}

/// Backward of a softmax reads its top and no exponential: on an integer top it is exact.
#[test]
fn gradients_of_a_softmax() {
    for isa in tiers("gradients of a softmax") {
        for threads in [1, 2, 3] {
            for (axis, dims) in [(1, &[1, 10][..]), (1, &[5, 3, 4]), (-1, &[7, 2, 17]), (1, &[64, 300])] {
                let case = Case::new(Layer::Softmax(Softmax { axis }), &[dims]);
                let mut arrays = case.integers();
                let count = case.bottoms[0].count();
                arrays.insert(Operand::Top(0), crate::common::integers(7, count, 4));
                let found = crate::exact::bench::run(&case, &options(isa), threads, &arrays);
                let mut expected = arrays.clone();
                case.backward(&mut expected);
                let grad = Operand::BottomGrad(0);
                let how = format!("grad-activation of {case}, {isa}, {threads} threads");
                assert_eq!(expected.get(grad), found.get(grad), "{how}");
            }
        }
    }
}

#[test]
fn accuracies() {
    for isa in tiers("accuracies") {
        for threads in [1, 2, 3] {
            for (top_k, ignore_label) in [(1, None), (3, None), (1, Some(2)), (2, Some(-1))] {
                for (axis, dims) in [(1, &[1, 10][..]), (1, &[64, 5, 3]), (-1, &[5, 3, 7])] {
                    let layer = Accuracy { top_k, axis, ignore_label };
                    let classes = dims[if axis < 0 { dims.len() - 1 } else { axis as usize }];
                    let count = dims.iter().product::<usize>() / classes;
                    let case = Case::new(Layer::Accuracy(layer), &[dims, &[count]]);
                    let mut arrays = case.integers();
                    arrays.insert(Operand::Bottom(1), labels(3, count, classes));
                    let found = crate::exact::bench::run(&case, &options(isa), threads, &arrays);
                    case.reference(&mut arrays);
                    for top in [0, 1].map(Operand::Top) {
                        assert_eq!(
                            arrays.get(top),
                            found.get(top),
                            "forward of {case}, {isa}, {threads} threads"
                        );
                    }
                }
            }
        }
    }
}

/// Channel counts around the blocks of all tiers.
const CHANNELS: [usize; 5] = [3, 16, 20, 33, 64];

#[test]
fn scales() {
    let scale = |bottoms, axis, num_axes, bias| {
        let (filler, bias_filler) = (Filler::Constant(1.0), Filler::default());
        Layer::Scale(Scale { bottoms, axis, num_axes, bias, filler, bias_filler })
    };
    let mut cases = Vec::new();
    for n in BATCHES {
        for bias in [false, true] {
            let x = &[n, 3, 5, 7][..];
            cases.push(Case::new(scale(1, 2, -1, bias), &[x]));
            cases.push(Case::new(scale(1, 0, 2, bias), &[x]));
            cases.push(Case::new(scale(1, -1, 0, bias), &[x]));
            cases.push(Case::new(scale(2, 0, 1, bias), &[x, &[n, 3]]));
            for c in CHANNELS {
                cases.extend(Case::everywhere(scale(1, 1, 1, bias), &[n, c, 5, 7]));
                cases.extend(Case::everywhere(scale(1, 1, 1, bias), &[n, c]));
            }
        }
    }
    // More than a piece of a plane, and a plane of several grains.
    cases.extend(Case::everywhere(scale(1, 1, 1, true), &[2, 20, 50, 49]));
    exact("scales", &cases);
}

#[test]
fn operations_on_elements() {
    let sum =
        |coefficients: &[f32]| EltwiseOperation::Sum { coefficients: coefficients.to_vec(), relu: false };
    let rectified =
        |coefficients: &[f32]| EltwiseOperation::Sum { coefficients: coefficients.to_vec(), relu: true };
    let product = |stable_gradient| EltwiseOperation::Product { stable_gradient };
    let opposite = "integers of both signs add up to 0";
    let largest = "only the bottom of a maximum has a gradient";
    let operations = [
        (2, sum(&[]), Some(opposite)),
        (3, sum(&[1.0, -2.0, 3.0]), Some(opposite)),
        (2, rectified(&[]), Some(opposite)),
        (3, rectified(&[1.0, -2.0, 3.0]), Some(opposite)),
        (2, product(true), None),
        (3, product(true), None),
        (2, product(false), None),
        (2, EltwiseOperation::Max, Some(largest)),
        (4, EltwiseOperation::Max, Some(largest)),
    ];
    let mut cases = Vec::new();
    for (bottoms, operation, zeros) in operations {
        let layer = Layer::Eltwise(Eltwise { bottoms, operation });
        let case = |shape: &[usize], blocked: bool| {
            let shapes: Vec<&[usize]> = vec![shape; bottoms];
            let make = if blocked { Case::blocked } else { Case::new };
            let case = make(layer.clone(), &shapes);
            if let Some(why) = zeros { case.zeros(why) } else { case }
        };
        for n in BATCHES {
            cases.extend([case(&[n, 3, 5, 2], false), case(&[n, 20, 5, 2], true), case(&[n, 7], false)]);
        }
        cases.extend([case(&[3, 33, 17, 31], false), case(&[3, 33, 17, 31], true)]);
    }
    exact("operations on elements", &cases);
}
