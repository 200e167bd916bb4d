//! Sums of magnitudes as Winograd's filters form them: the transforms with absolute values, which bound what rounding can
//! do to each element of a result.

use quadrille_core::layer::{Convolution, Operand};
use quadrille_core::reference::Arrays;

use crate::exact::case::Case;

/// Rows of numbers.
type Matrix = Vec<Vec<f64>>;

/// `|Bᵀ|`, `|G|` and `|Aᵀ|` of a filter.
struct Filter {
    input: Matrix,
    weight: Matrix,
    output: Matrix,
}

fn matrix<const C: usize>(rows: &[[f64; C]]) -> Matrix {
    rows.iter().map(|row| row.to_vec()).collect()
}

impl Filter {
    /// F(4×4, 3×3).
    fn of_4x4() -> Self {
        const H: f64 = 0.5;
        const Q: f64 = 0.25;
        Self {
            input: matrix(&[
                [1., 0., 0., 0., 1., 0.],
                [0., 1., 1., 1., 1., 0.],
                [0., 1., 1., 1., 1., 0.],
                [0., 1., 1., 1., 1., 0.],
                [0., 1., 1., 1., 1., 0.],
                [0., 1., 0., 1., 0., 0.],
                [0., 1., 0., 0., 0., 1.],
            ]),
            weight: matrix(&[
                [1., 0., 0.],
                [Q, Q, Q],
                [Q, Q, Q],
                [H, 0., H],
                [0., H, 0.],
                [H, H, H],
                [0., 0., 1.],
            ]),
            output: matrix(&[
                [1., 1., 1., 1., 0., 1., 0.],
                [0., 1., 1., 0., 1., 1., 0.],
                [0., 1., 1., 1., 0., 1., 0.],
                [0., 1., 1., 0., 1., 1., 1.],
            ]),
        }
    }

    /// That of an implementation for a kernel of so many rows.
    fn of(implementation: &str, side: usize) -> Self {
        const H: f64 = 0.5;
        if implementation.starts_with("winograd-4x4") || implementation == "entry-winograd" && side == 3 {
            return Self::of_4x4();
        }
        if side == 3 {
            return Self {
                input: matrix(&[[1., 0., 1., 0.], [0., 1., 1., 0.], [0., 1., 1., 0.], [0., 1., 0., 1.]]),
                weight: matrix(&[[1., 0., 0.], [H, H, H], [H, H, H], [0., 0., 1.]]),
                output: matrix(&[[1., 1., 1., 0.], [0., 1., 1., 1.]]),
            };
        }
        assert_eq!(side, 5, "no filter of this size");
        Self {
            input: matrix(&[
                [1., 1., 0., 0., 1., 1., 0., 0.],
                [0., 1., 0., 0., 0., 1., 0., 0.],
                [0., 1., 1., 0., 0., 1., 1., 0.],
                [0., 0., 1., 1., 1., 1., 0., 0.],
                [0., 0., 0., 1., 0., 1., 0., 0.],
                [0., 0., 0., 1., 1., 1., 1., 0.],
                [0., 0., 1., 1., 1., 1., 0., 0.],
                [0., 0., 0., 1., 0., 1., 0., 0.],
                [0., 0., 0., 1., 1., 1., 1., 0.],
                [0., 0., 1., 0., 0., 0., 1., 0.],
                [0., 0., 0., 1., 0., 0., 0., 1.],
            ]),
            weight: matrix(&[
                [1., 0., 0., 0., 0.],
                [1., 1., 0., 0., 0.],
                [0., 1., 0., 0., 0.],
                [H, 0., H, 0., H],
                [H, H, H, H, H],
                [0., H, 0., H, 0.],
                [H, 0., H, 0., H],
                [H, H, H, H, H],
                [0., H, 0., H, 0.],
                [0., 0., 0., 0., 1.],
                [0., 0., 0., 0., 1.],
            ]),
            output: matrix(&[
                [1., 1., 0., 1., 1., 0., 1., 1., 0., 0., 0.],
                [0., 1., 1., 0., 1., 1., 0., 1., 1., 0., 0.],
                [0., 0., 0., 1., 1., 0., 1., 1., 0., 1., 0.],
                [0., 0., 0., 0., 1., 1., 0., 1., 1., 0., 1.],
            ]),
        }
    }
}

