//! Maximum or average over windows, with Caffe's rules for borders.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask, check_extents};
use crate::shape::Shape;
use crate::site::Fault;

/// What is taken of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMethod {
    /// The maximum; padding is ignored and the first of equal values wins.
    Max,
    /// The average over the window cut at extent + pad, so that padding counts.
    Average,
}

/// Pooling of (N, C, H, W). Output size is rounded up; the last window of an axis is dropped only when there is
/// padding (on either axis) and the window would start behind the input and its padding in front.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooling {
    /// What is taken of a window.
    pub method: PoolMethod,
    /// Height and width of the window; `None` for the whole image (global pooling).
    pub kernel: Option<[usize; 2]>,
    /// Rows and columns of padding on each side.
    pub pad: [usize; 2],
    /// Step of the window.
    pub stride: [usize; 2],
}

/// The rows (or columns) of the input under one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First row inside the input.
    pub start: usize,
    /// One past the last row inside the input.
    pub end: usize,
    /// Rows that count for the average: the window cut at extent + pad, padding included.
    pub counted: usize,
}

impl Pooling {
    /// The window's height and width over an input of `input` rows and columns.
    pub fn kernel_over(&self, input: [usize; 2]) -> [usize; 2] {
        self.kernel.unwrap_or(input)
    }

    /// Height and width of the output, `ceil((input + 2·pad − kernel) / stride) + 1` in signed numbers as in Caffe:
    /// a window larger than the padded input makes one output if it is larger by less than a stride. `None` if
    /// nothing would come out, or a kernel or stride is 0.
    pub fn output(&self, input: [usize; 2]) -> Option<[usize; 2]> {
        let kernel = self.kernel_over(input);
        if kernel.contains(&0) || self.stride.contains(&0) {
            return None;
        }
        let mut out = [0; 2];
        for a in 0..2 {
            let padded = self.pad[a].checked_mul(2)?.checked_add(input[a])?;
            let steps = match padded.checked_sub(kernel[a]) {
                Some(room) => room.div_ceil(self.stride[a]),
                // The quotient lies between −1 and 0, which rounds up to 0.
                None if kernel[a] - padded < self.stride[a] => 0,
                None => return None,
            };
            let starts = steps.checked_mul(self.stride[a])?;
            // Caffe looks at both axes as soon as one of them is padded.
            let dropped = self.pad != [0; 2] && starts >= input[a] + self.pad[a];
            out[a] = steps + 1 - usize::from(dropped);
        }
        Some(out)
    }

    fn padded(&self, axis: usize, extent: usize) -> usize {
        self.pad[axis].saturating_mul(2).saturating_add(extent)
    }

    fn check_fields(&self, kernel: [usize; 2]) -> Result<(), Fault> {
        check_extents("pooling_param.kernel_size", &kernel, 1)?;
        check_extents("pooling_param.stride", &self.stride, 1)?;
        check_extents("pooling_param.pad", &self.pad, 0)?;
        if self.kernel.is_none() && (self.pad != [0; 2] || self.stride != [1; 2]) {
            let field = if self.pad == [0; 2] { "pooling_param.stride" } else { "pooling_param.pad" };
            return Err(Fault::new(
                field,
                "global pooling has one window; expected a pad of 0 and a stride of 1",
            ));
        }
        if self.pad[0] >= kernel[0] || self.pad[1] >= kernel[1] {
            return Err(Fault::new(
                "pooling_param.pad",
                format!(
                    "{}x{} is not smaller than the window of {}x{}",
                    self.pad[0], self.pad[1], kernel[0], kernel[1]
                ),
            )
            .hint("use less padding: a window must see a part of the image"));
        }
        Ok(())
    }

    /// What lies under window `at` along `axis` (0 rows, 1 columns) of an input of `extent`.
    pub fn window(&self, axis: usize, at: usize, kernel: usize, extent: usize) -> Window {
        let (pad, first) = (self.pad[axis], at.saturating_mul(self.stride[axis]));
        // In padded coordinates: the window is cut at extent + pad, as Caffe does.
        let last = first.saturating_add(kernel).min(self.padded(axis, extent));
        Window {
            start: first.saturating_sub(pad).min(extent),
            end: last.saturating_sub(pad).min(extent),
            counted: last.saturating_sub(first),
        }
    }
}

