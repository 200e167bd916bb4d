//! Softmax along one axis: `y_i = exp(x_i − max) / Σ exp(x_j − max)`; backward `dx_i = y_i · (dy_i − Σ dy_j · y_j)`.

use super::{Arrays, Context, Real};
use crate::layer::{ClassView, Operand, Softmax, SubTask};
use crate::shape::Shape;

pub(super) fn compute<T: Real>(layer: &Softmax, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let view = view_of(&ctx.bottoms[0], layer.axis);
    match sub {
        SubTask::Forward => {
            let y = probabilities(&view, arrays.get(Operand::Bottom(0)));
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let dx = grad_activation(&view, arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Top(0)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

/// A blob with classes along `axis` as outer × classes × inner.
pub(super) fn view_of(shape: &Shape, axis: i32) -> ClassView {
    ClassView::new(shape, axis, "axis").expect("the axis exists: checked by infer")
}

/// Places of the classes of every prediction, in the order of the labels (outer, inner).
pub(super) fn predictions(view: &ClassView) -> impl Iterator<Item = Vec<usize>> {
    let ClassView { outer, classes, inner } = *view;
    (0..outer).flat_map(move |o| {
        (0..inner).map(move |i| (0..classes).map(|k| (o * classes + k) * inner + i).collect())
    })
}

/// x (outer, classes, inner) → y (outer, classes, inner).
pub(super) fn probabilities<T: Real>(view: &ClassView, x: &[T]) -> Vec<T> {
    let mut y = vec![T::ZERO; x.len()];
    for classes in predictions(view) {
        let mut max = x[classes[0]];
        classes.iter().for_each(|&i| max = max.larger(x[i]));
        let mut sum = T::ZERO;
        for &i in &classes {
            y[i] = (x[i] - max).exp();
            sum += y[i];
        }
        classes.iter().for_each(|&i| y[i] = y[i] / sum);
    }
    y
}

/// dy, y (outer, classes, inner) → dx (outer, classes, inner).
fn grad_activation<T: Real>(view: &ClassView, dy: &[T], y: &[T]) -> Vec<T> {
    let mut dx = vec![T::ZERO; y.len()];
    for classes in predictions(view) {
        let mut dot = T::ZERO;
        classes.iter().for_each(|&i| dot += dy[i] * y[i]);
        classes.iter().for_each(|&i| dx[i] = (dy[i] - dot) * y[i]);
    }
    dx
}
