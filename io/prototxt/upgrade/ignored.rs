//! Fields that say how Caffe or its forks compute, and not what: they change nothing here, and the user is told.

use std::collections::BTreeMap;

use prost_reflect::Value;

use super::Entry;
use crate::schema::NetParameter;

/// Fields of a layer, beside `engine` in the message of its type.
const OF_LAYERS: [&str; 4] = ["engine", "multinode", "mn_activation_param", "mn_grad_compress_param"];
/// Fields in the message of a layer's type.
const OF_TYPES: [&str; 3] = ["engine", "force_nd_im2col", "conv_algorithm"];

/// One line for all such fields that the file has; takes them out of the layers.
pub(super) fn note(net: &NetParameter, layers: &mut [Entry]) -> Option<String> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for layer in layers {
        for path in take(layer) {
            *found.entry(path).or_default() += 1;
        }
    }
    let of_net = [
        ("engine", net.engine.is_some()),
        ("compile_net_state", net.compile_net_state.is_some()),
        ("bn_stats_batch_size", net.bn_stats_batch_size.is_some()),
        ("multinode", net.multinode.is_some()),
    ];
    let of_net = of_net.iter().filter(|(_, given)| *given).map(|(name, _)| (*name).to_owned());
    let of_layers = found.iter().map(|(path, count)| match count {
        1 => format!("{path} (1 layer)"),
        _ => format!("{path} ({count} layers)"),
    });
    let all: Vec<String> = of_net.chain(of_layers).collect();
    (!all.is_empty()).then(|| format!("network fields without effect here: {}", all.join(", ")))
}

/// Paths of the fields in one layer.
fn take(layer: &mut Entry) -> Vec<String> {
    let mut paths = Vec::new();
    for (field, value) in layer.message.fields_mut() {
        let Value::Message(part) = value else { continue };
        for name in OF_TYPES {
            if part.has_field_by_name(name) {
                part.clear_field_by_name(name);
                paths.push(format!("{}.{name}", field.name()));
            }
        }
    }
    for name in OF_LAYERS {
        if layer.message.has_field_by_name(name) {
            layer.message.clear_field_by_name(name);
            paths.push(name.to_owned());
        }
    }
    paths
}
