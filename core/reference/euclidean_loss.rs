//! Euclidean loss: `L = Σ (a − b)² / (2N)`, `da = loss_weight / N · (a − b)`, `db = −da`.

use super::{Arrays, Context, Real};
use crate::layer::{Operand, SubTask};

pub(super) fn compute<T: Real>(ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let (a, b) = (arrays.get(Operand::Bottom(0)), arrays.get(Operand::Bottom(1)));
    let differences: Vec<T> = a.iter().zip(b).map(|(a, b)| *a - *b).collect();
    let images = T::from_usize(ctx.bottoms[0].images());
    match sub {
        SubTask::Forward if !ctx.tops.is_empty() => {
            let mut sum = T::ZERO;
            differences.iter().for_each(|d| sum += *d * *d);
            arrays.insert(Operand::Top(0), vec![sum / images / (T::ONE + T::ONE)]);
        }
        SubTask::GradActivation => {
            let scale = T::from_f32(ctx.loss_weights[0]) / images;
            for (i, scale) in [scale, -scale].into_iter().enumerate() {
                let gradient = differences.iter().map(|d| scale * *d).collect();
                arrays.insert(Operand::BottomGrad(i), gradient);
            }
        }
        _ => {}
    }
}
