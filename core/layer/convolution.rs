//! Convolution over images: `Y[n,o,y,x] = b[o] + Σ W[o,i,p,q] · X[n, i, y·s + p·d − pad, x·s + q·d − pad]`.

use super::{Accesses, Arity, Filler, Inferred, Meaning, Operand, ParamShape, SubTask, check_extents};
use crate::shape::Shape;
use crate::site::Fault;

/// Convolution of (N, C, H, W) with kernels (O, C/group, KH, KW); output size is rounded down.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// Output channels.
    pub num_output: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Rows and columns of zeros on each side.
    pub pad: [usize; 2],
    /// Step of the window.
    pub stride: [usize; 2],
    /// Distance of the kernel's taps.
    pub dilation: [usize; 2],
    /// Input and output channels are cut into this many groups that do not see each other.
    pub group: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether forward ends with a ReLU; its backward is a layer of its own ([`super::Relu::applied`]), or that of what reads it
    /// ([`crate::net::Net::rectifying`]). No file says so.
    pub relu: bool,
    /// How the weight starts.
    pub weight_filler: Filler,
    /// How the bias starts.
    pub bias_filler: Filler,
}

impl Convolution {
    /// Height and width of the output for an input of `input` rows and columns; `None` if the kernel is larger than
    /// the padded input, or a kernel or stride is 0.
    pub fn output(&self, input: [usize; 2]) -> Option<[usize; 2]> {
        let mut out = [0; 2];
        for a in 0..2 {
            let extent = self.kernel[a].checked_sub(1)?.checked_mul(self.dilation[a])?.checked_add(1)?;
            let padded = self.pad[a].checked_mul(2)?.checked_add(input[a])?;
            out[a] = padded.checked_sub(extent)?.checked_div(self.stride[a])? + 1;
        }
        Some(out)
    }

    fn check_fields(&self, channels: usize) -> Result<(), Fault> {
        if self.num_output == 0 {
            return Err(Fault::new("convolution_param.num_output", "0; expected at least 1 output channel"));
        }
        check_extents("convolution_param.kernel_size", &self.kernel, 1)?;
        check_extents("convolution_param.stride", &self.stride, 1)?;
        check_extents("convolution_param.dilation", &self.dilation, 1)?;
        check_extents("convolution_param.pad", &self.pad, 0)?;
        let group = self.group;
        if group == 0 || !channels.is_multiple_of(group) || !self.num_output.is_multiple_of(group) {
            return Err(Fault::new(
                "convolution_param.group",
                format!(
                    "{group} does not divide the {channels} input channels and the {} output channels",
                    self.num_output
                ),
            )
            .hint("each group takes as many input channels and makes as many outputs as any other"));
        }
        Ok(())
    }
}

impl Meaning for Convolution {
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
        self.check_fields(c)?;
        let Some([oh, ow]) = self.output([h, w]) else {
            return Err(Fault::new(
                "convolution_param.kernel_size",
                format!(
                    "a kernel of {}x{} (dilation {}x{}) is larger than its input of {h}x{w} with padding {}x{}",
                    self.kernel[0],
                    self.kernel[1],
                    self.dilation[0],
                    self.dilation[1],
                    self.pad[0],
                    self.pad[1]
                ),
            )
            .hint("use a smaller kernel or more padding, or check the layers below: the image may have shrunk too far"));
        };
        let field = "convolution_param.num_output";
        let weight =
            Shape::checked(&[self.num_output, c / self.group, self.kernel[0], self.kernel[1]], field)?;
        let mut params = vec![ParamShape { shape: weight, filler: self.weight_filler.clone() }];
        if self.bias {
            params
                .push(ParamShape { shape: Shape::new([self.num_output]), filler: self.bias_filler.clone() });
        }
        Ok(Inferred {
            tops: vec![Shape::checked(&[n, self.num_output, oh, ow], field)?],
            params,
            aux: Vec::new(),
        })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        weighted_accesses(sub, self.bias)
    }

    fn flops(&self, sub: SubTask, bottoms: &[Shape], tops: &[Shape]) -> u64 {
        let outputs = tops[0].count() as u64;
        let channels = (bottoms[0].dim(1) / self.group.max(1)) as u64;
        let [kh, kw] = self.kernel.map(|k| k as u64);
        let products = outputs.saturating_mul(channels).saturating_mul(kh).saturating_mul(kw);
        let twice = products.saturating_mul(2);
        match sub {
            SubTask::Forward => twice.saturating_add(if self.bias { outputs } else { 0 }),
            SubTask::GradActivation | SubTask::GradWeight => twice,
            SubTask::GradBias if self.bias => outputs,
            _ => 0,
        }
    }
}

