//! One value in place of each row: `y = coeff · Σ f(x)`, with x, |x| or x² for f(x), or the mean of x.

use super::{Arrays, Context, Real};
use crate::layer::{Operand, Reduction, ReductionOperation, SubTask};

pub(super) fn compute<T: Real>(layer: &Reduction, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    use ReductionOperation::{AbsoluteSum, Mean, Sum, SumOfSquares};
    let [_, count] = layer.rows(&ctx.bottoms[0]).expect("the axis exists: checked by infer");
    let mut coeff = T::from_f32(layer.coeff);
    if layer.operation == Mean {
        coeff = coeff / T::from_usize(count);
    }
    match sub {
        SubTask::Forward => {
            let term = |x: T| match layer.operation {
                Sum | Mean => x,
                AbsoluteSum => x.larger(-x),
                SumOfSquares => x * x,
            };
            let rows = arrays.get(Operand::Bottom(0)).chunks(count);
            let y = rows.map(|row| {
                let mut sum = T::ZERO;
                row.iter().for_each(|x| sum += term(*x));
                coeff * sum
            });
            let y = y.collect();
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let x = arrays.find(Operand::Bottom(0)).unwrap_or_default();
            let slope = |i: usize| match layer.operation {
                Sum | Mean => T::ONE,
                AbsoluteSum => x[i].sign(),
                SumOfSquares => (T::ONE + T::ONE) * x[i],
            };
            let dy = arrays.get(Operand::TopGrad(0));
            let dx = (0..dy.len() * count).map(|i| dy[i / count] * coeff * slope(i)).collect();
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}
