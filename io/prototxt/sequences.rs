//! Layers for sequences: Embed, RNN, LSTM; and what stands for data: Parameter, DummyData.

use quadrille_core::layer::{Cell, DummyData, Embed, Layer, Parameter, Recurrent};
use quadrille_core::site::Fault;

use super::fields::{extents, filler};
use super::layer::{flat_filler, outputs};
use crate::schema::{
    DummyDataParameter, EmbedParameter, LayerParameter, ParameterParameter, RecurrentParameter,
};

pub(super) fn embed(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "embed_param";
    let Some(param) = &parameter.embed_param else {
        return Err(Fault::new(message, "missing")
            .hint("write embed_param { input_dim: 1000 num_output: 64 }, for example"));
    };
    let EmbedParameter { num_output, input_dim, bias_term: _, weight_filler, bias_filler } = param;
    let input_dim = input_dim.ok_or_else(|| {
        Fault::new("embed_param.input_dim", "missing").hint("say how many indices there are")
    })?;
    Ok(Layer::Embed(Embed {
        num_output: outputs(*num_output, message)?,
        input_dim: input_dim as usize,
        bias: param.bias_term(),
        weight_filler: flat_filler(weight_filler.as_ref(), "embed_param.weight_filler")?,
        bias_filler: flat_filler(bias_filler.as_ref(), "embed_param.bias_filler")?,
    }))
}

pub(super) fn recurrent(parameter: &LayerParameter, cell: Cell) -> Result<Layer, Fault> {
    let param = parameter.recurrent_param.clone().unwrap_or_default();
    let RecurrentParameter {
        num_output: _,
        weight_filler,
        bias_filler,
        // Only what Caffe prints.
        debug_info: _,
        expose_hidden: _,
    } = &param;
    Ok(Layer::Recurrent(Recurrent {
        cell,
        num_output: param.num_output() as usize,
        expose_hidden: param.expose_hidden(),
        bottoms: parameter.bottom.len(),
        weight_filler: flat_filler(weight_filler.as_ref(), "recurrent_param.weight_filler")?,
        bias_filler: flat_filler(bias_filler.as_ref(), "recurrent_param.bias_filler")?,
    }))
}

pub(super) fn parameter(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let ParameterParameter { shape } = parameter.parameter_param.clone().unwrap_or_default();
    let field = "parameter_param.shape";
    let shape = shape.ok_or_else(|| {
        Fault::new(field, "missing").hint("write parameter_param { shape { dim: 10 } }, for example")
    })?;
    Ok(Layer::Parameter(Parameter { shape: extents(&shape.dim, field)? }))
}

pub(super) fn dummy_data(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.dummy_data_param.clone().unwrap_or_default();
    let tops = parameter.top.len();
    let fillers = param.data_filler.iter().map(|f| filler(Some(f), "dummy_data_param.data_filler"));
    Ok(Layer::DummyData(DummyData {
        shapes: shapes(&param, tops)?,
        fillers: fillers.collect::<Result<_, _>>()?,
        tops,
    }))
}

/// Shapes of dummy data, in the new way or by four numbers each.
fn shapes(param: &DummyDataParameter, tops: usize) -> Result<Vec<Vec<usize>>, Fault> {
    let DummyDataParameter { data_filler: _, shape, num, channels, height, width } = param;
    let old = [("num", num), ("channels", channels), ("height", height), ("width", width)];
    let given = old.iter().find(|(_, values)| !values.is_empty());
    let field = |name: &str| format!("dummy_data_param.{name}");
    let Some((name, _)) = given else {
        if shape.is_empty() {
            let fault = Fault::new(&field("shape"), "missing");
            return Err(fault.hint("write dummy_data_param { shape { dim: 1 dim: 10 } }, for example"));
        }
        return shape.iter().map(|shape| extents(&shape.dim, &field("shape"))).collect();
    };
    if !shape.is_empty() {
        return Err(Fault::new(&field(name), "conflicts with shape; give only one of them"));
    }
    for (name, values) in old {
        if values.len() != 1 && values.len() != tops {
            let message = format!("{} given for {tops} tops; expected one for all or one each", values.len());
            return Err(Fault::new(&field(name), message).hint("num, channels, height and width go together"));
        }
    }
    let of = |top: usize| old.map(|(_, values)| values[top.min(values.len() - 1)] as usize).to_vec();
    Ok((0..tops).map(of).collect())
}
