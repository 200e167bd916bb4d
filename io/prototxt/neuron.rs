//! Layers that work value by value or channel by channel, with few fields of their own.

use prost_reflect::{DynamicMessage, Value};
use quadrille_core::layer::{Bias, Filler, Layer, Mvn, Neuron, Prelu, Reduction, ReductionOperation};
use quadrille_core::site::Fault;

use super::fields::finite;
use super::layer::flat_filler;
use crate::schema::reduction_parameter::ReductionOp;
use crate::schema::{
    BiasParameter, ClipParameter, EluParameter, ExpParameter, LayerParameter, LogParameter, MvnParameter,
    PReLuParameter, PowerParameter, ReductionParameter, SwishParameter, ThresholdParameter,
};

/// The function of a layer of type `kind`, and the messages that it reads; `None` if it is no such type.
pub(super) fn neuron(
    kind: &str,
    message: &DynamicMessage,
    parameter: &LayerParameter,
) -> Option<(&'static [&'static str], Result<Layer, Fault>)> {
    let (own, neuron): (&[&str], _) = match kind {
        "AbsVal" => (&[], Ok(Neuron::AbsVal)),
        "BNLL" => (&[], Ok(Neuron::Bnll)),
        "Clip" => (&["clip_param"], clip(message, parameter)),
        "ELU" => (&["elu_param"], elu(parameter)),
        "Exp" => (&["exp_param"], exp(parameter)),
        "Log" => (&["log_param"], log(parameter)),
        "Power" => (&["power_param"], power(parameter)),
        // Their only field says how Caffe computes them.
        "Sigmoid" => (&["sigmoid_param"], Ok(Neuron::Sigmoid)),
        "TanH" => (&["tanh_param"], Ok(Neuron::TanH)),
        "Swish" => (&["swish_param"], swish(parameter)),
        "Threshold" => (&["threshold_param"], threshold(parameter)),
        _ => return None,
    };
    Some((own, neuron.map(Layer::Neuron)))
}

fn clip(message: &DynamicMessage, parameter: &LayerParameter) -> Result<Neuron, Fault> {
    let given = match message.get_field_by_name("clip_param").as_deref() {
        Some(Value::Message(param)) => ["min", "max"].map(|name| param.has_field_by_name(name)),
        _ => [false; 2],
    };
    for (name, given) in ["min", "max"].into_iter().zip(given) {
        if !given {
            return Err(Fault::new(&format!("clip_param.{name}"), "missing")
                .hint("write clip_param { min: 0 max: 6 }, for example"));
        }
    }
    let ClipParameter { min, max } = parameter.clip_param.unwrap_or_default();
    Ok(Neuron::Clip { min: finite(min, "clip_param.min")?, max: finite(max, "clip_param.max")? })
}

fn elu(parameter: &LayerParameter) -> Result<Neuron, Fault> {
    let param = parameter.elu_param.unwrap_or_default();
    let EluParameter { alpha: _ } = param;
    Ok(Neuron::Elu { alpha: finite(param.alpha(), "elu_param.alpha")? })
}

/// The base of an exponential or a logarithm; −1 is e.
fn base(value: f32, field: &str) -> Result<Option<f32>, Fault> {
    let value = finite(value, field)?;
    if value == -1.0 {
        return Ok(None);
    }
    if value <= 0.0 {
        return Err(Fault::new(field, format!("{value}; expected a number above 0, or -1 for e")));
    }
    Ok(Some(value))
}

fn exp(parameter: &LayerParameter) -> Result<Neuron, Fault> {
    let param = parameter.exp_param.unwrap_or_default();
    let ExpParameter { base: _, scale: _, shift: _ } = param;
    Ok(Neuron::Exp {
        base: base(param.base(), "exp_param.base")?,
        scale: finite(param.scale(), "exp_param.scale")?,
        shift: finite(param.shift(), "exp_param.shift")?,
    })
}

fn log(parameter: &LayerParameter) -> Result<Neuron, Fault> {
    let param = parameter.log_param.unwrap_or_default();
    let LogParameter { base: _, scale: _, shift: _ } = param;
    Ok(Neuron::Log {
        base: base(param.base(), "log_param.base")?,
        scale: finite(param.scale(), "log_param.scale")?,
        shift: finite(param.shift(), "log_param.shift")?,
    })
}

fn power(parameter: &LayerParameter) -> Result<Neuron, Fault> {
    let param = parameter.power_param.unwrap_or_default();
    let PowerParameter { power: _, scale: _, shift: _ } = param;
    Ok(Neuron::Power {
        power: finite(param.power(), "power_param.power")?,
        scale: finite(param.scale(), "power_param.scale")?,
        shift: finite(param.shift(), "power_param.shift")?,
    })
}

fn swish(parameter: &LayerParameter) -> Result<Neuron, Fault> {
    let param = parameter.swish_param.unwrap_or_default();
    let SwishParameter { beta: _ } = param;
    Ok(Neuron::Swish { beta: finite(param.beta(), "swish_param.beta")? })
}

fn threshold(parameter: &LayerParameter) -> Result<Neuron, Fault> {
    let param = parameter.threshold_param.unwrap_or_default();
    let ThresholdParameter { threshold: _ } = param;
    Ok(Neuron::Threshold { threshold: finite(param.threshold(), "threshold_param.threshold")? })
}

pub(super) fn prelu(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.prelu_param.clone().unwrap_or_default();
    let PReLuParameter { filler, channel_shared: _ } = &param;
    Ok(Layer::Prelu(Prelu {
        channel_shared: param.channel_shared(),
        filler: match filler {
            None => Filler::Constant(0.25),
            filler => flat_filler(filler.as_ref(), "prelu_param.filler")?,
        },
    }))
}

pub(super) fn bias(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.bias_param.clone().unwrap_or_default();
    let BiasParameter { axis: _, num_axes: _, filler } = &param;
    Ok(Layer::Bias(Bias {
        bottoms: parameter.bottom.len(),
        axis: param.axis(),
        num_axes: param.num_axes(),
        filler: flat_filler(filler.as_ref(), "bias_param.filler")?,
    }))
}

pub(super) fn mvn(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.mvn_param.unwrap_or_default();
    let MvnParameter { normalize_variance: _, across_channels: _, eps: _ } = param;
    Ok(Layer::Mvn(Mvn {
        normalize_variance: param.normalize_variance(),
        across_channels: param.across_channels(),
        eps: finite(param.eps(), "mvn_param.eps")?,
    }))
}

pub(super) fn reduction(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.reduction_param.unwrap_or_default();
    let ReductionParameter { operation: _, axis: _, coeff: _ } = param;
    Ok(Layer::Reduction(Reduction {
        operation: match param.operation() {
            ReductionOp::Sum => ReductionOperation::Sum,
            ReductionOp::Asum => ReductionOperation::AbsoluteSum,
            ReductionOp::Sumsq => ReductionOperation::SumOfSquares,
            ReductionOp::Mean => ReductionOperation::Mean,
        },
        axis: param.axis(),
        coeff: finite(param.coeff(), "reduction_param.coeff")?,
    }))
}
