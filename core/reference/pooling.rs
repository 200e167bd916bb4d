//! Pooling: `Y[n,c,y,x]` is the maximum or the average of the window at (y, x) over channel `c` of image `n`.

use super::{Arrays, Context, Real, at, image_dims};
use crate::layer::{Operand, PoolMethod, Pooling, SubTask, Window};

pub(super) fn compute<T: Real>(layer: &Pooling, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let pool = Geometry { layer, input: image_dims(&ctx.bottoms[0]), output: image_dims(&ctx.tops[0]) };
    match (sub, layer.method) {
        (SubTask::Forward, PoolMethod::Max) => {
            let (y, positions) = pool.maximum(arrays.get(Operand::Bottom(0)));
            arrays.insert(Operand::Top(0), y);
            arrays.insert(Operand::Aux(0), positions);
        }
        (SubTask::Forward, PoolMethod::Average) => {
            let y = pool.average(arrays.get(Operand::Bottom(0)));
            arrays.insert(Operand::Top(0), y);
        }
        (SubTask::GradActivation, PoolMethod::Max) => {
            let dx = pool.grad_maximum(arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Aux(0)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        (SubTask::GradActivation, PoolMethod::Average) => {
            let dx = pool.grad_average(arrays.get(Operand::TopGrad(0)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

struct Geometry<'a> {
    layer: &'a Pooling,
    /// Extents of X: (N, C, H, W).
    input: [usize; 4],
    /// Extents of Y: (N, C, OH, OW).
    output: [usize; 4],
}

impl Geometry<'_> {
    /// Rows and columns of X under the window of `Y[n,c,y,x]`.
    fn windows(&self, [_, _, y, x]: [usize; 4]) -> [Window; 2] {
        let [_, _, h, w] = self.input;
        let [kh, kw] = self.layer.kernel_over([h, w]);
        [self.layer.window(0, y, kh, h), self.layer.window(1, x, kw, w)]
    }

    /// Places in X under the window of `place`, in the order of memory.
    fn under(&self, place: [usize; 4]) -> impl Iterator<Item = usize> {
        let ([n, c, _, _], input) = (place, self.input);
        let [rows, columns] = self.windows(place);
        (rows.start..rows.end)
            .flat_map(move |h| (columns.start..columns.end).map(move |w| at(input, [n, c, h, w])))
    }

    /// What the sum is divided by, padding included.
    fn divisor<T: Real>(&self, place: [usize; 4]) -> T {
        let [rows, columns] = self.windows(place);
        T::from_usize(rows.counted) * T::from_usize(columns.counted)
    }

    /// Every place of Y, in the order of memory.
    fn places(&self) -> impl Iterator<Item = [usize; 4]> {
        let [images, channels, oh, ow] = self.output;
        (0..images).flat_map(move |n| {
            (0..channels).flat_map(move |c| (0..oh).flat_map(move |y| (0..ow).map(move |x| [n, c, y, x])))
        })
    }

    /// X (N, C, H, W) → Y (N, C, OH, OW) and where each maximum was, `h·W + w` within its plane.
    ///
    /// The first value of the window is replaced by every later one that is greater. So the first of equal values
    /// wins, and NaN counts only at the window's start. (Caffe starts from −FLT_MAX without a position; a window
    /// with nothing above that makes its backward write outside memory.)
    fn maximum<T: Real>(&self, x: &[T]) -> (Vec<T>, Vec<T>) {
        let plane = self.input[2] * self.input[3];
        let (mut top, mut positions) = (Vec::new(), Vec::new());
        for place in self.places() {
            let best = self.under(place).reduce(|best, i| if x[i] > x[best] { i } else { best });
            let best = best.expect("no window lies outside the input: checked by infer");
            top.push(x[best]);
            positions.push(T::from_usize(best % plane));
        }
        (top, positions)
    }

    /// X (N, C, H, W) → Y (N, C, OH, OW).
    fn average<T: Real>(&self, x: &[T]) -> Vec<T> {
        let mean = |place| {
            let mut sum = T::ZERO;
            self.under(place).for_each(|i| sum += x[i]);
            sum / self.divisor(place)
        };
        self.places().map(mean).collect()
    }

    /// dY (N, C, OH, OW), positions (N, C, OH, OW) → dX (N, C, H, W).
    fn grad_maximum<T: Real>(&self, dy: &[T], positions: &[T]) -> Vec<T> {
        let mut dx = vec![T::ZERO; self.input.iter().product()];
        for place in self.places() {
            let [n, c, ..] = place;
            let from = at(self.output, place);
            dx[at(self.input, [n, c, 0, 0]) + positions[from].to_f64() as usize] += dy[from];
        }
        dx
    }

    /// dY (N, C, OH, OW) → dX (N, C, H, W).
    fn grad_average<T: Real>(&self, dy: &[T]) -> Vec<T> {
        let mut dx = vec![T::ZERO; self.input.iter().product()];
        for place in self.places() {
            let share = dy[at(self.output, place)] / self.divisor(place);
            self.under(place).for_each(|i| dx[i] += share);
        }
        dx
    }
}
