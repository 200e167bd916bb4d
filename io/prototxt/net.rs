//! From the message NetParameter to core's [`NetSpec`].

use prost_reflect::{DynamicMessage, Value};
use quadrille_core::layer::{Input, Layer};
use quadrille_core::net::{GivenState, LayerSpec, NetSpec};
use quadrille_core::site::{Fault, Site, SpecError};

use super::fields::{extents, typed, unsupported};
use super::layer;
use super::message::Parsed;
use super::upgrade::{Entry, Upgraded, upgrade};
use crate::schema::NetParameter;

/// More layers than any network has; bounds the memory that a file can take up.
const MAX_LAYERS: usize = 20_000;

pub(super) fn convert(parsed: Parsed) -> Result<NetSpec, SpecError> {
    let Parsed { mut message, site, parts } = parsed;
    let mut layers_of = |field| take_layers(&mut message, field, &parts, &site);
    let (new, old) = (layers_of("layer"), layers_of("layers"));
    let fault_at = |fault: Fault| fault.at(&site, "network");
    let net: NetParameter = typed(&message).map_err(fault_at)?;
    check(&net, new.len() + old.len()).map_err(fault_at)?;
    let Upgraded { layers, mut notes } = upgrade(new, old, &net, &site)?;
    let mut specs = Vec::with_capacity(layers.len() + 1);
    specs.extend(legacy_input(&net, &site).map_err(fault_at)?);
    check_statistics(&net, &layers, &site)?;
    for Entry { message, site } in layers {
        specs.extend(layer::convert(&message, site)?);
    }
    notes.extend(specs.iter().filter_map(undone));
    notes.extend(specs.iter().flat_map(ignored));
    Ok(NetSpec {
        name: net.name.clone().unwrap_or_default(),
        file: site.file.clone(),
        force_backward: net.force_backward(),
        state: state_of(&net),
        layers: specs,
        notes,
    })
}

/// What is said of a layer whose samples cannot be changed as it asks: everything but reading data goes on without.
fn undone(spec: &LayerSpec) -> Option<String> {
    let Layer::Data(data) = &spec.layer else { return None };
    let (field, line, name) = (data.transform.undone.as_ref()?, spec.site.line, &spec.name);
    Some(format!("line {line}: layer {name:?}: {field} is not done yet, so the layer reads no data set"))
}

/// What is said of fields of a layer that say how its samples are changed, and have no effect.
fn ignored(spec: &LayerSpec) -> Vec<String> {
    let Layer::Data(data) = &spec.layer else { return Vec::new() };
    let (line, name) = (spec.site.line, &spec.name);
    let note = |field: &String| format!("line {line}: layer {name:?}: without effect: {field}");
    data.transform.ignored.iter().map(note).collect()
}

