//! Embed: `Y[m] = W[index_m] + b`; `dW[index_m] += dY[m]`, m ascending.

use super::{Arrays, Context, Real};
use crate::layer::{Embed, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Embed, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let outputs = layer.num_output;
    let rows = |arrays: &Arrays<T>| -> Vec<Option<usize>> {
        arrays.get(Operand::Bottom(0)).iter().map(|index| layer.row(index.to_f64())).collect()
    };
    match sub {
        SubTask::Forward => {
            let (w, mut y) = (arrays.get(Operand::Param(0)), Vec::with_capacity(ctx.tops[0].count()));
            for row in rows(arrays) {
                for o in 0..outputs {
                    let value = row.map_or(T::NAN, |row| w[row * outputs + o]);
                    y.push(if layer.bias { value + arrays.get(Operand::Param(1))[o] } else { value });
                }
            }
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradWeight => {
            let (dy, mut dw) = (arrays.get(Operand::TopGrad(0)), vec![T::ZERO; layer.input_dim * outputs]);
            for (row, dy) in rows(arrays).into_iter().zip(dy.chunks(outputs)) {
                let Some(row) = row else { continue };
                dw[row * outputs..].iter_mut().zip(dy).for_each(|(dw, dy)| *dw += *dy);
            }
            arrays.insert(Operand::ParamGrad(0), dw);
        }
        SubTask::GradBias if layer.bias => {
            let mut db = vec![T::ZERO; outputs];
            for dy in arrays.get(Operand::TopGrad(0)).chunks(outputs) {
                db.iter_mut().zip(dy).for_each(|(db, dy)| *db += *dy);
            }
            arrays.insert(Operand::ParamGrad(1), db);
        }
        _ => {}
    }
}
