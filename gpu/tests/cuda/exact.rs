//! On small integers all sums are exact: tolerance 0.

use quadrille_core::layer::{
    Accuracy, Bias, Concat, ContrastiveLoss, Convolution, Dropout, Eltwise, EltwiseOperation, EuclideanLoss,
    Filler, Flatten, InnerProduct, Layer, Neuron, Operand, PoolMethod, Pooling, Relu, Scale, Slice, Softmax,
    Split,
};
use quadrille_core::solver::Rule;

use crate::bench::{exact, exact_on, run};
use crate::case::Case;
use crate::common::{convolution, gpu, inner_product, integers, labels, own};

/// Mini-batches: one image, odd, and more than a block of threads has.
const BATCHES: [usize; 3] = [1, 5, 64];

#[test]
fn convolutions() {
    let Some(gpu) = gpu("convolutions") else { return };
    let padded = |out: usize, k: usize| Convolution { pad: [k / 2; 2], ..convolution(out, [k; 2]) };
    let layers = [
        (convolution(3, [1, 1]), [7, 3, 5]),
        (convolution(1, [3, 3]), [1, 3, 3]),
        (convolution(17, [3, 3]), [3, 6, 5]),
        (Convolution { bias: false, ..convolution(7, [5, 5]) }, [1, 9, 8]),
        (Convolution { pad: [2, 1], stride: [2, 1], ..convolution(5, [3, 4]) }, [3, 7, 9]),
        (Convolution { stride: [2, 2], pad: [1, 2], ..convolution(6, [3, 5]) }, [2, 8, 7]),
        (Convolution { dilation: [2, 3], pad: [2, 3], ..convolution(3, [3, 3]) }, [2, 8, 9]),
        (Convolution { group: 3, pad: [1, 0], ..convolution(6, [3, 2]) }, [9, 5, 4]),
        (Convolution { group: 5, ..convolution(5, [2, 2]) }, [5, 4, 3]),
        (Convolution { pad: [3, 2], ..convolution(4, [2, 1]) }, [2, 4, 5]),
        (convolution(15, [4, 5]), [3, 4, 5]),
        (padded(70, 3), [33, 7, 9]),
        (Convolution { group: 2, ..padded(64, 5) }, [32, 9, 9]),
    ];
    let case = |layer: &Convolution, [c, h, w]: [usize; 3], n: usize| {
        Case::new(Layer::Convolution(layer.clone()), &[&[n, c, h, w]])
    };
    let cases = BATCHES.into_iter().flat_map(|n| layers.iter().map(move |(l, dims)| case(l, *dims, n)));
    exact(gpu, &cases.collect::<Vec<_>>());
    let rectified = |layer: &Convolution| Convolution { relu: true, ..layer.clone() };
    let half = "a ReLU lets only sums above 0 pass";
    let cases = layers.iter().map(|(layer, dims)| case(&rectified(layer), *dims, 2).zeros(half));
    exact(gpu, &cases.collect::<Vec<_>>());
}

#[test]
fn convolutions_that_leave_pixels_out() {
    let Some(gpu) = gpu("convolutions that leave pixels out") else { return };
    let strided = Convolution { stride: [3, 2], ..convolution(4, [1, 1]) };
    let outer = Convolution { pad: [1, 1], ..convolution(15, [5, 6]) };
    let case =
        |layer: Convolution, dims: &[usize], why| Case::new(Layer::Convolution(layer), &[dims]).zeros(why);
    exact(
        gpu,
        &[
            case(strided, &[5, 3, 7, 6], "pixels between the windows have no gradient"),
            case(
                outer,
                &[5, 3, 3, 4],
                "the outer taps of a kernel as large as the padded image have no gradient",
            ),
        ],
    );
}