/// A number of images over which statistics are taken changes what a BatchNorm computes, and nothing without one.
fn check_statistics(net: &NetParameter, layers: &[Entry], site: &Site) -> Result<(), SpecError> {
    let text = |layer: &Entry, field: &str| match layer.message.get_field_by_name(field).as_deref() {
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    let Some(layer) = layers.iter().find(|layer| text(layer, "type") == "BatchNorm") else { return Ok(()) };
    if net.bn_stats_batch_size() == 0 {
        return Ok(());
    }
    let what = format!("statistics over {} images instead of a mini-batch are", net.bn_stats_batch_size());
    let fault = unsupported("bn_stats_batch_size", &what)
        .hint("remove it; if it is the size of the mini-batch, nothing changes");
    Err(fault.at(site, &format!("layer {:?}", text(layer, "name"))))
}

/// The state that the file is meant for.
fn state_of(net: &NetParameter) -> GivenState {
    let Some(state) = &net.state else { return GivenState::default() };
    let phase = state.phase.map(|_| layer::phase_of(state.phase()));
    GivenState { phase, level: state.level(), stages: state.stage.clone() }
}

/// Takes the layers out, since each becomes a typed message on its own: all at once would be large.
pub(super) fn take_layers(
    message: &mut DynamicMessage,
    field: &str,
    parts: &[(String, Site)],
    site: &Site,
) -> Vec<Entry> {
    let Some(Value::List(list)) = message.get_field_by_name_mut(field) else { return Vec::new() };
    let layers = std::mem::take(list).into_iter().filter_map(|value| match value {
        Value::Message(layer) => Some(layer),
        _ => None,
    });
    let sites = parts.iter().filter(|(name, _)| name == field).map(|(_, site)| site);
    // Two passes found the layers and their lines; were they to differ, no layer may get lost.
    let sites = sites.chain(std::iter::repeat(site));
    layers.zip(sites).map(|(message, site)| Entry { message, site: site.clone() }).collect()
}

/// Looks at every field but the layers; those bound to `_` have no effect on what is computed here.
fn check(net: &NetParameter, layers: usize) -> Result<(), Fault> {
    let NetParameter {
        name: _,
        state: _,
        force_backward: _,
        debug_info: _,
        input: _,
        input_shape: _,
        input_dim: _,
        layers: _,
        layer: _,
        engine: _,
        compile_net_state: _,
        // Looked at where the layers are known.
        bn_stats_batch_size: _,
        multinode: _,
    } = net;
    if layers > MAX_LAYERS {
        return Err(Fault::new("layer", format!("{layers} layers; at most {MAX_LAYERS} are possible")));
    }
    if layers == 0 {
        return Err(Fault::new("layer", "missing; a network has at least one layer"));
    }
    Ok(())
}

/// `input`, `input_shape` and `input_dim` become one layer of type Input before all others, as in Caffe.
fn legacy_input(net: &NetParameter, site: &Site) -> Result<Option<LayerSpec>, Fault> {
    let (names, shapes, dims) = (&net.input, &net.input_shape, &net.input_dim);
    if names.is_empty() {
        let orphan = if dims.is_empty() { "input_shape" } else { "input_dim" };
        return if dims.is_empty() && shapes.is_empty() {
            Ok(None)
        } else {
            Err(Fault::new(orphan, "given without an input")
                .hint("name the blob: input: \"data\" (or write a layer of type \"Input\")"))
        };
    }
    let (field, shapes) = match (shapes.is_empty(), dims.is_empty()) {
        (false, false) => {
            return Err(Fault::new("input_dim", "conflicts with input_shape; give only one of them"));
        }
        (false, true) => {
            ("input_shape", shapes.iter().map(|s| extents(&s.dim, "input_shape")).collect::<Result<_, _>>()?)
        }
        // Whoever fills it knows; without anybody, the layer's meaning says what is missing.
        (true, true) => ("input", Vec::new()),
        (true, false) => ("input_dim", dims_by_four(dims)?),
    };
    if field != "input" && shapes.len() != names.len() && !(field == "input_shape" && shapes.len() == 1) {
        return Err(Fault::new(
            field,
            format!("{} shapes for {} inputs; expected one for each", shapes.len(), names.len()),
        )
        .hint("input_dim takes four numbers for each input: images, channels, height, width"));
    }
    let line = site.line_of("input");
    let lines = [("input_param.shape".to_owned(), site.line_of(field)), ("top".to_owned(), line)];
    let site = Site { file: site.file.clone(), line, fields: lines.into() };
    let tops: Vec<&str> = names.iter().map(String::as_str).collect();
    let layer = Layer::Input(Input { shapes, tops: tops.len() });
    Ok(Some(LayerSpec { site, ..LayerSpec::new("input", layer, &[], &tops) }))
}

fn dims_by_four(dims: &[i32]) -> Result<Vec<Vec<usize>>, Fault> {
    if !dims.len().is_multiple_of(4) {
        return Err(Fault::new("input_dim", format!("{} numbers; expected four for each input", dims.len())));
    }
    let wide: Vec<i64> = dims.iter().map(|d| i64::from(*d)).collect();
    wide.chunks(4).map(|shape| extents(shape, "input_dim")).collect()
}
