//! Cross entropy of sigmoids: `L = Σ (ln(1 + eˣ) − t · x) / divisor`, with the exponential of what is not above 0;
//! `dx = loss_weight / divisor · (p − t)`.

use super::neuron::sigmoid;
use super::{Arrays, Context, Real};
use crate::layer::{Operand, SigmoidCrossEntropyLoss, SubTask};

pub(super) fn compute<T: Real>(
    layer: &SigmoidCrossEntropyLoss,
    ctx: &Context,
    sub: SubTask,
    arrays: &mut Arrays<T>,
) {
    let (x, targets) = (arrays.get(Operand::Bottom(0)), arrays.get(Operand::Bottom(1)));
    match sub {
        SubTask::Forward => {
            let (mut sum, mut valid) = (T::ZERO, 0);
            for (x, t) in x.iter().zip(targets).filter(|(_, t)| counts(layer, **t)) {
                let above = if *x >= T::ZERO { T::ONE } else { T::ZERO };
                let small = *x - (T::ONE + T::ONE) * *x * above;
                sum += -(*x * (*t - above) - (T::ONE + small.exp()).ln());
                valid += 1;
            }
            let divisor = T::from_f32(layer.divisor(&ctx.bottoms[0], valid));
            arrays.insert(Operand::Aux(0), vec![divisor]);
            if !ctx.tops.is_empty() {
                arrays.insert(Operand::Top(0), vec![sum / divisor]);
            }
        }
        SubTask::GradActivation => {
            let scale = T::from_f32(ctx.loss_weights[0]) / arrays.get(Operand::Aux(0))[0];
            let each =
                |(x, t): (&T, &T)| if counts(layer, *t) { scale * (sigmoid(*x) - *t) } else { T::ZERO };
            let dx = x.iter().zip(targets).map(each).collect();
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

/// Whether a target is not ignored; its fraction is cut off, as by a C cast.
fn counts<T: Real>(layer: &SigmoidCrossEntropyLoss, target: T) -> bool {
    layer.ignore_label.is_none_or(|ignored| target.to_f64().trunc() != f64::from(ignored))
}