#[test]
fn convolutions_of_images() {
    let Some(gpu) = gpu("convolutions of images") else { return };
    let layers = [
        (Convolution { stride: [4, 4], ..convolution(24, [11, 11]) }, [3, 43, 39]),
        (Convolution { stride: [2, 2], pad: [3, 3], bias: false, ..convolution(16, [7, 7]) }, [3, 21, 33]),
        (convolution(20, [5, 5]), [1, 28, 28]),
    ];
    let case = |(layer, [c, h, w]): &(Convolution, [usize; 3])| {
        Case::of_images(Layer::Convolution(layer.clone()), &[4, *c, *h, *w])
    };
    exact(gpu, &layers.iter().map(case).collect::<Vec<_>>());
}

#[test]
fn inner_products() {
    let Some(gpu) = gpu("inner products") else { return };
    let mut cases = Vec::new();
    let dims_of = |n| [(1, [n, 3, 2, 2]), (10, [n, 5, 3, 1]), (17, [n, 1, 1, 1]), (133, [n, 7, 5, 9])];
    for (outputs, dims) in BATCHES.into_iter().flat_map(dims_of) {
        for transpose in [false, true] {
            let layer = InnerProduct { transpose, ..inner_product(outputs) };
            cases.push(Case::new(Layer::InnerProduct(layer), &[&dims]));
        }
    }
    for axis in [0, 2, -1] {
        let layer = InnerProduct { axis, bias: axis != 2, ..inner_product(6) };
        cases.push(Case::new(Layer::InnerProduct(layer), &[&[5, 3, 4]]));
    }
    exact(gpu, &cases);
}

