//! The windows of a convolution as channels.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask, Windows};
use crate::shape::Shape;
use crate::site::Fault;

/// What windows over a blob see: a channel for each channel and tap, a place for each window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Im2col {
    /// The windows.
    pub windows: Windows,
    /// The axis of the channels; negative counts from the end. All axes before it are images.
    pub axis: i32,
}

impl Im2col {
    /// The axis of the channels, the windows with one value for each axis behind it, and how many there are along each.
    ///
    /// # Errors
    /// If no window fits, or a field is impossible.
    pub fn windows_of(&self, bottom: &Shape) -> Result<(usize, Windows, Vec<usize>), Fault> {
        let axis = bottom.axis(self.axis, "convolution_param.axis")?;
        let extents = &bottom.dims()[axis + 1..];
        if extents.is_empty() {
            return Err(Fault::new(
                "convolution_param.axis",
                format!(
                    "no axis of a blob of shape {bottom} lies behind axis {axis}; windows need at least one"
                ),
            ));
        }
        let windows = self.windows.over(extents.len())?;
        let places = windows.places(extents).ok_or_else(|| windows.too_large(extents))?;
        Ok((axis, windows, places))
    }
}

impl Meaning for Im2col {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let (axis, windows, places) = self.windows_of(&bottoms[0])?;
        let channels = bottoms[0].dim(axis).saturating_mul(windows.taps());
        let top = [&bottoms[0].dims()[..axis], &[channels], &places[..]].concat();
        let top = Shape::checked(&top, "convolution_param.kernel_size")?;
        Ok(Inferred { tops: vec![top], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        match sub {
            SubTask::Forward => Some(Accesses::new([Operand::Bottom(0)], [Operand::Top(0)])),
            SubTask::GradActivation => Some(Accesses::new([Operand::TopGrad(0)], [Operand::BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, _: &[Shape], tops: &[Shape]) -> u64 {
        if sub == SubTask::GradActivation { tops[0].count() as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_times_taps_by_windows() {
        let windows = Windows { kernel: vec![3, 2], pad: vec![1], stride: vec![2], dilation: vec![1] };
        let layer = Im2col { windows: windows.clone(), axis: 1 };
        let top = |layer: &Im2col, dims: &[usize]| {
            let inferred = layer.infer(&[Shape::new(dims)]).map_err(|fault| fault.field)?;
            Ok(inferred.tops[0].to_string())
        };
        let refused = |field: &str| Err(format!("convolution_param.{field}"));
        assert_eq!(top(&layer, &[2, 3, 5, 6]), Ok("2x18x3x4".to_owned()));
        assert_eq!(top(&layer, &[2, 3, 5]), refused("kernel_size"));
        assert_eq!(top(&layer, &[2, 3]), refused("axis"));
        assert_eq!(
            top(&Im2col { windows: Windows { pad: vec![0], ..windows }, axis: -3 }, &[2, 3, 2, 2]),
            refused("kernel_size")
        );
    }
}
