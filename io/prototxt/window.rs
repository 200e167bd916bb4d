//! Layers that move a window over images or channels, and the ways to write a window down.

use quadrille_core::layer::{Convolution, Filler, Layer, Lrn, NormRegion, PoolMethod, Pooling};
use quadrille_core::site::Fault;

use super::fields::{filler, finite, unsupported};
use super::layer::{flat_filler, outputs};
use crate::schema::pooling_parameter::{self, RoundMode};
use crate::schema::{ConvolutionParameter, LayerParameter, LrnParameter, PoolingParameter, lrn_parameter};

/// A pair of numbers over height and width, such as a kernel, in all the ways that Caffe lets one write it: once
/// for both (`kernel_size: 3`), once for each (`kernel_size: 5 kernel_size: 3`), or by name (`kernel_h: 5
/// kernel_w: 3`).
struct Pair<'a> {
    /// The message, such as `convolution_param`.
    message: &'a str,
    /// The field that holds one or both, such as `kernel_size`, and what the named ones begin with, such as `kernel`.
    names: [&'a str; 2],
    /// Values of the field.
    listed: &'a [u32],
    /// Values of the named fields.
    named: [Option<u32>; 2],
    /// What it is if nothing is written; `None` if that is an error.
    default: Option<usize>,
    /// Whether one named field may stand alone, the other having the default.
    half: bool,
}

impl Pair<'_> {
    fn read(&self) -> Result<[usize; 2], Fault> {
        let Self { message, names: [field, stem], .. } = self;
        let listed = format!("{message}.{field}");
        match (self.listed, self.named) {
            ([], [None, None]) => match self.default {
                Some(default) => Ok([default; 2]),
                None => Err(Fault::new(&listed, "missing").hint(format!("write {field}: 3, for example"))),
            },
            ([both], [None, None]) => Ok([*both as usize; 2]),
            ([height, width], [None, None]) => Ok([*height as usize, *width as usize]),
            (more, [None, None]) => {
                let what = format!("{} values, for as many axes, are", more.len());
                Err(unsupported(&listed, &what).hint("images have two axes: height and width"))
            }
            ([], [height, width]) => Ok([self.side(height, "h")?, self.side(width, "w")?]),
            (_, [height, _]) => {
                let named = if height.is_some() { "h" } else { "w" };
                Err(Fault::new(&format!("{message}.{stem}_{named}"), format!("conflicts with {field}"))
                    .hint(format!("give either {field}, or {stem}_h and {stem}_w")))
            }
        }
    }

    fn side(&self, value: Option<u32>, name: &str) -> Result<usize, Fault> {
        let Self { message, names: [field, stem], .. } = self;
        match (value, self.default) {
            (Some(value), _) => Ok(value as usize),
            (None, Some(default)) if self.half => Ok(default),
            _ => Err(Fault::new(
                &format!("{message}.{stem}_{name}"),
                format!("missing; {stem}_h and {stem}_w go together"),
            )
            .hint(format!("give both, or {field} for both"))),
        }
    }
}

pub(super) fn convolution(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "convolution_param";
    let Some(param) = &parameter.convolution_param else {
        return Err(Fault::new(message, "missing")
            .hint("write convolution_param { num_output: 20 kernel_size: 5 }, for example"));
    };
    let ConvolutionParameter {
        num_output,
        bias_term: _,
        kernel_size,
        pad,
        stride,
        dilation,
        kernel_h,
        kernel_w,
        pad_h,
        pad_w,
        stride_h,
        stride_w,
        group: _,
        weight_filler,
        bias_filler,
        engine: _,
        axis,
        // Only how Caffe computes it.
        force_nd_im2col: _,
        conv_algorithm: _,
    } = param;
    if axis.is_some_and(|axis| axis != 1) {
        return Err(unsupported("convolution_param.axis", "an axis of channels other than 1 is"));
    }
    let pair =
        |names, listed, named, default, half| Pair { message, names, listed, named, default, half }.read();
    let kernel = pair(["kernel_size", "kernel"], kernel_size, [*kernel_h, *kernel_w], None, false)?;
    let pad = pair(["pad", "pad"], pad, [*pad_h, *pad_w], Some(0), true)?;
    let stride = pair(["stride", "stride"], stride, [*stride_h, *stride_w], Some(1), false)?;
    let dilation = pair(["dilation", "dilation"], dilation, [None, None], Some(1), false)?;
    let weight_filler = filler(weight_filler.as_ref(), "convolution_param.weight_filler")?;
    if weight_filler == Filler::Bilinear && kernel[0] != kernel[1] {
        return Err(Fault::new(
            "convolution_param.weight_filler.type",
            format!("bilinear weights need a square kernel, not {}x{}", kernel[0], kernel[1]),
        ));
    }
    Ok(Layer::Convolution(Convolution {
        num_output: outputs(*num_output, message)?,
        kernel,
        pad,
        stride,
        dilation,
        group: param.group() as usize,
        bias: param.bias_term(),
        relu: false,
        weight_filler,
        bias_filler: flat_filler(bias_filler.as_ref(), "convolution_param.bias_filler")?,
    }))
}