/// The least common multiple of all divisors of an average, so that shares of multiples of it are integers.
fn divisors(layer: &Pooling, input: [usize; 2]) -> f32 {
    fn gcd(a: usize, b: usize) -> usize {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    let (kernel, output) = (layer.kernel_over(input), layer.output(input).expect("possible"));
    let of = |axis: usize, at| layer.window(axis, at, kernel[axis], input[axis]).counted;
    let all = (0..output[0]).flat_map(|y| (0..output[1]).map(move |x| of(0, y) * of(1, x)));
    all.fold(1, |multiple, divisor| multiple * (divisor / gcd(multiple, divisor))) as f32
}

#[test]
fn poolings() {
    let Some(gpu) = gpu("poolings") else { return };
    let windows = [
        ([2, 2], [2, 2], [0, 0], [5, 6, 4]),
        ([3, 3], [2, 2], [0, 0], [3, 8, 8]),
        ([3, 3], [1, 1], [1, 1], [2, 5, 7]),
        ([3, 3], [2, 2], [1, 1], [4, 4, 6]),
        ([2, 3], [2, 1], [1, 2], [3, 5, 6]),
        ([1, 1], [1, 1], [0, 0], [3, 2, 9]),
        ([3, 2], [2, 3], [0, 0], [2, 7, 10]),
    ];
    let mut cases = Vec::new();
    for method in [PoolMethod::Max, PoolMethod::Average] {
        let of = |(kernel, stride, pad, dims)| (Pooling { method, kernel: Some(kernel), pad, stride }, dims);
        let global = Pooling { method, kernel: None, pad: [0; 2], stride: [1; 2] };
        for (layer, [c, h, w]) in windows.into_iter().map(of).chain([(global, [7, 5, 3])]) {
            for n in BATCHES {
                let case = Case::new(Layer::Pooling(layer.clone()), &[&[n, c, h, w]]);
                cases.push(match method {
                    PoolMethod::Max => case.zeros("all but the maxima have no gradient"),
                    PoolMethod::Average => {
                        case.scaled(divisors(&layer, [h, w])).zeros("pixels that no window sees")
                    }
                });
            }
        }
    }
    exact(gpu, &cases);
}

#[test]
fn relus_and_neurons() {
    let Some(gpu) = gpu("relus and neurons") else { return };
    let mut cases = Vec::new();
    for slope in [0.0, 0.25, -0.5] {
        let layer = || Layer::Relu(Relu { negative_slope: slope, applied: false });
        for dims in [&[1, 1][..], &[2, 3, 5], &[64, 20, 13, 3]] {
            cases.extend(Case::everywhere(layer(), dims).into_iter().map(|c| c.zeros("what is negative")));
        }
    }
    let neurons = [
        Neuron::AbsVal,
        Neuron::Clip { min: -1.0, max: 2.0 },
        Neuron::Threshold { threshold: 1.0 },
        Neuron::Power { power: 1.0, scale: 3.0, shift: 2.0 },
        Neuron::Power { power: 2.0, scale: 1.0, shift: 0.0 },
        Neuron::Power { power: 0.0, scale: 3.0, shift: 2.0 },
        Neuron::Power { power: 1.0, scale: 0.0, shift: 2.0 },
    ];
    for neuron in neurons {
        for dims in [&[1, 1][..], &[5, 17, 3]] {
            cases.push(Case::new(Layer::Neuron(neuron), &[dims]).zeros("what is cut off"));
        }
    }
    exact(gpu, &cases);
}

#[test]
fn sums_products_and_maxima() {
    let Some(gpu) = gpu("sums products and maxima") else { return };
    let sum = |coefficients: Vec<f32>, relu| EltwiseOperation::Sum { coefficients, relu };
    let operations = [
        sum(Vec::new(), false),
        sum(Vec::new(), true),
        sum(vec![2.0, -1.0, 3.0], false),
        sum(vec![2.0, -1.0, 3.0], true),
        EltwiseOperation::Product { stable_gradient: true },
        EltwiseOperation::Max,
    ];
    let mut cases = Vec::new();
    for operation in operations {
        for bottoms in [2, 3] {
            for dims in [&[1, 1][..], &[5, 3, 7], &[64, 9, 11, 7]] {
                let mut operation = operation.clone();
                if let EltwiseOperation::Sum { coefficients, .. } = &mut operation {
                    coefficients.truncate(bottoms);
                }
                let layer = Layer::Eltwise(Eltwise { bottoms, operation });
                cases.push(
                    Case::new(layer, &vec![dims; bottoms]).zeros("opposite signs, and what is smaller"),
                );
            }
        }
    }
    exact(gpu, &cases);
}

#[test]
fn scales_and_biases() {
    let Some(gpu) = gpu("scales and biases") else { return };
    let mut cases = Vec::new();
    for dims in [&[1, 3, 2, 2][..], &[5, 7, 3, 4], &[64, 20, 13, 9]] {
        for (axis, num_axes) in [(1, 1), (0, 2), (2, -1), (1, 0)] {
            for bias in [false, true] {
                let (filler, bias_filler) = (Filler::default(), Filler::default());
                let scale = Scale { bottoms: 1, axis, num_axes, bias, filler, bias_filler };
                cases.push(Case::new(Layer::Scale(scale.clone()), &[dims]));
            }
            let bias = Bias { bottoms: 1, axis, num_axes, filler: Filler::default() };
            cases.push(Case::new(Layer::Bias(bias), &[dims]).zeros("opposite signs"));
        }
        let (filler, bias_filler) = (Filler::default(), Filler::default());
        let two = Scale { bottoms: 2, axis: 1, num_axes: 1, bias: false, filler, bias_filler };
        cases.push(Case::new(Layer::Scale(two), &[dims, &dims[1..3]]));
        let two = Bias { bottoms: 2, axis: 1, num_axes: 1, filler: Filler::default() };
        cases.push(Case::new(Layer::Bias(two), &[dims, &dims[1..2]]).zeros("opposite signs"));
    }
    exact(gpu, &cases);
}

#[test]
fn pieces_and_wholes() {
    let Some(gpu) = gpu("pieces and wholes") else { return };
    let mut cases = Vec::new();
    for (axis, first, second) in
        [(1, &[2, 3, 4, 5][..], &[2, 1, 4, 5][..]), (0, &[3, 4], &[2, 4]), (-1, &[5, 2, 7], &[5, 2, 1])]
    {
        cases.push(Case::new(Layer::Concat(Concat { axis, bottoms: 3 }), &[first, second, first]));
    }
    for (axis, points) in [(1, vec![1, 3]), (0, vec![]), (-1, vec![2])] {
        let tops = if points.is_empty() { 2 } else { points.len() + 1 };
        let slice = Slice { axis, tops, points };
        cases.push(Case::new(Layer::Slice(slice), &[&[4, 6, 4]]));
    }
    for tops in [2, 3] {
        let why = "gradients of opposite sign";
        cases.push(Case::new(Layer::Split(Split { tops }), &[&[5, 3, 7]]).zeros(why));
        cases.push(Case::blocked(Layer::Split(Split { tops }), &[&[3, 20, 5, 7]]).zeros(why));
    }
    cases.push(Case::new(Layer::Flatten(Flatten { axis: 1, end_axis: -1 }), &[&[5, 3, 7, 2]]));
    exact(gpu, &cases);
}

#[test]
fn dropouts() {
    let Some(gpu) = gpu("dropouts") else { return };
    let mut cases = Vec::new();
    for ratio in [0.0, 0.5, 0.75] {
        let layer = || Layer::Dropout(Dropout { ratio, active: true });
        for dims in [&[1, 1][..], &[3, 5, 7], &[64, 11, 3, 3]] {
            cases.extend(Case::everywhere(layer(), dims).into_iter().map(|c| c.zeros("what is dropped")));
        }
    }
    exact(gpu, &cases);
}

#[test]
fn accuracies() {
    let Some(gpu) = gpu("accuracies") else { return };
    for (top_k, ignore_label) in [(1, None), (3, None), (1, Some(2)), (2, Some(-1))] {
        for (axis, dims) in [(1, &[1, 10][..]), (1, &[64, 5, 3]), (-1, &[5, 3, 7]), (1, &[3, 1000])] {
            let layer = Accuracy { top_k, axis, ignore_label };
            let classes = dims[if axis < 0 { dims.len() - 1 } else { axis as usize }];
            let count = dims.iter().product::<usize>() / classes;
            let case =
                Case::new(Layer::Accuracy(layer), &[dims, &[count]]).zeros("classes that no label names");
            let mut arrays = case.integers();
            let mut truths = labels(3, count, classes);
            arrays.insert(Operand::Bottom(1), truths.clone());
            exact_on(gpu, &case, &arrays);
            // A label that names no class.
            truths[count / 2] = classes as f32;
            arrays.insert(Operand::Bottom(1), truths);
            exact_on(gpu, &case, &arrays);
        }
    }
}

/// Backward of a softmax reads its top and no exponential: on an integer top it is exact.
#[test]
fn gradients_of_a_softmax() {
    let Some(gpu) = gpu("gradients of a softmax") else { return };
    for (axis, dims) in [(1, &[1, 10][..]), (1, &[5, 3, 4]), (-1, &[7, 2, 17]), (1, &[64, 300])] {
        let case = Case::new(Layer::Softmax(Softmax { axis }), &[dims]);
        let mut arrays = case.integers();
        arrays.insert(Operand::Top(0), integers(7, case.bottoms[0].count(), 4));
        let found = run(gpu, &case, &own(Rule::default()), &arrays);
        let mut expected = arrays.clone();
        case.backward(&mut expected);
        let grad = Operand::BottomGrad(0);
        assert_eq!(expected.get(grad), found.get(grad), "grad-activation of {case}");
    }
}

#[test]
fn distances() {
    let Some(gpu) = gpu("distances") else { return };
    for dims in [&[1, 1][..], &[4, 3, 4], &[64, 7, 31, 3]] {
        let case = Case::new(Layer::EuclideanLoss(EuclideanLoss), &[dims, dims]).zeros("equal values");
        exact(gpu, &[case]);
    }
    let layer = ContrastiveLoss { margin: 100.0, legacy_version: true };
    let case = Case::new(Layer::ContrastiveLoss(layer), &[&[4, 5], &[4, 5], &[4]]).zeros("equal features");
    let mut arrays = case.integers();
    arrays.insert(Operand::Bottom(2), vec![0.0, 1.0, 0.5, 3.0]);
    exact_on(gpu, &case, &arrays);
}
