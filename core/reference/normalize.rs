//! A batch normalisation, a scale and perhaps a sum and a ReLU as one layer: nothing but these, one after the other.

use super::{Arrays, Context, Real, batch_norm, relu, scale};
use crate::layer::{Normalize, Operand, Relu, SubTask};

const RELU: Relu = Relu { negative_slope: 0.0, applied: false };

pub(super) fn compute<T: Real>(layer: &Normalize, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    // What is added has nothing to do with the parts.
    let ctx = &Context { bottoms: &ctx.bottoms[..1], ..*ctx };
    if sub == SubTask::Forward {
        let mut parts = Parts::new(layer, arrays);
        batch_norm::compute(&layer.norm, ctx, sub, &mut parts.norm);
        parts.scale_up(layer, ctx);
        let top = parts.top(layer, arrays);
        arrays.insert(Operand::Top(0), top);
        (0..2).map(Operand::Aux).for_each(|aux| arrays.insert(aux, parts.norm.get(aux).to_vec()));
    } else if sub == layer.backward() {
        backward(layer, ctx, arrays);
    }
}

/// The arrays of each part.
struct Parts<T> {
    norm: Arrays<T>,
    scale: Arrays<T>,
    relu: Arrays<T>,
}

impl<T: Real> Parts<T> {
    fn new(layer: &Normalize, arrays: &Arrays<T>) -> Self {
        let copy = |of: &[(Operand, Operand)]| {
            let mut copies = Arrays::new();
            for (whole, part) in of {
                if let Some(values) = arrays.find(*whole) {
                    copies.insert(*part, values.to_vec());
                }
            }
            copies
        };
        let same = |operand| (operand, operand);
        let norm = [0, 1, 2].map(|i| same(Operand::Param(i)));
        let own = [Operand::Bottom(0), Operand::Aux(0), Operand::Aux(1)].map(same);
        let mut scale = vec![(Operand::Param(Normalize::FACTORS), Operand::Param(0))];
        if layer.scale.bias {
            scale.push((Operand::Param(Normalize::BIAS), Operand::Param(layer.scale.bias_param())));
        }
        Self {
            norm: copy(&[&norm[..], &own[..]].concat()),
            scale: copy(&scale),
            relu: copy(&[same(Operand::TopGrad(0))]),
        }
    }

    /// From what is normalised to the ReLU's bottom.
    fn scale_up(&mut self, layer: &Normalize, ctx: &Context) {
        self.scale.insert(Operand::Bottom(0), self.norm.get(Operand::Top(0)).to_vec());
        // Without a bias the scale asks for none.
        scale::compute(&layer.scale, ctx, SubTask::Forward, &mut self.scale);
    }

    /// What leaves the layer.
    fn top(&mut self, layer: &Normalize, arrays: &Arrays<T>) -> Vec<T> {
        let mut scaled = self.scale.get(Operand::Top(0)).to_vec();
        if layer.sum {
            let shortcut = arrays.get(Operand::Bottom(1));
            scaled.iter_mut().zip(shortcut).for_each(|(value, term)| *value += *term);
        }
        if !layer.relu {
            return scaled;
        }
        self.relu.insert(Operand::Bottom(0), scaled);
        relu::compute(&RELU, SubTask::Forward, &mut self.relu);
        self.relu.get(Operand::Top(0)).to_vec()
    }
}

fn backward<T: Real>(layer: &Normalize, ctx: &Context, arrays: &mut Arrays<T>) {
    let mut parts = Parts::new(layer, arrays);
    let x = arrays.get(Operand::Bottom(0));
    let normalised = batch_norm::normalise(&layer.norm, ctx, x, &parts.norm);
    parts.norm.insert(Operand::Top(0), normalised);
    parts.scale.insert(Operand::Bottom(0), parts.norm.get(Operand::Top(0)).to_vec());
    if layer.relu {
        if layer.sum {
            // A sum is on the side of its ReLU's top.
            let top = arrays.get(Operand::Top(0));
            for blob in [Operand::Bottom(0), Operand::Top(0)] {
                parts.relu.insert(blob, top.to_vec());
            }
        } else {
            parts.scale_up(layer, ctx);
            parts.top(layer, arrays);
        }
        relu::compute(&RELU, SubTask::GradActivation, &mut parts.relu);
    }
    let passed = if layer.relu { Operand::BottomGrad(0) } else { Operand::TopGrad(0) };
    let passed = parts.relu.get(passed).to_vec();
    if layer.sum {
        arrays.insert(Operand::BottomGrad(1), passed.clone());
    }
    parts.scale.insert(Operand::TopGrad(0), passed);
    for sub in [SubTask::GradWeight, SubTask::GradBias, SubTask::GradActivation] {
        scale::compute(&layer.scale, ctx, sub, &mut parts.scale);
    }
    parts.norm.insert(Operand::TopGrad(0), parts.scale.get(Operand::BottomGrad(0)).to_vec());
    for sub in [SubTask::GradWeight, SubTask::GradActivation] {
        batch_norm::compute(&layer.norm, ctx, sub, &mut parts.norm);
    }
    let mut keep = |from: &Arrays<T>, part: Operand, whole: Operand| {
        if let Some(values) = from.find(part) {
            arrays.insert(whole, values.to_vec());
        }
    };
    if layer.passes_down {
        keep(&parts.norm, Operand::BottomGrad(0), Operand::BottomGrad(0));
    }
    (0..3).map(Operand::ParamGrad).for_each(|sum| keep(&parts.norm, sum, sum));
    keep(&parts.scale, Operand::ParamGrad(0), Operand::ParamGrad(Normalize::FACTORS));
    keep(&parts.scale, Operand::ParamGrad(1), Operand::ParamGrad(Normalize::BIAS));
}
