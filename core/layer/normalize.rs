//! A batch normalisation with the scale and perhaps the ReLU behind it, as one layer.
//!
//! Network files have no such type; [`crate::net::Net::fused`] makes it. What is normalised is never stored: the bottom
//! keeps its values, and backward normalises them again. Since the sums that the bottom's gradient needs are those of
//! the factors and of the bias, GradActivation writes the parameters' gradients, too.

use super::{Accesses, Arity, BatchNorm, Inferred, Meaning, Operand, Scale, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// `y = s · (x − mean) / √(variance + eps) + b`, channel by channel, and then perhaps a ReLU.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// The normalisation; the first three parameters are its running sums.
    pub norm: BatchNorm,
    /// Factors and perhaps a bias for each channel; the parameters from the fourth on.
    pub scale: Scale,
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
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let mut inferred = self.norm.infer(bottoms)?;
        inferred.params.extend(self.scale.infer(bottoms)?.params);
        Ok(inferred)
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
        let kept = self.norm.uses_kept_statistics();
        if sub == SubTask::Forward {
            let mut reads = vec![Bottom(0), Param(Self::FACTORS)];
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
        // The ReLU's side is found from the bottom, by what forward did to it.
        reads.extend(self.bias().filter(|_| self.relu));
        let mut writes = Vec::new();
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
        let scale = |sub| self.scale.flops(sub, bottoms, tops);
        match sub {
            SubTask::Forward => self.norm.flops(sub, bottoms, tops) + scale(sub) + relu,
            sub if sub == self.backward() => {
                let down = if self.passes_down { self.norm.flops(sub, bottoms, tops) + values } else { 0 };
                down + scale(SubTask::GradWeight) + scale(SubTask::GradBias) + relu
            }
            _ => 0,
        }
    }
}
