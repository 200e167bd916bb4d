//! Inner products: `Y[m,o] = b[o] + Σ W[o,k] · X[m,k]`, with `W[k,o]` instead if the weight is transposed.

use super::{Arrays, Context, Real};
use crate::layer::{InnerProduct, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &InnerProduct, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let [rows, inputs] = layer.matrix(&ctx.bottoms[0]).expect("the axis exists: checked by infer");
    let product = Product { layer, rows, inputs, outputs: layer.num_output };
    match sub {
        SubTask::Forward => {
            let bias = layer.bias.then(|| arrays.get(Operand::Param(1)));
            let y = product.forward(arrays.get(Operand::Bottom(0)), arrays.get(Operand::Param(0)), bias);
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let dx = product.grad_activation(arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Param(0)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        SubTask::GradWeight => {
            let dw = product.grad_weight(arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Bottom(0)));
            arrays.insert(Operand::ParamGrad(0), dw);
        }
        SubTask::GradBias if layer.bias => {
            let db = product.grad_bias(arrays.get(Operand::TopGrad(0)));
            arrays.insert(Operand::ParamGrad(1), db);
        }
        _ => {}
    }
}

struct Product<'a> {
    layer: &'a InnerProduct,
    /// M: images.
    rows: usize,
    /// K: inputs per image.
    inputs: usize,
    /// O: outputs per image.
    outputs: usize,
}

impl Product<'_> {
    /// Place of the weight between output `o` and input `k`.
    fn weight(&self, o: usize, k: usize) -> usize {
        if self.layer.transpose { k * self.outputs + o } else { o * self.inputs + k }
    }

    /// X (M, K), W (O, K) or (K, O), b (O) → Y (M, O). The sum ascends over the inputs; the bias is added last.
    fn forward<T: Real>(&self, x: &[T], w: &[T], bias: Option<&[T]>) -> Vec<T> {
        let mut y = vec![T::ZERO; self.rows * self.outputs];
        for m in 0..self.rows {
            for o in 0..self.outputs {
                let mut sum = T::ZERO;
                for k in 0..self.inputs {
                    sum += w[self.weight(o, k)] * x[m * self.inputs + k];
                }
                y[m * self.outputs + o] = bias.map_or(sum, |b| sum + b[o]);
            }
        }
        y
    }

    /// dY (M, O), W (O, K) or (K, O) → dX (M, K): each a sum over the outputs ascending.
    fn grad_activation<T: Real>(&self, dy: &[T], w: &[T]) -> Vec<T> {
        let mut dx = vec![T::ZERO; self.rows * self.inputs];
        for m in 0..self.rows {
            for k in 0..self.inputs {
                for o in 0..self.outputs {
                    dx[m * self.inputs + k] += w[self.weight(o, k)] * dy[m * self.outputs + o];
                }
            }
        }
        dx
    }

    /// dY (M, O), X (M, K) → dW (O, K) or (K, O): each a sum over the images ascending.
    fn grad_weight<T: Real>(&self, dy: &[T], x: &[T]) -> Vec<T> {
        let mut dw = vec![T::ZERO; self.outputs * self.inputs];
        for m in 0..self.rows {
            for o in 0..self.outputs {
                for k in 0..self.inputs {
                    dw[self.weight(o, k)] += x[m * self.inputs + k] * dy[m * self.outputs + o];
                }
            }
        }
        dw
    }

    /// dY (M, O) → db (O): each a sum over the images ascending.
    fn grad_bias<T: Real>(&self, dy: &[T]) -> Vec<T> {
        let mut db = vec![T::ZERO; self.outputs];
        for m in 0..self.rows {
            for o in 0..self.outputs {
                db[o] += dy[m * self.outputs + o];
            }
        }
        db
    }
}