impl Meaning for Pooling {
    fn arity(&self) -> Arity {
        Arity { bottoms: 1..=1, tops: 1..=1 }
    }

    fn infer(&self, bottoms: &[Shape]) -> Result<Inferred, Fault> {
        let &[n, c, h, w] = bottoms[0].dims() else {
            return Err(Fault::new(
                "bottom",
                format!("has shape {}; expected four axes (images, channels, height, width)", bottoms[0]),
            ));
        };
        let field = "pooling_param.kernel_size";
        let [kh, kw] = self.kernel_over([h, w]);
        self.check_fields([kh, kw])?;
        let Some([oh, ow]) = self.output([h, w]) else {
            return Err(Fault::new(
                field,
                format!(
                    "a window of {kh}x{kw} is larger than its input of {h}x{w} with padding {}x{}",
                    self.pad[0], self.pad[1]
                ),
            )
            .hint("use a smaller window, or global_pooling: true for all of the image; or check the layers below"));
        };
        for (a, (out, extent)) in [(oh, h), (ow, w)].into_iter().enumerate() {
            if (out - 1) * self.stride[a] >= extent + self.pad[a] {
                return Err(Fault::new(
                    "pooling_param.stride",
                    format!("the last window starts beyond the input of {h}x{w} (Caffe writes outside memory here)"),
                )
                .hint("use a stride no larger than the window"));
            }
        }
        if self.method == PoolMethod::Max && h * w > 1 << 24 {
            // Positions of maxima are kept as floats, exact up to here.
            return Err(Fault::new(
                "bottom",
                format!("planes of {h}x{w}; MAX pooling is possible up to 2^24 pixels"),
            ));
        }
        let top = Shape::checked(&[n, c, oh, ow], field)?;
        let aux = if self.method == PoolMethod::Max { vec![top.clone()] } else { Vec::new() };
        Ok(Inferred { tops: vec![top], params: Vec::new(), aux })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        use Operand::{Aux, Bottom, BottomGrad, Top, TopGrad};
        let max = self.method == PoolMethod::Max;
        match sub {
            SubTask::Forward if max => Some(Accesses::new([Bottom(0)], [Top(0), Aux(0)])),
            SubTask::Forward => Some(Accesses::new([Bottom(0)], [Top(0)])),
            SubTask::GradActivation if max => Some(Accesses::new([TopGrad(0), Aux(0)], [BottomGrad(0)])),
            SubTask::GradActivation => Some(Accesses::new([TopGrad(0)], [BottomGrad(0)])),
            _ => None,
        }
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], tops: &[Shape]) -> u64 {
        let input = [bottoms[0].dim(2), bottoms[0].dim(3)];
        let kernel = self.kernel_over(input);
        let taps = |axis: usize| kernel[axis].min(self.padded(axis, input[axis])) as u64;
        let outputs = tops[0].count() as u64;
        let all = outputs.saturating_mul(taps(0)).saturating_mul(taps(1));
        match sub {
            SubTask::Forward => all,
            SubTask::GradActivation if self.method == PoolMethod::Max => outputs,
            SubTask::GradActivation => all,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooling(kernel: usize, stride: usize, pad: usize) -> Pooling {
        Pooling { method: PoolMethod::Average, kernel: Some([kernel; 2]), pad: [pad; 2], stride: [stride; 2] }
    }

    #[test]
    fn output_is_rounded_up_and_a_window_in_the_padding_is_dropped() {
        assert_eq!(pooling(3, 2, 0).output([32, 32]), Some([16, 16]));
        assert_eq!(pooling(2, 2, 1).output([4, 4]), Some([3, 3]));
        assert_eq!(pooling(2, 2, 1).output([5, 5]), Some([3, 3]));
        assert_eq!(pooling(5, 1, 0).output([4, 4]), None);
    }

    #[test]
    fn a_window_outside_the_input_is_refused() {
        // 1-wide windows every 4 over 6: rounding up makes a window at 8.
        let fault = pooling(1, 4, 0).infer(&[Shape::new([1, 1, 6, 6])]);
        assert_eq!(fault.map_err(|f| f.field), Err("pooling_param.stride".to_owned()));
    }

    #[test]
    fn a_window_larger_than_its_input_makes_one_output_if_by_less_than_a_stride() {
        assert_eq!(pooling(2, 2, 0).output([1, 1]), Some([1, 1]));
        assert_eq!(pooling(5, 2, 0).output([4, 4]), Some([1, 1]));
        assert_eq!(pooling(6, 2, 0).output([4, 4]), None);
        assert_eq!(pooling(3, 2, 1).output([1, 1]), Some([1, 1]));
        // The average is over what is there, not over the window.
        assert_eq!(pooling(2, 2, 0).window(0, 0, 2, 1), Window { start: 0, end: 1, counted: 1 });
        let fault = pooling(6, 2, 0).infer(&[Shape::new([1, 1, 4, 4])]).expect_err("6 does not go into 4");
        assert_eq!(fault.field, "pooling_param.kernel_size");
        assert!(fault.message.contains("larger than its input of 4x4"), "{}", fault.message);
    }

    #[test]
    fn padding_on_one_axis_drops_windows_on_both() {
        // Columns 0, 4 and 8 over 6: the last would be refused without the padding of the rows.
        let pool = Pooling { kernel: Some([3, 1]), pad: [1, 0], stride: [1, 4], ..pooling(1, 1, 0) };
        assert_eq!(pool.output([6, 6]), Some([6, 2]));
        assert!(pool.infer(&[Shape::new([1, 1, 6, 6])]).is_ok());
    }

    #[test]
    fn absurd_extents_are_refused() {
        let input = [Shape::new([1, 1, 4, 4])];
        for absurd in [0, u32::MAX as usize, usize::MAX] {
            for (field, pool) in [
                ("kernel_size", pooling(absurd, 1, 0)),
                ("stride", pooling(2, absurd, 0)),
                ("pad", pooling(2, 1, absurd)),
            ] {
                if absurd > 0 || field != "pad" {
                    let refused = pool.infer(&input).map_err(|fault| fault.field);
                    assert_eq!(refused, Err(format!("pooling_param.{field}")), "{absurd}");
                }
                // Whatever they answer, they must not panic.
                pool.output([4, 4]);
                pool.window(0, 3, absurd, 4);
                pool.flops(SubTask::Forward, &input, &input);
            }
        }
        assert_eq!(pooling(0, 1, 0).output([4, 4]), None);
        assert_eq!(pooling(1, 0, 0).output([4, 4]), None);
        let most = i32::MAX as usize;
        assert_eq!(pooling(most, most, 0).output([4, 4]), Some([1, 1]));
        assert_eq!(pooling(most, most, 0).flops(SubTask::Forward, &input, &[Shape::new([1; 4])]), 16);
    }

    #[test]
    fn global_pooling_has_neither_padding_nor_stride() {
        let global = |pad, stride| Pooling { kernel: None, ..pooling(1, stride, pad) };
        let infer = |pool: Pooling| pool.infer(&[Shape::new([2, 3, 4, 5])]).map_err(|fault| fault.field);
        assert_eq!(infer(global(0, 1)).map(|i| i.tops), Ok(vec![Shape::new([2, 3, 1, 1])]));
        assert_eq!(infer(global(1, 1)), Err("pooling_param.pad".to_owned()));
        assert_eq!(infer(global(0, 2)), Err("pooling_param.stride".to_owned()));
    }

    #[test]
    fn padding_counts_for_the_average_but_only_inside_extent_plus_pad() {
        let pool = pooling(3, 2, 1);
        assert_eq!(pool.window(0, 0, 3, 6), Window { start: 0, end: 2, counted: 3 });
        assert_eq!(pool.window(0, 3, 3, 6), Window { start: 5, end: 6, counted: 2 });
    }
}