/// `M V Mᵀ`.
fn both_sides(m: &Matrix, v: &Matrix) -> Matrix {
    let times = |v: &Matrix| -> Matrix {
        let row = |r: &Vec<f64>, c: usize| r.iter().zip(v).map(|(m, v)| m * v[c]).sum();
        m.iter().map(|r| (0..v[0].len()).map(|c| row(r, c)).collect()).collect()
    };
    turned(&times(&turned(&times(v))))
}

fn turned(m: &Matrix) -> Matrix {
    (0..m[0].len()).map(|c| m.iter().map(|row| row[c]).collect()).collect()
}

/// Adds the products of two matrices' elements.
fn add_products(sum: &mut Matrix, a: &Matrix, b: &Matrix) {
    for (sum, (a, b)) in sum.iter_mut().zip(a.iter().zip(b)) {
        sum.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
}

fn zeros(side: usize) -> Matrix {
    vec![vec![0.0; side]; side]
}

/// Planes of magnitudes, (image, channel, row, column); 0 outside.
struct Planes<'a> {
    values: &'a [f32],
    channels: usize,
    extents: [usize; 2],
}

impl Planes<'_> {
    fn square(&self, side: usize, image: usize, channel: usize, first: [isize; 2]) -> Matrix {
        let [height, width] = self.extents;
        let plane = &self.values[(image * self.channels + channel) * height * width..][..height * width];
        let mut square = zeros(side);
        for (r, c) in (0..side * side).map(|i| (i / side, i % side)) {
            let place = [first[0] + r as isize, first[1] + c as isize];
            let inside = (0..height as isize).contains(&place[0]) && (0..width as isize).contains(&place[1]);
            if inside {
                square[r][c] = f64::from(plane[place[0] as usize * width + place[1] as usize].abs());
            }
        }
        square
    }
}

/// Whether ∇A of a kernel of 3×3 or 5×5 goes over the tiles of the top, which overlap in the bottom: where these are a quarter fewer than the bottom's. All
/// images here are so small that a block holds the tiles of one.
pub fn overlap(case: &Case, layer: &Convolution, implementation: &str) -> bool {
    if ![[3; 2], [5; 2]].contains(&layer.kernel) {
        return false;
    }
    let side = Filter::of(implementation, layer.kernel[0]).output.len();
    let shapes = [case.bottoms[0].clone(), case.net.top_shapes(case.id).swap_remove(0)];
    let [bottom, top] = shapes.map(|shape| tiles([shape.dim(2), shape.dim(3)], side).count());
    4 * top <= 3 * bottom
}

/// The magnitudes of what a sub-task of a 3×3 or 5×5 convolution of one group and stride 1 writes; `None` of biases.
pub fn transformed_magnitudes(
    implementation: &str,
    case: &Case,
    layer: &Convolution,
    arrays: &Arrays<f32>,
    operand: Operand,
) -> Option<Vec<f64>> {
    let (bottom, top) = (&case.bottoms[0], case.net.top_shapes(case.id).swap_remove(0));
    let (inputs, outputs, side) = (bottom.dim(1), layer.num_output, layer.kernel[0]);
    let (filter, last) = (Filter::of(implementation, side), side * side - 1);
    let planes = |operand, shape: &quadrille_core::shape::Shape| Planes {
        values: arrays.get(operand),
        channels: shape.dim(1),
        extents: [shape.dim(2), shape.dim(3)],
    };
    let (x, dy) = (planes(Operand::Bottom(0), bottom), planes(Operand::TopGrad(0), &top));
    let weights = arrays.get(Operand::Param(0));
    let weight = |o: usize, i: usize, turn: bool| {
        let taps = &weights[(o * inputs + i) * (last + 1)..][..=last];
        let mut square = zeros(side);
        for t in 0..=last {
            square[t / side][t % side] = f64::from(taps[if turn { last - t } else { t }].abs());
        }
        both_sides(&filter.weight, &square)
    };
    let pad = layer.pad;
    match operand {
        Operand::Top(_) => {
            let u: Vec<_> = (0..outputs * inputs).map(|k| weight(k / inputs, k % inputs, false)).collect();
            Some(correlated(&filter, &x, &u, bottom.dim(0), [outputs, inputs], dy.extents, pad))
        }
        Operand::BottomGrad(_) if overlap(case, layer, implementation) => {
            let u: Vec<_> = (0..outputs * inputs).map(|k| weight(k / inputs, k % inputs, false)).collect();
            Some(overlapped(&filter, &dy, &u, bottom.dim(0), x.extents, pad))
        }
        Operand::BottomGrad(_) => {
            let u: Vec<_> = (0..inputs * outputs).map(|k| weight(k % outputs, k / outputs, true)).collect();
            let pad = pad.map(|p| side - 1 - p);
            Some(correlated(&filter, &dy, &u, bottom.dim(0), [inputs, outputs], x.extents, pad))
        }
        Operand::ParamGrad(0) => Some(gradients(&filter, &x, &dy, bottom.dim(0), pad)),
        _ => None,
    }
}

