//! Layers of windows over any number of axes: Convolution, Deconvolution, Im2col.

use quadrille_core::layer::{ConvolutionNd, Filler, Im2col, Layer, Windows};
use quadrille_core::site::Fault;

use super::fields::filler;
use super::layer::{flat_filler, outputs};
use super::window::Along;
use crate::schema::{ConvolutionParameter, LayerParameter};

const MESSAGE: &str = "convolution_param";

fn param(parameter: &LayerParameter) -> Result<&ConvolutionParameter, Fault> {
    parameter.convolution_param.as_ref().ok_or_else(|| {
        Fault::new(MESSAGE, "missing")
            .hint("write convolution_param { num_output: 20 kernel_size: 5 }, for example")
    })
}

fn windows(param: &ConvolutionParameter) -> Result<Windows, Fault> {
    let ConvolutionParameter {
        num_output: _,
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
        weight_filler: _,
        bias_filler: _,
        // Only how Caffe computes it.
        engine: _,
        axis: _,
        force_nd_im2col: _,
        conv_algorithm: _,
    } = param;
    let along = |names, listed, named, default, half| {
        Along { message: MESSAGE, names, listed, named, default, half }.read()
    };
    Ok(Windows {
        kernel: along(["kernel_size", "kernel"], kernel_size, [*kernel_h, *kernel_w], None, false)?,
        pad: along(["pad", "pad"], pad, [*pad_h, *pad_w], Some(0), true)?,
        stride: along(["stride", "stride"], stride, [*stride_h, *stride_w], Some(1), false)?,
        dilation: along(["dilation", "dilation"], dilation, [None, None], Some(1), false)?,
    })
}

/// A convolution, or its transpose. Building the net makes convolutions of images their own kind of layer.
pub(super) fn convolution(parameter: &LayerParameter, transposed: bool) -> Result<Layer, Fault> {
    let param = param(parameter)?;
    let windows = windows(param)?;
    let weight_filler = filler(param.weight_filler.as_ref(), "convolution_param.weight_filler")?;
    let kernel = &windows.kernel;
    if weight_filler == Filler::Bilinear && kernel.iter().any(|extent| *extent != kernel[0]) {
        let kernel = kernel.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        return Err(Fault::new(
            "convolution_param.weight_filler.type",
            format!("bilinear weights need a square kernel, not {kernel}"),
        ));
    }
    Ok(Layer::ConvolutionNd(ConvolutionNd {
        transposed,
        num_output: outputs(param.num_output, MESSAGE)?,
        windows,
        axis: param.axis(),
        group: param.group() as usize,
        bias: param.bias_term(),
        weight_filler,
        bias_filler: flat_filler(param.bias_filler.as_ref(), "convolution_param.bias_filler")?,
    }))
}

/// Only windows and axis matter, as in Caffe.
pub(super) fn im2col(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = param(parameter)?;
    Ok(Layer::Im2col(Im2col { windows: windows(param)?, axis: param.axis() }))
}
