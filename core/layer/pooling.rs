//! Maximum or average over windows, with Caffe's rules for borders.

use super::{Accesses, Arity, Inferred, Meaning, Operand, SubTask};
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

/// Pooling of (N, C, H, W). Output size is rounded up; the last window is dropped only when there is padding and
/// the window would start beyond the padded input.
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

    /// Height and width of the output; `None` if a window is larger than the padded input.
    pub fn output(&self, input: [usize; 2]) -> Option<[usize; 2]> {
        let kernel = self.kernel_over(input);
        let mut out = [0; 2];
        for a in 0..2 {
            let padded = self.pad[a].checked_mul(2)?.checked_add(input[a])?;
            out[a] = padded.checked_sub(kernel[a])?.div_ceil(self.stride[a]) + 1;
            if self.pad[a] > 0 && (out[a] - 1) * self.stride[a] >= input[a] + self.pad[a] {
                out[a] -= 1;
            }
        }
        Some(out)
    }

    /// What lies under window `at` along `axis` (0 rows, 1 columns) of an input of `extent`.
    pub fn window(&self, axis: usize, at: usize, kernel: usize, extent: usize) -> Window {
        let (pad, first) = (self.pad[axis], at * self.stride[axis]);
        // In padded coordinates: the window is cut at extent + pad, as Caffe does.
        let last = (first + kernel).min(extent + 2 * pad);
        Window {
            start: first.saturating_sub(pad).min(extent),
            end: last.saturating_sub(pad).min(extent),
            counted: last - first,
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
        if kh == 0 || kw == 0 {
            return Err(Fault::new(field, "0; expected at least 1"));
        }
        if self.stride.contains(&0) {
            return Err(Fault::new("pooling_param.stride", "0; expected at least 1"));
        }
        if self.pad[0] >= kh || self.pad[1] >= kw {
            return Err(Fault::new(
                "pooling_param.pad",
                format!("{}x{} is not smaller than the window of {kh}x{kw}", self.pad[0], self.pad[1]),
            ));
        }
        let Some([oh, ow]) = self.output([h, w]) else {
            return Err(Fault::new(
                field,
                format!(
                    "a window of {kh}x{kw} is larger than its input of {h}x{w} with padding {}x{}",
                    self.pad[0], self.pad[1]
                ),
            ));
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
        let [kh, kw] = self.kernel_over([bottoms[0].dim(2), bottoms[0].dim(3)]);
        match sub {
            SubTask::Forward => (tops[0].count() * kh * kw) as u64,
            SubTask::GradActivation if self.method == PoolMethod::Max => tops[0].count() as u64,
            SubTask::GradActivation => (tops[0].count() * kh * kw) as u64,
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
    fn padding_counts_for_the_average_but_only_inside_extent_plus_pad() {
        let pool = pooling(3, 2, 1);
        assert_eq!(pool.window(0, 0, 3, 6), Window { start: 0, end: 2, counted: 3 });
        assert_eq!(pool.window(0, 3, 3, 6), Window { start: 5, end: 6, counted: 2 });
    }
}
