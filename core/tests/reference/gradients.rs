//! Every gradient of every layer against central differences, over awkward shapes.

use quadrille_core::layer::{
    BatchNorm, Convolution, Eltwise, EltwiseOperation, Filler, InnerProduct, Layer, Normalization, Operand,
    PoolMethod, Pooling, Relu, Scale, Softmax, SoftmaxWithLoss, Split,
};

use crate::case::{Case, convolution, inner_product, labels};

#[test]
fn convolution_has_the_gradients_of_its_forward() {
    let with = |change: &dyn Fn(&mut Convolution), num_output, kernel, bottom: [usize; 4]| {
        let mut layer = convolution(num_output, kernel);
        change(&mut layer);
        (layer, bottom)
    };
    let cases = [
        with(&|_| {}, 3, [3, 3], [2, 2, 5, 5]),
        with(&|_| {}, 1, [1, 1], [1, 1, 1, 1]),
        with(&|c| c.bias = false, 2, [1, 1], [3, 4, 2, 3]),
        with(&|c| (c.stride, c.pad) = ([2, 3], [1, 2]), 2, [3, 2], [2, 3, 6, 7]),
        with(&|c| c.dilation = [2, 3], 2, [3, 2], [1, 2, 7, 6]),
        with(&|c| c.group = 2, 4, [2, 3], [2, 6, 4, 5]),
        with(&|c| c.group = 5, 5, [3, 3], [2, 5, 4, 4]),
        with(
            &|c| (c.group, c.stride, c.dilation, c.pad) = (3, [3, 1], [1, 2], [0, 3]),
            6,
            [2, 3],
            [1, 3, 5, 4],
        ),
        // Padding larger than the kernel: some windows see nothing at all.
        with(&|c| c.pad = [3, 4], 2, [2, 2], [1, 2, 3, 2]),
        // The kernel is larger than the image, and exactly as large as the padded image.
        with(&|c| c.pad = [1, 1], 2, [5, 4], [2, 1, 3, 2]),
        // Rows at the end that no window reaches.
        with(&|c| c.stride = [3, 3], 2, [2, 2], [1, 1, 7, 6]),
    ];
    for (seed, (layer, bottom)) in cases.into_iter().enumerate() {
        Case::new(Layer::Convolution(layer), &[&bottom]).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn pooling_has_the_gradient_of_its_forward() {
    // Kernel, padding, stride, image.
    let windows = [
        (Some([2, 2]), [0, 0], [2, 2], [4, 4]),
        (Some([2, 2]), [0, 0], [2, 2], [5, 7]),
        (Some([3, 3]), [0, 0], [2, 2], [6, 5]),
        (Some([3, 3]), [1, 1], [2, 2], [6, 7]),
        (Some([3, 3]), [1, 1], [1, 1], [3, 4]),
        (Some([2, 2]), [1, 1], [2, 2], [5, 4]),
        (Some([5, 3]), [2, 0], [1, 3], [4, 9]),
        (Some([1, 1]), [0, 0], [2, 2], [5, 3]),
        (Some([4, 1]), [3, 0], [3, 1], [2, 1]),
        (None, [0, 0], [1, 1], [3, 5]),
    ];
    for (seed, (kernel, pad, stride, [h, w])) in windows.into_iter().enumerate() {
        for method in [PoolMethod::Max, PoolMethod::Average] {
            let layer = Layer::Pooling(Pooling { method, kernel, pad, stride });
            Case::new(layer, &[&[2, 3, h, w]]).check_gradients(seed as u64, &[], 0.0);
        }
    }
}

#[test]
fn inner_product_has_the_gradients_of_its_forward() {
    let with = |change: &dyn Fn(&mut InnerProduct), bottom: &'static [usize]| {
        let mut layer = inner_product(4);
        change(&mut layer);
        (layer, bottom)
    };
    let cases = [
        with(&|_| {}, &[3, 5]),
        with(&|_| {}, &[2, 3, 2, 2]),
        with(&|l| l.transpose = true, &[3, 2, 3]),
        with(&|l| l.bias = false, &[1, 7]),
        with(&|l| l.axis = 2, &[2, 3, 4]),
        with(&|l| (l.axis, l.transpose) = (-1, true), &[2, 3, 5]),
        with(&|l| l.axis = 0, &[6]),
        with(&|l| (l.num_output, l.axis) = (1, 3), &[2, 2, 2, 1]),
    ];
    for (seed, (layer, bottom)) in cases.into_iter().enumerate() {
        Case::new(Layer::InnerProduct(layer), &[bottom]).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn relu_has_the_gradient_of_its_forward() {
    for (seed, negative_slope) in [0.0, 0.1, 1.0, -0.5].into_iter().enumerate() {
        for bottom in [&[7][..], &[2, 3, 4, 5], &[1, 2]] {
            Case::new(Layer::Relu(Relu { negative_slope, applied: false }), &[bottom]).check_gradients(
                seed as u64,
                &[],
                0.0,
            );
        }
    }
}

/// The smallest deviation of a channel of `x`, a blob of shape (N, C, …).
fn least_deviation(x: &[f64], dims: &[usize]) -> f64 {
    let (channels, inner) = (dims[1], dims[2..].iter().product::<usize>());
    let deviation = |channel: usize| {
        let own: Vec<f64> = (0..x.len()).filter(|i| i / inner % channels == channel).map(|i| x[i]).collect();
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        (own.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / own.len() as f64).sqrt()
    };
    (0..channels).map(deviation).fold(f64::INFINITY, f64::min)
}

#[test]
fn batch_norm_has_the_gradient_of_its_forward() {
    let shapes: [&[usize]; 4] = [&[4, 3, 2, 3], &[8, 5], &[1, 2, 3, 4], &[3, 1, 5]];
    for (seed, dims) in shapes.into_iter().enumerate() {
        for eps in [1e-5, 0.5] {
            let layer = BatchNorm { use_global_stats: Some(false), moving_average_fraction: 0.999, eps };
            let case = Case::new(Layer::BatchNorm(layer), &[dims]);
            let x = case.random(seed as u64, &[]).get(Operand::Bottom(0)).to_vec();
            let values = (x.len() / dims[1]) as f64;
            // With u = x − mean and s = variance + eps, y = u · s^(−½); |u| ≤ √(m·s), |s'| ≤ 2·√(s/m), s'' ≤ 2/m and
            // s''' = 0, so that |y'''| ≤ |u| · |(s^(−½))'''| + 3 · |(s^(−½))''| ≤ (24 + 12) / (m · s^(3/2)).
            let third = 36.0 / (values * least_deviation(&x, dims).powi(3));
            case.check_gradients(seed as u64, &[], third);
        }
    }
}

#[test]
fn scale_has_the_gradients_of_its_forward() {
    let x: &[usize] = &[2, 3, 4, 2];
    let cases: [(i32, i32, Option<&[usize]>); 9] = [
        (1, 1, None),
        (0, 2, None),
        (2, -1, None),
        (0, -1, None),
        (-1, 1, None),
        (1, 0, None),
        (1, 1, Some(&[3, 4])),
        (0, 1, Some(&[2, 3])),
        (3, 1, Some(&[])),
    ];
    for (seed, (axis, num_axes, factors)) in cases.into_iter().enumerate() {
        for bias in [true, false] {
            let bottoms: Vec<&[usize]> = [x].into_iter().chain(factors).collect();
            let filler = Filler::default();
            let (filler, bias_filler) = (filler.clone(), filler);
            let layer = Scale { bottoms: bottoms.len(), axis, num_axes, bias, filler, bias_filler };
            Case::new(Layer::Scale(layer), &bottoms).check_gradients(seed as u64, &[], 0.0);
        }
    }
}

#[test]
fn eltwise_has_the_gradients_of_its_forward() {
    let sum =
        |coefficients: &[f32]| EltwiseOperation::Sum { coefficients: coefficients.to_vec(), relu: false };
    let product = |stable_gradient| EltwiseOperation::Product { stable_gradient };
    let cases = [
        (2, sum(&[])),
        (3, sum(&[1.0, -0.5, 0.25])),
        (2, product(true)),
        (4, product(true)),
        (3, product(false)),
        (2, EltwiseOperation::Max),
        (4, EltwiseOperation::Max),
    ];
    for (seed, (bottoms, operation)) in cases.into_iter().enumerate() {
        let layer = Layer::Eltwise(Eltwise { bottoms, operation });
        let shapes: Vec<&[usize]> = vec![&[2, 3, 4]; bottoms];
        Case::new(layer, &shapes).check_gradients(seed as u64, &[], 0.0);
    }
}

#[test]
fn softmax_has_the_gradient_of_its_forward() {
    let cases: [(i32, &[usize]); 5] =
        [(1, &[3, 5]), (0, &[4]), (1, &[2, 3, 2, 2]), (2, &[2, 2, 4, 3]), (-1, &[2, 3, 4])];
    for (seed, (axis, bottom)) in cases.into_iter().enumerate() {
        // Third derivatives of a softmax are sums of at most six products of probabilities.
        Case::new(Layer::Softmax(Softmax { axis }), &[bottom]).check_gradients(seed as u64, &[], 6.0);
    }
}

#[test]
fn softmax_with_loss_has_the_gradient_of_its_forward() {
    let cases: [(i32, &[usize], &[usize]); 4] = [
        (1, &[6, 4], &[6]),
        (1, &[2, 3, 2, 4], &[2, 1, 2, 4]),
        (2, &[2, 2, 5, 2], &[2, 2, 2]),
        (-1, &[1, 2], &[1]),
    ];
    use Normalization::{BatchSize, Full, None, Valid};
    for (seed, (axis, scores, truths)) in cases.into_iter().enumerate() {
        for normalization in [Full, Valid, BatchSize, None] {
            for ignore_label in [Option::None, Some(1), Some(-1)] {
                let layer = SoftmaxWithLoss { axis, ignore_label, normalization };
                let mut case = Case::new(Layer::SoftmaxWithLoss(layer), &[scores, truths]);
                case.loss_weights = vec![0.75, 0.0];
                let mut labels = labels(5 + seed as u64, truths.iter().product(), 2);
                labels[0] = 0.0;
                if ignore_label == Some(-1) && labels.len() > 1 {
                    labels[1] = -1.0;
                }
                // A logarithm of a softmax has third derivatives below 1, and at most each label has one.
                case.check_gradients(seed as u64, &labels, labels.len() as f64);
            }
        }
    }
}

#[test]
fn split_adds_the_gradients_of_its_tops() {
    for (seed, tops) in [1, 2, 5].into_iter().enumerate() {
        Case::new(Layer::Split(Split { tops }), &[&[2, 3, 2]]).check_gradients(seed as u64, &[], 0.0);
    }
}
