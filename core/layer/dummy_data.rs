//! Blobs that fillers fill: constants, or random numbers that are drawn anew in each step.

use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, SubTask};
use crate::rng::{Draw, Purpose, Stream};
use crate::shape::Shape;
use crate::site::Fault;

/// Tops of given shapes, filled as parameters are.
#[derive(Clone, Debug, PartialEq)]
pub struct DummyData {
    /// Shape of each top; one shape serves all tops.
    pub shapes: Vec<Vec<usize>>,
    /// Filler of each top; one serves all tops, and none means zeros.
    pub fillers: Vec<Filler>,
    /// Number of tops.
    pub tops: usize,
}

impl DummyData {
    /// Fills top `top`, of `shape`, with what it has in the step of `draw`.
    pub fn fill(&self, top: usize, shape: &Shape, draw: Draw, out: &mut [f32]) {
        let stream = Stream::new(draw.seed, Purpose::Layer(draw.layer), top as u32);
        match self.fillers.get(top).or(self.fillers.first()) {
            Some(filler) => filler.fill(shape, &stream, out),
            None => out.fill(0.0),
        }
    }
}

impl Meaning for DummyData {
    fn arity(&self) -> Arity {
        Arity { bottoms: 0..=0, tops: 1..=self.tops.max(1) }
    }

    fn infer(&self, _: &[Shape]) -> Result<Inferred, Fault> {
        let tops = self.tops;
        let few = |given: usize| given == 1 || given == tops;
        let (shapes, fillers) = (self.shapes.len(), self.fillers.len());
        if !few(shapes) {
            let message = format!("{shapes} shapes for {tops} tops; expected one for all or one each");
            return Err(Fault::new("dummy_data_param.shape", message));
        }
        if fillers != 0 && !few(fillers) {
            let message = format!("{fillers} given for {tops} tops; expected none, one for all or one each");
            return Err(Fault::new("dummy_data_param.data_filler", message));
        }
        let shape = |i: usize| {
            let shape = self.shapes.get(i).unwrap_or(&self.shapes[0]);
            let shape = Shape::checked(shape, "dummy_data_param.shape")?;
            let square = shape.axes() == 4 && shape.dim(2) == shape.dim(3);
            match self.fillers.get(i).or(self.fillers.first()) {
                Some(Filler::Bilinear) if !square => Err(Fault::new(
                    "dummy_data_param.data_filler.type",
                    format!("bilinear fills images of (N, C, H, W) with H = W, not {shape}"),
                )),
                _ => Ok(shape),
            }
        };
        Ok(Inferred { tops: (0..tops).map(shape).collect::<Result<_, _>>()?, ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        let tops = || (0..self.tops).map(Operand::Top).collect::<Vec<_>>();
        (sub == SubTask::Forward).then(|| Accesses::new([], tops()))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dummy(shapes: &[&[usize]], fillers: &[Filler], tops: usize) -> DummyData {
        DummyData { shapes: shapes.iter().map(|s| s.to_vec()).collect(), fillers: fillers.to_vec(), tops }
    }

    #[test]
    fn one_shape_or_filler_serves_all_tops() {
        let tops = |layer: DummyData| layer.infer(&[]).map(|i| i.tops).map_err(|fault| fault.field);
        let (two, three) = (Shape::new([2]), Shape::new([3]));
        assert_eq!(tops(dummy(&[&[2]], &[], 2)), Ok(vec![two.clone(); 2]));
        assert_eq!(tops(dummy(&[&[2], &[3]], &[Filler::default()], 2)), Ok(vec![two, three]));
        let refused = |field: &str| Err(format!("dummy_data_param.{field}"));
        assert_eq!(tops(dummy(&[], &[], 1)), refused("shape"));
        assert_eq!(tops(dummy(&[&[2], &[3]], &[], 3)), refused("shape"));
        assert_eq!(tops(dummy(&[&[2, 0]], &[], 1)), refused("shape"));
        assert_eq!(tops(dummy(&[&[2]], &[const { Filler::Constant(1.0) }; 2], 3)), refused("data_filler"));
        assert_eq!(tops(dummy(&[&[1, 1, 2, 3]], &[Filler::Bilinear], 1)), refused("data_filler.type"));
    }

    #[test]
    fn what_is_random_is_another_in_each_step_and_top() {
        let layer = dummy(&[&[8]], &[Filler::Uniform { min: 0.0, max: 1.0 }], 2);
        let filled = |top, seed| {
            let mut out = vec![f32::NAN; 8];
            layer.fill(top, &Shape::new([8]), Draw { seed, ..Draw::default() }, &mut out);
            out
        };
        assert_eq!(filled(0, 1), filled(0, 1));
        assert_ne!(filled(0, 1), filled(0, 2));
        assert_ne!(filled(0, 1), filled(1, 1));
    }
}