/// What a layer with a weight and perhaps a bias reads and writes; shared with InnerProduct.
pub(super) fn weighted_accesses(sub: SubTask, bias: bool) -> Option<Accesses> {
    use Operand::{Bottom, BottomGrad, Param, ParamGrad, Top, TopGrad};
    match sub {
        SubTask::Forward if bias => Some(Accesses::new([Bottom(0), Param(0), Param(1)], [Top(0)])),
        SubTask::Forward => Some(Accesses::new([Bottom(0), Param(0)], [Top(0)])),
        SubTask::GradActivation => Some(Accesses::new([TopGrad(0), Param(0)], [BottomGrad(0)])),
        SubTask::GradWeight => Some(Accesses::new([TopGrad(0), Bottom(0)], [ParamGrad(0)])),
        SubTask::GradBias if bias => Some(Accesses::new([TopGrad(0)], [ParamGrad(1)])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convolution() -> Convolution {
        Convolution {
            num_output: 1,
            kernel: [3; 2],
            pad: [0; 2],
            stride: [1; 2],
            dilation: [1; 2],
            group: 1,
            bias: true,
            relu: false,
            weight_filler: Filler::default(),
            bias_filler: Filler::default(),
        }
    }

    #[test]
    fn absurd_extents_are_refused() {
        let input = [Shape::new([1, 1, 4, 4])];
        for absurd in [0, u32::MAX as usize, usize::MAX] {
            for (field, layer) in [
                ("kernel_size", Convolution { kernel: [1, absurd], ..convolution() }),
                ("stride", Convolution { stride: [absurd, 1], ..convolution() }),
                ("dilation", Convolution { dilation: [absurd, 1], ..convolution() }),
                ("pad", Convolution { pad: [1, absurd], ..convolution() }),
            ] {
                let refused = layer.infer(&input).map_err(|fault| fault.field);
                if absurd > 0 || field != "pad" {
                    assert_eq!(refused, Err(format!("convolution_param.{field}")), "{absurd}");
                }
                // Whatever they answer, they must not panic.
                layer.output([4, 4]);
                layer.flops(SubTask::Forward, &input, &input);
            }
        }
        assert_eq!(Convolution { kernel: [0, 1], ..convolution() }.output([4, 4]), None);
        assert_eq!(Convolution { stride: [1, 0], ..convolution() }.output([4, 4]), None);
        let most = i32::MAX as usize;
        let layer = Convolution { kernel: [most; 2], dilation: [most; 2], pad: [most; 2], ..convolution() };
        assert!(layer.infer(&input).is_err());
    }

    #[test]
    fn a_kernel_larger_than_its_input_is_refused_whatever_the_stride() {
        for stride in [1, 2, 9] {
            let layer = Convolution { kernel: [5; 2], stride: [stride; 2], ..convolution() };
            let fault = layer.infer(&[Shape::new([1, 1, 4, 4])]).expect_err("5 does not go into 4");
            assert_eq!(fault.field, "convolution_param.kernel_size");
            assert!(fault.message.contains("larger than its input of 4x4"), "{}", fault.message);
        }
    }
}
