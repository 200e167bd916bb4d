//! In which order a convolution's products are added up: that of its definition, element by element, to the last bit.

use quadrille_core::layer::{Convolution, Layer, Operand, SubTask};
use quadrille_core::reference::Arrays;
use quadrille_core::rng::{Purpose, Stream};

use crate::case::{Case, convolution};

/// Shapes that are compared.
const SHAPES: u64 = 150;

/// The convolution of some extents, each number's sum written down as it is defined.
struct Definition<'a> {
    layer: &'a Convolution,
    /// Extents of X, W and Y.
    x: [usize; 4],
    w: [usize; 4],
    y: [usize; 4],
}

fn at(extents: [usize; 4], index: [usize; 4]) -> usize {
    index.iter().zip(extents).fold(0, |place, (index, extent)| place * extent + index)
}

/// All indices in ascending order.
fn all([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| [i, j, k])))
}

impl Definition<'_> {
    /// Where a tap of the window at `out` of Y lies in X, along an axis, if that is not in the padding.
    fn source(&self, axis: usize, out: usize, tap: usize) -> Option<usize> {
        let place = out * self.layer.stride[axis] + tap * self.layer.dilation[axis];
        place.checked_sub(self.layer.pad[axis]).filter(|source| *source < self.x[2 + axis])
    }

    /// The tap under which X sees Y along an axis.
    fn tap(&self, axis: usize, out: usize, source: usize) -> Option<usize> {
        (0..self.w[2 + axis]).find(|tap| self.source(axis, out, *tap) == Some(source))
    }

    /// The first channel of X that channel `o` of Y sees.
    fn first(&self, o: usize) -> usize {
        o / (self.w[0] / self.layer.group) * self.w[1]
    }

    /// Y: over the channels in the group, then the kernel's rows and columns. The bias is added last.
    fn forward(&self, x: &[f32], w: &[f32], bias: &[f32]) -> Vec<f32> {
        let [images, outputs, rows, columns] = self.y;
        let sum = |n: usize, [o, r, c]: [usize; 3]| {
            let mut sum = 0.0;
            for [i, p, q] in all([self.w[1], self.w[2], self.w[3]]) {
                if let Some((row, column)) = self.source(0, r, p).zip(self.source(1, c, q)) {
                    let x = x[at(self.x, [n, self.first(o) + i, row, column])];
                    sum += w[at(self.w, [o, i, p, q])] * x;
                }
            }
            sum + bias[o]
        };
        (0..images).flat_map(|n| all([outputs, rows, columns]).map(move |index| sum(n, index))).collect()
    }

    /// dX: over the channels, rows and columns of Y.
    fn grad_activation(&self, dy: &[f32], w: &[f32]) -> Vec<f32> {
        let [images, channels, rows, columns] = self.x;
        let sum = |n: usize, [channel, row, column]: [usize; 3]| {
            let mut sum = 0.0;
            for [o, r, c] in all([self.y[1], self.y[2], self.y[3]]) {
                let Some(i) = channel.checked_sub(self.first(o)).filter(|i| *i < self.w[1]) else { continue };
                if let Some((p, q)) = self.tap(0, r, row).zip(self.tap(1, c, column)) {
                    sum += w[at(self.w, [o, i, p, q])] * dy[at(self.y, [n, o, r, c])];
                }
            }
            sum
        };
        (0..images).flat_map(|n| all([channels, rows, columns]).map(move |index| sum(n, index))).collect()
    }

    /// dW: over the images, rows and columns of Y.
    fn grad_weight(&self, dy: &[f32], x: &[f32]) -> Vec<f32> {
        let sum = |o: usize, [i, p, q]: [usize; 3]| {
            let mut sum = 0.0;
            for [n, r, c] in all([self.y[0], self.y[2], self.y[3]]) {
                if let Some((row, column)) = self.source(0, r, p).zip(self.source(1, c, q)) {
                    sum += x[at(self.x, [n, self.first(o) + i, row, column])] * dy[at(self.y, [n, o, r, c])];
                }
            }
            sum
        };
        let [outputs, channels, kh, kw] = self.w;
        (0..outputs).flat_map(|o| all([channels, kh, kw]).map(move |index| sum(o, index))).collect()
    }

    /// db: over the images, rows and columns of Y.
    fn grad_bias(&self, dy: &[f32]) -> Vec<f32> {
        let places = |o: usize| all([self.y[0], self.y[2], self.y[3]]).map(move |[n, r, c]| [n, o, r, c]);
        let sum = |o: usize| places(o).fold(0.0, |sum, place| sum + dy[at(self.y, place)]);
        (0..self.w[0]).map(sum).collect()
    }
}

/// A layer and the extents of its bottom.
fn drawn(number: u64) -> (Convolution, [usize; 4]) {
    let stream = Stream::new(number, Purpose::Dummy, 0);
    let draw =
        |index: u64, least: usize, most: usize| least + stream.bits(index) as usize % (most - least + 1);
    let two =
        |first: u64, least: usize, most: usize| [draw(first, least, most), draw(first + 1, least, most)];
    let group = draw(0, 1, 2);
    let mut layer = convolution(group * draw(1, 1, 3), two(2, 1, 4));
    (layer.stride, layer.pad, layer.dilation) = (two(4, 1, 3), two(6, 0, 3), two(8, 1, 2));
    layer.group = group;
    let extents = two(10, 8, 11);
    (layer, [draw(12, 1, 3), group * draw(13, 1, 3), extents[0], extents[1]])
}

#[test]
fn convolutions_add_in_the_order_of_their_definition() {
    for number in 0..SHAPES {
        let (layer, x) = drawn(number);
        let case = Case::new(Layer::Convolution(layer.clone()), &[&x]);
        let y = <[usize; 4]>::try_from(case.tops[0].dims()).expect("images");
        let w = [layer.num_output, x[1] / layer.group, layer.kernel[0], layer.kernel[1]];
        let definition = Definition { layer: &layer, x, w, y };
        // No two sums of such numbers in another order are likely to agree.
        let values = |seed: u64, extents: [usize; 4]| -> Vec<f32> {
            let stream = Stream::new(1000 * number + seed, Purpose::Dummy, 1);
            (0..extents.iter().product::<usize>() as u64).map(|i| stream.uniform(i) - 0.4).collect()
        };
        let (bottom, weight, gradient) = (values(0, x), values(1, w), values(2, y));
        let bias = values(3, [layer.num_output, 1, 1, 1]);
        let mut arrays = Arrays::new();
        let given = [
            (Operand::Bottom(0), &bottom),
            (Operand::Param(0), &weight),
            (Operand::Param(1), &bias),
            (Operand::TopGrad(0), &gradient),
        ];
        given.into_iter().for_each(|(operand, values)| arrays.insert(operand, values.clone()));
        let expected = [
            (SubTask::Forward, Operand::Top(0), definition.forward(&bottom, &weight, &bias)),
            (SubTask::GradActivation, Operand::BottomGrad(0), definition.grad_activation(&gradient, &weight)),
            (SubTask::GradWeight, Operand::ParamGrad(0), definition.grad_weight(&gradient, &bottom)),
            (SubTask::GradBias, Operand::ParamGrad(1), definition.grad_bias(&gradient)),
        ];
        for (sub, operand, expected) in expected {
            case.run(sub, &mut arrays);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            assert!(
                bits(arrays.get(operand)) == bits(&expected),
                "{sub} of shape {number}: {layer:?}, {x:?}"
            );
        }
    }
}
