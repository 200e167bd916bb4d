//! Windows over any number of axes: kernels, padding, steps and dilation, as Caffe lets one write them.

use super::check_extents;
use crate::shape::Shape;
use crate::site::Fault;

/// Windows that move over the axes behind the channels. Each list holds one value for all axes, or one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Extents of the kernel.
    pub kernel: Vec<usize>,
    /// Zeros on each side.
    pub pad: Vec<usize>,
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Distance of the kernel's taps.
    pub dilation: Vec<usize>,
}

impl Windows {
    /// The same with one value for each of `axes` axes.
    ///
    /// # Errors
    /// If a list is for another number of axes, or holds what no window can have.
    pub fn over(&self, axes: usize) -> Result<Self, Fault> {
        let each = |field: &str, list: &[usize], least: usize| {
            let field = format!("convolution_param.{field}");
            let list = match list {
                [all] => vec![*all; axes],
                each if each.len() == axes => each.to_vec(),
                other => {
                    let given = other.len();
                    let expected =
                        if axes < 2 { "one value".to_owned() } else { format!("1 or {axes} values") };
                    return Err(Fault::new(
                        &field,
                        format!(
                            "{given} given for a bottom with {axes} axes behind the channels; expected {expected}"
                        ),
                    ));
                }
            };
            check_extents(&field, &list, least)?;
            Ok(list)
        };
        Ok(Self {
            kernel: each("kernel_size", &self.kernel, 1)?,
            pad: each("pad", &self.pad, 0)?,
            stride: each("stride", &self.stride, 1)?,
            dilation: each("dilation", &self.dilation, 1)?,
        })
    }

    /// Taps of the kernel; at most 2⁶⁴ − 1.
    pub fn taps(&self) -> usize {
        self.kernel.iter().fold(1, |taps: usize, extent| taps.saturating_mul(*extent))
    }

    /// Extent of the kernel along an axis, gaps between its taps included.
    fn reach(&self, axis: usize) -> Option<usize> {
        self.kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?.checked_add(1)
    }

    /// How many windows there are along each axis of `extents`, rounded down; `None` if the kernel is larger than the
    /// padded blob. The lists are for as many axes.
    pub fn places(&self, extents: &[usize]) -> Option<Vec<usize>> {
        let along = |(axis, extent): (usize, &usize)| {
            let padded = self.pad[axis].checked_mul(2)?.checked_add(*extent)?;
            Some(padded.checked_sub(self.reach(axis)?)?.checked_div(self.stride[axis])? + 1)
        };
        extents.iter().enumerate().map(along).collect()
    }

    /// What `places` windows cover along each axis but for the padding: the extents of a deconvolution's top. `None` if the
    /// padding leaves nothing of it.
    pub fn covered(&self, places: &[usize]) -> Option<Vec<usize>> {
        let along = |(axis, places): (usize, &usize)| {
            let steps = places.checked_sub(1)?.checked_mul(self.stride[axis])?;
            let covered =
                steps.checked_add(self.reach(axis)?)?.checked_sub(self.pad[axis].checked_mul(2)?)?;
            (covered > 0).then_some(covered)
        };
        places.iter().enumerate().map(along).collect()
    }

    /// That no window fits into `extents`.
    pub(super) fn too_large(&self, extents: &[usize]) -> Fault {
        let [kernel, dilation, extents, pad] =
            [&self.kernel, &self.dilation, extents, &self.pad].map(|list| Shape::new(list).to_string());
        Fault::new(
            "convolution_param.kernel_size",
            format!(
                "a kernel of {kernel} (dilation {dilation}) is larger than its input of {extents} with padding {pad}"
            ),
        )
        .hint("use a smaller kernel or more padding, or check the layers below: the image may have shrunk too far")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(kernel: &[usize], pad: &[usize], stride: &[usize], dilation: &[usize]) -> Windows {
        let [kernel, pad, stride, dilation] = [kernel, pad, stride, dilation].map(<[usize]>::to_vec);
        Windows { kernel, pad, stride, dilation }
    }

    #[test]
    fn one_value_is_for_all_axes_and_several_are_for_one_each() {
        let given = windows(&[3], &[0, 1, 2], &[2], &[1]);
        assert_eq!(given.over(3), Ok(windows(&[3; 3], &[0, 1, 2], &[2; 3], &[1; 3])));
        let fault = given.over(2).expect_err("three are not for two");
        assert_eq!(fault.field, "convolution_param.pad");
        assert!(fault.message.contains("3 given") && fault.message.contains("1 or 2"), "{}", fault.message);
        assert_eq!(windows(&[3], &[0], &[1], &[1]).over(0), Ok(windows(&[], &[], &[], &[])));
        for (field, wrong) in [
            ("kernel_size", windows(&[0], &[0], &[1], &[1])),
            ("stride", windows(&[1], &[0], &[1, 0], &[1])),
            ("dilation", windows(&[1], &[0], &[1], &[0])),
            ("pad", windows(&[1], &[usize::MAX], &[1], &[1])),
        ] {
            assert_eq!(wrong.over(2).map_err(|f| f.field), Err(format!("convolution_param.{field}")));
        }
    }

    #[test]
    fn windows_cover_what_they_are_placed_in_but_for_what_rounding_leaves() {
        let windows = windows(&[3, 2], &[1, 0], &[2, 3], &[1, 2]);
        assert_eq!(windows.places(&[5, 9]), Some(vec![3, 3]));
        assert_eq!(windows.covered(&[3, 3]), Some(vec![5, 9]));
        assert_eq!(windows.places(&[6, 11]), Some(vec![3, 3]));
        assert_eq!(windows.places(&[5, 2]), None);
        let padded = self::windows(&[2], &[1], &[1], &[1]);
        assert_eq!((padded.covered(&[1]), padded.covered(&[2])), (None, Some(vec![1])));
        let most = i32::MAX as usize;
        assert!(self::windows(&[most], &[0], &[most], &[most]).covered(&[most]).is_some());
        assert_eq!(self::windows(&[1], &[0], &[usize::MAX], &[1]).covered(&[3]), None);
    }
}
