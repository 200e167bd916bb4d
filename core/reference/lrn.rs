//! Local response normalisation: `y_i = x_i · s_i^(−β)` with `s_i = k + α/|W| · Σ_{j ∈ W(i)} x_j²`, and
//! `dx_j = dy_j · s_j^(−β) − 2αβ/|W| · x_j · Σ_{i: j ∈ W(i)} dy_i · x_i · s_i^(−β−1)`.
//!
//! Windows lie around their middle, so `j ∈ W(i)` is the same as `i ∈ W(j)`.

use std::ops::Range;

use super::{Arrays, Context, Real, at, image_dims};
use crate::layer::{Lrn, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &Lrn, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let norm = Geometry { layer, dims: image_dims(&ctx.bottoms[0]) };
    match sub {
        SubTask::Forward => {
            let y = norm.forward(arrays.get(Operand::Bottom(0)));
            arrays.insert(Operand::Top(0), y);
        }
        SubTask::GradActivation => {
            let dx = norm.grad_activation(arrays.get(Operand::TopGrad(0)), arrays.get(Operand::Bottom(0)));
            arrays.insert(Operand::BottomGrad(0), dx);
        }
        _ => {}
    }
}

struct Geometry<'a> {
    layer: &'a Lrn,
    /// Extents of X and Y: (N, C, H, W).
    dims: [usize; 4],
}

impl Geometry<'_> {
    /// Every place of X, in the order of memory.
    fn places(&self) -> impl Iterator<Item = [usize; 4]> {
        let [images, channels, h, w] = self.dims;
        (0..images).flat_map(move |n| {
            (0..channels).flat_map(move |c| (0..h).flat_map(move |y| (0..w).map(move |x| [n, c, y, x])))
        })
    }

    /// Places in X of the neighbours of `place`, itself among them, in the order of memory.
    fn neighbours(&self, place: [usize; 4]) -> impl Iterator<Item = usize> {
        let (dims, reach, n) = (self.dims, self.layer.reach(), place[0]);
        let near = move |axis: usize| -> Range<usize> {
            let (middle, reach) = (place[axis], reach[axis - 1]);
            middle.saturating_sub(reach)..(middle + reach + 1).min(dims[axis])
        };
        near(1).flat_map(move |c| near(2).flat_map(move |y| near(3).map(move |x| at(dims, [n, c, y, x]))))
    }

    /// Σ of `values` over the neighbours of each place.
    fn sums<T: Real>(&self, values: &[T]) -> Vec<T> {
        let sum = |place| {
            let mut sum = T::ZERO;
            self.neighbours(place).for_each(|i| sum += values[i]);
            sum
        };
        self.places().map(sum).collect()
    }

    /// α/|W|.
    fn share<T: Real>(&self) -> T {
        T::from_f32(self.layer.alpha) / T::from_f32(self.layer.divisor())
    }

    /// X (N, C, H, W) → s (N, C, H, W).
    fn scale<T: Real>(&self, x: &[T]) -> Vec<T> {
        let squares: Vec<T> = x.iter().map(|x| *x * *x).collect();
        let (base, share) = (T::from_f32(self.layer.base()), self.share::<T>());
        self.sums(&squares).into_iter().map(|sum| base + share * sum).collect()
    }

    /// X (N, C, H, W) → Y (N, C, H, W).
    fn forward<T: Real>(&self, x: &[T]) -> Vec<T> {
        let beta = T::from_f32(self.layer.beta);
        x.iter().zip(self.scale(x)).map(|(x, s)| *x * s.powf(-beta)).collect()
    }

    /// dY, X (N, C, H, W) → dX (N, C, H, W).
    fn grad_activation<T: Real>(&self, dy: &[T], x: &[T]) -> Vec<T> {
        let (beta, two) = (T::from_f32(self.layer.beta), T::ONE + T::ONE);
        let (s, factor) = (self.scale(x), two * self.share() * beta);
        let back: Vec<T> = (0..x.len()).map(|i| dy[i] * x[i] * s[i].powf(-beta) / s[i]).collect();
        let sums = self.sums(&back);
        (0..x.len()).map(|i| dy[i] * s[i].powf(-beta) - factor * x[i] * sums[i]).collect()
    }
}
