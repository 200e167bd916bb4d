//! Inner products: by cuBLAS where it is, else by tiles of our own.

use quadrille_core::layer::{InnerProduct, Operand, SubTask};

use super::Binder;
use super::scale::{Summed, View, channel_sums, scaled};
use crate::op::{Matrix, Op, Product, Span, THREADS, arguments};
use crate::spec::Arithmetic;

/// Rows and columns of a block's tile; `TILE` of the kernels.
pub(super) const TILE: usize = 64;

/// Blocks that keep a GPU busy: two for each of the multiprocessors of a large one.
const BLOCKS: usize = 264;

/// Terms of a sum that are worth a block of their own.
const TERMS: usize = 128;

/// Into how many parts the sums of a product of so many tiles are cut, so that all of the GPU has something to do.
pub(super) fn splits(tiles: usize, depth: usize) -> usize {
    const MOST: usize = 64;
    (BLOCKS / tiles.max(1)).min(depth / TERMS).clamp(1, MOST)
}

/// `C = A · B`, perhaps with a bias; with the rows of all chunks C has `all_rows`.
fn product(at: &mut Binder<'_>, product: Product, all_rows: usize) -> Vec<Op> {
    let Product { a, b, c, bias, rows, columns, depth } = product;
    if at.blas {
        let view = View { outer: rows, channels: columns, inner: 1 };
        let bias = bias.map(|bias| scaled(c, None, Some(bias), c, false, view));
        return std::iter::once(Op::Product(Product { bias: None, ..product })).chain(bias).collect();
    }
    let bf16 = usize::from(at.options.arithmetic == Arithmetic::Bf16);
    let tiles = [columns.div_ceil(TILE), rows.div_ceil(TILE)];
    // As for all images together, so that those of a chunk are summed up in the same order.
    let splits = splits(tiles[0] * all_rows.div_ceil(TILE), depth);
    let [a_row, a_column] = if a.turned { [1, rows] } else { [depth, 1] };
    let [b_row, b_column] = if b.turned { [1, depth] } else { [columns, 1] };
    let fields = [rows, columns, depth, a_row, a_column, b_row, b_column, splits, bf16];
    let grid = [tiles[0], tiles[1], splits];
    let (a, b, count) = (a.values, b.values, rows * columns);
    if splits == 1 {
        return vec![Op::blocks("product", grid, arguments![a, b, bias, c, fields])];
    }
    let parts = at.workspace(splits * count);
    let none = None::<Span>;
    vec![
        Op::blocks("product", grid, arguments![a, b, none, parts, fields]),
        Op::each("sum_parts", count, arguments![parts, bias, c, splits, columns, count]),
    ]
}

pub(super) fn ops(layer: &InnerProduct, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let [images, inputs] = layer.matrix(&at.bottom(0)).map_err(|fault| fault.message)?;
    let outputs = layer.num_output;
    let all_images = images / at.tile.images.max(1) * at.batch();
    let matrix = |values, turned| Matrix { values, turned };
    match sub {
        SubTask::Forward => {
            let bias = layer.bias.then(|| at.get(Operand::Param(1))).transpose()?;
            let ((x, turned), w) = (at.plain(Operand::Bottom(0))?, at.get(Operand::Param(0))?);
            let (a, b, c) = (matrix(x, false), matrix(w, !layer.transpose), at.get(Operand::Top(0))?);
            let (rows, columns, depth) = (images, outputs, inputs);
            let ops = product(at, Product { a, b, c, bias, rows, columns, depth }, all_images);
            Ok(turned.into_iter().chain(ops).collect())
        }
        SubTask::GradActivation => {
            let (dy, w) = (at.get(Operand::TopGrad(0))?, at.get(Operand::Param(0))?);
            let (a, b) = (matrix(dy, false), matrix(w, layer.transpose));
            let (c, turned) = at.plain_result(Operand::BottomGrad(0))?;
            let (rows, columns, depth) = (images, inputs, outputs);
            let mut ops = product(at, Product { a, b, c, bias: None, rows, columns, depth }, all_images);
            ops.extend(turned);
            Ok(ops)
        }
        SubTask::GradWeight => {
            let (dy, (x, turned)) = (at.get(Operand::TopGrad(0))?, at.plain(Operand::Bottom(0))?);
            let (c, depth) = (at.get(Operand::ParamGrad(0))?, images);
            let (first, second, rows, columns) =
                if layer.transpose { (x, dy, inputs, outputs) } else { (dy, x, outputs, inputs) };
            let (a, b) = (matrix(first, true), matrix(second, false));
            let ops = product(at, Product { a, b, c, bias: None, rows, columns, depth }, rows);
            Ok(turned.into_iter().chain(ops).collect())
        }
        _ => {
            let [dy, db] = [at.get(Operand::TopGrad(0))?, at.get(Operand::ParamGrad(1))?];
            let view = View { outer: images, channels: outputs, inner: 1 };
            Ok(channel_sums(at, Summed::Values(dy), db, view, 1.0))
        }
    }
}

/// A block of the products' kernels makes its tile with 4 × 4 values a thread.
const _: () = assert!(TILE * TILE == 16 * THREADS);