fn tiles(extents: [usize; 2], side: usize) -> impl Iterator<Item = [usize; 2]> {
    let rows = (0..extents[0]).step_by(side);
    rows.flat_map(move |r| (0..extents[1]).step_by(side).map(move |c| [r, c]))
}

fn correlated(
    filter: &Filter,
    x: &Planes<'_>,
    u: &[Matrix],
    images: usize,
    [targets, sources]: [usize; 2],
    extents: [usize; 2],
    pad: [usize; 2],
) -> Vec<f64> {
    let [height, width] = extents;
    let (side, points, seen) = (filter.output.len(), filter.input.len(), filter.input[0].len());
    let mut result = vec![0.0; images * targets * height * width];
    for (image, tile) in (0..images).flat_map(|image| tiles(extents, side).map(move |tile| (image, tile))) {
        let first = [0, 1].map(|a| tile[a] as isize - pad[a] as isize);
        let v: Vec<Matrix> =
            (0..sources).map(|s| both_sides(&filter.input, &x.square(seen, image, s, first))).collect();
        for target in 0..targets {
            let mut sum = zeros(points);
            v.iter().zip(&u[target * sources..]).for_each(|(v, u)| add_products(&mut sum, v, u));
            let y = both_sides(&filter.output, &sum);
            for (r, c) in (0..side * side).map(|i| (i / side, i % side)) {
                let (row, column) = (tile[0] + r, tile[1] + c);
                if row < height && column < width {
                    result[((image * targets + target) * height + row) * width + column] = y[r][c];
                }
            }
        }
    }
    result
}

fn overlapped(
    filter: &Filter,
    dy: &Planes<'_>,
    u: &[Matrix],
    images: usize,
    [height, width]: [usize; 2],
    pad: [usize; 2],
) -> Vec<f64> {
    let (side, points, seen) = (filter.output.len(), filter.input.len(), filter.input[0].len());
    let targets = u.len() / dy.channels;
    let mut result = vec![0.0; images * targets * height * width];
    for (image, tile) in (0..images).flat_map(|image| tiles(dy.extents, side).map(move |tile| (image, tile)))
    {
        let square = |source: usize| dy.square(side, image, source, tile.map(|at| at as isize));
        let z: Vec<Matrix> =
            (0..dy.channels).map(|s| both_sides(&turned(&filter.output), &square(s))).collect();
        for target in 0..targets {
            let mut sum = zeros(points);
            z.iter().zip(u.chunks(targets)).for_each(|(z, u)| add_products(&mut sum, z, &u[target]));
            let x = both_sides(&turned(&filter.input), &sum);
            for (r, c) in (0..seen * seen).map(|i| (i / seen, i % seen)) {
                let place = [(tile[0] + r).checked_sub(pad[0]), (tile[1] + c).checked_sub(pad[1])];
                if let [Some(row), Some(column)] = place
                    && row < height
                    && column < width
                {
                    result[((image * targets + target) * height + row) * width + column] += x[r][c];
                }
            }
        }
    }
    result
}

fn gradients(filter: &Filter, x: &Planes<'_>, dy: &Planes<'_>, images: usize, pad: [usize; 2]) -> Vec<f64> {
    let (side, points, seen) = (filter.output.len(), filter.input.len(), filter.input[0].len());
    let mut sums = vec![zeros(points); dy.channels * x.channels];
    for (image, tile) in (0..images).flat_map(|image| tiles(dy.extents, side).map(move |tile| (image, tile)))
    {
        let first = [0, 1].map(|a| tile[a] as isize - pad[a] as isize);
        let v: Vec<Matrix> =
            (0..x.channels).map(|s| both_sides(&filter.input, &x.square(seen, image, s, first))).collect();
        for (o, sums) in sums.chunks_mut(x.channels).enumerate() {
            let dy = dy.square(side, image, o, tile.map(|t| t as isize));
            let z = both_sides(&turned(&filter.output), &dy);
            sums.iter_mut().zip(&v).for_each(|(sum, v)| add_products(sum, v, &z));
        }
    }
    sums.into_iter().flat_map(|sum| both_sides(&turned(&filter.weight), &sum).concat()).collect()
}
