//! A row of weights for each index: an inner product with a vector that is 1 in one place.

use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, ParamShape, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// Row `i` of the weight (K, O) for each index `i` in the bottom, and perhaps a bias.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// O: numbers of a row.
    pub num_output: usize,
    /// K: how many indices there are.
    pub input_dim: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// How the weight starts.
    pub weight_filler: Filler,
    /// How the bias starts.
    pub bias_filler: Filler,
}

impl Embed {
    /// The row that a number of the bottom names, its fraction cut off as in Caffe; `None` if there is no such row. Caffe
    /// reads beside its memory then; here the top is not a number.
    pub fn row(&self, index: f64) -> Option<usize> {
        let row = index.trunc();
        (row >= 0.0 && row < self.input_dim as f64).then_some(row as usize)
    }
}

impl Meaning for Embed {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        for (field, extent) in [("num_output", self.num_output), ("input_dim", self.input_dim)] {
            if extent == 0 {
                return Err(Fault::new(&format!("embed_param.{field}"), "0; expected at least 1"));
            }
        }
        let weight = Shape::checked(&[self.input_dim, self.num_output], "embed_param.input_dim")?;
        let mut params = vec![ParamShape { shape: weight, filler: self.weight_filler.clone() }];
        if self.bias {
            let shape = Shape::new([self.num_output]);
            params.push(ParamShape { shape, filler: self.bias_filler.clone() });
        }
        let top = [bottoms[0].dims(), &[self.num_output]].concat();
        let top = Shape::checked(&top, "embed_param.num_output")?;
        Ok(Inferred { tops: vec![top], params, aux: Vec::new() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Bottom, Param, ParamGrad, Top, TopGrad};
        match sub {
            SubTask::Forward if self.bias => Some(Accesses::new([Bottom(0), Param(0), Param(1)], [Top(0)])),
            SubTask::Forward => Some(Accesses::new([Bottom(0), Param(0)], [Top(0)])),
            SubTask::GradWeight => Some(Accesses::new([TopGrad(0), Bottom(0)], [ParamGrad(0)])),
            SubTask::GradBias if self.bias => Some(Accesses::new([TopGrad(0)], [ParamGrad(1)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, _: &[Shape], tops: &[Shape]) -> u64 {
        let values = tops[0].count() as u64;
        match sub {
            SubTask::Forward | SubTask::GradBias if self.bias => values,
            SubTask::GradWeight => values,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embed(num_output: usize, input_dim: usize) -> Embed {
        let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
        Embed { num_output, input_dim, bias: true, weight_filler, bias_filler }
    }

    #[test]
    fn each_index_becomes_a_row() {
        let inferred = embed(4, 7).infer(&[Shape::new([2, 3])]).expect("possible");
        assert_eq!(inferred.tops, [Shape::new([2, 3, 4])]);
        assert_eq!(inferred.params.iter().map(|p| p.shape.to_string()).collect::<Vec<_>>(), ["7x4", "4"]);
        let refused = |layer: Embed| layer.infer(&[Shape::new([2])]).map_err(|fault| fault.field).err();
        assert_eq!(refused(embed(0, 7)), Some("embed_param.num_output".to_owned()));
        assert_eq!(refused(embed(4, 0)), Some("embed_param.input_dim".to_owned()));
        assert_eq!(refused(embed(1 << 20, 1 << 20)), Some("embed_param.input_dim".to_owned()));
    }

    #[test]
    fn only_indices_name_rows() {
        let layer = embed(1, 3);
        assert_eq!([0.0, 2.0, 1.9, -0.5].map(|i| layer.row(i)), [Some(0), Some(2), Some(1), Some(0)]);
        assert_eq!([3.0, -1.0, f64::NAN, f64::INFINITY].map(|i| layer.row(i)), [None; 4]);
    }
}
