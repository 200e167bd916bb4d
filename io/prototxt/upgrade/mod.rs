//! Old network files become today's, message by message, as Caffe's own upgrade has it.
//!
//! Layers have been written in three forms: `layers { layer { type: "conv" } }` (V0), `layers { type: CONVOLUTION }`
//! (V1) and `layer { type: "Convolution" }`. Everything after this module knows the last one only; lines stay those of
//! the file.

mod ignored;
#[cfg(test)]
mod tests;
mod v0;
mod v1;

use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use quadrille_core::site::{Fault, Site, SpecError};

use super::tokens::shortened;
use crate::schema::NetParameter;

/// Today's name of a type of V1, by its number.
pub(crate) fn type_of_v1(number: i32) -> Option<&'static str> {
    v1::TYPES.iter().find(|(kind, _)| *kind as i32 == number).map(|(_, name)| *name)
}

/// Today's name of a type of V0.
pub(crate) fn type_of_v0(kind: &str) -> Option<&'static str> {
    v0::TYPES.iter().find(|(name, _)| *name == kind).and_then(|(_, kind)| type_of_v1(*kind as i32))
}

/// A layer and where it stands.
pub(super) struct Entry {
    pub(super) message: DynamicMessage,
    pub(super) site: Site,
}

/// A network's layers in today's form, and what the user is told about how they got there.
pub(super) struct Upgraded {
    pub(super) layers: Vec<Entry>,
    pub(super) notes: Vec<String>,
}

/// The layers that a file writes as `layer` and as `layers`; it can have only one of them. `net` is the file without
/// them.
pub(super) fn upgrade(
    new: Vec<Entry>,
    old: Vec<Entry>,
    net: &NetParameter,
    site: &Site,
) -> Result<Upgraded, SpecError> {
    if let (Some(first), false) = (new.first(), old.is_empty()) {
        let text = format!("conflicts with layers, on line {}", site.line_of("layers"));
        let fault =
            Fault::new("layer", text).hint("a file has either layer { ... } or the older layers { ... }");
        return Err(SpecError { line: first.site.line, ..fault.at(site, "network") });
    }
    let mut notes = Vec::new();
    let count = old.len();
    let mut layers = new;
    if !old.is_empty() {
        let is_v0 = old.iter().any(|entry| entry.message.has_field_by_name("layer"));
        let (old, form) = if is_v0 { (v0::upgrade(old, &mut notes)?, "V0") } else { (old, "V1") };
        layers = old.into_iter().map(v1::upgrade).collect::<Result<_, _>>()?;
        let text =
            format!("{count} layers of Caffe's old form {form} were upgraded; errors name today's fields");
        notes.insert(0, text);
    }
    for entry in &mut layers {
        notes.extend(clear_statistics(entry));
    }
    notes.extend(ignored::note(net, &mut layers));
    Ok(Upgraded { layers, notes })
}

/// Statistics of a BatchNorm were once shielded from training by three `param`; Caffe forgets these, names included.
fn clear_statistics(entry: &mut Entry) -> Option<String> {
    let message = &mut entry.message;
    let three = message.get_field_by_name("param").is_some_and(|param| items(&param).len() == 3);
    if text_of(message, "type") != "BatchNorm" || !three {
        return None;
    }
    let is_plain = |param: &Value| {
        let param = param.as_message()?;
        let factor = |name| param.get_field_by_name(name).and_then(|value| value.as_f32());
        Some(factor("lr_mult") == Some(0.0) && !param.has_field_by_name("name"))
    };
    let plain = message
        .get_field_by_name("param")
        .is_some_and(|param| items(&param).iter().all(|param| is_plain(param) == Some(true)));
    message.clear_field_by_name("param");
    let subject = subject(&text_of(message, "name"));
    (!plain).then(|| format!("{subject}: its param are ignored, as in Caffe; statistics are not trained"))
}

/// How errors and notes call a layer.
fn subject(name: &str) -> String {
    if name.is_empty() { "layer".to_owned() } else { format!("layer {:?}", shortened(name)) }
}

/// A string of a message; empty if it is not set.
fn text_of(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field);
    value.as_deref().and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The strings of a repeated field.
fn texts_of(message: &DynamicMessage, field: &str) -> Vec<String> {
    let value = message.get_field_by_name(field);
    let list = value.as_deref().map(items).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The values of a repeated field.
fn items(value: &Value) -> &[Value] {
    value.as_list().unwrap_or_default()
}

/// Sets the field at a dotted path, making the messages on the way; one value of a repeated field becomes its list.
fn put(message: &mut DynamicMessage, path: &str, value: Value) {
    let Some((outer, inner)) = path.split_once('.') else {
        let is_list = message.descriptor().get_field_by_name(path).is_some_and(|field| field.is_list());
        let value = if is_list && value.as_list().is_none() { Value::List(vec![value]) } else { value };
        message.set_field_by_name(path, value);
        return;
    };
    if let Some(Value::Message(part)) = message.get_field_by_name_mut(outer) {
        put(part, inner, value);
    }
}

/// The lines of fields that moved from the first path of each pair to the second, with all below them.
fn moved(site: &Site, moves: &[(&str, &str)]) -> Vec<(String, u32)> {
    let mut lines = Vec::new();
    for (old, new) in moves {
        for (path, line) in site.fields.iter() {
            match path.strip_prefix(old) {
                Some(rest) if rest.is_empty() || rest.starts_with('.') => {
                    lines.push((format!("{new}{rest}"), *line));
                }
                _ => {}
            }
        }
    }
    lines
}