pub(super) fn pooling(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "pooling_param";
    let Some(param) = &parameter.pooling_param else {
        return Err(Fault::new(message, "missing")
            .hint("write pooling_param { pool: MAX kernel_size: 2 stride: 2 }, for example"));
    };
    let PoolingParameter {
        pool: _,
        kernel_size,
        kernel_h,
        kernel_w,
        pad,
        pad_h,
        pad_w,
        stride,
        stride_h,
        stride_w,
        global_pooling: _,
        round_mode: _,
        engine: _,
    } = param;
    let method = match param.pool() {
        pooling_parameter::PoolMethod::Max => PoolMethod::Max,
        pooling_parameter::PoolMethod::Ave => PoolMethod::Average,
        pooling_parameter::PoolMethod::Stochastic => {
            return Err(unsupported("pooling_param.pool", "STOCHASTIC pooling is").hint("use MAX or AVE"));
        }
    };
    if param.round_mode() == RoundMode::Floor {
        return Err(unsupported("pooling_param.round_mode", "rounding sizes down is"));
    }
    let global = param.global_pooling();
    let pair = |names, listed: &Option<u32>, named, default| {
        Pair { message, names, listed: listed.as_slice(), named, default, half: false }.read()
    };
    let kernel = pair(["kernel_size", "kernel"], kernel_size, [*kernel_h, *kernel_w], global.then_some(0))?;
    let pad = pair(["pad", "pad"], pad, [*pad_h, *pad_w], Some(0))?;
    let stride = pair(["stride", "stride"], stride, [*stride_h, *stride_w], Some(1))?;
    if global {
        check_global(kernel_size.or(*kernel_h).or(*kernel_w).is_some(), pad, stride)?;
    }
    let kernel = (!global).then_some(kernel);
    Ok(Layer::Pooling(Pooling { method, kernel, pad, stride }))
}

fn check_global(kernel: bool, pad: [usize; 2], stride: [usize; 2]) -> Result<(), Fault> {
    let fault = |field: &str, text: &str| Err(Fault::new(&format!("pooling_param.{field}"), text));
    if kernel {
        return fault("kernel_size", "conflicts with global_pooling, whose window is the whole image");
    }
    if pad != [0, 0] {
        return fault("pad", "conflicts with global_pooling; expected 0");
    }
    if stride != [1, 1] {
        return fault("stride", "conflicts with global_pooling; expected 1");
    }
    Ok(())
}

pub(super) fn lrn(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.lrn_param.unwrap_or_default();
    let LrnParameter { local_size: _, alpha: _, beta: _, norm_region: _, k: _, engine: _ } = param;
    let number = |value: f32, name: &str| finite(value, &format!("lrn_param.{name}"));
    Ok(Layer::Lrn(Lrn {
        region: match param.norm_region() {
            lrn_parameter::NormRegion::AcrossChannels => NormRegion::AcrossChannels,
            lrn_parameter::NormRegion::WithinChannel => NormRegion::WithinChannel,
        },
        local_size: param.local_size() as usize,
        alpha: number(param.alpha(), "alpha")?,
        beta: number(param.beta(), "beta")?,
        k: number(param.k(), "k")?,
    }))
}
