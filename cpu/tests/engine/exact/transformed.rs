//! Sums of magnitudes as Winograd's F(2×2, 3×3) forms them: the transforms with absolute values, which bound what the
//! rounding of transformed operands can do to each element of a result.

use quadrille_core::layer::{Convolution, Operand};
use quadrille_core::reference::Arrays;

use crate::exact::case::Case;

/// `|Bᵀ|`, `|G|` and `|Aᵀ|`.
const INPUT: [[f64; 4]; 4] =
    [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]];
const WEIGHT: [[f64; 3]; 4] = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.0, 0.0, 1.0]];
const OUTPUT: [[f64; 4]; 2] = [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]];

/// `M V Mᵀ`.
fn both_sides<const R: usize, const C: usize>(m: &[[f64; C]; R], v: [[f64; C]; C]) -> [[f64; R]; R] {
    let mut result = [[0.0; R]; R];
    for (r, c) in (0..R * R).map(|i| (i / R, i % R)) {
        for (i, j) in (0..C * C).map(|k| (k / C, k % C)) {
            result[r][c] += m[r][i] * v[i][j] * m[c][j];
        }
    }
    result
}

fn turned<const R: usize, const C: usize>(m: &[[f64; C]; R]) -> [[f64; R]; C] {
    let mut result = [[0.0; R]; C];
    for (r, row) in m.iter().enumerate() {
        for (c, value) in row.iter().enumerate() {
            result[c][r] = *value;
        }
    }
    result
}

/// Planes of magnitudes, (image, channel, row, column); 0 outside.
struct Planes<'a> {
    values: &'a [f32],
    channels: usize,
    extents: [usize; 2],
}

impl Planes<'_> {
    fn square<const N: usize>(&self, image: usize, channel: usize, first: [isize; 2]) -> [[f64; N]; N] {
        let [height, width] = self.extents;
        let plane = &self.values[(image * self.channels + channel) * height * width..][..height * width];
        let mut square = [[0.0; N]; N];
        for (r, c) in (0..N * N).map(|i| (i / N, i % N)) {
            let place = [first[0] + r as isize, first[1] + c as isize];
            let inside = (0..height as isize).contains(&place[0]) && (0..width as isize).contains(&place[1]);
            if inside {
                square[r][c] = f64::from(plane[place[0] as usize * width + place[1] as usize].abs());
            }
        }
        square
    }
}

/// The magnitudes of what a sub-task of a 3×3 convolution of one group and stride 1 writes; `None` of biases.
pub fn transformed_magnitudes(
    case: &Case,
    layer: &Convolution,
    arrays: &Arrays<f32>,
    operand: Operand,
) -> Option<Vec<f64>> {
    let (bottom, top) = (&case.bottoms[0], case.net.top_shapes(case.id).swap_remove(0));
    let (inputs, outputs) = (bottom.dim(1), layer.num_output);
    let planes = |operand, shape: &quadrille_core::shape::Shape| Planes {
        values: arrays.get(operand),
        channels: shape.dim(1),
        extents: [shape.dim(2), shape.dim(3)],
    };
    let (x, dy) = (planes(Operand::Bottom(0), bottom), planes(Operand::TopGrad(0), &top));
    let weights = arrays.get(Operand::Param(0));
    let weight = |o: usize, i: usize, turn: bool| {
        let taps = &weights[(o * inputs + i) * 9..][..9];
        let mut square = [[0.0; 3]; 3];
        for t in 0..9 {
            square[t / 3][t % 3] = f64::from(taps[if turn { 8 - t } else { t }].abs());
        }
        both_sides(&WEIGHT, square)
    };
    let pad = layer.pad;
    match operand {
        Operand::Top(_) => {
            let u: Vec<_> = (0..outputs * inputs).map(|k| weight(k / inputs, k % inputs, false)).collect();
            Some(correlated(&x, &u, bottom.dim(0), [outputs, inputs], dy.extents, pad))
        }
        Operand::BottomGrad(_) => {
            let u: Vec<_> = (0..inputs * outputs).map(|k| weight(k % outputs, k / outputs, true)).collect();
            Some(correlated(&dy, &u, bottom.dim(0), [inputs, outputs], x.extents, pad.map(|p| 2 - p)))
        }
        Operand::ParamGrad(0) => Some(gradients(&x, &dy, bottom.dim(0), pad)),
        _ => None,
    }
}

type Points = [[f64; 4]; 4];

fn tiles(extents: [usize; 2]) -> impl Iterator<Item = [usize; 2]> {
    let rows = (0..extents[0]).step_by(2);
    rows.flat_map(move |r| (0..extents[1]).step_by(2).map(move |c| [r, c]))
}

fn correlated(
    x: &Planes<'_>,
    u: &[Points],
    images: usize,
    [targets, sources]: [usize; 2],
    extents: [usize; 2],
    pad: [usize; 2],
) -> Vec<f64> {
    let [height, width] = extents;
    let mut result = vec![0.0; images * targets * height * width];
    for (image, tile) in (0..images).flat_map(|image| tiles(extents).map(move |tile| (image, tile))) {
        let first = [0, 1].map(|a| tile[a] as isize - pad[a] as isize);
        let v: Vec<Points> =
            (0..sources).map(|s| both_sides(&INPUT, x.square::<4>(image, s, first))).collect();
        for target in 0..targets {
            let mut sum = [[0.0; 4]; 4];
            for (v, u) in v.iter().zip(&u[target * sources..]) {
                (0..16).for_each(|p| sum[p / 4][p % 4] += v[p / 4][p % 4] * u[p / 4][p % 4]);
            }
            let y = both_sides(&OUTPUT, sum);
            for (r, c) in (0..4).map(|i| (i / 2, i % 2)) {
                let (row, column) = (tile[0] + r, tile[1] + c);
                if row < height && column < width {
                    result[((image * targets + target) * height + row) * width + column] = y[r][c];
                }
            }
        }
    }
    result
}

fn gradients(x: &Planes<'_>, dy: &Planes<'_>, images: usize, pad: [usize; 2]) -> Vec<f64> {
    let mut sums = vec![[[0.0; 4]; 4]; dy.channels * x.channels];
    for (image, tile) in (0..images).flat_map(|image| tiles(dy.extents).map(move |tile| (image, tile))) {
        let first = [0, 1].map(|a| tile[a] as isize - pad[a] as isize);
        let v: Vec<Points> =
            (0..x.channels).map(|s| both_sides(&INPUT, x.square::<4>(image, s, first))).collect();
        for (o, sums) in sums.chunks_mut(x.channels).enumerate() {
            let z = both_sides(&turned(&OUTPUT), dy.square::<2>(image, o, tile.map(|t| t as isize)));
            for (sum, v) in sums.iter_mut().zip(&v) {
                (0..16).for_each(|p| sum[p / 4][p % 4] += v[p / 4][p % 4] * z[p / 4][p % 4]);
            }
        }
    }
    sums.into_iter().flat_map(|sum| both_sides(&turned(&WEIGHT), sum).concat()).collect()
}
