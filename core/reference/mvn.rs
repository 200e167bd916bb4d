//! Mean-variance normalisation of each row: `y = (x − mean) / (√variance + eps)`, and with `d` for that divisor
//! `dx = (dy − (Σ dy + y · Σ y · dy) / count) / d`, which is Caffe's and leaves eps out of d's derivative.

use super::{Arrays, Context, Real};
use crate::layer::{Mvn, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Mvn, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let count = ctx.bottoms[0].count() / layer.rows(&ctx.bottoms[0]);
    match sub {
        SubTask::Forward => {
            let (mut y, mut divisors) = (Vec::new(), Vec::new());
            for x in arrays.get(Operand::Bottom(0)).chunks(count) {
                let mean = mean(x.iter().copied());
                let centred: Vec<T> = x.iter().map(|x| *x - mean).collect();
                let divisor = if layer.normalize_variance {
                    let variance = self::mean(centred.iter().map(|x| *x * *x));
                    variance.sqrt() + T::from_f32(layer.eps)
                } else {
                    T::ONE
                };
                y.extend(centred.iter().map(|x| *x / divisor));
                divisors.push(divisor);
            }
            arrays.insert(Operand::Top(0), y);
            if layer.normalize_variance {
                arrays.insert(Operand::Aux(0), divisors);
            }
        }
        SubTask::GradActivation => {
            let mut dx = Vec::new();
            for (row, dy) in arrays.get(Operand::TopGrad(0)).chunks(count).enumerate() {
                let offset = mean(dy.iter().copied());
                if !layer.normalize_variance {
                    dx.extend(dy.iter().map(|dy| *dy - offset));
                    continue;
                }
                let y = &arrays.get(Operand::Top(0))[row * count..(row + 1) * count];
                let divisor = arrays.get(Operand::Aux(0))[row];
                let slope = mean(dy.iter().zip(y).map(|(dy, y)| *dy * *y));
                dx.extend(dy.iter().zip(y).map(|(dy, y)| (*dy - (offset + *y * slope)) / divisor));
            }
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

fn mean<T: Real>(values: impl ExactSizeIterator<Item = T>) -> T {
    let count = T::from_usize(values.len());
    let mut sum = T::ZERO;
    values.for_each(|value| sum += value);
    sum / count
}
