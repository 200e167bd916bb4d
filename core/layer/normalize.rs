//! A batch normalisation with the scale and perhaps a sum and the ReLU behind it, as one layer.
//!
//! Network files have no such type; [`crate::net::Net::fused`] makes it, and [`crate::net::Net::summing`] adds the shortcut of a
//! residual net. What is normalised is never stored: the bottom keeps its values, and backward normalises them again. Since the sums
//! that the bottom's gradient needs are those of the factors and of the bias, GradActivation writes the parameters' gradients, too.

use super::{Accesses, Arity, BatchNorm, Inferred, Meaning, Operand, Scale, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// `y = s · (x − mean) / √(variance + eps) + b`, channel by channel, perhaps plus a second bottom, and then perhaps a ReLU.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// The normalisation; the first three parameters are its running sums.
    pub norm: BatchNorm,
    /// Factors and perhaps a bias for each channel; the parameters from the fourth on.
    pub scale: Scale,
    /// Whether a second bottom of the same shape is added, whose gradient is that of the top where a ReLU lets it pass.
    pub sum: bool,
    /// Whether a ReLU with slope 0 follows.
    pub relu: bool,
    /// Whether the bottom has a gradient. If it has none, the parameters' gradients are left to GradWeight.
    pub passes_down: bool,
}

impl Normalize {
    /// Which parameter the scale's first is.
    pub const FACTORS: usize = 3;
    /// Which parameter the bias is, if there is one.
    pub const BIAS: usize = 4;

    /// The sub-task that writes the parameters' gradients.
    pub fn backward(&self) -> SubTask {
        if self.passes_down { SubTask::GradActivation } else { SubTask::GradWeight }
    }

    fn bias(&self) -> Option<Operand> {
        self.scale.bias.then_some(Operand::Param(Self::BIAS))
    }
}

impl Meaning for Normalize {
    fn arity(&self) -> Arity {
        let bottoms = 1 + usize::from(self.sum);
        Arity { bottoms: bottoms..=bottoms, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let normalised = &bottoms[..1];
        let mut inferred = self.norm.infer(normalised)?;
        inferred.params.extend(self.scale.infer(normalised)?.params);
        Ok(inferred)
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
        let kept = self.norm.uses_kept_statistics();
        if sub == SubTask::Forward {
            let mut reads = vec![Bottom(0), Param(Self::FACTORS)];
            if self.sum {
                reads.push(Bottom(1));
            }
            reads.extend(self.bias());
            if kept {
                reads.extend([Param(0), Param(1), Param(2)]);
            }
            return Some(Accesses::new(reads, [Top(0), Aux(0), Aux(1)]));
        }
        if sub != self.backward() {
            return None;
        }
        let mut reads = vec![TopGrad(0), Bottom(0), Aux(0), Aux(1), Param(Self::FACTORS)];
        // The ReLU's side is found from the bottom, by what forward did to it, or from the sum.
        if self.relu && self.sum {
            reads.push(Top(0));
        } else if self.relu {
            reads.extend(self.bias());
        }
        let mut writes = Vec::new();
        if self.sum {
            writes.push(BottomGrad(1));
        }
        if self.passes_down {
            writes.push(BottomGrad(0));
        }
        if !kept {
            writes.extend([ParamGrad(0), ParamGrad(1), ParamGrad(2)]);
        }
        writes.push(ParamGrad(Self::FACTORS));
        if self.scale.bias {
            writes.push(ParamGrad(Self::BIAS));
        }
        Some(Accesses::new(reads, writes))
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], tops: &[Shape]) -> u64 {
        let values = bottoms[0].count() as u64;
        let relu = if self.relu { values } else { 0 };
        let sum = if self.sum { values } else { 0 };
        let bottoms = &bottoms[..1];
        let scale = |sub| self.scale.flops(sub, bottoms, tops);
        match sub {
            SubTask::Forward => self.norm.flops(sub, bottoms, tops) + scale(sub) + sum + relu,
            sub if sub == self.backward() => {
                let down = if self.passes_down { self.norm.flops(sub, bottoms, tops) + values } else { 0 };
                down + scale(SubTask::GradWeight) + scale(SubTask::GradBias) + relu
            }
            _ => 0,
        }
    }
}
