//! Trained weights: where a run takes them from, and how it gives them to Caffe.

use std::path::{Path, PathBuf};

use quadrille_core::net::{LayerId, Net};
use quadrille_io::weights::{self, Placed};
use quadrille_io::{LayerWeights, NetWeights};

use crate::failure::{Code, Failure};

/// Reads trained weights, file after file, by the names of layers: `.caffemodel`, `.safetensors`, `.npz` or a snapshot
/// of ours. Parameters that no file has keep what is in `packed`. `net` is as the file has it, with no layers
/// fused.
///
/// # Errors
/// If a file is damaged, or a layer has another shape, or a file has no layer of the network.
pub fn read_weights(paths: &[PathBuf], net: &Net, packed: &mut [f32]) -> Result<Placed, Failure> {
    let mut placed = Placed::default();
    for path in paths {
        let file = weights::read(path)?;
        weights::place(&file, net, packed, &mut placed)
            .map_err(|message| Failure::new(Code::Data, format!("{}: {message}", path.display())))?;
    }
    Ok(placed)
}

/// The lines that say what weights a run starts from.
pub fn start_lines(paths: &[PathBuf], net: &Net, placed: &Placed) -> Vec<String> {
    let mut lines = vec![format!("start       weights of {}", listed(paths))];
    let missing = placed.missing(net);
    if !missing.is_empty() {
        lines.push(format!("            not in the file, so filled anew: {}", missing.join(" ")));
    }
    if !placed.ignored.is_empty() {
        lines.push(format!("            not in the network, so ignored: {}", placed.ignored.join(" ")));
    }
    lines
}

/// The files of `--weights`, as they were given.
pub fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(",")
}

/// Writes the weights as a `.caffemodel`, for Caffe's own tools.
pub fn write_caffemodel(path: &Path, net: &Net, packed: &[f32]) -> Result<(), Failure> {
    let layers = net.layers.iter().enumerate().filter(|(_, l)| !l.params.is_empty()).map(|(index, layer)| {
        // A shared parameter can have another shape in each of its layers.
        let shapes = net.param_shapes(LayerId(index));
        let values = layer.params.iter().map(|p| packed[net.params.view(*p).range()].to_vec());
        LayerWeights {
            name: layer.name.clone(),
            kind: layer.layer.type_name().to_owned(),
            blobs: shapes.iter().map(|shape| shape.dims().to_vec()).zip(values).map(Some).collect(),
        }
    });
    Ok(NetWeights { name: net.name.clone(), layers: layers.collect() }.write(path)?)
}
