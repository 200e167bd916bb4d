//! Contrastive loss: `L = Σ_n l_n / (2N)` with `l_n = d_n²` for a similar pair and `max(margin − d_n, 0)²` for any
//! other, `d_n² = Σ_c (a_nc − b_nc)²`. Its gradient is `da_n = loss_weight / N · (a_n − b_n)` for a similar pair,
//! `−loss_weight / N · (margin − d_n) / (d_n + 1e-4) · (a_n − b_n)` for another that is not a margin away, and 0
//! for the rest; `db_n = −da_n`. The 1e-4 is Caffe's and keeps equal features apart from a division by 0.
//!
//! The legacy version has `max(margin − d_n², 0)`, and so `−loss_weight / N · (a_n − b_n)`.

use super::{Arrays, Context, Real};
use crate::layer::{ContrastiveLoss, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &ContrastiveLoss, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    let [a, b, similar] = [0, 1, 2].map(|i| arrays.get(Operand::Bottom(i)));
    let differences: Vec<T> = a.iter().zip(b).map(|(a, b)| *a - *b).collect();
    let channels = ctx.bottoms[0].per_image();
    let pairs: Vec<Pair<T>> = differences
        .chunks(channels)
        .zip(similar)
        .map(|(difference, similar)| Pair { difference, is_similar: is_similar(*similar) })
        .collect();
    match sub {
        SubTask::Forward if !ctx.tops.is_empty() => {
            let mut sum = T::ZERO;
            pairs.iter().for_each(|pair| sum += pair.loss(layer));
            let loss = sum / T::from_usize(pairs.len()) / (T::ONE + T::ONE);
            arrays.insert(Operand::Top(0), vec![loss]);
        }
        SubTask::GradActivation => {
            let weight = T::from_f32(ctx.loss_weights[0]) / T::from_usize(pairs.len());
            let da: Vec<T> = pairs.iter().flat_map(|pair| pair.gradient(layer, weight)).collect();
            let db = da.iter().map(|d| -*d).collect();
            arrays.insert(Operand::BottomGrad(0), da);
            arrays.insert(Operand::BottomGrad(1), db);
        }
        _ => {}
    }
}

/// Whether a pair is similar: its number is not 0, with a fraction cut off as by a C cast.
fn is_similar<T: Real>(similar: T) -> bool {
    similar.to_f64().trunc() != 0.0
}

struct Pair<'a, T> {
    /// a − b.
    difference: &'a [T],
    is_similar: bool,
}

impl<T: Real> Pair<'_, T> {
    fn squared_distance(&self) -> T {
        let mut sum = T::ZERO;
        self.difference.iter().for_each(|d| sum += *d * *d);
        sum
    }

    fn loss(&self, layer: &ContrastiveLoss) -> T {
        let (square, margin) = (self.squared_distance(), T::from_f32(layer.margin));
        if self.is_similar {
            square
        } else if layer.legacy_version {
            (margin - square).larger(T::ZERO)
        } else {
            let missing = (margin - square.sqrt()).larger(T::ZERO);
            missing * missing
        }
    }

    /// da of the pair.
    fn gradient(&self, layer: &ContrastiveLoss, weight: T) -> Vec<T> {
        let (square, margin) = (self.squared_distance(), T::from_f32(layer.margin));
        let distance = square.sqrt();
        let missing = margin - if layer.legacy_version { square } else { distance };
        let factor = if self.is_similar {
            weight
        } else if missing <= T::ZERO {
            T::ZERO
        } else if layer.legacy_version {
            -weight
        } else {
            -weight * missing / (distance + T::from_f32(1e-4))
        };
        self.difference.iter().map(|d| factor * *d).collect()
    }
}
